"""``wall``: a monotonic clock around a synchronous call. CPU only."""

import time
from collections.abc import Callable, Sequence

from dsv4bench.bench.timers import Call, Samples


class WallTimer:
    """Reads a monotonic clock before and after each call."""

    name = "wall"

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock

    def unavailable(self) -> str:
        """Always available."""
        return ""

    def time(self, calls: Sequence[Call], warmup: int, iterations: int, before: Call | None) -> Samples:
        """Time each call by itself; see ``timers``."""
        for index in range(warmup):
            calls[index % len(calls)]()
        clock, seconds = self._clock, []
        for index in range(iterations):
            call = calls[index % len(calls)]
            if before:
                before()
            start = clock()
            call()
            seconds.append(clock() - start)
        return Samples(tuple(seconds))
