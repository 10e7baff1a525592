"""Quantised values may differ from the reference's only where rounding was nearly a tie.

A provider computes what it quantises in its own order of operations, so a value may lie one bf16 ulp away before
quantisation. Everything that quantising any such value could give is right; nothing else is.
"""

import math
from dataclasses import dataclass

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import (
    FP4_AMAX_FLOOR,
    FP8_AMAX_FLOOR,
    OUTPUT_AMAX_FLOOR,
    nearest,
    record_view,
    scale_exponents,
    scale_view,
)
from dsv4_kernels.formats import FP4_MAX, FP8_MAX, EntryFormat

from dsv4bench.verify.difference import QUANTISED_TOLERANCE, Difference, describe
from dsv4bench.verify.pinpoint import reach, spread

SCALE_FLOOR = "scale-floor"
"""Deviation: another lower bound of the scale, which shows in blocks that are all but zero."""
BF16_KEYS = "bf16-keys"
"""Deviation: fp8 latents are attended by keys of bf16, made with scales of bf16."""
DEVIATIONS = (SCALE_FLOOR, BF16_KEYS)
"""Every deviation that may be let pass by name."""
NO_POWER = -1000
"""Stands for the exponent of what isn't a power of two."""


@dataclass(frozen=True)
class Quantiser:
    """How blocks are quantised.

    Attributes:
        precision: target type.
        block: elements per scale.
        largest: largest value of the type.
        floor: lower bound of a block's maximum.
        any_scale: whether a scale may also be maximum / largest as it is, because the format stores a float and says no
            more; otherwise only that rounded up to a power of two.
    """

    precision: str
    block: int
    largest: float
    floor: float
    any_scale: bool = False


INDEX_QUERY = {
    "fp8": Quantiser("fp8", 128, FP8_MAX, FP8_AMAX_FLOOR),
    "fp4": Quantiser("fp4", 32, FP4_MAX, FP4_AMAX_FLOOR),
}
OUTPUT = Quantiser("fp8", 128, FP8_MAX, OUTPUT_AMAX_FLOOR)


def cache_quantiser(format: EntryFormat) -> Quantiser:
    """The quantiser of a cache format."""
    if format.precision == "fp4":
        return Quantiser("fp4", format.quant_block, FP4_MAX, FP4_AMAX_FLOOR)
    return Quantiser("fp8", format.quant_block, FP8_MAX, FP8_AMAX_FLOOR, any_scale=format.role == "latent")


def quantised_difference(
    what: str,
    actual: torch.Tensor,
    scales: torch.Tensor,
    exact: torch.Tensor,
    quantiser: Quantiser,
    dims: tuple[str, ...],
    labels: torch.Tensor | None = None,
    slack: float | None = None,
) -> Difference:
    """Compare dequantised values with what quantising values within one bf16 ulp of ``exact`` could give.

    Args:
        what: name of the tensor.
        actual: dequantised values, [..., n · block].
        scales: that the provider stored, fp32 [..., n].
        exact: values before quantisation, same shape as ``actual``.
        quantiser: the definition.
        dims: names of the leading dims.
        labels: indices of the first dim.
        slack: relative error of values before quantisation, instead of one bf16 ulp.
    """
    if not actual.numel():
        return Difference(what, 0.0, QUANTISED_TOLERANCE)
    blocks = torch.unflatten(exact.float(), -1, (-1, quantiser.block))
    stored = torch.unflatten(actual.float(), -1, (-1, quantiser.block))
    # beside one bf16 ulp, the noise of an fp32 rotation, which a cancelled pair shows
    ulp = torch.maximum(_bf16_ulp(blocks), 2.0**-22 * blocks.abs().amax(-1, keepdim=True))
    ulp = ulp if slack is None else slack * blocks.abs()
    low, high = blocks - ulp, blocks + ulp
    least, most = (blocks.abs() - ulp).clamp_min(0).amax(-1), (blocks.abs() + ulp).amax(-1)
    smallest = scale_exponents(least, quantiser.largest, quantiser.floor)
    largest = scale_exponents(most, quantiser.largest, quantiser.floor)
    exponents = power_exponents(scales)
    misscaled = (exponents < smallest) | (exponents > largest)
    if quantiser.any_scale:
        misscaled &= ~_unrounded(scales, least, most, quantiser)
    scale = scales.float().unsqueeze(-1)
    allowed_low = nearest(quantiser.precision, low / scale) * scale
    allowed_high = nearest(quantiser.precision, high / scale) * scale
    beyond = torch.maximum(allowed_low - stored, stored - allowed_high).clamp_min(0)
    beyond = torch.where(stored.isfinite(), beyond, math.inf)
    norm = blocks.square().sum((-1, -2)).sqrt()
    error = beyond.square().sum((-1, -2)).sqrt() / torch.where(norm > 0, norm, 1.0)
    error = torch.where(misscaled.any(-1), math.inf, error)
    flat = int(error.argmax())
    worst = float(error.flatten()[flat])
    detail, deviation = "", ""
    if misscaled.any():
        detail = _wrong_scale(flat, misscaled, scales, smallest, blocks.abs().amax(-1)) + "; "
        deviation = SCALE_FLOOR if _all_tiny(misscaled, least, exponents, smallest, quantiser) else ""
    if worst > QUANTISED_TOLERANCE:
        detail += _wrong_values(flat, beyond, stored, allowed_low, allowed_high)
        detail = detail.removesuffix("; ") + reach(error, QUANTISED_TOLERANCE)
    where, numbers = describe(flat, error.shape, dims, labels), {"snr_db": snr_db(actual, exact)}
    return Difference(what, worst, QUANTISED_TOLERANCE, where, numbers, deviation, detail)


def _wrong_scale(
    flat: int, misscaled: torch.Tensor, scales: torch.Tensor, expected: torch.Tensor, largest: torch.Tensor
) -> str:
    """The first wrong scale of a vector; all are [..., blocks]."""
    block = int(misscaled.flatten(0, -2)[flat].int().argmax())
    scale, want, magnitude = (float(one.flatten(0, -2)[flat, block]) for one in (scales, expected, largest))
    got = int(power_exponents(torch.tensor(scale)))
    stored = f"2^{got} (byte {got + 127})" if got > NO_POWER else f"{scale:.6g}, no power of two"
    return (
        f"block {block}, whose largest magnitude is {magnitude:.6g}, has the scale {stored}, "
        f"expected 2^{want:.0f} (byte {want + 127:.0f})"
    )


def _wrong_values(flat: int, beyond: torch.Tensor, stored: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> str:
    """The worst value of a vector and how far its like reach, nothing if all are right under their scales; all are
    [..., blocks, block]."""
    off, got, least, most = (one.flatten(-2).flatten(0, -2)[flat] for one in (beyond, stored, low, high))
    if not off.any():
        return ""
    worst = int(off.argmax())
    span = f"{float(least[worst]):.6g}" + (f" to {float(most[worst]):.6g}" if least[worst] != most[worst] else "")
    return f"element {worst} is {float(got[worst]):.6g}, expected {span}" + spread(off > 0)


def _all_tiny(
    misscaled: torch.Tensor,
    least: torch.Tensor,
    exponents: torch.Tensor,
    expected: torch.Tensor,
    quantiser: Quantiser,
) -> bool:
    """Whether every wrong scale is merely a higher floor (at most 2^-13, a floor of 1e-4 on the scale itself)."""
    raised = (exponents > expected) & (exponents <= -13) & (least <= quantiser.largest * 2.0**-13)
    return bool(raised[misscaled].all())


def _unrounded(scales: torch.Tensor, least: torch.Tensor, most: torch.Tensor, quantiser: Quantiser) -> torch.Tensor:
    """Whether scales are maximum / largest as it is; a block below the floor may have any smaller one, too."""
    noise = 2.0**-20
    smallest = least / quantiser.largest * (1 - noise)
    largest = most.clamp_min(quantiser.floor) / quantiser.largest * (1 + noise)
    return (scales > 0) & (scales >= smallest) & (scales <= largest)


def _bf16_ulp(x: torch.Tensor) -> torch.Tensor:
    """Distance of neighbouring bf16 values around each element."""
    _, exponent = torch.frexp(x)
    return torch.where(x == 0, 0.0, torch.ldexp(torch.ones_like(x), exponent - 8))


def snr_db(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """Signal-to-noise ratio in decibels of stored values over the values before storing; capped at 200."""
    signal = exact.double().square().sum()
    noise = (actual.double() - exact.double()).square().sum()
    if not bool(noise > 0) or not bool(signal > 0):
        return 200.0
    return float((10 * torch.log10(signal / noise)).clamp(-200, 200).nan_to_num(-200.0))


def stored_scales(cache: PagedCache, slots: torch.Tensor) -> torch.Tensor:
    """Scales of quantised entries, fp32 [S, blocks]."""
    page, entry = slots // cache.entries, slots % cache.entries
    format = cache.format
    if format.role == "latent":
        return record_view(cache)[page, entry][:, 512:528].contiguous().view(torch.float32)
    scales = scale_view(cache)[page, entry]
    if format.role == "main":
        return scales_of(scales[:, :7].int() - 127)
    if format.precision == "fp4":
        return scales_of(scales.int() - 127)
    return scales.contiguous().view(torch.float32)


def scales_of(exponents: torch.Tensor) -> torch.Tensor:
    """Powers of two, fp32, from int exponents."""
    return torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents)


def power_exponents(scales: torch.Tensor) -> torch.Tensor:
    """Exponents of fp32 powers of two, int32; ``NO_POWER`` for anything else."""
    mantissa, exponent = torch.frexp(scales.float())
    return torch.where(mantissa == 0.5, exponent - 1, NO_POWER).int()
