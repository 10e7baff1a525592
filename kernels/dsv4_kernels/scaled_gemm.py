"""cuBLAS's block-scaled fp8 matrix product, through torch.

It takes activations scaled per 1 × 128 and weights per 128 × 128 (sm_90 with CUDA 12.9 or later). Whether torch and the
card have it is tried once.
"""

from functools import cache

import torch

from dsv4_kernels.weight import Fp8Weight

ROW_MULTIPLE = 4
"""Tokens, and blocks of K, come in multiples of this: scales are read 16 bytes at a time."""
_OUTPUT_MULTIPLE = 16


def has_block_scaled_gemm(device: torch.device) -> bool:
    """Whether a device has the product."""
    return device.type == "cuda" and _trial(device.index or 0)


def takes(weight: Fp8Weight) -> bool:
    """Whether the product takes a weight's shape."""
    return weight.scales.shape[-1] % ROW_MULTIPLE == 0 and weight.shape[-2] % _OUTPUT_MULTIPLE == 0


def block_scaled_gemm(values: torch.Tensor, scales: torch.Tensor, weight: Fp8Weight) -> torch.Tensor:
    """``x @ weight.T`` in bf16.

    Args:
        values: e4m3 [T, K], contiguous; T is a multiple of 4.
        scales: fp32 [T, K/128] with tokens innermost: strides (1, T).
        weight: [N, K] of a shape that it ``takes``.
    """
    from torch.nn.functional import ScalingType, scaled_mm

    return scaled_mm(
        values,
        weight.values.t(),
        scales,
        ScalingType.BlockWise1x128,
        weight.scales.t(),
        ScalingType.BlockWise128x128,
        output_dtype=torch.bfloat16,
    )


@cache
def _trial(index: int) -> bool:
    if torch.cuda.get_device_capability(index)[0] < 9 or not hasattr(torch.nn.functional, "scaled_mm"):
        return False
    where = torch.device("cuda", index)
    # scales of their own: a row cut out of a wider tensor keeps that one's stride, which cuBLAS's layout check refuses
    weight = Fp8Weight(torch.ones((128, 512), device=where).to(torch.float8_e4m3fn), torch.ones((1, 4), device=where))
    try:
        found = block_scaled_gemm(weight.values[:4], torch.ones((4, 4), device=where).t(), weight)
    except (RuntimeError, ValueError):
        return False
    return bool((found == 512).all())
