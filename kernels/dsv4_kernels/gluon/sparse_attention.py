"""Sparse attention over fp8 entries on Hopper: wgmma with the dequantisation hidden behind it.

One program attends one token with 64 heads over a range of 64-entry tiles. Two warpgroups share every step: each
holds half of the output columns (64 x 256) and half of a tile's scores (64 x 32). While the tensor cores compute
the scores of tile t the threads dequantise the first half of the columns of tile t + 1, while they accumulate tile t
the second half. Bytes are fetched into registers a whole tile ahead, slot numbers two.

Dequantisation works on 32-bit words of four e4m3 bytes. A byte's 7 magnitude bits placed at bit 4 of a bf16 are its
value times 2^-120, so one packed multiplication by 2^(120 + e) is exact. 2^(60 + e) is used instead, and the missing
2^60 goes into the softmax scale and the output: that keeps every scale up to 2^67 within bf16.
"""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

HEADS = tl.constexpr(64)
TILE = tl.constexpr(64)
_RECORD = tl.constexpr(576)
_RECORD_WORDS = tl.constexpr(144)
_SCALE_SHIFT = tl.constexpr(60)
_LARGEST_SCALE = tl.constexpr(194)
_DESCALE = tl.constexpr(2.0**60)
_RESCALE_ROPE = tl.constexpr(2.0**-60)
_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)

_DEQUANTISE = tl.constexpr("""
{
.reg .b32 low, high, sign;
prmt.b32 low, $2, 0, 0x1404;
prmt.b32 high, $2, 0, 0x3424;
and.b32 sign, low, 0x80008000;
shr.u32 low, low, 4;
lop3.b32 low, low, 0x07f007f0, sign, 0xEA;
mul.rn.bf16x2 $0, low, $3;
and.b32 sign, high, 0x80008000;
shr.u32 high, high, 4;
lop3.b32 high, high, 0x07f007f0, sign, 0xEA;
mul.rn.bf16x2 $1, high, $3;
}
""")
"""Four e4m3 bytes to two words of two bf16 each, times a power of two given twice as bf16."""


@gluon.jit
def _slots(tile, rows, window_tiles, window_indices, window_len, compressed_indices, compressed_len):
    """Slot numbers of a tile's entries (``rows`` = 0..63 in the wanted layout), -1 where there is none."""
    windowed = tile < window_tiles
    column = gl.where(windowed, tile, tile - window_tiles) * TILE + rows
    inside = column < gl.where(windowed, window_len, compressed_len)
    return gl.load(gl.where(windowed, window_indices, compressed_indices) + column, mask=inside, other=-1)


@gluon.jit
def _records(slots, windowed, window_pages, window_stride, compressed_pages, compressed_stride,
             W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr):  # fmt: skip
    """Pages (word pointers) of slots and each entry's number within its page."""
    safe = gl.maximum(slots, 0)
    page = gl.where(windowed, safe // W_ENTRIES, safe // C_ENTRIES).to(gl.int64)
    entry = gl.where(windowed, safe % W_ENTRIES, safe % C_ENTRIES)
    base = gl.where(windowed, window_pages, compressed_pages)
    return base + page * gl.where(windowed, window_stride, compressed_stride), entry


@gluon.jit
def _load_blocks(slots, windowed, caches, FIRST: gl.constexpr, BLOCKS: gl.constexpr, LAYOUT: gl.constexpr,
                 W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr):  # fmt: skip
    """Words [64, BLOCKS, 16] of 64-byte blocks FIRST.. of a tile's records, and their scale bytes [64, BLOCKS]."""
    window_pages, window_stride, compressed_pages, compressed_stride = caches
    page, entry = _records(
        slots, windowed, window_pages, window_stride, compressed_pages, compressed_stride, W_ENTRIES, C_ENTRIES
    )
    per_block: gl.constexpr = gl.SliceLayout(2, LAYOUT)
    block = FIRST + gl.arange(0, BLOCKS, layout=gl.SliceLayout(0, per_block))
    word = gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    record = (page + entry * _RECORD).to(gl.pointer_type(gl.int32))
    found = slots >= 0
    offsets = gl.expand_dims(gl.expand_dims(block * 16, 0), 2) + gl.expand_dims(gl.expand_dims(word, 0), 1)
    pointers = gl.expand_dims(gl.expand_dims(record, 1), 2) + offsets
    words = gl.load(pointers, mask=gl.expand_dims(gl.expand_dims(found, 1), 2), other=0)
    entries = gl.where(windowed, W_ENTRIES, C_ENTRIES)
    scale = page + entries * _RECORD + entry * 8
    scales = gl.load(gl.expand_dims(scale, 1) + gl.expand_dims(block, 0), mask=gl.expand_dims(found, 1), other=127)
    return words, scales


@gluon.jit
def _load_rope(slots, windowed, caches, LAYOUT: gl.constexpr, W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr):
    """Words [64, 32] of a tile's 64 bf16 rope values."""
    window_pages, window_stride, compressed_pages, compressed_stride = caches
    page, entry = _records(
        slots, windowed, window_pages, window_stride, compressed_pages, compressed_stride, W_ENTRIES, C_ENTRIES
    )
    record = (page + entry * _RECORD).to(gl.pointer_type(gl.int32)) + 112
    word = gl.arange(0, 32, layout=gl.SliceLayout(0, LAYOUT))
    mask = gl.expand_dims(slots >= 0, 1)
    return gl.load(gl.expand_dims(record, 1) + gl.expand_dims(word, 0), mask=mask, other=0)


@gluon.jit
def _store_blocks(words, scales, target, BLOCKS: gl.constexpr):
    """Dequantise words [64, BLOCKS, 16] and store them as bf16 pairs [64, BLOCKS * 32]."""
    factor = gl.minimum(scales.to(gl.int32), _LARGEST_SCALE) + _SCALE_SHIFT
    factors, words = gl.broadcast(gl.expand_dims(factor * 0x00800080, 2), words)
    low, high = gl.inline_asm_elementwise(
        _DEQUANTISE, "=r,=r,r,r", [words, factors], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
    )
    target.store(gl.reshape(gl.join(low, high), [TILE, BLOCKS * 32]))


@gluon.jit
def _store_rope(words, target):
    """Store rope words [64, 32], scaled like the rest."""
    scaled = gl.inline_asm_elementwise(
        "{ .reg .b32 f; mov.b32 f, 0x21802180; mul.rn.bf16x2 $0, $1, f; }", "=r,r", [words], dtype=gl.int32, is_pure=True, pack=1
    )
    target.store(scaled)


@gluon.jit
def sparse_attention_kernel(
    q, q_token_stride, q_head_stride,
    window_pages, window_stride, window_indices, window_indices_stride, window_lens,
    compressed_pages, compressed_stride, compressed_indices, compressed_indices_stride, compressed_lens,
    sink, softmax_scale, out, lse, partial, partial_lse, num_heads, num_splits,
    HAS_WINDOW: gl.constexpr, HAS_COMPRESSED: gl.constexpr, HAS_SINK: gl.constexpr, SPLIT: gl.constexpr,
    W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Attend 64 heads of one token over one split of its entries."""
    S_MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 32, 16])
    O_MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 256, 16])
    FOUR: gl.constexpr = gl.BlockedLayout([1, 1, 4], [8, 1, 4], [2, 4, 1], [2, 1, 0])
    TWO: gl.constexpr = gl.BlockedLayout([1, 1, 4], [8, 1, 4], [4, 2, 1], [2, 1, 0])
    ONE: gl.constexpr = gl.BlockedLayout([1, 1, 4], [8, 1, 4], [8, 1, 1], [2, 1, 0])
    ROPE: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [8, 1], [1, 0])
    Q_COPY: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0])
    BF16_SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    WORD_SHARED: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    ROWS_FOUR: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, FOUR))
    ROWS_TWO: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, TWO))
    ROWS_ONE: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, ONE))
    ROWS_ROPE: gl.constexpr = gl.SliceLayout(1, ROPE)
    COLUMNS: gl.constexpr = gl.SliceLayout(0, S_MMA)
    S_ROWS: gl.constexpr = gl.SliceLayout(1, S_MMA)
    O_ROWS: gl.constexpr = gl.SliceLayout(1, O_MMA)

    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    split = gl.program_id(0) % num_splits
    head = (gl.program_id(0) // num_splits) % (num_heads // HEADS) * HEADS
    token = (gl.program_id(0) // num_splits) // (num_heads // HEADS)

    queries = gl.allocate_shared_memory(gl.bfloat16, [HEADS, 512], BF16_SHARED)
    keys = gl.allocate_shared_memory(gl.bfloat16, [2, TILE, 512], BF16_SHARED)
    words = keys._reinterpret(gl.int32, [2, TILE, 256], WORD_SHARED)
    weights = gl.allocate_shared_memory(gl.bfloat16, [HEADS, TILE], BF16_SHARED)

    q_rows = gl.arange(0, HEADS, layout=gl.SliceLayout(1, Q_COPY))
    q_columns = gl.arange(0, 512, layout=gl.SliceLayout(0, Q_COPY))
    q_base = q + token.to(gl.int64) * q_token_stride + head * q_head_stride
    q_offsets = gl.expand_dims(q_rows * q_head_stride, 1) + gl.expand_dims(q_columns, 0)
    async_copy.async_copy_global_to_shared(queries, q_base + q_offsets)
    async_copy.commit_group()

    window_len = 0
    compressed_len = 0
    if HAS_WINDOW:
        window_len = gl.load(window_lens + token)
        window_indices += token.to(gl.int64) * window_indices_stride
    if HAS_COMPRESSED:
        compressed_len = gl.load(compressed_lens + token)
        compressed_indices += token.to(gl.int64) * compressed_indices_stride
    window_tiles = (window_len + TILE - 1) // TILE
    tiles = window_tiles + (compressed_len + TILE - 1) // TILE
    start = split * tiles // num_splits
    end = (split + 1) * tiles // num_splits
    lists = (window_tiles, window_indices, window_len, compressed_indices, compressed_len)
    caches = (window_pages, window_stride, compressed_pages, compressed_stride)

    row_four = gl.arange(0, TILE, layout=ROWS_FOUR)
    row_two = gl.arange(0, TILE, layout=ROWS_TWO)
    row_one = gl.arange(0, TILE, layout=ROWS_ONE)
    row_rope = gl.arange(0, TILE, layout=ROWS_ROPE)
    column = gl.arange(0, TILE, layout=COLUMNS)

    acc = gl.zeros([HEADS, 512], gl.float32, O_MMA)
    top = gl.full([HEADS], float("-inf"), gl.float32, S_ROWS)
    total = gl.zeros([HEADS], gl.float32, S_ROWS)
    scale = softmax_scale * _LOG2E * _DESCALE

    windowed = start < window_tiles
    four, four_scale = _load_blocks(_slots(start, row_four, *lists), windowed, caches, 0, 4, FOUR, W_ENTRIES, C_ENTRIES)
    two, two_scale = _load_blocks(_slots(start, row_two, *lists), windowed, caches, 4, 2, TWO, W_ENTRIES, C_ENTRIES)
    one, one_scale = _load_blocks(_slots(start, row_one, *lists), windowed, caches, 6, 1, ONE, W_ENTRIES, C_ENTRIES)
    rope = _load_rope(_slots(start, row_rope, *lists), windowed, caches, ROPE, W_ENTRIES, C_ENTRIES)
    target = words.index(start % 2)
    _store_blocks(four, four_scale, target.slice(0, 128, dim=1), 4)
    _store_blocks(two, two_scale, target.slice(128, 64, dim=1), 2)
    _store_blocks(one, one_scale, target.slice(192, 32, dim=1), 1)
    _store_rope(rope, target.slice(224, 32, dim=1))
    # past the end every slot is -1: the loads below are masked off and what they feed is never used
    beyond = start + 1
    windowed = beyond < window_tiles
    four, four_scale = _load_blocks(_slots(beyond, row_four, *lists), windowed, caches, 0, 4, FOUR, W_ENTRIES, C_ENTRIES)
    two, two_scale = _load_blocks(_slots(beyond, row_two, *lists), windowed, caches, 4, 2, TWO, W_ENTRIES, C_ENTRIES)
    one, one_scale = _load_blocks(_slots(beyond, row_one, *lists), windowed, caches, 6, 1, ONE, W_ENTRIES, C_ENTRIES)
    rope = _load_rope(_slots(beyond, row_rope, *lists), windowed, caches, ROPE, W_ENTRIES, C_ENTRIES)
    slots_four = _slots(start + 2, row_four, *lists)
    slots_two = _slots(start + 2, row_two, *lists)
    slots_one = _slots(start + 2, row_one, *lists)
    slots_rope = _slots(start + 2, row_rope, *lists)
    async_copy.wait_group(0)

    for tile in range(start, end):
        current = keys.index(tile % 2)
        following = words.index((tile + 1) % 2)
        windowed = tile + 2 < window_tiles
        fence_async_shared()
        scores = warpgroup_mma(
            queries, current.permute([1, 0]), gl.zeros([HEADS, TILE], gl.float32, S_MMA), use_acc=False, is_async=True
        )
        seen = _slots(tile, column, *lists) >= 0
        _store_blocks(four, four_scale, following.slice(0, 128, dim=1), 4)
        four, four_scale = _load_blocks(slots_four, windowed, caches, 0, 4, FOUR, W_ENTRIES, C_ENTRIES)
        slots_four = _slots(tile + 3, row_four, *lists)
        scores = warpgroup_mma_wait(0, deps=[scores])

        scores = gl.where(gl.expand_dims(seen, 0), scores * scale, float("-inf"))
        new_top = gl.maximum(top, gl.max(scores, axis=1))
        shift = gl.where(new_top == float("-inf"), 0.0, new_top)
        p = gl.exp2(scores - gl.expand_dims(shift, 1))
        keep = gl.exp2(top - shift)
        top = new_top
        weights.store(p.to(gl.bfloat16))
        acc = acc * gl.expand_dims(gl.convert_layout(keep, O_ROWS), 1)
        fence_async_shared()
        acc = warpgroup_mma(weights, current, acc, is_async=True)
        total = total * keep + gl.sum(p, axis=1)
        _store_blocks(two, two_scale, following.slice(128, 64, dim=1), 2)
        _store_blocks(one, one_scale, following.slice(192, 32, dim=1), 1)
        _store_rope(rope, following.slice(224, 32, dim=1))
        two, two_scale = _load_blocks(slots_two, windowed, caches, 4, 2, TWO, W_ENTRIES, C_ENTRIES)
        one, one_scale = _load_blocks(slots_one, windowed, caches, 6, 1, ONE, W_ENTRIES, C_ENTRIES)
        rope = _load_rope(slots_rope, windowed, caches, ROPE, W_ENTRIES, C_ENTRIES)
        slots_two = _slots(tile + 3, row_two, *lists)
        slots_one = _slots(tile + 3, row_one, *lists)
        slots_rope = _slots(tile + 3, row_rope, *lists)
        acc = warpgroup_mma_wait(0, deps=[acc])

    heads = head + gl.arange(0, HEADS, layout=S_ROWS)
    seen_any = total > 0
    natural = gl.where(seen_any, (top + gl.log2(gl.where(seen_any, total, 1.0))) * _LN2, float("-inf"))
    norm = gl.where(seen_any, _DESCALE / gl.where(seen_any, total, 1.0), 0.0)
    o_columns = gl.arange(0, 512, layout=gl.SliceLayout(0, O_MMA))
    o_heads = head + gl.arange(0, HEADS, layout=O_ROWS)
    row = token.to(gl.int64) * num_heads
    if SPLIT:
        place = (token.to(gl.int64) * num_splits + split) * num_heads
        gl.store(partial_lse + place + heads, natural)
        acc = acc * gl.expand_dims(gl.convert_layout(norm, O_ROWS), 1)
        gl.store(partial + place * 512 + gl.expand_dims(o_heads * 512, 1) + gl.expand_dims(o_columns, 0), acc)
    else:
        if HAS_SINK:
            norm = norm / (1.0 + gl.exp2((gl.load(sink + heads) - gl.where(seen_any, natural, 0.0)) * _LOG2E))
        gl.store(lse + row + heads, natural)
        acc = acc * gl.expand_dims(gl.convert_layout(norm, O_ROWS), 1)
        gl.store(
            out + row * 512 + gl.expand_dims(o_heads * 512, 1) + gl.expand_dims(o_columns, 0), acc.to(gl.bfloat16)
        )
