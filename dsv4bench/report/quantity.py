"""Numbers as text, at the edge: storage is in seconds and bytes."""

import math

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def seconds(value: float) -> str:
    """A time with four significant digits: ``12.34 µs``."""
    if not math.isfinite(value):
        return "–"
    factor, unit = next(((factor, unit) for factor, unit in _UNITS if abs(value) >= factor), _UNITS[-1])
    digits = max(0, 3 - math.floor(math.log10(max(abs(value / factor), 1.0))))
    return f"{value / factor:.{digits}f} {unit}"


def signed_seconds(value: float) -> str:
    """A difference of times with its sign: ``+1.695 ms``."""
    return ("+" if value >= 0 else "") + seconds(value)


def change(value: float | None) -> str:
    """A relative change with its sign: ``+4.9 %``; under one per cent with two decimals."""
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) < 0.5e-4:
        return "0.00 %"
    return f"{value:+.{1 if abs(value) >= 0.01 else 2}%}".replace("%", " %")


def interval(lower: float, upper: float) -> str:
    """An interval of relative changes: ``−0.1 … +0.4 %``; a dash where nothing bounds it."""
    if not math.isfinite(lower) or not math.isfinite(upper):
        return "–"
    return f"{100 * lower:+.2f} … {100 * upper:+.2f} %"


def share(value: float) -> str:
    """A fraction as per cent, without a sign: ``3 %``, ``0.25 %``."""
    return f"{100 * value:.3g} %"
