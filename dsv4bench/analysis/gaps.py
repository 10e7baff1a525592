"""Launch gaps: how busy the device is between a layer's first kernel and its last, from records of what ran on it.

A layer launched eagerly leaves the device idle wherever the host is slower than it; a CUDA graph leaves the time that
the device takes from one kernel to the next.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsv4bench.errors import MeasurementError
from dsv4bench.results.row import Gaps


@dataclass(frozen=True)
class Record:
    """One kernel, copy or fill on the device; times in nanoseconds."""

    name: str
    start: int
    duration: int
    stream: int = 0

    @property
    def end(self) -> int:
        """When it ended."""
        return self.start + self.duration


def gaps_of(records: Sequence[Record]) -> Gaps:
    """What one pass over a layer leaves idle.

    Args:
        records: of everything that ran on the device, on any stream, in any order; at least one.
    """
    first, *others = sorted(records, key=lambda record: record.start)
    last, idle, largest, after = first, 0, 0, ""
    for record in others:
        gap = record.start - last.end
        if gap > 0:
            idle += gap
        if gap > largest:
            largest, after = gap, last.name
        last = max(last, record, key=lambda one: one.end)
    span = last.end - first.start
    streams = dict.fromkeys(record.stream for record in (first, *others))
    return Gaps(
        launches=len(records),
        span=span / 1e9,
        busy=(span - idle) / 1e9,
        idle=idle / 1e9,
        largest=largest / 1e9,
        after=after,
        streams=[_busy(record for record in records if record.stream == stream) / 1e9 for stream in streams],
    )


def typical_gaps(records: Sequence[Record], passes: int) -> Gaps:
    """The gaps of the pass with the median span; the first pass, which meets a cold profiler, doesn't count.

    Args:
        records: of ``passes`` equal passes, each of which ended before the next began.
        passes: how many; at least two.

    Raises:
        MeasurementError: there are none, or not as many in each pass.
    """
    ordered = sorted(records, key=lambda record: record.start)
    each, left = divmod(len(ordered), passes)
    if each == 0 or left:
        raise MeasurementError(f"the profiler returned {len(ordered)} records of {passes} equal passes")
    found = [gaps_of(ordered[number * each : (number + 1) * each]) for number in range(1, passes)]
    return sorted(found, key=lambda gaps: gaps.span)[len(found) // 2]


def _busy(records: Iterable[Record]) -> int:
    """Nanoseconds in which at least one of the records runs."""
    total, reached = 0, None
    for record in sorted(records, key=lambda record: record.start):
        start = record.start if reached is None else max(record.start, reached)
        total += max(record.end - start, 0)
        reached = record.end if reached is None else max(reached, record.end)
    return total
