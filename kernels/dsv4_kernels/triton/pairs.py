"""Rows as pairs of neighbouring elements, for use inside kernels: so RoPE and packed stores need no shuffle.

A bf16 row is read as 32-bit words, one pair each, and taken apart into an even and an odd fp32 tensor. Both are shaped
[ROWS, BLOCKS, PAIRS] with a quantisation block per second index. Rotation, block maxima and packing are then
elementwise or reductions over the last index, and no layout conversion comes between 16-byte loads and stores.
"""

import torch
import triton
import triton.language as tl

ROTATED_PAIRS = tl.constexpr(32)
"""The rotary table's row is ``[cos(32) | sin(32)]``."""


def as_words(x: torch.Tensor) -> torch.Tensor:
    """View bf16 [..., D] as int32 [..., D / 2]; a tensor whose rows do not start at 4-byte boundaries is copied."""
    even = all(stride % 2 == 0 for stride, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1)
    return (x if even and x.storage_offset() % 2 == 0 else x.contiguous()).view(torch.int32)


@triton.jit
def pair_index(BLOCKS: tl.constexpr, PAIRS: tl.constexpr):
    """Index of every pair of a row: int32 [1, BLOCKS, PAIRS]."""
    return tl.arange(0, BLOCKS)[None, :, None] * PAIRS + tl.arange(0, PAIRS)[None, None, :]


@triton.jit
def split_row(row, BLOCKS: tl.constexpr):
    """Even and odd elements, [1, BLOCKS, PAIRS], of one row fp32 [D]."""
    return tl.split(tl.reshape(row, [1, BLOCKS, row.shape[0] // BLOCKS // 2, 2]))


@triton.jit
def load_tail_table(rows, mask, BLOCKS: tl.constexpr, PAIRS: tl.constexpr):
    """Cos and sin for rows whose last 64 dims are rotated.

    Args:
        rows: pointers [ROWS] to table rows.
        mask: [ROWS]; where false nothing is read.
        BLOCKS: blocks of a row.
        PAIRS: pairs of a block.

    Returns:
        fp32 [ROWS, BLOCKS, PAIRS] each, meaningful for the rotated pairs only.
    """
    pair = pair_index(BLOCKS, PAIRS) - (BLOCKS * PAIRS - ROTATED_PAIRS)
    rotated = mask[:, None, None] & (pair >= 0)
    pointer = rows[:, None, None] + pair
    cos = tl.load(pointer, mask=rotated, other=1.0)
    return cos, tl.load(pointer + ROTATED_PAIRS, mask=rotated, other=0.0)


@triton.jit
def rotate_tail(even, odd, cos, sin, INVERSE: tl.constexpr = False):
    """Rotate the last 64 dims of rows [ROWS, BLOCKS, PAIRS]; the others pass through bit for bit."""
    BLOCKS: tl.constexpr = even.shape[1]
    PAIRS: tl.constexpr = even.shape[2]
    rotated = pair_index(BLOCKS, PAIRS) >= BLOCKS * PAIRS - ROTATED_PAIRS
    if INVERSE:
        first, second = even * cos + odd * sin, odd * cos - even * sin
    else:
        first, second = even * cos - odd * sin, even * sin + odd * cos
    return tl.where(rotated, first, even), tl.where(rotated, second, odd)


@triton.jit
def block_maximum(even, odd):
    """Largest magnitude of each block: [ROWS, BLOCKS]."""
    return tl.max(tl.maximum(tl.abs(even), tl.abs(odd)), axis=2)
