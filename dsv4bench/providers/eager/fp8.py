"""Products with fp8 weights: cuBLAS's block-scaled GEMM where torch and the card have it.

Elsewhere both operands are dequantised, exactly, on every call: right, and slow.
"""

import torch
from dsv4_kernels.scaled_gemm import ROW_MULTIPLE, block_scaled_gemm, has_block_scaled_gemm, takes
from dsv4_kernels.weight import AMAX_FLOOR, BLOCK, Fp8Weight, dense
from torch.nn.functional import linear, pad

from dsv4bench.providers.eager.entries import exp2_int, quantize_fp8


def linear_fp8(x: torch.Tensor, weight: Fp8Weight) -> torch.Tensor:
    """``x @ weight.T`` with activations quantised per token and 128 elements: [T, K] · [N, K] → [T, N] like ``x``."""
    values, exponent = quantize_fp8(x, BLOCK, AMAX_FLOOR)
    return _product(values, exp2_int(exponent), weight, x.dtype)


def grouped_fp8(o_values: torch.Tensor, o_scales: torch.Tensor | None, weight: Fp8Weight) -> torch.Tensor:
    """A product per group: [T, G, w] · [G, ro, w] → [T, G, ro].

    Args:
        o_values: e4m3, or activations that are quantised here.
        o_scales: fp32 [T, G, w/128] of e4m3 values, else None.
        weight: of all groups.
    """
    dtype = torch.bfloat16 if o_scales is not None else o_values.dtype
    if o_scales is None:
        o_values, exponent = quantize_fp8(o_values, BLOCK, AMAX_FLOOR)
        o_scales = exp2_int(exponent)
    parts = (
        _product(o_values[:, group], o_scales[:, group], Fp8Weight(weight.values[group], weight.scales[group]), dtype)
        for group in range(len(weight.values))
    )
    return torch.stack(tuple(parts), dim=1)


def _product(values: torch.Tensor, scales: torch.Tensor, weight: Fp8Weight, dtype: torch.dtype) -> torch.Tensor:
    """[T, K] e4m3 with scales [T, K/128] times [N, K]: [T, N] in ``dtype``."""
    fits = takes(weight) and len(values) > 0 and dtype == torch.bfloat16
    if fits and has_block_scaled_gemm(values.device):
        return _gemm(values, scales, weight)
    blocks = torch.unflatten(values.to(dtype), -1, (-1, BLOCK))
    return linear((blocks * scales.to(dtype).unsqueeze(-1)).flatten(-2), dense(weight, dtype))


def _gemm(values: torch.Tensor, scales: torch.Tensor, weight: Fp8Weight) -> torch.Tensor:
    """cuBLAS's GEMM; activation scales go in token-major, tokens padded to a multiple of 4."""
    tokens = len(values)
    if extra := -tokens % ROW_MULTIPLE:
        values = pad(values.view(torch.uint8), (0, 0, 0, extra)).view(torch.float8_e4m3fn)
        scales = pad(scales, (0, 0, 0, extra))
    return block_scaled_gemm(values.contiguous(), scales.t().contiguous().t(), weight)[:tokens]
