"""The stages that only V3.2 has: absorbed queries, latent entries and index keys per token."""

import torch

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import write_entries
from dsv4_kernels.reference.precision import wide
from dsv4_kernels.rope import rotate


def query_rope(
    *, q: torch.Tensor, q_absorbed: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> torch.Tensor:
    """Append the rotated rope dims of ``q`` [T, H, 192] to the absorbed query [T, H, 512]: [T, H, 576]."""
    rope = rotate(wide(q[..., -cos_sin.shape[-1] :]), positions, cos_sin)
    return torch.cat((q_absorbed, rope.to(q_absorbed.dtype)), dim=-1)


def latent_insert(
    *,
    kv: torch.Tensor,
    qkv_latent: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: PagedCache,
    slots: torch.Tensor,
) -> None:
    """Store ``[kv | RoPE(k_pe)]`` of every token.

    Args:
        kv: [T, 512], normed.
        qkv_latent: [T, rq + 576]; k_pe is its last 64 columns.
        positions: int64 [T].
        cos_sin: fp32 [positions, 64].
        cache: written at ``slots``.
        slots: int64 [T]; negative = don't write.
    """
    rope = rotate(wide(qkv_latent[:, -cos_sin.shape[-1] :]), positions, cos_sin)
    write_entries(cache, slots, torch.cat((wide(kv), rope), dim=-1))


def indexer_key_insert(
    *,
    index_k: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: PagedCache,
    slots: torch.Tensor,
    eps: float,
) -> None:
    """Layer norm, half-split rotation of the first 64 dims, store.

    Args:
        index_k: [T, 128].
        norm_weight: fp32 [128].
        norm_bias: fp32 [128].
        positions: int64 [T].
        cos_sin: fp32 [positions, 64].
        cache: written at ``slots``.
        slots: int64 [T]; negative = don't write.
        eps: added to the variance.
    """
    keys = wide(index_k)
    weight, bias = norm_weight.to(keys.dtype), norm_bias.to(keys.dtype)
    normed = torch.nn.functional.layer_norm(keys, (keys.shape[-1],), weight, bias, eps)
    write_entries(cache, slots, rotate(normed, positions, cos_sin, style="half"))
