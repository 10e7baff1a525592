"""Sparse attention over window and compressed entries in one softmax, and the rotation back of its output."""

import torch

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import OUTPUT_AMAX_FLOOR, power_of_two, quantize_fp8, read_entries
from dsv4_kernels.formats import HEAD_DIM
from dsv4_kernels.reference.precision import chunk_rows, wide
from dsv4_kernels.rope import rotate


def sparse_attention(
    *,
    q: torch.Tensor,
    window_cache: PagedCache | None,
    window_indices: torch.Tensor | None,
    window_lens: torch.Tensor | None,
    compressed_cache: PagedCache | None,
    compressed_indices: torch.Tensor | None,
    compressed_lens: torch.Tensor | None,
    sink: torch.Tensor | None,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multi-query attention of each token over the cache slots listed for it; keys are their own values.

    Args:
        q: [T, H, 512], or [T, H, 576] over latent entries whose first 512 dims are the value.
        window_cache: window entries, None for dsa.
        window_indices: int32 [T, n] slots; negative = nothing.
        window_lens: int32 [T], leading columns to scan.
        compressed_cache: compressed (dsa: per-token) entries, None for swa.
        compressed_indices: int32 [T, Ke] slots; negative = nothing.
        compressed_lens: int32 [T], leading columns to scan.
        sink: fp32 [H], a logit that joins the denominator only; None where the model has none.
        softmax_scale: factor on q · k.

    Returns:
        ``o`` [T, H, 512], and ``lse`` fp32 [T, H], natural log without the sink (float64 for float64 queries). A token
        that sees nothing has o = 0 and lse = −inf.
    """
    sources = [
        (cache, indices, lens)
        for cache, indices, lens in (
            (window_cache, window_indices, window_lens),
            (compressed_cache, compressed_indices, compressed_lens),
        )
        if cache is not None and indices is not None and lens is not None
    ]
    tokens, heads, dim = q.shape
    queries = wide(q)
    out = torch.empty(tokens, heads, HEAD_DIM, dtype=q.dtype, device=q.device)
    lse = queries.new_empty(tokens, heads)
    columns = sum(indices.shape[1] for _, indices, _ in sources)
    for part in torch.split(torch.arange(tokens, device=q.device), chunk_rows(columns * max(dim, heads))):
        gathered = [_gather(cache, indices[part], lens[part]) for cache, indices, lens in sources]
        keys = torch.cat([entries for entries, _ in gathered], dim=1).to(queries.dtype)
        seen = torch.cat([mask for _, mask in gathered], dim=1)
        o, lse[part] = _attend(queries[part], keys, seen, sink, softmax_scale)
        out[part] = o.to(q.dtype)
    return out, lse


def _gather(cache: PagedCache, indices: torch.Tensor, lens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Entries at the listed slots [t, n, dim], zeros where a column doesn't count, and the mask [t, n] of the rest."""
    seen = (torch.arange(indices.shape[1], device=indices.device) < lens[:, None]) & (indices >= 0)
    # windows of neighbouring tokens overlap: decode each slot once
    slots, place = torch.unique(torch.where(seen, indices, -1), return_inverse=True)
    return read_entries(cache, slots)[place], seen


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, seen: torch.Tensor, sink: torch.Tensor | None, softmax_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = (queries @ keys.transpose(1, 2) * softmax_scale).masked_fill(~seen[:, None], float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    nothing = lse == float("-inf")
    weights = torch.exp(scores - lse.masked_fill(nothing, 0).unsqueeze(-1))
    if sink is not None:
        share = torch.sigmoid(lse - sink.to(lse.dtype)).masked_fill(nothing, 0)
        weights = weights * share.unsqueeze(-1)
    return weights @ keys[..., :HEAD_DIM], lse


def inverse_rope_quant(
    *, o: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, groups: int, precision: str
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rotate the output back by the query's position and, for fp8, quantise it per 128 elements.

    Args:
        o: [T, H, 512].
        positions: int64 [T].
        cos_sin: fp32 [positions, 64], the layer's table.
        groups: output groups of consecutive heads.
        precision: ``fp8``; anything else keeps the activations' dtype.

    Returns:
        ``o_values`` [T, G, H/G·512], and ``o_scales`` fp32 [T, G, H/G·4] for fp8, else None.
    """
    rotated = torch.unflatten(rotate(wide(o), positions, cos_sin, inverse=True), 1, (groups, -1)).flatten(-2)
    if precision != "fp8":
        return rotated.to(o.dtype), None
    values, exponents = quantize_fp8(rotated, 128, OUTPUT_AMAX_FLOOR)
    return values, power_of_two(exponents)
