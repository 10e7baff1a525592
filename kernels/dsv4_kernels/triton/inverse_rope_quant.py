"""Inverse RoPE of the attention output and its quantisation for the grouped output projection, in one launch.

Reads 2 B and writes 1 B an element, where rotating and quantising one after the other moves 7 B. Values come out group
by group, and scales with tokens innermost, padded to a multiple of 4: what a TMA-fed fp8 matrix product reads.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from dsv4_kernels.triton.casts import pack_bf16, pack_fp8, unpack_bf16
from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton.pairs import as_words, block_maximum, load_tail_table, pair_index, rotate_tail
from dsv4_kernels.triton.scales import fp8_scale_byte, power_of_two, reciprocal_power_of_two

SCALE_BLOCK = 128
_TOKEN_ALIGNMENT = 4
_AMAX_FLOOR = tl.constexpr(1e-10)


@dataclass(frozen=True)
class Tile:
    """Tokens × heads per program, and warps per program."""

    tokens: int
    heads: int
    warps: int


TILES = ((1, Tile(1, 1, 1)), (8, Tile(2, 1, 1)), (1 << 62, Tile(8, 1, 2)))
"""Largest T → tile: several tokens of one head, whose scales are neighbours in memory. NVIDIA H200, 2026-11-29."""


@triton.jit(do_not_specialize=["tokens"])
def _inverse_rope_quant(
    o, positions, cos_sin, values, scales, tokens, o_token_stride, o_head_stride, table_stride,
    value_token_stride, value_group_stride, scale_stride,
    HEADS: tl.constexpr, HEADS_PER_GROUP: tl.constexpr, TOKENS: tl.constexpr, TILE_HEADS: tl.constexpr,
    SCALES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    ROWS: tl.constexpr = TOKENS * TILE_HEADS
    HEAD_TILES: tl.constexpr = HEADS // TILE_HEADS
    program = tl.program_id(0)
    row = tl.arange(0, ROWS)
    token = program // HEAD_TILES * TOKENS + row // TILE_HEADS
    head = program % HEAD_TILES * TILE_HEADS + row % TILE_HEADS
    mask = token < tokens
    position = tl.load(positions + token, mask=mask, other=0)
    wide = token.to(tl.int64)
    word = pair_index(4, 64)
    start = wide * o_token_stride + head * o_head_stride
    even, odd = unpack_bf16(tl.load(o + start[:, None, None] + word, mask=mask[:, None, None], other=0))
    cos, sin = load_tail_table(cos_sin + position * table_stride, mask, 4, 64)
    even, odd = rotate_tail(even, odd, cos, sin, INVERSE=True)
    group = (head // HEADS_PER_GROUP).to(tl.int64)
    target = wide * value_token_stride + group * value_group_stride + head % HEADS_PER_GROUP * 256
    target = values + target[:, None, None] + word
    if SCALES == "none":
        tl.store(target, pack_bf16(even, odd), mask=mask[:, None, None])
    else:
        byte = fp8_scale_byte(block_maximum(even, odd), _AMAX_FLOOR)
        inverse = reciprocal_power_of_two(byte)[:, :, None]
        tl.store(target, pack_fp8(even * inverse, odd * inverse), mask=mask[:, None, None])
        block = tl.arange(0, 4)[None, :]
        padded = token < scale_stride  # columns beyond the last token are read by aligned loads: they hold zeros
        if SCALES == "fp32":
            where = scales + token[:, None] + (head[:, None] * 4 + block).to(tl.int64) * scale_stride
            tl.store(where, tl.where(mask[:, None], power_of_two(byte), 0.0), mask=padded[:, None])
        else:
            packed = tl.sum(byte << (8 * block), axis=1)
            tl.store(scales + token + head.to(tl.int64) * scale_stride, tl.where(mask, packed, 0), mask=padded)


def inverse_rope_quant(
    *,
    o: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    groups: int,
    precision: str,
    scale_format: str = "fp32",
    tile: Tile | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rotate the last 64 dims of every head back and quantise per 128 elements.

    Args:
        o: bf16 [T, H, 512], any token and head strides.
        positions: int64 [T], the queries' positions.
        cos_sin: fp32 [positions, 64].
        groups: G, consecutive heads H / G per group.
        precision: ``fp8``; anything else returns the rotated values in the dtype of ``o``, without scales.
        scale_format: ``fp32``, or ``ue8m0`` for four biased exponents packed into an int32 a head.
        tile: overrides the table, for tuning.

    Returns:
        Values [T, G, H/G · 512], contiguous per group (strides (H/G · 512, T · H/G · 512, 1)), and scales: fp32
        [T, G, H/G · 4] or int32 [T, G, H/G], strides (1, …, T rounded up to 4), padding columns zero. Quantised from
        the fp32 rotation without a rounding in between; the block maximum is floored at 1e-10.
    """
    tokens, heads, width = o.shape
    per_group = heads // groups
    quantised = precision == "fp8"
    values = torch.empty(
        (groups, tokens, per_group * width), dtype=torch.float8_e4m3fn if quantised else o.dtype, device=o.device
    )
    padded = triton.cdiv(tokens, _TOKEN_ALIGNMENT) * _TOKEN_ALIGNMENT
    scales = None
    if quantised:
        shape = (groups, per_group if scale_format == "ue8m0" else per_group * width // SCALE_BLOCK, padded)
        scales = torch.empty(shape, dtype=torch.int32 if scale_format == "ue8m0" else torch.float32, device=o.device)
    if tokens:
        tile = tile or next(tile for most, tile in TILES if tokens <= most)
        covered = padded if quantised else tokens
        words, packed = as_words(o), values.view(torch.uint16 if quantised else torch.int32)
        programs = triton.cdiv(covered, tile.tokens) * (heads // tile.heads)
        _inverse_rope_quant[(programs,)](
            words, positions, cos_sin, packed, scales, tokens, words.stride(0), words.stride(1), cos_sin.stride(0),
            packed.stride(1), packed.stride(0), padded,
            HEADS=heads, HEADS_PER_GROUP=per_group, TOKENS=tile.tokens, TILE_HEADS=tile.heads,
            SCALES=scale_format if quantised else "none", num_warps=tile.warps, enable_fp_fusion=False,
            **launch_options(programs),
        )  # fmt: skip
    return values.transpose(0, 1), None if scales is None else scales.permute(2, 0, 1)[:tokens]
