"""``cupti``: kernel timestamps through torch's profiler, and the launch counts that come with them.

Only one CUPTI client may exist in a process, so under Nsight this timer says that it is not available. Records carry no
mark of the call they belong to; they are told apart by count, in order of start, after the kernels of one call and of
what runs ahead of it have been counted. A profile with records missing is refused rather than shifted.

The profiler is entered below ``torch.profiler``, which would import torch's compiler first, for 3.6 s.
"""

import os
from collections.abc import Sequence

from dsv4bench.analysis.gaps import Record
from dsv4bench.bench.timers import Call, Samples
from dsv4bench.bench.timers.events import no_gpu
from dsv4bench.bench.timers.hold import hold_of, warm_up
from dsv4bench.errors import MeasurementError

NSIGHT_VARIABLES = ("NSYS_PROFILING_SESSION_ID", "NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH")


class CuptiTimer:
    """Spans from the first kernel's start to the last kernel's end of each call."""

    name = "cupti"

    def unavailable(self) -> str:
        """Say so where there is no GPU, another CUPTI client, or no record of a kernel that did run."""
        if reason := no_gpu():
            return reason
        for variable in NSIGHT_VARIABLES:
            if os.environ.get(variable):
                return f"another CUPTI client seems attached ({variable} is set)"
        import torch

        try:
            seen = profile_calls([lambda: torch.ones(8, device="cuda")], 1, None)
        except RuntimeError as error:
            return f"torch.profiler failed: {error}"
        return "" if seen else "torch.profiler recorded no kernel (another CUPTI client, or no permission)"

    def time(self, calls: Sequence[Call], warmup: int, iterations: int, before: Call | None) -> Samples:
        """Time each call by its kernel records; see ``timers``.

        Raises:
            MeasurementError: records are missing.
        """
        warm_up(calls, warmup)
        hold = hold_of(calls)

        def ahead() -> None:
            if before:
                before()
            hold()

        between = len(profile_calls([ahead], 1, None))
        kernels = len(profile_calls(calls[:1], 1, None))
        records = profile_calls(calls, iterations, ahead)
        return Samples(tuple(split_records(records, between, kernels, iterations)))


def profile_calls(calls: Sequence[Call], iterations: int, before: Call | None) -> list[Record]:
    """Device records of ``iterations`` calls in turn, each behind its ``before``, by time of start."""
    import torch
    from torch.autograd.profiler import profile

    torch.cuda.synchronize()
    with profile(use_cpu=False, use_device="cuda", use_kineto=True) as profiler:
        for index in range(iterations):
            if before:
                before()
            calls[index % len(calls)]()
            torch.cuda.synchronize()
    events = profiler.kineto_results.events() if profiler.kineto_results else []
    on_device = [event for event in events if event.device_type().name == "CUDA"]
    records = [
        Record(event.name(), event.start_ns(), event.duration_ns(), event.device_resource_id()) for event in on_device
    ]
    return sorted(records, key=lambda record: record.start)


def split_records(records: Sequence[Record], between: int, kernels: int, iterations: int) -> list[float]:
    """Seconds per call from the records of ``iterations`` × (``between`` + ``kernels``) device operations.

    Args:
        records: by time of start.
        between: operations ahead of each call: a flush, the kernel that holds the card.
        kernels: operations of a call.
        iterations: calls.

    Raises:
        MeasurementError: the number of records is another one.
    """
    expected = iterations * (between + kernels)
    if kernels == 0 or len(records) != expected:
        raise MeasurementError(
            f"CUPTI returned {len(records)} records where {expected} were launched; use timing.timer events instead"
        )
    spans = []
    for first in range(between, expected, between + kernels):
        call = records[first : first + kernels]
        spans.append((max(record.end for record in call) - call[0].start) / 1e9)
    return spans
