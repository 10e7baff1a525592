"""``wall``: a monotonic clock around a synchronous call. CPU only."""

import time
from collections.abc import Callable, Sequence

from dsv4bench.bench.timers import Call, Samples, goes_on


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
        clock, seconds, elapsed = self._clock, list[float](), 0.0
        while goes_on(len(seconds), iterations, elapsed):
            call = calls[len(seconds) % len(calls)]
            if before:
                before()
            start = clock()
            call()
            seconds.append(clock() - start)
            elapsed += seconds[-1]
        return Samples(tuple(seconds))
