"""``events``: CUDA events around the region, on the stream the work runs on.

Forked streams have to be joined again by the call itself: an event on one stream says nothing about another. The card
is held busy while the host enqueues (``hold``), and host time is reported beside device time.
"""

import time
from collections.abc import Sequence

from dsv4bench.bench.timers import Call, Samples, goes_on
from dsv4bench.bench.timers.hold import hold_of, warm_up


class EventTimer:
    """Times each call with a pair of events."""

    name = "events"

    def unavailable(self) -> str:
        """Say so where there is no GPU."""
        return no_gpu()

    def time(self, calls: Sequence[Call], warmup: int, iterations: int, before: Call | None) -> Samples:
        """Time each call by itself; see ``timers``."""
        warm_up(calls, warmup)
        return time_with_events(calls, iterations, before)


def time_with_events(calls: Sequence[Call], iterations: int, before: Call | None, per_call: int = 1) -> Samples:
    """Events around each call, divided by the ``per_call`` repetitions that it stands for."""
    import torch

    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    hold, seconds, host = hold_of(calls), list[float](), list[float]()
    opened = time.perf_counter()
    while goes_on(len(seconds), iterations, time.perf_counter() - opened):
        call = calls[len(seconds) % len(calls)]
        if before:
            before()
        hold()
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
