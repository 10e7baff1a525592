"""The query and key/value path: norms, rotation, and the insert of each token's own entry."""

import torch
from dsv4_kernels.cache import PagedCache
from torch.nn.functional import rms_norm

from dsv4bench.providers.eager.entries import write_entries
from dsv4bench.providers.eager.rotary import rotate


def qkv_norm(
    *, qkv_latent: torch.Tensor, q_norm_weight: torch.Tensor, kv_norm_weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norm of the query latent [T, rq] and of the key/value vector [T, 512], fp32 math, one rounding."""
    rank, width = q_norm_weight.shape[0], kv_norm_weight.shape[0]
    q_latent = rms_norm(qkv_latent[:, :rank].float(), (rank,), q_norm_weight.float(), eps)
    kv = rms_norm(qkv_latent[:, rank : rank + width].float(), (width,), kv_norm_weight.float(), eps)
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
    """Norm every query head, rotate queries and kv, insert kv into the window cache.

    Args:
        q: [T, H, 512].
        kv: [T, 512], already normed.
        positions: int64 [T].
        cos_sin: fp32 [rows, 64].
        window_cache: written at ``window_slots``.
        window_slots: int64 [T]; −1 writes nothing.
        eps: of the norm, which has no weight.

    Returns:
        Rotated queries [T, H, 512].
    """
    write_entries(window_cache, window_slots, rotate(kv.float(), positions, cos_sin))
    normed = rms_norm(q.float(), (q.shape[-1],), None, eps)
    return rotate(normed.to(q.dtype), positions, cos_sin)


def query_rope(
    *, q: torch.Tensor, q_absorbed: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> torch.Tensor:
    """V3.2: rotate the 64 rope dims of ``q`` [T, H, 192] and put them behind ``q_absorbed``: [T, H, 576]."""
    return torch.cat((q_absorbed, rotate(q[..., -cos_sin.shape[-1] :], positions, cos_sin)), dim=-1)


def latent_insert(
    *,
    kv: torch.Tensor,
    qkv_latent: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: PagedCache,
    slots: torch.Tensor,
) -> None:
    """V3.2: insert ``[kv 512 | RoPE(k_pe) 64]`` of every token at ``slots``; k_pe is the tail of ``qkv_latent``."""
    k_pe = rotate(qkv_latent[:, -cos_sin.shape[-1] :].float(), positions, cos_sin)
    write_entries(cache, slots, torch.cat((kv.float(), k_pe), dim=-1))
