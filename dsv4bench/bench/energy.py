"""Energy per step from NVML's counter, in a pass of its own after the rounds."""

import time
from collections.abc import Callable

from dsv4bench.bench.timers import Call

SECONDS = 0.3
"""Shortest stretch that is integrated; the counter moves every 20 to 100 ms."""
BATCH_SECONDS = 0.01
"""Work that is enqueued between two looks at the counter."""
GIVE_UP = 2.0


def energy_per_call(
    read: Callable[[], float | None],
    call: Call,
    synchronize: Call,
    seconds_per_call: float,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """Joules per call, board energy, back to back calls between two ticks of the counter.

    Args:
        read: the counter, J; ``None`` where there is none.
        call: one step.
        synchronize: waits for the device.
        seconds_per_call: about how long a step takes.
        clock: seconds.

    Returns:
        ``None`` where there is no counter or it did not move.
    """
    if read() is None:
        return None
    batch = max(1, int(BATCH_SECONDS / max(seconds_per_call, 1e-7)))
    calls = 0
    first = before = read()
    began: float | None = None
    deadline = clock() + GIVE_UP + SECONDS
    while clock() < deadline:
        for _ in range(batch):
            call()
        synchronize()
        calls += batch
        now = read()
        if now == before or now is None:
            continue
        before = now
        if began is None:
            first, began, calls = now, clock(), 0
        elif clock() - began >= SECONDS and first is not None:
            return (now - first) / calls
    return None
