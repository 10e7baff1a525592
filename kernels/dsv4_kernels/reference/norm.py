"""Norms of the query and key/value path, with the rotation and cache insert that follow them."""

import torch

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import write_entries
from dsv4_kernels.reference.precision import wide
from dsv4_kernels.rope import rotate


def rms_norm(x: torch.Tensor, eps: float, weight: torch.Tensor | None = None) -> torch.Tensor:
    """RMS norm over the last dim of an already widened tensor; nothing is rounded in between."""
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight.to(x.dtype)


def qkv_norm(
    *, qkv_latent: torch.Tensor, q_norm_weight: torch.Tensor, kv_norm_weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norm of the query latent and of the key/value vector, each over its own columns.

    Args:
        qkv_latent: [T, ≥ rq + 512]; further columns (V3.2's rope key) are ignored.
        q_norm_weight: [rq].
        kv_norm_weight: [512].
        eps: added to the mean square.

    Returns:
        ``q_latent`` [T, rq] and ``kv`` [T, 512].
    """
    rank, width = q_norm_weight.shape[0], kv_norm_weight.shape[0]
    latent = wide(qkv_latent)
    q_latent = rms_norm(latent[:, :rank], eps, q_norm_weight)
    kv = rms_norm(latent[:, rank : rank + width], eps, kv_norm_weight)
    return q_latent.to(qkv_latent.dtype), kv.to(qkv_latent.dtype)


def query_norm_rope_insert(
    *,
    q: torch.Tensor,
    kv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    window_cache: PagedCache,
    window_slots: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Norm each query head over all its dims without a weight, rotate queries and kv, store kv in the window cache.

    Args:
        q: [T, H, 512].
        kv: [T, 512], already normed.
        positions: int64 [T].
        cos_sin: fp32 [positions, 64].
        window_cache: written at ``window_slots`` with RoPE(kv).
        window_slots: int64 [T]; negative = don't write.
        eps: added to the mean square.

    Returns:
        ``q_rotated`` [T, H, 512].
    """
    write_entries(window_cache, window_slots, rotate(wide(kv), positions, cos_sin))
    return rotate(rms_norm(wide(q), eps), positions, cos_sin).to(q.dtype)
