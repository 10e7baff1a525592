"""The few statistics that verdicts rest on: the paired t interval, the prediction interval and Holm's correction.

Times are compared as logarithms of ratios, so that +5 % and −5 % are mirror images and rounds weigh alike whatever a
case costs. The paired t interval is taken because it keeps its coverage at few rounds: a percentile bootstrap covers
84 % at five rounds, pooled rank tests call a third of identical pairs different.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

CONFIDENCE = 0.95
"""Confidence of every interval."""

Key = TypeVar("Key")


@dataclass(frozen=True)
class Estimate:
    """A relative change with its interval.

    Attributes:
        log_effect: mean of ln(new / base).
        half_width: half the width of the 95 % interval around it, in the same unit; infinite for a single observation.
        p_value: two-sided, for "no change".
        count: observations behind it (rounds, or stored runs).
    """

    log_effect: float
    half_width: float
    p_value: float
    count: int

    @property
    def effect(self) -> float:
        """Relative change: 0.05 is five per cent slower."""
        return math.expm1(self.log_effect)

    @property
    def lower(self) -> float:
        """Lower bound of the relative change; −1 where nothing bounds it."""
        return math.expm1(self.log_effect - self.half_width)

    @property
    def upper(self) -> float:
        """Upper bound of the relative change; infinite where nothing bounds it."""
        return math.expm1(self.log_effect + self.half_width)


def paired_t(log_ratios: Sequence[float]) -> Estimate:
    """Estimate a change from rounds that measured both sides.

    Args:
        log_ratios: ln(new median / base median) of each round.

    Returns:
        The mean with Student's t interval on ``len(log_ratios) - 1`` degrees of freedom.

    Raises:
        ValueError: no rounds.
    """
    count = len(log_ratios)
    mean, deviation = mean_and_deviation(log_ratios)
    return _estimate(mean, deviation / math.sqrt(count), count)


def prediction(history: Sequence[float], value: float) -> Estimate:
    """Estimate a change of one run against the runs stored before it.

    Args:
        history: ln(median) of each stored run.
        value: ln(median) of the new run.

    Returns:
        ``value`` minus the history's mean, with the interval within which one further run of unchanged code would fall,
        ``t · s · sqrt(1 + 1/n)``.

    Raises:
        ValueError: an empty history.
    """
    count = len(history)
    mean, deviation = mean_and_deviation(history)
    return _estimate(value - mean, deviation * math.sqrt(1 + 1 / count), count)


def half_width(deviation: float, count: int) -> float:
    """Relative half-width of the paired t interval that ``count`` rounds would give.

    Args:
        deviation: standard deviation of ln(new / base) between rounds.
        count: rounds.
    """
    if count < 2:
        return math.inf
    return math.expm1(t_quantile(count - 1) * deviation / math.sqrt(count))


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Holm's step-down correction: p values that may be compared with 0.05 however many cases are tested.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6 (1979).
    """
    adjusted: dict[Key, float] = {}
    running = 0.0
    for rank, (key, p_value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        running = max(running, min(1.0, (len(p_values) - rank) * p_value))
        adjusted[key] = running
    return adjusted


def drift(values: Sequence[float]) -> float:
    """Relative change from the first round to the last along the least-squares line through ln(value)."""
    count = len(values)
    if count < 2:
        return 0.0
    logs = [math.log(value) for value in values]
    centre, mean = (count - 1) / 2, math.fsum(logs) / count
    spread = math.fsum((index - centre) ** 2 for index in range(count))
    slope = math.fsum((index - centre) * (log - mean) for index, log in enumerate(logs)) / spread
    return math.expm1(slope * (count - 1))


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n − 1); the deviation of a single value is 0.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("no values")
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


@cache
def t_quantile(degrees: int) -> float:
    """Two-sided quantile of Student's t at 95 %: 2.262 for 9 degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + CONFIDENCE / 2))


def _estimate(mean: float, error: float, count: int) -> Estimate:
    """Interval and p value for a mean with a standard error, on ``count - 1`` degrees of freedom."""
    from scipy.special import stdtr

    if count < 2:
        return Estimate(mean, math.inf, 1.0, count)
    if error == 0.0:  # a clock too coarse to see scatter, or deterministic figures
        return Estimate(mean, 0.0, 1.0 if mean == 0.0 else 0.0, count)
    p_value = 2.0 * float(stdtr(count - 1, -abs(mean) / error))
    return Estimate(mean, t_quantile(count - 1) * error, p_value, count)
