"""Products with fp8 weights: cuBLAS's block-scaled GEMM where the card has it, dequantised operands elsewhere.

The GEMM takes activations scaled per 1 × 128 and weights per 128 × 128 (sm_90 with CUDA 12.9 or later). Whether this
torch and card have it is tried once. Elsewhere both operands are dequantised, exactly, on every call: right, and slow.
"""

from functools import cache

import torch
from dsv4_kernels.weight import AMAX_FLOOR, BLOCK, Fp8Weight, dense
from torch.nn.functional import linear, pad

from dsv4bench.providers.eager.entries import exp2_int, quantize_fp8

ROW_MULTIPLE = 4
"""cuBLAS wants the scales of its activations in rows of a multiple of this many tokens, and as many blocks of K."""


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


def has_block_scaled_gemm(device: torch.device) -> bool:
    """Whether fp8 products run as fp8 on a device."""
    return device.type == "cuda" and _trial(device.index or 0)


@cache
def _trial(index: int) -> bool:
    if torch.cuda.get_device_capability(index)[0] < 9 or not hasattr(torch.nn.functional, "scaled_mm"):
        return False
    one = Fp8Weight(
        torch.ones((128, 512), device=f"cuda:{index}").to(torch.float8_e4m3fn),
        torch.ones((1, 4), device=f"cuda:{index}"),
    )
    try:
        found = _gemm(one.values[:4], one.scales.expand(4, 4), one, torch.bfloat16)
        return bool((found == 512).all())
    except RuntimeError:
        return False


def _product(values: torch.Tensor, scales: torch.Tensor, weight: Fp8Weight, dtype: torch.dtype) -> torch.Tensor:
    """[T, K] e4m3 with scales [T, K/128] times [N, K]: [T, N] in ``dtype``."""
    fits = weight.scales.shape[1] % ROW_MULTIPLE == 0 and weight.shape[0] % 16 == 0 and len(values) > 0
    if fits and dtype == torch.bfloat16 and has_block_scaled_gemm(values.device):
        return _gemm(values, scales, weight, dtype)
    blocks = torch.unflatten(values.to(dtype), -1, (-1, BLOCK))
    return linear((blocks * scales.to(dtype).unsqueeze(-1)).flatten(-2), dense(weight, dtype))


def _gemm(values: torch.Tensor, scales: torch.Tensor, weight: Fp8Weight, dtype: torch.dtype) -> torch.Tensor:
    """cuBLAS's GEMM; activation scales go in token-major, tokens padded to a multiple of 4."""
    from torch.nn.functional import ScalingType, scaled_mm

    tokens = len(values)
    if extra := -tokens % ROW_MULTIPLE:
        values = pad(values.view(torch.uint8), (0, 0, 0, extra)).view(torch.float8_e4m3fn)
        scales = pad(scales, (0, 0, 0, extra))
    return scaled_mm(
        values.contiguous(),
        weight.values.t(),
        scales.t().contiguous().t(),
        ScalingType.BlockWise1x128,
        weight.scales.t(),
        ScalingType.BlockWise128x128,
        output_dtype=dtype,
    )[:tokens]
