"""Energy per call between two ticks of a counter that moves every 50 ms."""

import pytest

from dsv4bench.bench.energy import GIVE_UP, SECONDS, energy_per_call


class Card:
    """Draws 700 W while a clock runs that only calls move."""

    def __init__(self, seconds_per_call, tick=0.05, watts=700.0):
        self.now, self.calls = 0.0, 0
        self.seconds_per_call, self.tick, self.watts = seconds_per_call, tick, watts

    def call(self):
        self.now += self.seconds_per_call
        self.calls += 1

    def read(self):
        return self.watts * self.tick * int(self.now / self.tick) if self.tick else 0.0

    def checkpoint(self):
        return lambda: None

    def clock(self):
        return self.now


@pytest.mark.parametrize("seconds", [10e-6, 1e-3, 20e-3])
def test_joules_are_watts_times_seconds(seconds):
    card = Card(seconds)
    joules = energy_per_call(card.read, card.call, card.checkpoint, seconds, card.clock)
    assert joules == pytest.approx(700.0 * seconds, rel=0.08)


def test_a_card_without_counter_has_no_energy():
    card = Card(1e-3)
    assert energy_per_call(lambda: None, card.call, card.checkpoint, 1e-3, card.clock) is None
    assert card.calls == 0


def test_a_counter_that_stands_still_is_given_up():
    card = Card(1e-3, tick=0.0)
    assert energy_per_call(card.read, card.call, card.checkpoint, 1e-3, card.clock) is None
    assert card.now == pytest.approx(GIVE_UP + SECONDS, abs=0.1)
