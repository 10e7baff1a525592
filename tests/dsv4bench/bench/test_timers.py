"""Timers without a GPU: the wall clock's order of steps, CUPTI's book-keeping, and why a timer is not available."""

import itertools
import json
from pathlib import Path

import pytest

from dsv4bench.analysis.gaps import Record
from dsv4bench.bench.timers import TIMERS, make_timer
from dsv4bench.bench.timers.cupti import split_records
from dsv4bench.bench.timers.graph import GraphTimer
from dsv4bench.bench.timers.wall import WallTimer
from dsv4bench.errors import MeasurementError

DATA = Path(__file__).parents[2] / "data"


def test_wall_warms_up_then_times_each_call_behind_its_flush():
    log = []
    ticks = itertools.count(0.0, 1.0)

    def clock():
        log.append("clock")
        return next(ticks)

    calls = [lambda: log.append("a"), lambda: log.append("b")]
    samples = WallTimer(clock).time(calls, 1, 3, lambda: log.append("flush"))
    timed = ["flush", "clock", "a", "clock", "flush", "clock", "b", "clock", "flush", "clock", "a", "clock"]
    assert log == ["a", *timed]
    assert samples.seconds == (1.0, 1.0, 1.0)
    assert samples.host == ()


@pytest.mark.parametrize(("call", "taken"), [(0.001, 20), (0.05, 5), (1.0, 3)])
def test_a_window_of_slow_calls_ends_early_but_not_before_three_samples(call, taken):
    now = [0.0]

    def work():
        now[0] += call

    samples = WallTimer(lambda: now[0]).time([work], 0, 20, None)
    assert len(samples.seconds) == taken


def test_a_window_takes_no_more_than_was_asked_for():
    assert len(WallTimer().time([lambda: None], 0, 2, None).seconds) == 2


def test_wall_costs_under_five_per_cent_of_a_call_of_20_microseconds():
    floor = min(WallTimer().time([lambda: None], 10, 200, None).seconds)
    assert floor < 0.05 * 20e-6


def test_timers_say_why_they_are_not_available_here(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert make_timer("wall").unavailable() == ""
    assert {make_timer(name).unavailable() for name in TIMERS if name != "wall"} == {"torch sees no GPU"}


def test_cupti_gives_way_to_nsight(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    assert "another CUPTI client" in make_timer("cupti").unavailable()


def test_a_graph_of_several_calls_refuses_a_flush():
    with pytest.raises(ValueError, match="can't be cold"):
        GraphTimer(10).time([lambda: None], 0, 1, lambda: None)


def records(*spans):
    return [Record(f"k{number}", start, duration) for number, (start, duration) in enumerate(spans)]


def test_a_call_spans_from_its_first_kernel_to_the_end_of_its_last():
    one_flush_two_kernels = records((0, 50), (100, 10), (105, 30), (200, 50), (300, 10), (320, 5))
    assert split_records(one_flush_two_kernels, between=1, kernels=2, iterations=2) == [35e-9, 25e-9]


def test_kernels_on_several_streams_count_until_the_last_of_them_ends():
    overlapping = records((0, 100), (10, 20), (15, 5))
    assert split_records(overlapping, between=0, kernels=3, iterations=1) == [100e-9]


def test_a_recorded_profile_is_taken_apart_by_count():
    profile = json.loads((DATA / "profiles" / "h200_cupti.json").read_text())
    flush, call, both = ([Record(*record) for record in profile[name]] for name in ("flush", "call", "both"))
    seconds = split_records(both, len(flush), len(call), 5)
    assert len(seconds) == 5
    for number, value in enumerate(seconds):
        of_call = both[6 * number + 2 : 6 * number + 6]
        assert [record.name for record in of_call] == [record.name for record in call]
        assert sum(record.duration for record in of_call) <= value * 1e9 < 200_000
    with pytest.raises(MeasurementError, match="CUPTI returned 29 records where 30 were launched"):
        split_records(both[:-1], len(flush), len(call), 5)


@pytest.mark.parametrize(("between", "kernels", "iterations"), [(0, 2, 2), (1, 1, 1), (0, 0, 3)])
def test_missing_records_are_refused_rather_than_shifted(between, kernels, iterations):
    with pytest.raises(MeasurementError, match="CUPTI returned 3 records where"):
        split_records(records((0, 1), (2, 1), (4, 1)), between, kernels, iterations)
