"""What a worker does in turns with another: it waits before every round and hears after it whether the round counts."""

import pytest

from dsv4bench.bench.device import Device
from dsv4bench.bench.messages import Done, Go, Measure, Measured, Ready, Settled, Took
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.workshop import Workshop
from dsv4bench.results.row import Status
from dsv4bench.scenario.expand import expand
from tests.dsv4bench.bench.small import small_scenario


class Parent:
    """Answers a worker in turns; ``spoiled`` are the (round, attempt) that another side did not count."""

    def __init__(self, spoiled=()):
        self.spoiled, self.heard = set(spoiled), []

    def hear(self, message):
        self.heard.append(message)

    def answer(self):
        last = self.heard[-1]
        if isinstance(last, Ready):
            return Go()
        assert isinstance(last, Took)
        ready = next(message for message in reversed(self.heard) if isinstance(message, Ready))
        hot = "always" in self.spoiled or (ready.round, ready.attempt) in self.spoiled
        return Settled((*last.spoiled_by, "hw_slowdown") if hot else last.spoiled_by)

    def of(self, kind):
        return [message for message in self.heard if isinstance(message, kind)]


@pytest.fixture
def measured(tmp_path):
    def _measured(parent, *, in_turns=True):
        scenario = small_scenario(tmp_path, timing={"rounds": 3, "iterations": 1, "warmup": 0})
        cases = tuple(expand(scenario))
        settings = Settings(scenario.timing, Device("cpu"), check=False)
        Workshop(parent.hear, parent.answer).measure(Measure(cases, cases, settings, in_turns=in_turns))
        [found] = parent.of(Measured)
        assert parent.of(Done)
        return found.row

    return _measured


def test_a_round_that_the_other_side_spoiled_is_repeated_here(measured):
    parent = Parent({(1, 0), (1, 1)})
    row = measured(parent)
    assert [(turn.round, turn.attempt) for turn in parent.of(Ready)] == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]
    assert parent.of(Took) == [Took()] * 5
    assert [item.index for item in row.layer.rounds] == [0, 1, 2]
    assert "2 throttled rounds were repeated" in row.warnings


def test_where_the_other_side_never_cools_down_this_one_has_no_number_either(measured):
    row = measured(Parent({"always"}))
    assert row.status is Status.INVALID_THERMAL
    assert row.reason.startswith("4 rounds throttled (hw_slowdown)")


def test_alone_it_asks_nobody(measured):
    parent = Parent()
    assert measured(parent, in_turns=False).status is Status.OK
    assert not parent.of(Ready)
    assert not parent.of(Took)
