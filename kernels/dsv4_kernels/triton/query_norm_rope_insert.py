"""Per-head query norm and RoPE, and the window key/value's RoPE, quantisation and insert, in one launch.

The two halves share nothing but the position; side by side they cost one launch instead of four and each query element
moves through memory once: 4 B an element (bf16 in, bf16 out) plus 1,024 + 584 B a token for the key/value row.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import HEAD_DIM
from dsv4_kernels.triton.casts import pack_bf16, unpack_bf16
from dsv4_kernels.triton.entries import page_arguments, store_main_entries
from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton.pairs import as_words, load_tail_table, pair_index, rotate_tail


@dataclass(frozen=True)
class Tile:
    """Query rows (heads of consecutive tokens) per program, and warps per program."""

    rows: int
    warps: int


TILE = Tile(2, 1)
"""Best or within 5 % of it from 1 to 4,096 tokens, 64 and 128 heads. NVIDIA H200, 2026-11-29."""


@triton.jit
def _insert_row(
    kv, positions, slots, cos_sin, pages, token, kv_stride, table_stride, page_stride,
    ENTRIES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = token + tl.arange(0, 1)
    position = tl.load(positions + row)
    slot = tl.load(slots + row)
    even, odd = unpack_bf16(tl.load(kv + row.to(tl.int64)[:, None, None] * kv_stride + pair_index(8, 32)))
    cos, sin = load_tail_table(cos_sin + position * table_stride, row >= 0, 8, 32)
    even, odd = rotate_tail(even, odd, cos, sin)
    store_main_entries(even, odd, slot, pages, page_stride, ENTRIES, PRECISION)


@triton.jit
def _norm_rotate_rows(
    q, out, positions, cos_sin, first, tokens, eps, q_token_stride, q_head_stride, table_stride,
    HEADS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = first + tl.arange(0, ROWS)
    token = row // HEADS
    mask = token < tokens
    position = tl.load(positions + token, mask=mask, other=0)
    word = pair_index(8, 32)
    start = token.to(tl.int64) * q_token_stride + (row - token * HEADS) * q_head_stride
    even, odd = unpack_bf16(tl.load(q + start[:, None, None] + word, mask=mask[:, None, None], other=0))
    cos, sin = load_tail_table(cos_sin + position * table_stride, mask, 8, 32)
    square = tl.sum(tl.sum(even * even + odd * odd, axis=2), axis=1)
    factor = tl.rsqrt(square / 512 + eps)[:, None, None]
    even, odd = rotate_tail(even * factor, odd * factor, cos, sin)
    target = out + row.to(tl.int64)[:, None, None] * 256 + word
    tl.store(target, pack_bf16(even, odd), mask=mask[:, None, None])


@triton.jit(do_not_specialize=["tokens"])
def _query_norm_rope_insert(
    q, out, kv, positions, slots, cos_sin, pages, tokens, eps,
    q_token_stride, q_head_stride, kv_stride, table_stride, page_stride,
    HEADS: tl.constexpr, ROWS: tl.constexpr, ENTRIES: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    program = tl.program_id(0)
    if program < tokens:  # the longer path starts first
        _insert_row(
            kv, positions, slots, cos_sin, pages, program, kv_stride, table_stride, page_stride, ENTRIES, PRECISION
        )
    else:
        _norm_rotate_rows(
            q, out, positions, cos_sin, (program - tokens) * ROWS, tokens, eps,
            q_token_stride, q_head_stride, table_stride, HEADS, ROWS,
        )  # fmt: skip


def query_norm_rope_insert(
    *,
    q: torch.Tensor,
    kv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    window_cache: PagedCache,
    window_slots: torch.Tensor,
    eps: float,
    tile: Tile = TILE,
) -> torch.Tensor:
    """Normalise and rotate queries; rotate, quantise and insert the key/value rows.

    Args:
        q: bf16 [T, H, 512], any token and head strides.
        kv: bf16 [T, 512], already normalised, any row stride.
        positions: int64 [T].
        cos_sin: fp32 [positions, 64].
        window_cache: ``main`` entries, fp8 or bf16; written in place.
        window_slots: int64 [T]; −1 is skipped.
        eps: of the per-head norm, which has no weight.
        tile: for tuning.

    Returns:
        bf16 [T, H, 512], contiguous. All arithmetic is fp32 with one rounding at the store.
    """
    tokens, heads, _ = q.shape
    out = torch.empty((tokens, heads, HEAD_DIM), dtype=q.dtype, device=q.device)
    if tokens == 0:
        return out
    rows = tokens * heads
    q, kv = as_words(q), as_words(kv)
    programs = tokens + triton.cdiv(rows, tile.rows)
    _query_norm_rope_insert[(programs,)](
        q, as_words(out), kv, positions, window_slots, cos_sin, tokens=tokens, eps=eps,
        q_token_stride=q.stride(0), q_head_stride=q.stride(1), kv_stride=kv.stride(0), table_stride=cos_sin.stride(0),
        HEADS=heads, ROWS=tile.rows, num_warps=tile.warps, **page_arguments(window_cache), **launch_options(programs),
    )  # fmt: skip
    return out
