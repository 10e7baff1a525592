"""Wall time by purpose, no second counted twice."""

from dsv4bench.bench.spending import Spending


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_nested_purpose_stops_the_outer_one():
    clock = Clock()
    spending = Spending(clock)
    clock.now = 1.0
    with spending.on("a"):
        clock.now = 3.0
        with spending.on("b"):
            clock.now = 7.0
        clock.now = 8.0
    clock.now = 10.0
    assert spending.take() == {"other": 3.0, "a": 3.0, "b": 4.0}
    assert sum(spending.take().values()) == 0.0


def test_time_is_booked_when_an_exception_leaves_a_purpose():
    clock = Clock()
    spending = Spending(clock)
    try:
        with spending.on("a"):
            clock.now = 2.0
            raise ValueError
    except ValueError:
        clock.now = 3.0
    assert spending.take() == {"other": 1.0, "a": 2.0}
