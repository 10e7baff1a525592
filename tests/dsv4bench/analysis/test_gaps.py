"""Launch gaps: reckoned by hand, as laws over any records, and on a profile of an H200."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.analysis.gaps import Record, gaps_of, typical_gaps
from dsv4bench.errors import MeasurementError

RECORDED = Path(__file__).parents[2] / "data" / "profiles" / "h200_cupti.json"
NS = 1e-9


def records(*spans, stream=0):
    return [Record(f"k{number}", start, end - start, stream) for number, (start, end) in enumerate(spans)]


def test_idle_is_what_no_kernel_covers_on_any_stream():
    main = [Record("a", 0, 20), Record("b", 30, 10), Record("c", 75, 5)]
    side = [Record("d", 10, 15, 1), Record("e", 35, 25, 1)]
    found = gaps_of([*side, *main])
    assert found.launches == 5
    assert (found.span, found.busy, found.idle) == pytest.approx((80 * NS, 60 * NS, 20 * NS))
    assert (found.largest, found.after) == (pytest.approx(15 * NS), "e"), "e ends last before the gap, not b"
    assert found.streams == pytest.approx([35 * NS, 40 * NS])


def test_kernels_without_a_gap_leave_nothing_idle():
    found = gaps_of(records((0, 10), (10, 20), (5, 15)))
    assert (found.idle, found.largest, found.after) == (0, 0, "")
    assert found.streams == [found.busy] == [pytest.approx(20 * NS)]
    assert gaps_of(records((3, 4))).launches == 1


SPANS = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(1, 100), st.integers(0, 2)).map(
        lambda drawn: Record("k", drawn[0], drawn[1], drawn[2])
    ),
    min_size=1,
    max_size=20,
)


@given(SPANS)
def test_busy_and_idle_are_the_span_whatever_the_streams(drawn):
    found = gaps_of(drawn)
    covered = {moment for record in drawn for moment in range(record.start, record.end)}
    assert found.busy == pytest.approx(len(covered) * NS)
    assert found.busy + found.idle == pytest.approx(found.span)
    assert found.largest <= found.idle
    assert max(found.streams) <= found.busy + NS / 2
    assert sum(found.streams) >= found.busy - NS / 2


def test_the_pass_of_median_span_counts_and_the_first_does_not():
    passes = [(0, 500), (1000, 1030), (2000, 2010), (3000, 3020)]
    several = records(*((at, at + 5) for at, _ in passes), *((end - 2, end) for _, end in passes))
    assert typical_gaps(several, 4).span == pytest.approx(20 * NS)


@pytest.mark.parametrize("spans", [[], [(0, 1)], [(0, 1), (2, 3), (4, 5)]])
def test_passes_with_records_missing_are_refused(spans):
    with pytest.raises(MeasurementError, match=f"returned {len(spans)} records of 2 equal passes"):
        typical_gaps(records(*spans), 2)


def test_a_recorded_profile_shows_how_far_launches_from_the_host_are_apart():
    call = [Record(*record) for record in json.loads(RECORDED.read_text())["call"]]
    found = gaps_of(call)
    assert found.launches == 4
    assert found.busy == pytest.approx(sum(record.duration for record in call) * NS)
    assert found.idle > 0.9 * found.span, "one by one from the host, with a profiler attached"
    assert found.after == call[0].name
