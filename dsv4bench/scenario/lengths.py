"""Mixed context lengths: the requests of a batch at the quantiles of a distribution, the same in every run."""

from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist

from dsv4bench.scenario.sizes import format_tokens

GRID = 128
"""Lengths are multiples of this, so that ``boundary`` alone decides who completes a compressed entry."""
GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True)
class ContextMix:
    """A distribution of sequence lengths.

    Attributes:
        distribution: ``lognormal`` or ``uniform``.
        low: shortest, tokens.
        high: longest.
        median: of ``lognormal``; half of the requests are shorter.
        sigma: of ``lognormal``: standard deviation of the natural logarithm.
    """

    distribution: str
    low: int
    high: int
    median: int = 0
    sigma: float = 0.0

    @property
    def nominal(self) -> int:
        """The middle of the distribution, tokens."""
        return self.median or (self.low + self.high) // 2

    @property
    def label(self) -> str:
        """Short text, for example ``lognormal(32K,1,1K..1M)``."""
        low, high, middle = (format_tokens(size).replace(",", "") for size in (self.low, self.high, self.median))
        shape = f"{middle},{self.sigma:g}," if self.distribution == "lognormal" else ""
        return f"{self.distribution}({shape}{low}..{high})"

    def lengths(self, batch: int) -> tuple[int, ...]:
        """Length of each request: quantiles (r + ½) / batch, in an order that mixes short and long evenly."""
        order = sorted(range(batch), key=lambda r: r * GOLDEN % 1)
        return tuple(self._quantile((r + 0.5) / batch) for r in order)

    def _quantile(self, share: float) -> int:
        if self.distribution == "lognormal":
            length = exp(log(self.median) + self.sigma * NormalDist().inv_cdf(share))
        else:
            length = self.low + share * (self.high - self.low)
        return min(max(round(length / GRID) * GRID, self.low, 1), self.high)
