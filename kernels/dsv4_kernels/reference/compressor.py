"""The compressor: a row of state per token, and an entry per completed window of 4 or 128 tokens."""

import torch

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import write_entries
from dsv4_kernels.reference.norm import rms_norm
from dsv4_kernels.reference.precision import chunk_rows, wide
from dsv4_kernels.rope import rotate


def compressor_state_save(
    *,
    kv_score: torch.Tensor,
    ape: torch.Tensor,
    positions: torch.Tensor,
    state_cache: torch.Tensor,
    state_slots: torch.Tensor,
) -> None:
    """Store each token's state row ``[kv | score + ape[position mod m]]``.

    Args:
        kv_score: fp32 [T, 2·coff·d], ``[kv | score]``.
        ape: fp32 [m, coff·d], added to the score only.
        positions: int64 [T].
        state_cache: fp32 [num_pages, block, 2·coff·d], written in place.
        state_slots: int64 [T]; negative = don't write.
    """
    kept = state_slots >= 0
    slots, positions = state_slots[kept].long(), positions[kept]
    kv, score = kv_score[kept].chunk(2, dim=-1)
    row = torch.cat((kv, score + ape[positions % ape.shape[0]].to(score.dtype)), dim=-1)
    block = state_cache.shape[1]
    state_cache[slots // block, slots % block] = row.to(state_cache.dtype)


def compress_norm_rope_insert(
    *,
    state_cache: torch.Tensor,
    state_block_table: torch.Tensor,
    token_to_request: torch.Tensor,
    positions: torch.Tensor,
    compressed_slots: torch.Tensor,
    norm_weight: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: PagedCache,
    ratio: int,
    eps: float,
) -> None:
    """For every token that completes a window: mix its rows, norm, rotate at the window's first token, store.

    The softmax over rows runs per channel. Ratio 4 mixes 8 rows, the previous window by its first half of columns
    and the current one by its second; the first window of a request has no predecessor and mixes 4.

    Args:
        state_cache: fp32 [num_pages, block, 2·coff·d] holding the rows of the windows concerned.
        state_block_table: int32 [B, n], pages of ``block`` tokens per request.
        token_to_request: int32 [T].
        positions: int64 [T].
        compressed_slots: int64 [T]; negative = the token completes no entry.
        norm_weight: [d].
        cos_sin: fp32 [positions, 64].
        cache: destination.
        ratio: m, 4 or 128.
        eps: added to the mean square.
    """
    completing = torch.nonzero(compressed_slots >= 0).flatten()
    span = 2 * ratio if ratio == 4 else ratio
    for part in torch.split(completing, chunk_rows(span * state_cache.shape[-1])):
        ends = positions[part]
        at = ends[:, None] - span + 1 + torch.arange(span, device=ends.device)
        rows = _state_rows(state_cache, state_block_table[token_to_request[part].long()], at)
        entry = rms_norm(_mix(rows, at >= 0, norm_weight.shape[0], ratio), eps, norm_weight)
        write_entries(cache, compressed_slots[part], rotate(entry, ratio * (ends // ratio), cos_sin))


def _state_rows(state_cache: torch.Tensor, block_table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """State rows of positions ``at`` [E, span] of the requests whose table rows are given: [E, span, row]."""
    block = state_cache.shape[1]
    pages = block_table.long().gather(1, (at.clamp_min(0) // block)).clamp_min(0)
    return wide(state_cache[pages, at.clamp_min(0) % block])


def _mix(rows: torch.Tensor, exists: torch.Tensor, d: int, ratio: int) -> torch.Tensor:
    """Softmax over rows, per channel, of the columns that take part: [E, span, row] → [E, d]."""
    kv, score = rows.chunk(2, dim=-1)
    if ratio == 4:
        previous, current = slice(0, ratio), slice(ratio, 2 * ratio)
        kv = torch.cat((kv[:, previous, :d], kv[:, current, d:]), dim=1)
        score = torch.cat((score[:, previous, :d], score[:, current, d:]), dim=1)
    missing = ~exists.unsqueeze(-1)
    weights = score.masked_fill(missing, float("-inf")).softmax(dim=1)
    return (weights * kv.masked_fill(missing, 0)).sum(dim=1)


indexer_state_save = compressor_state_save
"""The indexer's state rows; the same operation on 128-dim columns."""
indexer_compress_insert = compress_norm_rope_insert
"""The indexer's entries; the same operation on 128-dim columns, all of them quantised together."""
