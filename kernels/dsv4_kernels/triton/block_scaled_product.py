"""Products of a few tokens with an fp8 weight, bounded by reading the weight once.

Weight rows are the rows of the matrix instruction and tokens its columns, since a step of decode has few of them and an
instruction has 64 rows at least. The weight goes from memory to the tensor cores as it is. Activations are quantised on
the way where they come in bf16. Scales of both are applied to each 128-element product in fp32.

A weight of 1,536 rows is 24 tiles, too few for 132 SMs, so several programs share a tile's columns; the one that
finishes last adds up their parts in order, which makes the sum the same every time.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from dsv4_kernels.triton.activation_blocks import quantised_blocks
from dsv4_kernels.triton.casts import to_bf16
from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton.tickets import CAPACITY, tickets
from dsv4_kernels.weight import BLOCK, Fp8Weight

_BLOCK = tl.constexpr(BLOCK)
_JOIN_REGISTERS = 64
"""Per thread, for parts on their way from memory."""
_JOIN_TOKENS = 8, 16
"""Fewest and most tokens whose parts are fetched together."""


@dataclass(frozen=True)
class Tile:
    """How a product is cut up.

    Attributes:
        rows: weight rows per program; 64 or 128.
        tokens: per program; a power of two from 16 on, since the matrix instruction has no fewer columns here.
        programs: a tile's columns are shared among programs while there are no more than these.
        warps: per program.
        stages: blocks of 128 columns in flight per program.
        ahead: blocks that are prefetched into L2 while the preceding kernel still runs.
    """

    rows: int
    tokens: int
    programs: int
    warps: int
    stages: int
    ahead: int = 0


WIDE_ROWS = 132 * 128
"""Weight rows (of all groups) from which whole columns of 128-row tiles keep every multiprocessor busy."""


@dataclass(frozen=True)
class Tiles:
    """Tiles by what bounds the product.

    Attributes:
        narrow: for fewer than ``WIDE_ROWS`` rows, whose columns are shared.
        wide: for more.
        quantised: for fewer than ``WIDE_ROWS`` rows and activations that come in e4m3.
    """

    narrow: Tile
    wide: Tile
    quantised: Tile


_MANY = Tile(128, 64, 264, 8, 4)
TILES = (
    (16, Tiles(Tile(64, 16, 528, 4, 4, ahead=4), Tile(128, 16, 264, 8, 4), Tile(128, 16, 396, 4, 3))),
    (64, Tiles(Tile(64, 64, 264, 4, 4), _MANY, Tile(64, 64, 264, 4, 4))),
    (1 << 62, Tiles(_MANY, _MANY, _MANY)),
)
"""Largest T → tiles. NVIDIA H200, 2026-11-30."""


@triton.jit
def _prefetch(lines):
    """Bring lines of 128 bytes into L2."""
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.b32 $0, 0; }", "=r,l", [lines.to(tl.int64)], dtype=tl.int32, is_pure=False,
        pack=1,
    )  # fmt: skip


@triton.jit
def _join(
    out, parts, rows, tokens, out_token_stride,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, SPLITS: tl.constexpr, CHUNK: tl.constexpr, IN_FLIGHT: tl.constexpr,
):  # fmt: skip
    """Add up the parts of a tile in their order, ``CHUNK`` tokens at a time and ``IN_FLIGHT`` parts on their way."""
    row = tl.arange(0, ROWS)
    nth = tl.arange(0, IN_FLIGHT)[:, None, None]
    for first in tl.range(0, TOKENS, CHUNK, num_stages=1):
        if first < tokens:
            token = first + tl.arange(0, CHUNK)[:, None]
            live = token < tokens
            total = tl.zeros([CHUNK, ROWS], tl.float32)
            for start in tl.static_range(0, SPLITS, IN_FLIGHT):
                part = (start + nth) * (ROWS * TOKENS) + (token * ROWS + row[None, :])[None, :, :]
                mask = (start + nth < SPLITS) & live[None, :, :]
                total += tl.sum(tl.load(parts + part, mask=mask, other=0.0, cache_modifier=".cg"), axis=0)
            where = out + token * out_token_stride + row[None, :]
            tl.store(where, to_bf16(total), mask=live & (row < rows)[None, :])


@triton.jit(do_not_specialize=["tokens", "rows", "blocks"])
def _block_scaled_product(
    x, x_scales, weight, weight_scales, out, parts, counters, tokens, rows, blocks,
    x_token_stride, x_group_stride, x_block_stride, scale_token_stride, scale_group_stride, scale_block_stride,
    row_stride, out_token_stride,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, SPLITS: tl.constexpr, QUANTISE: tl.constexpr, STEPS: tl.constexpr,
    AHEAD: tl.constexpr, CHUNK: tl.constexpr, IN_FLIGHT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    token_tiles, row_tiles = tl.cdiv(tokens, TOKENS), tl.cdiv(rows, ROWS)
    program = tl.program_id(0)
    token_tile, split = program % token_tiles, program // token_tiles % SPLITS
    tile = program // (token_tiles * SPLITS)
    row_tile, group = tile % row_tiles, (tile // row_tiles).to(tl.int64)
    steps = blocks // SPLITS
    first = split * steps

    # tiles: a 64-bit start, the same for all threads, and 32-bit offsets, which take half the registers
    token = tl.arange(0, TOKENS)
    live = token < tokens - token_tile * TOKENS
    row = tl.minimum(tl.arange(0, ROWS), rows - row_tile * ROWS - 1)
    column = tl.arange(0, _BLOCK)[None, :]
    start = group * rows + row_tile * ROWS
    weight += start * row_stride + first * _BLOCK
    weight_offset = row[:, None] * row_stride + column
    first_token = (token_tile * TOKENS).to(tl.int64)
    x += group * x_group_stride + first_token * x_token_stride + first.to(tl.int64) * x_block_stride
    x_offset = token[:, None] * x_token_stride + column
    if AHEAD and PDL:
        _prefetch(weight + row[:, None] * row_stride + tl.arange(0, AHEAD)[None, :] * _BLOCK)
    begin(PDL)
    weight_scales += (group * tl.cdiv(rows, _BLOCK) + row_tile * ROWS // _BLOCK) * blocks

    # scales are fetched a block ahead: they are too small for the pipeline that fetches the tiles
    next_scale = tl.load(weight_scales + first)
    if not QUANTISE:
        x_scales += group * scale_group_stride + first_token * scale_token_stride
        scale_offset = token[:, None] * scale_token_stride
        x_scale = x_scales + first.to(tl.int64) * scale_block_stride + scale_offset
        next_x_scale = tl.load(x_scale, mask=live[:, None], other=0.0)
    sums = tl.zeros([ROWS, TOKENS], tl.float32)
    # the interpreter cannot count to a scalar of its own
    for step in tl.range(0, steps if STEPS is None else STEPS):
        scale = next_scale
        ahead = first + tl.minimum(step + 1, steps - 1)
        next_scale = tl.load(weight_scales + ahead)
        values = tl.load(x + x_offset, mask=live[:, None], other=0.0)
        if QUANTISE:
            values, x_scaling = quantised_blocks(values)
        else:
            # a sum of one: it keeps the load at an element a thread, where each would load all that it multiplies
            x_scaling = tl.sum(next_x_scale, axis=1)
            x_scale = x_scales + ahead.to(tl.int64) * scale_block_stride + scale_offset
            next_x_scale = tl.load(x_scale, mask=live[:, None], other=0.0)
        product = tl.dot(tl.load(weight + weight_offset), tl.trans(values))
        sums += product * (x_scaling * scale)[None, :]
        weight += _BLOCK
        x += x_block_stride

    # zero, and unknown to the compiler: addresses of the result computed ahead of the loop would occupy registers in it
    late = tl.program_id(1)
    row = late + tl.arange(0, ROWS)[:, None]
    token = late + tl.arange(0, TOKENS)[None, :]
    rows -= row_tile * ROWS
    tokens -= token_tile * TOKENS
    out += first_token * out_token_stride + start
    if SPLITS == 1:
        tl.store(out + token * out_token_stride + row, to_bf16(sums), mask=(row < rows) & (token < tokens))
    else:
        result = tile * token_tiles + token_tile
        parts += result.to(tl.int64) * (SPLITS * ROWS * TOKENS)
        tl.store(parts + split * (ROWS * TOKENS) + (token * ROWS + row), sums, mask=token < tokens)
        tl.debug_barrier()  # every thread's part is stored before one of them draws the ticket
        if tl.atomic_add(counters + result, 1, sem="acq_rel") == SPLITS - 1:
            tl.store(counters + result, 0)
            _join(out, parts, rows, tokens, out_token_stride, ROWS, TOKENS, SPLITS, CHUNK, IN_FLIGHT)


def block_scaled_product(
    x: torch.Tensor, x_scales: torch.Tensor | None, weight: Fp8Weight, tile: Tile | None = None
) -> torch.Tensor:
    """A product per group, in one launch: [T, G, K] · [G, N, K] → bf16 [T, G, N].

    Args:
        x: [T, G, K/128, 128], any strides but the last, which is 1: bf16, quantised here, or e4m3.
        x_scales: fp32 [T, G, K/128] of e4m3 values, any strides; else None.
        weight: [G, N, K], contiguous.
        tile: overrides the table, for tuning.
    """
    tokens, groups, blocks, _ = x.shape
    rows = weight.shape[-2]
    out = torch.empty((tokens, groups, rows), dtype=torch.bfloat16, device=x.device)
    if not tokens:
        return out
    tile = tile or _tile(tokens, groups * rows, x_scales is None)
    results = groups * triton.cdiv(rows, tile.rows) * triton.cdiv(tokens, tile.tokens)
    splits = _splits(results, blocks, tile)
    parts = counters = None
    if splits > 1:
        parts = torch.empty((results, splits, tile.tokens, tile.rows), dtype=torch.float32, device=x.device)
        counters = tickets(x.device)
    each = _JOIN_REGISTERS * 32 * tile.warps // tile.rows  # of a row's parts in registers
    in_flight = min(triton.next_power_of_2(splits), each // _JOIN_TOKENS[0])
    steps = blocks // splits
    _block_scaled_product[(results * splits,)](
        x, x_scales, weight.values, weight.scales, out, parts, counters, tokens, rows, blocks, *x.stride()[:3],
        *((0, 0, 0) if x_scales is None else x_scales.stride()), weight.values.stride(-2), out.stride(0),
        ROWS=tile.rows, TOKENS=tile.tokens, SPLITS=splits, QUANTISE=x_scales is None,
        STEPS=steps if triton.knobs.runtime.interpret else None, AHEAD=_power_of_two(min(tile.ahead, steps)),
        CHUNK=min(_JOIN_TOKENS[1], each // in_flight), IN_FLIGHT=in_flight,
        num_warps=tile.warps, num_stages=tile.stages, **launch_options(results * splits),
    )  # fmt: skip
    return out


def _tile(tokens: int, rows: int, quantise: bool) -> Tile:
    tiles = next(tiles for most, tiles in TILES if tokens <= most)
    if rows >= WIDE_ROWS:
        return tiles.wide
    return tiles.narrow if quantise else tiles.quantised


def _splits(results: int, blocks: int, tile: Tile) -> int:
    """Programs that share a result's columns: as many as the tile asks for, equal shares of two blocks or more."""
    most = 1 if results > CAPACITY else min(tile.programs // results, blocks // 2)
    return next((splits for splits in range(most, 1, -1) if blocks % splits == 0), 1)


def _power_of_two(number: int) -> int:
    """The largest that is not above a number; 0 for 0."""
    return 1 << number.bit_length() >> 1
