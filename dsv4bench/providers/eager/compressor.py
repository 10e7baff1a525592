"""The compressor: state rows of every token, and the entries that completed windows become."""

import torch
from dsv4_kernels.cache import PagedCache
from torch.nn.functional import rms_norm

from dsv4bench.providers.eager.entries import scatter_rows, write_entries
from dsv4bench.providers.eager.rotary import rotate
from dsv4bench.providers.eager.workspace import chunks


def state_save(
    *,
    kv_score: torch.Tensor,
    ape: torch.Tensor,
    positions: torch.Tensor,
    state_cache: torch.Tensor,
    state_slots: torch.Tensor,
) -> None:
    """Store the row ``[kv | score + ape]`` of every token.

    Args:
        kv_score: fp32 [T, 2·coff·d].
        ape: fp32 [m, coff·d], by position mod m.
        positions: int64 [T].
        state_cache: fp32 [pages, block, 2·coff·d], written in place.
        state_slots: int64 [T]; −1 writes nothing.
    """
    kv, score = kv_score.chunk(2, dim=-1)
    row = torch.cat((kv, score + ape[positions % ape.shape[0]]), dim=-1)
    scatter_rows(state_cache, state_slots, row)


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
    """Compress every window that a token of this step completes: softmax, sum, norm, rotate, quantise, insert.

    Args:
        state_cache: fp32 [pages, block, 2·coff·d]; rows of this step are already saved.
        state_block_table: int32 [B, n], state pages by position // block.
        token_to_request: int32 [T].
        positions: int64 [T].
        compressed_slots: int64 [T]; −1 where a token completes nothing.
        norm_weight: [d].
        cos_sin: fp32 [rows, 64].
        cache: written at ``compressed_slots``.
        ratio: 4 (windows of 8 at stride 4) or 128.
        eps: of the norm.
    """
    tokens = _completing(compressed_slots, state_block_table.shape[0], ratio)
    row_bytes = 4 * norm_weight.shape[0] * (8 if ratio == 4 else ratio)
    for part in chunks(tokens.shape[0], 5 * row_bytes, positions.device):
        mine = tokens[part]
        pages = state_block_table[token_to_request[mine]]
        kv, score = _window(state_cache, pages, positions[mine], norm_weight.shape[0], ratio)
        entry = (score.softmax(dim=1) * kv).sum(dim=1)
        normed = rms_norm(entry, (entry.shape[-1],), norm_weight.float(), eps)
        anchor = positions[mine] // ratio * ratio
        write_entries(cache, compressed_slots[mine], rotate(normed, anchor, cos_sin))


def _completing(slots: torch.Tensor, requests: int, ratio: int) -> torch.Tensor:
    """Tokens that complete an entry, as token indices; others may follow where there is room.

    Positions of a request are consecutive within a step, so at most ``ceil(q / ratio)`` of its q tokens complete an
    entry. That bound is a matter of shapes, which a captured graph needs. Exceeding it fails instead of losing entries.
    """
    tokens = slots.shape[0]
    bound = (tokens + requests * (ratio - 1)) // ratio
    if tokens <= bound:
        return torch.arange(tokens, device=slots.device)
    torch._assert_async((slots >= 0).sum() <= bound, "a step's positions must be consecutive per request")
    return torch.argsort((slots < 0).int(), stable=True)[:bound]


def _window(
    state: torch.Tensor, pages: torch.Tensor, positions: torch.Tensor, dim: int, ratio: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and scores fp32 [S, 8 or 128, dim] of the rows that end at ``positions``.

    With overlap the previous window contributes its first half of columns and the current one its second; rows before
    the sequence get score −inf.
    """
    width = state.shape[-1] // 2
    kv, score = state[..., :width], state[..., width:]
    offsets = torch.arange(1 - ratio, 1, device=positions.device)
    current = positions.unsqueeze(1) + offsets
    if ratio != 4:
        return _rows(kv, pages, current), _rows(score, pages, current)
    previous = current - ratio
    missing = (previous < 0).unsqueeze(-1)
    kv_previous = _rows(kv[..., :dim], pages, previous).masked_fill_(missing, 0)
    score_previous = _rows(score[..., :dim], pages, previous).masked_fill_(missing, float("-inf"))
    return (
        torch.cat((kv_previous, _rows(kv[..., dim:], pages, current)), dim=1),
        torch.cat((score_previous, _rows(score[..., dim:], pages, current)), dim=1),
    )


def _rows(state: torch.Tensor, pages: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """State rows [S, w, columns] at absolute ``positions`` [S, w]; ids are clamped: any will do."""
    block = state.shape[1]
    positions = positions.clamp(min=0)
    page = pages.long().gather(1, (positions // block).clamp(max=pages.shape[1] - 1))
    return state[page.clamp(0, state.shape[0] - 1), positions % block]
