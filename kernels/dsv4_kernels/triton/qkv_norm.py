"""RMS norm of the query latent and of the key/value vector, side by side in one launch."""

import torch
import triton
import triton.language as tl

from dsv4_kernels.triton.casts import to_bf16
from dsv4_kernels.triton.launch import begin, launch_options


@triton.jit
def _norm_row(source, weight, target, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    x = tl.load(source + column, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, axis=0) / WIDTH + eps) * w
    tl.store(target + column, to_bf16(y), mask=mask)


@triton.jit
def _qkv_norm(
    latent, q_weight, kv_weight, q_latent, kv, eps, row_stride,
    RANK: tl.constexpr, KV: tl.constexpr, RANK_BLOCK: tl.constexpr, KV_BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    token = (tl.program_id(0) // 2).to(tl.int64)
    source = latent + token * row_stride
    if tl.program_id(0) % 2 == 0:
        _norm_row(source, q_weight, q_latent + token * RANK, eps, RANK, RANK_BLOCK)
    else:
        _norm_row(source + RANK, kv_weight, kv + token * KV, eps, KV, KV_BLOCK)


def qkv_norm(
    *, qkv_latent: torch.Tensor, q_norm_weight: torch.Tensor, kv_norm_weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise both parts of the joint projection.

    Args:
        qkv_latent: bf16 [T, ≥ rq + 512], any row stride; further columns are ignored.
        q_norm_weight: [rq], contiguous, any float dtype.
        kv_norm_weight: [512], likewise.
        eps: added to the mean square.

    Returns:
        ``q_latent`` [T, rq] and ``kv`` [T, 512], contiguous, bf16; fp32 arithmetic, one rounding.
    """
    tokens = qkv_latent.shape[0]
    rank, width = q_norm_weight.shape[0], kv_norm_weight.shape[0]
    q_latent = qkv_latent.new_empty((tokens, rank))
    kv = qkv_latent.new_empty((tokens, width))
    if tokens:
        _qkv_norm[(2 * tokens,)](
            qkv_latent, q_norm_weight, kv_norm_weight, q_latent, kv, eps, qkv_latent.stride(0),
            RANK=rank, KV=width, RANK_BLOCK=triton.next_power_of_2(rank), KV_BLOCK=triton.next_power_of_2(width),
            **launch_options(2 * tokens),
        )  # fmt: skip
    return q_latent, kv
