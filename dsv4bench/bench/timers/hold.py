"""Keeping the card busy while the host enqueues, so that a timed region holds no gaps in which the card waits."""

import time
from collections.abc import Sequence

from dsv4bench.bench.spin import can_spin, spin
from dsv4bench.bench.timers import LONGEST_WINDOW, Call

SLACK = 1.5
"""The spin lasts this much longer than launching was seen to take at most."""
BASE_NS = 100_000
"""What recording events, and a host that hesitates, take beside the launches."""
CEILING_NS = 50_000_000
TRIES = 3


def warm_up(calls: Sequence[Call], warmup: int) -> None:
    """Untimed calls; each of ``calls`` at least once, since the first replay of a graph uploads it.

    Further ones end with the time that a window may take.
    """
    import torch

    opened = time.perf_counter()
    for index in range(max(warmup, len(calls))):
        if index >= len(calls) and time.perf_counter() - opened > LONGEST_WINDOW:
            break
        calls[index % len(calls)]()
        torch.cuda.synchronize()


def hold_of(calls: Sequence[Call]) -> Call:
    """A call that occupies the current stream for as long as enqueueing one of ``calls`` takes.

    Where the spinning kernel can't run (no Triton, ROCm) it does nothing, and the gaps are part of what is read.
    """
    if not can_spin():
        return _nothing
    spin(0)  # compiled here and not inside a timed window
    nanoseconds = min(BASE_NS + int(SLACK * 1e9 * max(_launching(call) for call in calls[:TRIES])), CEILING_NS)
    return lambda: spin(nanoseconds)


def _launching(call: Call) -> float:
    """Host seconds that enqueueing a call takes on an idle card."""
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    launched = time.perf_counter() - began
    torch.cuda.synchronize()
    return launched


def _nothing() -> None:
    return None
