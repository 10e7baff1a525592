"""How far a tensor is from what it should be, and how far it may be.

Tolerances are per row or vector and the worst one decides: one wrong row of 1,024 × 64 is 5.5e-3 of the tensor.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch

from dsv4bench.verify.pinpoint import pinpoint, reach

ROW_TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}
"""Largest error of an element relative to its row's maximum, by the dtype everything was computed in."""
VECTOR_TOLERANCE = 1e-2
"""‖out − ref‖ / ‖ref‖ of a bf16 vector after one stage."""
VECTOR_COSINE = 0.9999
LAYER_TOLERANCE = 3e-2
"""The same after a whole bf16 layer."""
LAYER_COSINE = 0.9995
ACCUMULATION_TOLERANCE = 1e-4
"""Element relative to its row's maximum, where bf16 operands are accumulated and returned in fp32; a result rounded to
bf16 would be 4e-3 off."""
LOGIT_TOLERANCE = 2.0**-11
"""Logit relative to the row's largest sum of |terms|. Hopper's fp8 tensor cores cut sums 13 bits below their largest
addend, which leaves up to 2e-4; products or weights rounded to bf16 are 7e-4 off."""
SELECTION_TOLERANCE = 2.0**-10
"""Entries whose logits are this close, relative to the row's largest |logit|, may swap in a top-k."""
LSE_TOLERANCE = 1e-2
"""Absolute, natural log; the relative error of the softmax denominator."""
QUANTISED_TOLERANCE = 1e-6
"""Distance to the nearest value that rounding may give, relative to the vector: 0 but for noise."""


@dataclass(frozen=True)
class Difference:
    """One comparison.

    Attributes:
        what: tensor that was compared.
        error: worst error in the comparison's own measure; infinite if something isn't finite that should be.
        tolerance: largest error that passes.
        where: index of the worst error, in words.
        numbers: further figures by name.
        deviation: name of the documented deviation this would be, if it fails.
        detail: of a failure, which elements are off and what would be right.
    """

    what: str
    error: float
    tolerance: float
    where: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    deviation: str = ""
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the error is within the tolerance."""
        return self.error <= self.tolerance

    @property
    def severity(self) -> float:
        """Error over tolerance."""
        return self.error / self.tolerance if self.tolerance else (math.inf if self.error else 0.0)

    @property
    def sentence(self) -> str:
        """What is wrong, by how much, where, and what would be right."""
        if self.tolerance == 0:
            return f"{self.what}: {self.where}"
        much = f"off by {self.error:.3g} (allowed {self.tolerance:.3g})" if math.isfinite(self.error) else "is wrong"
        text = f"{self.what} {much} at {self.where or 'every token'}"
        return f"{text}: {self.detail}" if self.detail else text


def worst(differences: Iterable[Difference]) -> Difference:
    """The one that lies furthest beyond (or nearest to) its tolerance."""
    return max(differences, key=lambda difference: difference.severity)


def exact(what: str, ok: bool, where: str = "", deviation: str = "") -> Difference:
    """A statement that is true or false."""
    return Difference(what, 0.0 if ok else math.inf, 0.0, "" if ok else where, deviation=deviation)


def row_difference(
    what: str,
    actual: torch.Tensor,
    expected: torch.Tensor,
    tolerance: float,
    dims: Sequence[str] = ("token",),
    labels: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
) -> Difference:
    """Largest error of an element, relative to the maximum of its row (last dim), or to the row's ``scale``."""
    returned = actual
    actual, expected = _comparable(actual, expected)
    if not actual.numel():
        return Difference(what, 0.0, tolerance)
    scale = expected.abs().amax(-1) if scale is None else scale.double()
    error = (actual - expected).abs().amax(-1) / torch.where(scale > 0, scale, 1.0)
    return _located(what, error, tolerance, dims, labels, (returned, expected, tolerance * scale))


def vector_difference(
    what: str,
    actual: torch.Tensor,
    expected: torch.Tensor,
    tolerance: float = VECTOR_TOLERANCE,
    cosine: float = VECTOR_COSINE,
    dims: Sequence[str] = ("token",),
    labels: torch.Tensor | None = None,
) -> Difference:
    """‖out − ref‖ / ‖ref‖ and cosine of each vector (last dim); a vector that should be zero must be."""
    returned = actual
    actual, expected = _comparable(actual, expected)
    if not actual.numel():
        return Difference(what, 0.0, tolerance)
    norm, size = expected.norm(dim=-1), actual.norm(dim=-1)
    error = (actual - expected).norm(dim=-1) / torch.where(norm > 0, norm, 1.0)
    error = torch.where((norm == 0) & (error > 0), math.inf, error)
    cosines = (actual * expected).sum(-1) / torch.where(norm * size > 0, norm * size, 1.0)
    cosines = torch.where(norm > 0, cosines, 1.0)
    # a cosine beyond its bound counts as an error just as far beyond the tolerance
    error = torch.maximum(error, tolerance * ((1 - cosines) / (1 - cosine)))
    slack = tolerance * expected.abs().amax(-1)
    found = _located(what, error, tolerance, dims, labels, (returned, expected, slack))
    return replace(found, numbers={"cosine": float(cosines.min())})


def activation_difference(
    what: str,
    actual: torch.Tensor,
    expected: torch.Tensor,
    computed_in: torch.dtype,
    dims: Sequence[str] = ("token",),
    labels: torch.Tensor | None = None,
) -> Difference:
    """Compare activations by what they were computed in: rows for fp32 and float64, vectors for bf16."""
    if computed_in in ROW_TOLERANCE:
        return row_difference(what, actual, expected, ROW_TOLERANCE[computed_in], dims, labels)
    return vector_difference(what, actual, expected, dims=dims, labels=labels)


def _comparable(actual: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in float64, with whatever isn't finite in ``actual`` infinitely wrong."""
    if actual.shape != expected.shape:
        raise ValueError(f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    actual = actual.double()
    return torch.where(actual.isfinite(), actual, math.inf), expected.double()


def _located(
    what: str,
    error: torch.Tensor,
    tolerance: float,
    dims: Sequence[str],
    labels: torch.Tensor | None,
    vectors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> Difference:
    """The worst of ``error`` [...]; ``vectors`` are returned and expected [..., D], and an element's slack [...]."""
    error = error.nan_to_num(nan=math.inf, posinf=math.inf)
    flat = int(error.argmax())
    worst = float(error.flatten()[flat])
    detail = ""
    if worst > tolerance:
        actual, expected, slack = vectors
        got, due = (side.flatten(0, -2)[flat] if side.dim() > 1 else side for side in (actual, expected))
        detail = pinpoint(got, due, float(slack.flatten()[flat])) + reach(error, tolerance)
    return Difference(what, worst, tolerance, describe(flat, error.shape, dims, labels), detail=detail)


def describe(flat: int, shape: Sequence[int], dims: Sequence[str], labels: torch.Tensor | None = None) -> str:
    """A flat index in words, such as ``token 5, head 3``; labels rename the first dim's indices."""
    index: list[int] = []
    for size in reversed(shape):
        index.insert(0, flat % size)
        flat //= size
    if labels is not None and index:
        index[0] = int(labels[index[0]])
    return ", ".join(f"{name} {i}" for name, i in zip(dims, index, strict=False))
