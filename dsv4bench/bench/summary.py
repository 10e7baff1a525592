"""From windows to the numbers of a row: medians over rounds, telemetry per round."""

from collections.abc import Sequence
from statistics import median

from dsv4bench.bench.telemetry import Telemetry
from dsv4bench.bench.timers import Samples
from dsv4bench.bench.window import Window
from dsv4bench.results.row import Round, Timing


def timing_of(windows: Sequence[Window], name: str, launches: int | None, *, keep_rounds: bool) -> Timing:
    """The timing of one thing over its rounds; see ``results.row.Timing``."""
    rounds = [_round(window, window.samples[name]) for window in windows]
    medians = [one.median for one in rounds]
    hosts = [one.host for one in rounds if one.host is not None]
    return Timing(
        median=median(medians),
        min=min(one.min for one in rounds),
        mad=spread(medians),
        host=median(hosts) if hosts else None,
        launches=launches,
        rounds=rounds if keep_rounds else [],
    )


def spread(values: Sequence[float]) -> float:
    """Median absolute deviation from the median."""
    middle = median(values)
    return median(abs(value - middle) for value in values)


def _round(window: Window, samples: Samples) -> Round:
    return Round(
        index=window.round,
        seed=window.seed,
        iterations=len(samples.seconds),
        median=median(samples.seconds),
        min=min(samples.seconds),
        mad=spread(samples.seconds),
        host=median(samples.host) if samples.host else None,
        sm_clock_hz=_mean(window.readings, "sm_clock_hz"),
        memory_clock_hz=_mean(window.readings, "memory_clock_hz"),
        temperature_c=_mean(window.readings, "temperature_c"),
        power_w=_mean(window.readings, "power_w"),
        throttle=list(dict.fromkeys(reason for reading in window.readings for reason in reading.throttle)),
    )


def _mean(readings: Sequence[Telemetry], name: str) -> float | None:
    values = [value for reading in readings if (value := getattr(reading, name)) is not None]
    return sum(values) / len(values) if values else None
