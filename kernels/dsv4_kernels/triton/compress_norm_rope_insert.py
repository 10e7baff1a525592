"""From compressor state rows to a finished cache entry, in one launch: softmax, RMS norm, RoPE, quantise, insert.

Two kernels behind one launcher. With ratio 4 an entry mixes 8 rows of one column half each (32 KiB at width 512, 8 KiB
at 128), which one program reads at once. With ratio 128 it mixes 128 rows (512 KiB): tiles of columns and splits of
rows go to programs of their own, which leave a partial softmax in scratch memory; the last to finish combines them.

Only tokens that complete an entry cost more than a look at their slot. Where a step has many tokens, a program looks at
several slots and works on those that need it: consecutive prefill tokens have one completing token in 4 or 128. With
ratio 128 a group of tokens has 16 programs. They share the rare entry column by column, or, where most tokens of the
group complete one, each takes whole rows, which is what device memory reads fastest.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.triton.entries import (
    INDEXER_BLOCKS,
    MAIN_BLOCKS,
    page_arguments,
    store_indexer_entries,
    store_main_entries,
)
from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton.pairs import load_tail_table, rotate_tail, split_row
from dsv4_kernels.triton.tickets import CAPACITY, tickets

_LOG2E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True)
class OverlapTile:
    """Ratio 4: tokens a program looks at, and warps per program."""

    tokens: int
    warps: int


@dataclass(frozen=True)
class SplitTile:
    """Ratio 128: a group of ``tokens`` is served by 512 / ``columns`` programs.

    Attributes:
        tokens: tokens of a group.
        columns: columns of a program's tile where the group completes few entries and all programs share each.
        rows: rows per step there, all in registers.
        whole_rows: rows per step where it completes most of them and each program takes rows of all 512 columns.
        stages: steps in flight through shared memory there.
        warps: warps per program.
    """

    tokens: int
    columns: int
    rows: int
    whole_rows: int = 4
    stages: int = 3
    warps: int = 4


OVERLAP_TILES = {
    512: ((1 << 62, OverlapTile(1, 4)),),
    128: ((2048, OverlapTile(1, 1)), (4096, OverlapTile(2, 1)), (1 << 62, OverlapTile(4, 1))),
}
"""Entry width → largest T → tile. NVIDIA H200, 2026-11-29."""
SPLIT_TILES = (
    (32, SplitTile(1, 32, 128)),
    (96, SplitTile(4, 32, 128)),
    (256, SplitTile(8, 32, 128, whole_rows=2, stages=6)),
    (1 << 62, SplitTile(32, 32, 128, whole_rows=2, stages=6)),
)
"""Largest T → tile. NVIDIA H200, 2026-11-29."""


@triton.jit
def _load_tokens(slots, positions, requests, first, tokens, TOKENS: tl.constexpr):
    """Slots (−1 beyond the last token), positions and requests of ``TOKENS`` tokens, all loads in flight together."""
    token = first + tl.arange(0, TOKENS)
    mask = token < tokens
    slot = tl.load(slots + token, mask=mask, other=-1)
    return slot, tl.load(positions + token, mask=mask, other=0), tl.load(requests + token, mask=mask, other=0)


@triton.jit
def _next_completing(slot, after, TOKENS: tl.constexpr):
    """Index of the first token beyond ``after`` that completes an entry; ``TOKENS`` if there is none."""
    index = tl.arange(0, TOKENS)
    return tl.min(tl.where((slot >= 0) & (index > after), index, TOKENS), axis=0)


@triton.jit
def _pick(values, i, TOKENS: tl.constexpr):
    """``values[i]`` of a tensor in registers."""
    return tl.sum(tl.where(tl.arange(0, TOKENS) == i, values, 0), axis=0)


@triton.jit
def _load_finish(weight, cos_sin, anchor, table_stride, D: tl.constexpr):
    """What ``_finish_entry`` needs from memory: norm weight, cos and sin. Loaded early, so that it need not wait."""
    one = tl.arange(0, 1)
    BLOCKS: tl.constexpr = MAIN_BLOCKS if D == 512 else INDEXER_BLOCKS
    cos, sin = load_tail_table(cos_sin + (anchor + one) * table_stride, one == 0, BLOCKS, D // BLOCKS // 2)
    return tl.load(weight + tl.arange(0, D)).to(tl.float32), cos, sin


@triton.jit
def _finish_entry(
    c, slot, w, cos, sin, pages, page_stride, eps, D: tl.constexpr, ENTRIES: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Norm, rotate, quantise and store one mixed row ``c`` (fp32 [D])."""
    c = c * tl.rsqrt(tl.sum(c * c, axis=0) / D + eps) * w
    even, odd = split_row(c, cos.shape[1])
    even, odd = rotate_tail(even, odd, cos, sin)
    if D == 512:
        store_main_entries(even, odd, slot + tl.arange(0, 1), pages, page_stride, ENTRIES, PRECISION)
    else:
        store_indexer_entries(even, odd, slot + tl.arange(0, 1), pages, page_stride, ENTRIES, PRECISION)


@triton.jit
def mix_overlap(
    state, pages_of, anchor, state_page_stride, state_token_stride, D: tl.constexpr, PAGE_TOKENS: tl.constexpr
):  # fmt: skip
    """Softmax-weighted sum, fp32 [D], of the previous window's first halves and the current window's second halves."""
    offset = tl.arange(0, 4)[:, None] * state_token_stride + tl.arange(0, D)[None, :]
    previous = tl.maximum(anchor - 4, 0)
    exists = anchor >= 4
    page_a = tl.maximum(tl.load(pages_of + previous // PAGE_TOKENS), 0).to(tl.int64)
    page_b = tl.maximum(tl.load(pages_of + anchor // PAGE_TOKENS), 0).to(tl.int64)
    a = state + page_a * state_page_stride + previous % PAGE_TOKENS * state_token_stride + offset
    b = state + page_b * state_page_stride + anchor % PAGE_TOKENS * state_token_stride + offset
    score_a = tl.load(a + 2 * D, mask=exists, other=float("-inf"))
    score_b = tl.load(b + 3 * D)
    kv_a = tl.load(a, mask=exists, other=0.0)
    kv_b = tl.load(b + D)
    top = tl.maximum(tl.max(score_a, axis=0), tl.max(score_b, axis=0))[None, :]
    weight_a = tl.exp2((score_a - top) * _LOG2E)
    weight_b = tl.exp2((score_b - top) * _LOG2E)
    total = tl.sum(weight_a, axis=0) + tl.sum(weight_b, axis=0)
    return (tl.sum(weight_a * kv_a, axis=0) + tl.sum(weight_b * kv_b, axis=0)) / total


@triton.jit(do_not_specialize=["tokens"])
def _compress_overlap(
    state, block_table, requests, positions, slots, weight, cos_sin, pages, tokens, eps,
    block_stride, state_page_stride, state_token_stride, table_stride, page_stride,
    D: tl.constexpr, PAGE_TOKENS: tl.constexpr, TOKENS: tl.constexpr,
    ENTRIES: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    first = tl.program_id(0) * TOKENS
    slot, position, request = _load_tokens(slots, positions, requests, first, tokens, TOKENS)
    i = _next_completing(slot, -1, TOKENS)
    while i < TOKENS:
        anchor = _pick(position, i, TOKENS) // 4 * 4
        pages_of = block_table + _pick(request, i, TOKENS).to(tl.int64) * block_stride
        w, cos, sin = _load_finish(weight, cos_sin, anchor, table_stride, D)
        c = mix_overlap(state, pages_of, anchor, state_page_stride, state_token_stride, D, PAGE_TOKENS)
        _finish_entry(c, _pick(slot, i, TOKENS), w, cos, sin, pages, page_stride, eps, D, ENTRIES, PRECISION)
        i = _next_completing(slot, i, TOKENS)


@triton.jit
def _load_rows(
    state, pages_of, position, column, state_page_stride, state_token_stride, D: tl.constexpr, PAGE_TOKENS: tl.constexpr
):  # fmt: skip
    """Scores and values of the state rows at ``position`` [ROWS], columns ``column``: fp32 [ROWS, COLUMNS] each."""
    page = tl.maximum(tl.load(pages_of + position // PAGE_TOKENS), 0).to(tl.int64)
    row = state + page * state_page_stride + position % PAGE_TOKENS * state_token_stride
    score = tl.load(row[:, None] + (D + column)[None, :])
    return score, tl.load(row[:, None] + column[None, :])


@triton.jit
def _absorb(top, total, mixed, score, kv):
    """One step of an online softmax, elementwise, with one exponential."""
    gap = score - top
    shrink = tl.exp2(-tl.abs(gap) * _LOG2E)
    higher = gap > 0
    old = tl.where(higher, shrink, 1.0)
    new = tl.where(higher, 1.0, shrink)
    return tl.maximum(top, score), total * old + new, mixed * old + new * kv


@triton.jit
def mix_rows(
    state, pages_of, anchor, first_row, column, state_page_stride, state_token_stride,
    D: tl.constexpr, PAGE_TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, COUNT: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Softmax-weighted sum of ``COUNT`` rows: maximum, sum of weights and weighted sum, fp32 [COLUMNS] each.

    Every element of the [ROWS, COLUMNS] tile runs an online softmax of its own over every ROWS-th row, with one
    exponential a row, and the ROWS of them are merged at the end.
    """
    position = anchor + first_row + tl.arange(0, ROWS)
    if STAGES == 0:
        top, mixed = _load_rows(
            state, pages_of, position, column, state_page_stride, state_token_stride, D, PAGE_TOKENS
        )
        total = tl.full([ROWS, COLUMNS], 1.0, tl.float32)
        for start in tl.static_range(ROWS, COUNT, ROWS):
            score, kv = _load_rows(
                state, pages_of, position + start, column, state_page_stride, state_token_stride, D, PAGE_TOKENS
            )  # fmt: skip
            top, total, mixed = _absorb(top, total, mixed, score, kv)
    else:
        top = tl.full([ROWS, COLUMNS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        mixed = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in tl.range(0, COUNT, ROWS, num_stages=STAGES):
            score, kv = _load_rows(
                state, pages_of, position + start, column, state_page_stride, state_token_stride, D, PAGE_TOKENS
            )  # fmt: skip
            top, total, mixed = _absorb(top, total, mixed, score, kv)
    peak = tl.max(top, axis=0)
    share = tl.exp2((top - peak[None, :]) * _LOG2E)
    return peak, tl.sum(total * share, axis=0), tl.sum(mixed * share, axis=0)


@triton.jit
def _combine_parts(base, D: tl.constexpr, SPLITS: tl.constexpr):
    """The mixed row fp32 [D] from a token's scratch; read past L1, where another program's store can't be seen."""
    column = tl.arange(0, D)
    if SPLITS == 1:
        return tl.load(base + column, cache_modifier=".cg")
    tile = base + tl.arange(0, SPLITS)[:, None] * D + column[None, :]
    top = tl.load(tile + SPLITS * D, cache_modifier=".cg")
    total = tl.load(tile + 2 * SPLITS * D, cache_modifier=".cg")
    mixed = tl.load(tile, cache_modifier=".cg")
    share = tl.exp2((top - tl.max(top, axis=0)[None, :]) * _LOG2E)
    return tl.sum(mixed * share, axis=0) / tl.sum(total * share, axis=0)


@triton.jit
def _compress_part(
    rows, finish, pages_of, anchor, target, token, split, column,
    D: tl.constexpr, RATIO: tl.constexpr, PAGE_TOKENS: tl.constexpr, PARTS: tl.constexpr, SCRATCH: tl.constexpr,
    COLUMNS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
    ENTRIES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Mix a tile of columns over a split of an entry's rows; whoever does the last of ``PARTS`` finishes the entry."""
    state, state_page_stride, state_token_stride = rows
    weight, cos_sin, pages, scratch, counters, eps, table_stride, page_stride = finish
    COUNT: tl.constexpr = RATIO // SPLITS
    top, total, mixed = mix_rows(
        state, pages_of, anchor, split * COUNT, column, state_page_stride, state_token_stride,
        D, PAGE_TOKENS, ROWS, COLUMNS, COUNT, STAGES,
    )  # fmt: skip
    w, cos, sin = _load_finish(weight, cos_sin, anchor, table_stride, D)
    if PARTS == 1:
        _finish_entry(mixed / total, target, w, cos, sin, pages, page_stride, eps, D, ENTRIES, PRECISION)
    else:
        # scratch of a token: SPLITS rows of c, then, where rows are split, of maxima and of sums
        base = scratch + token.to(tl.int64) * SCRATCH
        own = base + split * D + column
        if SPLITS == 1:
            tl.store(own, mixed / total)
        else:
            tl.store(own, mixed)
            tl.store(own + SPLITS * D, top)
            tl.store(own + 2 * SPLITS * D, total)
        tl.debug_barrier()  # every thread's part is stored before one of them draws the ticket
        drawn = tl.atomic_add(counters + token, 1, sem="acq_rel")
        if drawn == PARTS - 1:
            tl.store(counters + token, 0)
            c = _combine_parts(base, D, SPLITS)
            _finish_entry(c, target, w, cos, sin, pages, page_stride, eps, D, ENTRIES, PRECISION)


@triton.jit
def _share_entries(
    rows, finish, block_table, block_stride, group, part, first,
    D: tl.constexpr, RATIO: tl.constexpr, PAGE_TOKENS: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, SCRATCH: tl.constexpr, ENTRIES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Every program takes its tile of columns of each of the group's entries."""
    slot, position, request = group
    column = part * COLUMNS + tl.arange(0, COLUMNS)
    i = _next_completing(slot, -1, TOKENS)
    while i < TOKENS:
        anchor = _pick(position, i, TOKENS) // RATIO * RATIO
        pages_of = block_table + _pick(request, i, TOKENS).to(tl.int64) * block_stride
        _compress_part(
            rows, finish, pages_of, anchor, _pick(slot, i, TOKENS), first + i, 0, column,
            D, RATIO, PAGE_TOKENS, D // COLUMNS, SCRATCH, COLUMNS, 1, ROWS, 0, ENTRIES, PRECISION,
        )  # fmt: skip
        i = _next_completing(slot, i, TOKENS)


@triton.jit
def _deal_entries(
    rows, finish, block_table, block_stride, group, part, first,
    D: tl.constexpr, RATIO: tl.constexpr, PAGE_TOKENS: tl.constexpr, TOKENS: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, STAGES: tl.constexpr, SCRATCH: tl.constexpr, ENTRIES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Every program takes some of the entries, or an equal share of the rows of one; all columns of each row."""
    slot, position, request = group
    SPLITS: tl.constexpr = PARTS // TOKENS if TOKENS < PARTS else 1
    SHARE: tl.constexpr = TOKENS // PARTS if TOKENS > PARTS else 1
    for k in range(SHARE):
        i = part // SPLITS * SHARE + k
        target = _pick(slot, i, TOKENS)
        if target >= 0:
            anchor = _pick(position, i, TOKENS) // RATIO * RATIO
            pages_of = block_table + _pick(request, i, TOKENS).to(tl.int64) * block_stride
            _compress_part(
                rows, finish, pages_of, anchor, target, first + i, part % SPLITS, tl.arange(0, D),
                D, RATIO, PAGE_TOKENS, SPLITS, SCRATCH, D, SPLITS, ROWS, STAGES, ENTRIES, PRECISION,
            )  # fmt: skip


@triton.jit(do_not_specialize=["tokens"])
def _compress_split(
    state, block_table, requests, positions, slots, weight, cos_sin, pages, scratch, counters, tokens, eps,
    block_stride, state_page_stride, state_token_stride, table_stride, page_stride,
    D: tl.constexpr, RATIO: tl.constexpr, PAGE_TOKENS: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr, WHOLE_ROWS: tl.constexpr, STAGES: tl.constexpr, SCRATCH: tl.constexpr,
    ENTRIES: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    PARTS: tl.constexpr = D // COLUMNS
    part = tl.program_id(0) % PARTS
    first = tl.program_id(0) // PARTS * TOKENS
    group = _load_tokens(slots, positions, requests, first, tokens, TOKENS)
    rows = (state, state_page_stride, state_token_stride)
    finish = (weight, cos_sin, pages, scratch, counters, eps, table_stride, page_stride)
    if TOKENS == 1:
        _share_entries(
            rows, finish, block_table, block_stride, group, part, first,
            D, RATIO, PAGE_TOKENS, TOKENS, COLUMNS, ROWS, SCRATCH, ENTRIES, PRECISION,
        )  # fmt: skip
    else:
        if 2 * tl.sum((group[0] >= 0).to(tl.int32), axis=0) > TOKENS:
            _deal_entries(
                rows, finish, block_table, block_stride, group, part, first,
                D, RATIO, PAGE_TOKENS, TOKENS, PARTS, WHOLE_ROWS, STAGES, SCRATCH, ENTRIES, PRECISION,
            )  # fmt: skip
        else:
            _share_entries(
                rows, finish, block_table, block_stride, group, part, first,
                D, RATIO, PAGE_TOKENS, TOKENS, COLUMNS, ROWS, SCRATCH, ENTRIES, PRECISION,
            )  # fmt: skip


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
    tile: OverlapTile | SplitTile | None = None,
) -> None:
    """Write the entry of every token that completes one.

    Args:
        state_cache: fp32 [num_pages, block, 2·coff·d], any page and token strides; ``block`` is a multiple of 4.
        state_block_table: int32 [B, n], any row stride.
        token_to_request: int32 [T].
        positions: int64 [T].
        compressed_slots: int64 [T]; tokens with a negative slot complete no entry.
        norm_weight: [d], contiguous: d = 512 writes ``main`` entries, 128 indexer entries.
        cos_sin: fp32 [positions, 64].
        cache: destination, fp8, fp4 (indexer), bf16 or fp32 entries.
        ratio: 4 (overlapping windows) or 128.
        eps: added to the mean square.
        tile: overrides the tables, for tuning.
    """
    tokens, dim = compressed_slots.shape[0], norm_weight.shape[0]
    if tokens == 0:
        return
    arguments = {
        "state": state_cache, "block_table": state_block_table, "weight": norm_weight, "cos_sin": cos_sin, "eps": eps,
        "block_stride": state_block_table.stride(0), "state_page_stride": state_cache.stride(0),
        "state_token_stride": state_cache.stride(1), "table_stride": cos_sin.stride(0),
        "D": dim, "PAGE_TOKENS": state_cache.shape[1], **page_arguments(cache),
    }  # fmt: skip
    per_token = {"requests": token_to_request, "positions": positions, "slots": compressed_slots}
    if ratio == 4:
        chosen = tile or next(tile for most, tile in OVERLAP_TILES[dim] if tokens <= most)
        programs = triton.cdiv(tokens, chosen.tokens)
        _compress_overlap[(programs,)](
            **arguments, **per_token, tokens=tokens, TOKENS=chosen.tokens, num_warps=chosen.warps,
            **launch_options(programs),
        )  # fmt: skip
        return
    chosen = tile or next(tile for most, tile in SPLIT_TILES if tokens <= most)
    for start in range(0, tokens, CAPACITY):
        part = {name: values[start : start + CAPACITY] for name, values in per_token.items()}
        _launch_split(arguments, part, chosen, ratio)


def _launch_split(
    arguments: dict[str, object], per_token: dict[str, torch.Tensor], tile: SplitTile, ratio: int
) -> None:
    slots, dim = per_token["slots"], arguments["D"]
    tokens, parts = slots.shape[0], dim // tile.columns
    splits = max(1, parts // tile.tokens) if tile.tokens > 1 else 1
    rows = 1 if splits == 1 else 3 * splits
    programs = triton.cdiv(tokens, tile.tokens) * parts
    _compress_split[(programs,)](
        **arguments, **per_token, counters=tickets(slots.device), tokens=tokens,
        scratch=torch.empty((tokens, rows, dim), dtype=torch.float32, device=slots.device),
        RATIO=ratio, TOKENS=tile.tokens, COLUMNS=tile.columns, ROWS=tile.rows, WHOLE_ROWS=tile.whole_rows,
        STAGES=tile.stages, SCRATCH=rows * dim, num_warps=tile.warps, **launch_options(programs),
    )  # fmt: skip


indexer_compress_insert = compress_norm_rope_insert
"""The indexer's entries: the same mixing at width 128, all dims quantised together after the rotation."""
