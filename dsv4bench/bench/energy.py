"""Energy per step from NVML's counter, in a pass of its own after the rounds."""

import time
from collections import deque
from collections.abc import Callable

from dsv4bench.bench.timers import Call

SECONDS = 0.2
"""Shortest stretch that is integrated; the counter moves every 20 to 100 ms."""
BATCH_SECONDS = 0.01
"""Work that is enqueued between two looks at the counter."""
GIVE_UP = 2.0


def energy_per_call(
    read: Callable[[], float | None],
    call: Call,
    checkpoint: Callable[[], Call],
    seconds_per_call: float,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """Joules per call: board energy of back to back calls between two ticks of the counter.

    One batch is always in flight while the counter is read, so that the card does not idle meanwhile.

    Args:
        read: the counter, J; ``None`` where there is none.
        call: enqueues one step.
        checkpoint: marks what is enqueued so far and returns a call that waits for it.
        seconds_per_call: about how long a step takes.
        clock: seconds.

    Returns:
        ``None`` where there is no counter or it did not move.
    """
    first = before = read()
    if before is None:
        return None
    batch = max(1, int(BATCH_SECONDS / max(seconds_per_call, 1e-7)))
    in_flight: deque[Call] = deque()
    done, began = 0, None
    deadline = clock() + GIVE_UP + SECONDS
    while clock() < deadline:
        for _ in range(batch):
            call()
        in_flight.append(checkpoint())
        if len(in_flight) < 2:
            continue
        in_flight.popleft()()
        done += batch
        now = read()
        if now is None or now == before:
            continue
        before = now
        if began is None or first is None:
            first, began, done = now, clock(), 0
        elif clock() - began >= SECONDS:
            return (now - first) / done
    return None


def cuda_checkpoint() -> Call:
    """Mark what the current stream holds; the call returned waits until it is done."""
    import torch

    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event.synchronize
