"""Timers: each turns calls into seconds per call, and each can say why it is not available here.

A timer has ``name``, ``unavailable()`` and ``time(calls, warmup, iterations, before)``. ``calls`` do the same work on
different inputs and are taken in turn; ``before`` runs ahead of every call, outside the timed region.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dsv4bench.results.row import Contract

Call = Callable[[], object]

LONGEST_WINDOW = 0.25
"""Seconds after which a window ends, whatever iterations were asked for: what is replicated is the round."""
FEWEST_SAMPLES = 3
"""Samples that a window takes in any case, if that many were asked for."""


def goes_on(taken: int, iterations: int, elapsed: float) -> bool:
    """Whether a window that took ``taken`` samples in ``elapsed`` seconds takes another."""
    return taken < iterations and (taken < FEWEST_SAMPLES or elapsed < LONGEST_WINDOW)


@dataclass(frozen=True)
class Samples:
    """Times of repeated calls.

    Attributes:
        seconds: device time per call, one a sample.
        host: host time per call spent launching; empty where calls are synchronous and it would be the same number.
    """

    seconds: tuple[float, ...]
    host: tuple[float, ...] = ()


class Timer(Protocol):
    """What ``rounds`` needs of a timer."""

    name: str

    def unavailable(self) -> str:
        """Why it can't be used here; empty if it can."""
        ...

    def time(self, calls: Sequence[Call], warmup: int, iterations: int, before: Call | None) -> Samples:
        """Time ``iterations`` calls, or as many as ``goes_on`` allows, after ``warmup`` untimed ones."""
        ...


TIMERS = ("wall", "events", "graph", "cupti")


def make_timer(name: str, calls_per_graph: int = 1) -> Timer:
    """The timer of a name."""
    from dsv4bench.bench.timers.cupti import CuptiTimer
    from dsv4bench.bench.timers.events import EventTimer
    from dsv4bench.bench.timers.graph import GraphTimer
    from dsv4bench.bench.timers.wall import WallTimer

    makers: dict[str, Callable[[], Timer]] = {
        "wall": WallTimer,
        "events": EventTimer,
        "graph": lambda: GraphTimer(calls_per_graph),
        "cupti": CuptiTimer,
    }
    return makers[name]()


def timer_of(contract: Contract) -> Timer:
    """The timer that a contract names."""
    return make_timer(contract.timer, max(contract.iterations_per_graph, 1))
