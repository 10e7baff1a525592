"""``events``: CUDA events around the region, on the stream the work runs on.

Forked streams have to be joined again by the call itself: an event on one stream says nothing about another. The card
is kept busy by a spinning kernel while the host enqueues, so the region holds device work and not the gaps in which
the card waits for the host; host time is reported beside it. Where that kernel can't run (no Triton, ROCm), the gaps
are part of the number.
"""

import time
from collections.abc import Sequence

from dsv4bench.bench.timers import Call, Samples

SLACK = 1.5
"""The spin lasts this much longer than launching was seen to take."""
FLOOR_NS = 20_000
CEILING_NS = 20_000_000


class EventTimer:
    """Times each call with a pair of events."""

    name = "events"

    def unavailable(self) -> str:
        """Say so where there is no GPU."""
        return no_gpu()

    def time(self, calls: Sequence[Call], warmup: int, iterations: int, before: Call | None) -> Samples:
        """Time each call by itself; see ``timers``."""
        for index in range(warmup):
            calls[index % len(calls)]()
        return time_with_events(calls, iterations, before)


def time_with_events(calls: Sequence[Call], iterations: int, before: Call | None, per_call: int = 1) -> Samples:
    """Events around each call, divided by the ``per_call`` repetitions that it stands for."""
    import torch

    from dsv4bench.bench.spin import can_spin, spin

    holds = can_spin()
    hold = _hold_ns(calls[0])
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    seconds, host = [], []
    for index in range(iterations):
        call = calls[index % len(calls)]
        if before:
            before()
        if holds:
            spin(hold)
        start.record()
        began = time.perf_counter()
        call()
        launched = time.perf_counter() - began
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3 / per_call)
        host.append(launched / per_call)
    return Samples(tuple(seconds), tuple(host))


def no_gpu() -> str:
    """Why CUDA timers can't be used here; empty if they can."""
    import torch

    return "" if torch.cuda.is_available() else "torch sees no GPU"


def _hold_ns(call: Call) -> int:
    """How long the card has to be kept busy so that one call is enqueued meanwhile."""
    import torch

    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    launched = time.perf_counter() - began
    torch.cuda.synchronize()
    return min(max(int(launched * SLACK * 1e9), FLOOR_NS), CEILING_NS)
