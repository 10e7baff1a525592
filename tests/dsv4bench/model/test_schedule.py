"""Schedules are complete, joined, and race-free under every delay; a join taken away is noticed or was redundant."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.errors import UserError
from dsv4bench.model.schedule import (
    GEMM_TOKEN_THRESHOLD,
    SCHEDULES,
    START,
    Launch,
    Schedule,
    check,
    hazards,
    make_schedule,
)
from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGES, Stage
from tests.dsv4bench.model import asynchronous

ALL = [
    pytest.param(make_schedule(name, kind, tokens), id=f"{name}-{kind}-{tokens}")
    for name in SCHEDULES
    for kind in LayerKind
    for tokens in ((1, GEMM_TOKEN_THRESHOLD + 1) if name == "multi3" else (1,))
]


def accepted(schedule: Schedule) -> bool:
    try:
        check(schedule)
    except UserError:
        return False
    return True


def moved(schedule: Schedule, stage: str, **changes) -> Schedule:
    launches = (replace(launch, **changes) if launch.stage == stage else launch for launch in schedule.launches)
    return replace(schedule, launches=tuple(launches))


@pytest.mark.parametrize("schedule", ALL)
def test_no_delay_of_any_stream_makes_a_schedule_read_stale_or_torn_buffers(schedule):
    assert asynchronous.any_race(schedule) == ""


@pytest.mark.parametrize("schedule", ALL)
def test_each_join_taken_away_is_caught_by_the_check_or_redundant(schedule):
    for launch in schedule.launches:
        for name in launch.after:
            mutant = moved(schedule, launch.stage, after=tuple(other for other in launch.after if other != name))
            assert accepted(mutant) == (asynchronous.any_race(mutant) == ""), f"{launch.stage} without {name}"


def test_only_the_joins_that_vllm_makes_for_safety_are_redundant():
    """vLLM joins all input projections before the norm and forks everything behind it."""
    redundant = {
        (schedule.name, schedule.kind.value, launch.stage, name)
        for schedule in (parameter.values[0] for parameter in ALL)
        for launch in schedule.launches
        for name in launch.after
        if accepted(moved(schedule, launch.stage, after=tuple(other for other in launch.after if other != name)))
    }
    assert redundant == {
        ("multi3", "c128a", "compressor_state_save", "qkv_norm"),
        ("multi3", "c128a", "qkv_norm", "compressor_projection"),
        ("multi3", "c4a", "qkv_norm", "indexer_compressor_projection"),
        ("multi3", "c4a", "indexer_state_save", "qkv_norm"),
    }


@st.composite
def schedules(draw):
    kind = draw(st.sampled_from([LayerKind.C4A, LayerKind.C128A, LayerKind.DSA]))
    base = make_schedule(draw(st.sampled_from(["serial", "multi", "multi3"])), kind)
    launches = list(base.launches)
    for _ in range(draw(st.integers(1, 3))):
        index = draw(st.integers(1, len(launches) - 1))
        earlier = [START, *(launch.stage for launch in launches[:index])]
        after = draw(st.lists(st.sampled_from(earlier), max_size=3, unique=True))
        launches[index] = Launch(
            launches[index].stage, draw(st.sampled_from(["default", "aux0", "aux1"])), tuple(after)
        )
    return replace(base, launches=tuple(launches))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(schedules())
def test_the_check_accepts_exactly_what_no_delay_can_break(schedule):
    assert accepted(schedule) == (asynchronous.any_race(schedule) == "")


def test_serial_is_the_order_of_the_stages():
    for kind in LayerKind:
        assert [launch.stage for launch in make_schedule("serial", kind).launches] == [s.name for s in STAGES[kind]]


def test_multi_has_the_indexer_on_a_stream_of_its_own_and_multi3_has_three():
    streams = {launch.stage: launch.stream for launch in make_schedule("multi", LayerKind.C4A).launches}
    assert {stage for stage, stream in streams.items() if stream == "indexer"} == {
        stage.name for stage in STAGES[LayerKind.C4A] if stage.name.startswith("indexer") or stage.name == "topk"
    }
    assert make_schedule("multi3", LayerKind.C4A).streams == ("default", "aux0", "aux1", "aux2")


def test_many_tokens_keep_the_input_projections_on_the_default_stream():
    few, many = (make_schedule("multi3", LayerKind.C4A, GEMM_TOKEN_THRESHOLD + extra) for extra in (0, 1))
    spread = {launch.stage for launch in few.launches if launch.stream != "default"}
    kept = {launch.stage for launch in many.launches if launch.stream == "default"}
    assert {"compressor_projection", "indexer_weights_projection", "indexer_compressor_projection"} <= spread & kept


def test_a_missing_join_is_named_with_both_stages_and_the_tensor():
    schedule = moved(make_schedule("multi", LayerKind.C4A), "index_map", after=())
    with pytest.raises(UserError, match="index_map reads topk_indices and does not wait for topk, by which it is writ"):
        check(schedule)


def test_caches_are_guarded_against_overtaking_writers_as_well(monkeypatch):
    """No shipped layer reads a cache before it is written, so the rule is shown on a layer made for it."""
    reader = Stage("reader", {"cache": "cache"}, ("seen",))
    writers = [Stage(f"writer{n}", {"cache": "cache"}, updates=("cache",)) for n in (1, 2)]
    monkeypatch.setitem(STAGES, LayerKind.SWA, (reader, *writers))
    apart = Schedule("t", LayerKind.SWA, (Launch("reader"), Launch("writer1", "a", ("start",)), Launch("writer2")))
    assert [(found.kind, found.first, found.second) for found in hazards(apart)] == [
        ("write after read", "reader", "writer1"),
        ("write after write", "writer1", "writer2"),
    ]
    assert "writer1 overwrites cache and does not wait for reader, by which it is read" in map(str, hazards(apart))
    joined = Schedule(
        "t",
        LayerKind.SWA,
        (Launch("reader"), Launch("writer1", "a", ("reader",)), Launch("writer2", after=("writer1",))),
    )
    assert not hazards(joined)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"launches": ()}, "input_projection is launched 0 times"),
        ({"launches": (Launch("input_projection"),) * 2}, "input_projection is launched 2 times"),
    ],
)
def test_incomplete_schedules_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check(replace(make_schedule("serial", LayerKind.SWA), **changes))


def test_a_stage_of_another_layer_kind_is_refused():
    serial = make_schedule("serial", LayerKind.SWA)
    with pytest.raises(UserError, match="topk is no stage of this layer"):
        check(replace(serial, launches=(*serial.launches, Launch("topk"))))


def test_waiting_for_a_later_launch_is_refused():
    with pytest.raises(UserError, match="qkv_norm waits for topk, which is not launched before it"):
        check(moved(make_schedule("multi", LayerKind.C4A), "qkv_norm", after=("topk",)))


def test_a_stream_that_does_not_fork_or_is_not_joined_is_refused():
    fork = moved(make_schedule("multi", LayerKind.C128A), "compressor_projection", after=())
    with pytest.raises(UserError, match="starts stream compressor without waiting for the default stream"):
        check(fork)
    last = moved(make_schedule("serial", LayerKind.SWA), "output_projection", stream="aux", after=("sparse_attention",))
    last = moved(last, "output_projection", after=("output_group_projection",))
    with pytest.raises(UserError, match="output_projection on stream aux is never joined"):
        check(last)


def test_an_unknown_schedule_is_a_users_error():
    with pytest.raises(UserError, match="unknown schedule 'five'; known: serial, multi, multi3"):
        make_schedule("five", LayerKind.SWA)
