"""RoPE and quantisation of the indexer's queries, with head weights and both scales folded, in one launch.

A row is one head: 128 bf16 in, 128 B (fp8) or 64 + 4 B (fp4) out, and one fp32 weight.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from dsv4_kernels.triton.casts import pack_bf16, unpack_bf16
from dsv4_kernels.triton.entries import quantize_fp4_rows, quantize_fp8_rows
from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton.pairs import as_words, load_tail_table, pair_index, rotate_tail
from dsv4_kernels.triton.scales import power_of_two

_DTYPES = {"fp8": torch.float8_e4m3fn, "fp4": torch.uint8, "bf16": torch.bfloat16, "fp32": torch.float32}
_STORED_AS = {"fp8": torch.uint16, "fp4": torch.uint8, "bf16": torch.int32, "fp32": torch.float32}


@dataclass(frozen=True)
class Tile:
    """Rows (heads of consecutive tokens) per program, and warps per program."""

    rows: int
    warps: int


TILES = ((1024, Tile(4, 1)), (4096, Tile(8, 1)), (1 << 62, Tile(32, 4)))
"""Largest row count (T · 64) → tile. NVIDIA H200, 2026-11-29."""


@triton.jit
def _load_half_split(q, start, mask, table, BLOCKS: tl.constexpr):
    """V3.2: the first 64 dims in pairs (p, p + 32): a word's partner is the word 16 further, and comes from L1."""
    word = pair_index(BLOCKS, 64 // BLOCKS)
    rotated = mask[:, None, None] & (word < 32)
    even, odd = unpack_bf16(tl.load(q + start[:, None, None] + word, mask=mask[:, None, None], other=0))
    even_partner, odd_partner = unpack_bf16(tl.load(q + start[:, None, None] + (word ^ 16), mask=rotated, other=0))
    pointer = table[:, None, None] + word % 16 * 2
    sign = tl.where(word < 16, -1.0, 1.0)
    even = even * tl.load(pointer, mask=rotated, other=1.0) + even_partner * (
        tl.load(pointer + 32, mask=rotated, other=0.0) * sign
    )
    odd = odd * tl.load(pointer + 1, mask=rotated, other=1.0) + odd_partner * (
        tl.load(pointer + 33, mask=rotated, other=0.0) * sign
    )
    return even, odd


@triton.jit(do_not_specialize=["rows"])
def _indexer_query_rope_quant(
    q, head_weights, positions, cos_sin, values, scales, weights, rows, weight_factor,
    q_token_stride, q_head_stride, weight_stride, table_stride,
    HEADS: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr, HALF_SPLIT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    BLOCKS: tl.constexpr = 4 if PRECISION == "fp4" else 2
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = row < rows
    token = row // HEADS
    head = row - token * HEADS
    position = tl.load(positions + token, mask=mask, other=0)
    wide = token.to(tl.int64)
    weight = tl.load(head_weights + wide * weight_stride + head, mask=mask, other=0.0).to(tl.float32) * weight_factor
    start = wide * q_token_stride + head * q_head_stride
    word = pair_index(BLOCKS, 64 // BLOCKS)
    if HALF_SPLIT:
        even, odd = _load_half_split(q, start, mask, cos_sin + position * table_stride, BLOCKS)
    else:
        even, odd = unpack_bf16(tl.load(q + start[:, None, None] + word, mask=mask[:, None, None], other=0))
        cos, sin = load_tail_table(cos_sin + position * table_stride, mask, BLOCKS, 64 // BLOCKS)
        even, odd = rotate_tail(even, odd, cos, sin)
    target = values + row.to(tl.int64)[:, None, None] * 64 + word
    if PRECISION == "fp8":
        packed, scale = quantize_fp8_rows(even, odd)
        tl.store(target, packed, mask=mask[:, None, None])
        weight *= power_of_two(scale)
    elif PRECISION == "fp4":
        packed, scale = quantize_fp4_rows(even, odd)
        tl.store(target, packed, mask=mask[:, None, None])
        tl.store(scales + row, scale, mask=mask)
    elif PRECISION == "bf16":
        tl.store(target, pack_bf16(even, odd), mask=mask[:, None, None])
    else:
        plain = values + row.to(tl.int64)[:, None, None] * 128 + 2 * word
        tl.store(plain, even, mask=mask[:, None, None])
        tl.store(plain + 1, odd, mask=mask[:, None, None])
    tl.store(weights + row, weight, mask=mask)


def indexer_query_rope_quant(
    *,
    index_q: torch.Tensor,
    head_weights: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    precision: str,
    rope_style: str,
    tile: Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Rotate and quantise indexer queries and scale their head weights.

    Args:
        index_q: bf16 [T, HI, 128], any token and head strides.
        head_weights: bf16 or fp32 [T, HI], any row stride.
        positions: int64 [T].
        cos_sin: fp32 [positions, 64].
        precision: ``fp8``, ``fp4``, ``bf16`` or ``fp32``.
        rope_style: ``interleaved`` (last 64 dims) or ``half`` (first 64 dims).
        tile: overrides the table, for tuning.

    Returns:
        Values: e4m3 [T, HI, 128], uint8 [T, HI, 64] for fp4, or bf16/fp32 [T, HI, 128]; scales: uint8 [T, HI, 4] for
        fp4, else None; weights: fp32 [T, HI] = head_weights · 128^-½ · HI^-½, for fp8 times the query's scale.
    """
    tokens, heads, dim = index_q.shape
    width = dim // 2 if precision == "fp4" else dim
    values = torch.empty((tokens, heads, width), dtype=_DTYPES[precision], device=index_q.device)
    weights = torch.empty((tokens, heads), dtype=torch.float32, device=index_q.device)
    words = torch.empty((tokens, heads), dtype=torch.int32, device=index_q.device) if precision == "fp4" else None
    rows = tokens * heads
    if rows:
        tile = tile or next(tile for most, tile in TILES if rows <= most)
        queries = as_words(index_q)
        programs = triton.cdiv(rows, tile.rows)
        _indexer_query_rope_quant[(programs,)](
            queries, head_weights, positions, cos_sin, values.view(_STORED_AS[precision]), words, weights, rows,
            dim**-0.5 * heads**-0.5, queries.stride(0), queries.stride(1), head_weights.stride(0), cos_sin.stride(0),
            HEADS=heads, ROWS=tile.rows, PRECISION=precision, HALF_SPLIT=rope_style == "half", num_warps=tile.warps,
            enable_fp_fusion=False, **launch_options(programs),
        )  # fmt: skip
    return values, None if words is None else words.view(torch.uint8).unflatten(-1, (heads, 4)), weights
