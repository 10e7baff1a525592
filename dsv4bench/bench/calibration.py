"""What timers read for work of known duration: nothing at all, and a kernel that spins for given nanoseconds."""

from collections.abc import Iterable
from functools import partial
from statistics import median

from dsv4bench.bench.spin import can_spin, spin
from dsv4bench.bench.timers import Call, make_timer

SPINS_NS = (0, 20_000, 200_000)
REPEATS = 20


def timer_floors(timers: Iterable[str]) -> dict[str, float]:
    """What timers read for a call that does nothing, seconds. CUPTI has nothing to read there."""
    return {name: reading(name, _nothing, 100) for name in timers}


def timer_calibration(timers: Iterable[str]) -> dict[str, dict[str, float]]:
    """Timer → nanoseconds asked of a spinning kernel → seconds read; empty where the kernel can't run."""
    if not can_spin():
        return {}
    return {name: {str(ns): reading(name, partial(spin, ns), REPEATS) for ns in SPINS_NS} for name in timers}


def reading(timer: str, call: Call, repeats: int) -> float:
    """Median of what a timer reads for a call, seconds."""
    return median(make_timer(timer).time([call], 3, repeats, None).seconds)


def _nothing() -> None:
    return None
