"""Matrix products with weights: fp32 accumulation, one rounding of the result; bf16 or block-scaled fp8 operands."""

import torch
from dsv4_kernels.formats import INDEX_DIM
from dsv4_kernels.weight import Fp8Weight, Weight
from torch.nn.functional import linear

from dsv4bench.providers.eager.fp8 import grouped_fp8, linear_fp8
from dsv4bench.providers.eager.products import has_mixed_products

WIDEN_ROWS = 256
"""Weight rows that are widened at a time on a CPU: 4 MiB temporaries are reused by the allocator, which makes the
compressor projection 3.5× faster than widening the whole weight (11 ms to 3 ms at 2048 × 4096)."""


def project(*, x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """``x @ weight.T`` in the activation dtype: [T, h] · [N, h] → [T, N]."""
    return linear_fp8(x, weight) if isinstance(weight, Fp8Weight) else linear(x, weight)


def project_fp32(*, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``x @ weight.T`` with an fp32 result: the compressor's softmax amplifies what bf16 would round away.

    Args:
        x: [T, h].
        weight: [2·coff·d, h].

    Returns:
        fp32 [T, 2·coff·d], ``[kv | score]``.
    """
    if has_mixed_products(x.device) and x.dtype == weight.dtype == torch.bfloat16:
        return torch.mm(x, weight.T, out_dtype=torch.float32)
    wide = x.float()
    return torch.cat([linear(wide, rows.float()) for rows in torch.split(weight, WIDEN_ROWS)], dim=-1)


def query_projection(*, q_latent: torch.Tensor, weight: Weight, head_dim: int) -> torch.Tensor:
    """Queries: [T, rq] · [H·D, rq] → [T, H, D]."""
    return torch.unflatten(project(x=q_latent, weight=weight), -1, (-1, head_dim))


def indexer_query_projection(*, q_latent: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Indexer queries: [T, rq] · [HI·128, rq] → [T, HI, 128]."""
    return torch.unflatten(project(x=q_latent, weight=weight), -1, (-1, INDEX_DIM))


def query_absorb(*, q: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """V3.2: the 128 unrotated dims of each head into latent space, [T, H, 192] · [H, 128, 512] → [T, H, 512]."""
    return _per_head(q[..., : weight.shape[1]], weight)


def value_up_projection(*, o: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """V3.2: attended latents to values, [T, H, 512] · [H, 512, 128] → [T, H, 128]."""
    return _per_head(o, weight)


def output_group_projection(*, o_values: torch.Tensor, o_scales: torch.Tensor | None, weight: Weight) -> torch.Tensor:
    """Each group of heads to its output rank.

    Args:
        o_values: [T, G, w], activations or e4m3.
        o_scales: fp32 [T, G, w/128] of e4m3 values, else None; powers of two, so dequantising to bf16 is exact.
        weight: [G, ro, w].

    Returns:
        [T, G, ro] in the weight's dtype; bf16 where values and weight are both fp8.
    """
    if isinstance(weight, Fp8Weight):
        return grouped_fp8(o_values, o_scales, weight)
    values = o_values.to(weight.dtype)
    if o_scales is not None:
        scales = o_scales.to(weight.dtype).unsqueeze(-1)
        values = (torch.unflatten(values, -1, (o_scales.shape[-1], -1)) * scales).flatten(-2)
    return _per_head(values, weight.transpose(1, 2))


def output_projection(*, o: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Back to the residual stream: [T, …] · [h, …] → [T, h]."""
    return project(x=o.flatten(1), weight=weight)


def _per_head(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Batched product over the middle dim: [T, H, a] · [H, a, b] → [T, H, b]."""
    return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1)
