"""How a run's wall time was spent, by purpose, no second counted twice."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Spending:
    """Adds up wall time by purpose; inside a nested purpose the outer one stands still."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = clock()

    @contextmanager
    def on(self, purpose: str) -> Iterator[None]:
        """Count the time inside the ``with`` block under ``purpose``."""
        self._book()
        self._open.append(purpose)
        try:
            yield
        finally:
            self._book()
            self._open.pop()

    def take(self) -> dict[str, float]:
        """Seconds by purpose since the last ``take``; time outside every block is ``other``."""
        self._book()
        taken, self._seconds = self._seconds, {}
        return taken

    def _book(self) -> None:
        now = self._clock()
        purpose = self._open[-1] if self._open else "other"
        self._seconds[purpose] = self._seconds.get(purpose, 0.0) + now - self._since
        self._since = now
