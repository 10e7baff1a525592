"""Stages around the query: norms, rotation and window insert, and the way back of the attention's output."""

import torch
from dsv4_kernels.cache import PagedCache

from dsv4bench.providers.vllm.library import Library
from dsv4bench.providers.vllm.pages import by_entry

FLASHMLA_HEADS = (64, 128)
"""Query heads that FlashMLA has kernels for; vLLM pads to them."""


def padded_heads(heads: int) -> int:
    """Heads that vLLM allocates queries and outputs with.

    Raises:
        NotImplementedError: more than FlashMLA takes.
    """
    for padded in FLASHMLA_HEADS:
        if heads <= padded:
            return padded
    raise NotImplementedError(f"FlashMLA has kernels for {FLASHMLA_HEADS} query heads, not for {heads}")


def qkv_norm(
    library: Library,
    *,
    qkv_latent: torch.Tensor,
    q_norm_weight: torch.Tensor,
    kv_norm_weight: torch.Tensor,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norm of both latents in one Triton kernel; see docs/stages.md."""
    rank, width = len(q_norm_weight), len(kv_norm_weight)
    q_latent, kv = library.function("qkv_norm")(
        qr=qkv_latent[:, :rank],
        kv=qkv_latent[:, rank : rank + width],
        q_weight=q_norm_weight,
        kv_weight=kv_norm_weight,
        eps=eps,
    )
    return q_latent, kv


def query_norm_rope_insert(
    library: Library,
    *,
    q: torch.Tensor,
    kv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    window_cache: PagedCache,
    window_slots: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Head norm, RoPE, quantisation and insert in one CUDA kernel.

    Returns:
        [T, H, 512], the leading heads of a tensor that is padded with zero heads to 64 or 128, which the kernel writes
        too. ``sparse_attention`` finds the padding again.
    """
    q = q.contiguous()  # a no-op behind a projection
    padded: torch.Tensor = library.function("query_norm_rope_insert")(
        q,
        kv.contiguous(),
        by_entry(window_cache).flatten(1),
        window_slots,
        positions,
        cos_sin,
        padded_heads(q.shape[1]),
        eps,
        window_cache.entries,
    )
    return padded[:, : q.shape[1]]


def inverse_rope_quant(
    library: Library, *, o: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, groups: int, precision: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotation back and quantisation in one Triton kernel.

    Scales are fp32, as vLLM has them on compute capability 9.0; on 10.0 it packs them as bytes, which our contract
    doesn't have, so there the fp32 form is run as well.

    Raises:
        NotImplementedError: another precision than fp8.
    """
    if precision != "fp8":
        raise NotImplementedError(f"vLLM quantises the attention's output to fp8; it has no {precision} form of this")
    values, scales = library.function("inverse_rope_quant")(
        o=o,
        positions=positions,
        cos_sin_cache=cos_sin,
        n_groups=groups,
        heads_per_group=o.shape[1] // groups,
        tma_aligned_scales=False,
    )
    return values, scales
