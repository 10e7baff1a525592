"""What attention kernels over paged entries share: items of work, their tiles, and where the entries lie.

An item is one token with up to 64 heads over a share of the tiles of its two lists, the window's tiles before the
compressed ones; a tile is 64 entries.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

HEADS = tl.constexpr(64)
TILE = tl.constexpr(64)


@gluon.jit
def assignment(item, num_heads, num_splits):
    """Token, first head and split of an item of work."""
    head_blocks = (num_heads + HEADS - 1) // HEADS
    block = item // num_splits
    return (block // head_blocks).to(gl.int64), block % head_blocks * HEADS, item % num_splits


@gluon.jit
def share_of(token, split, num_splits, window, compressed, HAS_WINDOW: gl.constexpr, HAS_COMPRESSED: gl.constexpr):
    """First tile of a split, the one after its last, tiles of the window, and the lengths of both lists."""
    window_len = 0
    compressed_len = 0
    if HAS_WINDOW:
        window_len = gl.load(window[4] + token)
    if HAS_COMPRESSED:
        compressed_len = gl.load(compressed[4] + token)
    window_tiles = (window_len + TILE - 1) // TILE
    tiles = window_tiles + (compressed_len + TILE - 1) // TILE
    return split * tiles // num_splits, (split + 1) * tiles // num_splits, window_tiles, window_len, compressed_len


@gluon.jit
def column_of(tile, rows, window_tiles, window_indices, window_len, compressed_indices, compressed_len, end):
    """Where the slot numbers of a tile's entries stand (``rows`` = 0..63 in the wanted layout), and whether they do."""
    windowed = tile < window_tiles
    column = gl.where(windowed, tile, tile - window_tiles) * TILE + rows
    inside = column < gl.where(tile < end, gl.where(windowed, window_len, compressed_len), 0)
    return gl.where(windowed, window_indices, compressed_indices) + column, inside


@gluon.jit
def slots_of(tile, rows, lists):
    """Slot numbers of a tile's entries, -1 where there is none."""
    pointers, inside = column_of(tile, rows, *lists)
    return gl.load(pointers, mask=inside, other=-1)


@gluon.jit
def place_of(slots, windowed, window_stride, compressed_stride, W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr):
    """Byte offset of each slot's page and its entry number within the page."""
    safe = gl.maximum(slots, 0)
    page = gl.where(windowed, safe // W_ENTRIES, safe // C_ENTRIES).to(gl.int64)
    entry = gl.where(windowed, safe % W_ENTRIES, safe % C_ENTRIES)
    return page * gl.where(windowed, window_stride, compressed_stride), entry
