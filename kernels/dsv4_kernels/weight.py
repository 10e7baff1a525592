"""fp8 weights with a scale per block of 128 × 128, as the published checkpoints hold their large projections.

A product with such a weight quantises its activations as well, per token and 128 elements: that is part of the model,
not of an implementation. Scales of both are powers of two, so dequantised operands are exact in bf16, and ways to
compute the product differ by the order of its fp32 sum alone.
"""

from dataclasses import dataclass

import torch

from dsv4_kernels.codec import dequantize_fp8, quantize_fp8, scale_exponents
from dsv4_kernels.formats import FP8_MAX

BLOCK = 128
"""Rows and columns of a weight, and elements of an activation, that share a scale."""
AMAX_FLOOR = 1e-10
"""Smallest block maximum; keeps the scale of an all-zero block finite."""


@dataclass(frozen=True)
class Fp8Weight:
    """A weight in e4m3 with fp32 block scales: element = value · scale.

    Attributes:
        values: e4m3fn [..., N, K]; K is a multiple of 128.
        scales: fp32 [..., ⌈N/128⌉, K/128].
    """

    values: torch.Tensor
    scales: torch.Tensor

    def __post_init__(self) -> None:
        *lead, rows, columns = self.values.shape
        expected = (*lead, -(-rows // BLOCK), columns // BLOCK)
        if self.values.dtype != torch.float8_e4m3fn or columns % BLOCK:
            raise ValueError(f"values must be e4m3fn [..., N, K] with K a multiple of {BLOCK}, got {self.values.shape}")
        if self.scales.dtype != torch.float32 or self.scales.shape != expected:
            raise ValueError(f"scales must be fp32 {list(expected)}, got {self.scales.dtype} {list(self.scales.shape)}")

    @property
    def shape(self) -> torch.Size:
        """Dimensions of the weight."""
        return self.values.shape

    @property
    def nbytes(self) -> int:
        """Bytes of values and scales."""
        return self.values.nbytes + self.scales.nbytes


Weight = torch.Tensor | Fp8Weight
"""What a projection takes."""


def quantize_weight(weight: torch.Tensor) -> Fp8Weight:
    """Quantise [..., N, K] by blocks, with the smallest power-of-two scales that fit.

    Raises:
        ValueError: K is not a multiple of 128.
    """
    *lead, rows, columns = weight.shape
    if columns % BLOCK:
        raise ValueError(f"an fp8 weight needs a multiple of {BLOCK} columns, got {columns}")
    padded = torch.nn.functional.pad(weight.float(), (0, 0, 0, -rows % BLOCK))
    blocks = padded.view(*lead, -1, BLOCK, columns // BLOCK, BLOCK)
    exponents = scale_exponents(blocks.abs().amax((-3, -1)), FP8_MAX, AMAX_FLOOR)
    scaled = torch.ldexp(blocks, -exponents[..., :, None, :, None]).clamp(-FP8_MAX, FP8_MAX)
    values = scaled.view(*lead, -1, columns)[..., :rows, :].to(torch.float8_e4m3fn)
    return Fp8Weight(values.contiguous(), torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents))


def dense(weight: Weight, dtype: torch.dtype) -> torch.Tensor:
    """The weight as an ordinary tensor of ``dtype``; exact from bf16 up where scales are powers of two."""
    if isinstance(weight, torch.Tensor):
        return weight.to(dtype)
    rows = weight.shape[-2]
    scales = weight.scales.to(dtype).repeat_interleave(BLOCK, -2)[..., :rows, :].unsqueeze(-1)
    return (torch.unflatten(weight.values.to(dtype), -1, (-1, BLOCK)) * scales).flatten(-2)


def quantized_activations(x: torch.Tensor) -> torch.Tensor:
    """What a product with an fp8 weight sees of its activations [..., K]: quantised and dequantised, in their dtype."""
    values, exponents = quantize_fp8(x, BLOCK, AMAX_FLOOR)
    return dequantize_fp8(values, exponents).to(x.dtype)
