"""Sparse attention over fp8 entries on Hopper: two consumer warpgroups take turns, a third dequantises for them.

One program attends one token with 64 heads over a range of 64-entry tiles. Both consumers accumulate every tile, each
half of the output columns, which is all that registers hold (64 x 256 in fp32). Scores are made by one of them, in
turns, so that one's softmax hides behind the other's matrix products; weights and running maxima change hands through
shared memory. The producer fetches records into registers, dequantises and publishes tiles through a ring of two.

Tiles, queries and weights are fp16, not bf16: e4m3 to fp16 is one instruction a pair and the power-of-two scale one
more, where bf16 takes three times as many. Every e4m3 value times a scale of 2^-15 .. 2^7 is exact in fp16; smaller
scales lose less than 2^-25 absolute (3e-4 of the smallest block maximum that quantisers store, 1e-4); larger ones,
which need keys beyond +-57,344, are taken as 2^7, and queries are clamped to +-65,504.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

HEADS = tl.constexpr(64)
TILE = tl.constexpr(64)
PRODUCER_WARPS = 4
MAX_REGISTERS = 168
"""Registers per thread at launch, for three warpgroups."""
CONSUMER_REGISTERS = tl.constexpr(192)
_HALF = tl.constexpr(256)
_RECORD = tl.constexpr(576)
_LARGEST_SCALE = tl.constexpr(127 + 7)
_LARGEST_FP16 = tl.constexpr(65504.0)
_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)

_PACK_BF16 = tl.constexpr("cvt.rn.bf16x2.f32 $0, $2, $1;")
"""Two fp32, the lower first, to a word of two bf16."""

_S_MMA = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
_O_MMA = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
_S_ROWS = gl.constexpr(gl.SliceLayout(1, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])))
_O_ROWS = gl.constexpr(gl.SliceLayout(1, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])))

_O_WORDS = gl.constexpr(
    gl.DistributedLinearLayout(
        [[8, 0], [0, 4], [0, 8], [0, 16], [0, 32], [0, 64]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]], [], [64, 128],
    )
)  # fmt: skip
"""Output pairs [64, 128] where the accumulator holds them."""

_DEQUANTISE = tl.constexpr("""
{
.reg .b16 first, second;
.reg .b32 low, high;
mov.b32 {first, second}, $2;
cvt.rn.f16x2.e4m3x2 low, first;
cvt.rn.f16x2.e4m3x2 high, second;
mul.rn.f16x2 $0, low, $3;
mul.rn.f16x2 $1, high, $3;
}
""")
"""Four e4m3 bytes to two words of two fp16 each, times a scale given twice as fp16."""
_CONVERT_ROPE = tl.constexpr("""
{
.reg .b32 low, high;
.reg .f32 even, odd;
shl.b32 low, $1, 16;
and.b32 high, $1, 0xffff0000;
mov.b32 even, low;
mov.b32 odd, high;
cvt.rn.f16x2.f32 $0, odd, even;
}
""")
"""Two bf16 to two fp16."""


@gluon.jit
def _slots(tile, rows, window_tiles, window_indices, window_len, compressed_indices, compressed_len):
    """Slot numbers of a tile's entries (``rows`` = 0..63 in the wanted layout), -1 where there is none."""
    windowed = tile < window_tiles
    column = gl.where(windowed, tile, tile - window_tiles) * TILE + rows
    inside = column < gl.where(windowed, window_len, compressed_len)
    return gl.load(gl.where(windowed, window_indices, compressed_indices) + column, mask=inside, other=-1)


@gluon.jit
def _place(slots, windowed, window_stride, compressed_stride, W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr):
    """Byte offset of each slot's page and its entry number within the page."""
    safe = gl.maximum(slots, 0)
    page = gl.where(windowed, safe // W_ENTRIES, safe // C_ENTRIES).to(gl.int64)
    entry = gl.where(windowed, safe % W_ENTRIES, safe % C_ENTRIES)
    return page * gl.where(windowed, window_stride, compressed_stride), entry


@gluon.jit
def _locate(tile, slots, lists, caches, records, W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr, UNIT: gl.constexpr):
    """Write the record offsets of a tile (in UNIT bytes; -1 = none) to shared memory."""
    windowed = tile < lists[0]
    page, entry = _place(slots, windowed, caches[1], caches[3], W_ENTRIES, C_ENTRIES)
    records.store(gl.where(slots >= 0, ((page + entry * _RECORD) // UNIT).to(gl.int32), -1))


@gluon.jit
def _load_scales(tile, slots, lists, caches, FACTORS: gl.constexpr, W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr):
    """The scale bytes [64, 8] of a tile."""
    windowed = tile < lists[0]
    page, entry = _place(slots, windowed, caches[1], caches[3], W_ENTRIES, C_ENTRIES)
    scales = page + gl.where(windowed, W_ENTRIES, C_ENTRIES) * _RECORD + entry * 8
    block = gl.arange(0, 8, layout=gl.SliceLayout(0, FACTORS))
    pointers = gl.where(windowed, caches[0], caches[2]) + gl.expand_dims(scales, 1) + gl.expand_dims(block, 0)
    return gl.load(pointers, mask=gl.expand_dims(slots >= 0, 1), other=127)


@gluon.jit
def _store_factors(scale_bytes, factors):
    """Write 2^(byte - 127) as fp16, twice a word: normal from byte 113 on, subnormal from 103 on."""
    exponents = scale_bytes.to(gl.int32)
    normal = (gl.minimum(exponents, _LARGEST_SCALE) - 112) << 10
    small = gl.where(exponents >= 103, 1 << gl.maximum(exponents - 103, 0), 0)
    factors.store(gl.where(exponents >= 113, normal, small) * 0x00010001)


@gluon.jit
def _load_blocks(
    base, records, FIRST: gl.constexpr, BLOCKS: gl.constexpr, LAYOUT: gl.constexpr, UNIT: gl.constexpr
):  # fmt: skip
    """Words [64, BLOCKS, 16] of 64-byte blocks FIRST.. of a tile's records."""
    offset = records.load(gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    block = FIRST + gl.arange(0, BLOCKS, layout=gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))
    word = gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    record = (base + offset.to(gl.int64) * UNIT).to(gl.pointer_type(gl.int32))
    within = gl.expand_dims(gl.expand_dims(block * 16, 0), 2) + gl.expand_dims(gl.expand_dims(word, 0), 1)
    pointers = gl.expand_dims(gl.expand_dims(record, 1), 2) + within
    return gl.load(pointers, mask=gl.expand_dims(gl.expand_dims(offset >= 0, 1), 2), other=0)


@gluon.jit
def _load_rope(base, records, LAYOUT: gl.constexpr, UNIT: gl.constexpr):
    """Words [64, 32] of a tile's 64 bf16 rope values."""
    offset = records.load(gl.SliceLayout(1, LAYOUT))
    word = 112 + gl.arange(0, 32, layout=gl.SliceLayout(0, LAYOUT))
    record = (base + offset.to(gl.int64) * UNIT).to(gl.pointer_type(gl.int32))
    pointers = gl.expand_dims(record, 1) + gl.expand_dims(word, 0)
    return gl.load(pointers, mask=gl.expand_dims(offset >= 0, 1), other=0)


@gluon.jit
def _store_blocks(words, factors, target, FIRST: gl.constexpr, BLOCKS: gl.constexpr, LAYOUT: gl.constexpr):
    """Dequantise words [64, BLOCKS, 16] and store them as fp16 pairs [64, BLOCKS * 32]."""
    mine = factors.slice(FIRST, BLOCKS, dim=1).load(gl.SliceLayout(2, LAYOUT))
    mine, words = gl.broadcast(gl.expand_dims(mine, 2), words)
    low, high = gl.inline_asm_elementwise(
        _DEQUANTISE, "=r,=r,r,r", [words, mine], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
    )
    target.store(gl.reshape(gl.join(low, high), [TILE, BLOCKS * 32]))


@gluon.jit
def _produce(start, end, lists, caches, words, records, factors, full, empty,
             W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr, UNIT: gl.constexpr):  # fmt: skip
    """Fetch, dequantise and publish tiles start..end - 1."""
    FOUR: gl.constexpr = gl.BlockedLayout([1, 1, 4], [8, 1, 4], [1, 4, 1], [2, 1, 0])
    TWO: gl.constexpr = gl.BlockedLayout([1, 1, 4], [8, 1, 4], [2, 2, 1], [2, 1, 0])
    ONE: gl.constexpr = gl.BlockedLayout([1, 1, 4], [8, 1, 4], [4, 1, 1], [2, 1, 0])
    ROPE: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    EACH: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    FACTORS: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [4, 1], [1, 0])
    row = gl.arange(0, TILE, layout=EACH)
    byte_row = gl.arange(0, TILE, layout=gl.SliceLayout(1, FACTORS))
    # tile start: rows are on their way before anything else is asked for
    slots = _slots(start, row, *lists)
    byte_slots = _slots(start, byte_row, *lists)
    next_slots = _slots(start + 1, row, *lists)
    next_byte_slots = _slots(start + 1, byte_row, *lists)
    _locate(start, slots, lists, caches, records.index(0), W_ENTRIES, C_ENTRIES, UNIT)
    base = gl.where(start < lists[0], caches[0], caches[2])
    four = _load_blocks(base, records.index(0), 0, 4, FOUR, UNIT)
    two = _load_blocks(base, records.index(0), 4, 2, TWO, UNIT)
    one = _load_blocks(base, records.index(0), 6, 1, ONE, UNIT)
    rope = _load_rope(base, records.index(0), ROPE, UNIT)
    scales = _load_scales(start, byte_slots, lists, caches, FACTORS, W_ENTRIES, C_ENTRIES)
    next_scales = _load_scales(start + 1, next_byte_slots, lists, caches, FACTORS, W_ENTRIES, C_ENTRIES)
    slots = _slots(start + 2, row, *lists)
    byte_slots = _slots(start + 2, byte_row, *lists)
    _locate(start + 1, next_slots, lists, caches, records.index(1), W_ENTRIES, C_ENTRIES, UNIT)
    _store_factors(scales, factors.index(0))
    _store_factors(next_scales, factors.index(1))
    scales = _load_scales(start + 2, byte_slots, lists, caches, FACTORS, W_ENTRIES, C_ENTRIES)
    byte_slots = _slots(start + 3, byte_row, *lists)
    for tile in range(start, end):
        stage = (tile - start) % 2
        scaled = factors.index(stage)
        following = records.index(1 - stage)
        target = words.index(stage)
        base = gl.where(tile + 1 < lists[0], caches[0], caches[2])
        mbarrier.wait(empty.index(stage), ((tile - start) // 2 & 1) ^ 1)
        # as soon as a part of a tile is stored, the same part of the next one is fetched into its registers
        _store_blocks(four, scaled, target.slice(0, 128, dim=1), 0, 4, FOUR)
        four = _load_blocks(base, following, 0, 4, FOUR, UNIT)
        _store_blocks(two, scaled, target.slice(128, 64, dim=1), 4, 2, TWO)
        _store_blocks(one, scaled, target.slice(192, 32, dim=1), 6, 1, ONE)
        rope = gl.inline_asm_elementwise(_CONVERT_ROPE, "=r,r", [rope], dtype=gl.int32, is_pure=True, pack=1)
        target.slice(224, 32, dim=1).store(rope)
        fence_async_shared()
        mbarrier.arrive(full.index(stage), count=1)
        two = _load_blocks(base, following, 4, 2, TWO, UNIT)
        one = _load_blocks(base, following, 6, 1, ONE, UNIT)
        rope = _load_rope(base, following, ROPE, UNIT)
        # two tiles ahead: where its records lie and what they are scaled by; three ahead: its scales
        _locate(tile + 2, slots, lists, caches, records.index(stage), W_ENTRIES, C_ENTRIES, UNIT)
        _store_factors(scales, factors.index(stage))
        slots = _slots(tile + 3, row, *lists)
        scales = _load_scales(tile + 3, byte_slots, lists, caches, FACTORS, W_ENTRIES, C_ENTRIES)
        byte_slots = _slots(tile + 4, byte_row, *lists)


@gluon.jit
def _weigh(scores, seen, scale, top):
    """Softmax weights of a tile relative to the new running maximum, that maximum, and what the old one shrinks to."""
    scores = gl.where(gl.expand_dims(seen, 0), scores * scale, float("-inf"))
    new_top = gl.maximum(top, gl.max(scores, axis=1))
    shift = gl.where(new_top == float("-inf"), 0.0, new_top)
    return gl.exp2(scores - gl.expand_dims(shift, 1)), new_top, gl.exp2(top - shift)


@gluon.jit
def _adopt(theirs, top):
    """The other consumer's running maximum, and what ours shrinks to."""
    new_top = theirs.load(_S_ROWS)
    return new_top, gl.exp2(top - gl.where(new_top == float("-inf"), 0.0, new_top))


@gluon.jit
def _shrink(acc, keep):
    return acc * gl.expand_dims(gl.convert_layout(keep, _O_ROWS), 1)


@gluon.jit
def _store_queries(q, q_head_stride, place, queries, queried, OWNER: gl.constexpr):
    """Convert this consumer's half of the query columns to fp16 in shared memory and wait for the other half."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    head = place[1]
    num_heads = place[3]
    row = gl.arange(0, HEADS, layout=gl.SliceLayout(1, LAYOUT))
    column = OWNER * _HALF + gl.arange(0, _HALF, layout=gl.SliceLayout(0, LAYOUT))
    pointers = q + gl.expand_dims(row * q_head_stride, 1) + gl.expand_dims(column, 0)
    x = gl.load(pointers, mask=gl.expand_dims(head + row < num_heads, 1), other=0.0).to(gl.float32)
    x = gl.minimum(gl.maximum(x, -_LARGEST_FP16), _LARGEST_FP16).to(gl.float16)
    queries.index(0).slice(OWNER * _HALF, _HALF, dim=1).store(x)
    fence_async_shared()
    mbarrier.arrive(queried, count=1)
    mbarrier.wait(queried, 0)


@gluon.jit
def _buffers(queries, keys, zero):
    """The queries and the two tiles, at an index that the compiler cannot know to be zero.

    Otherwise it computes all matrix descriptors ahead of the loop, keeps none of the hundred in registers, and reloads
    them from local memory between the matrix products.
    """
    return queries.index(zero), keys.index(zero), keys.index(zero + 1)


@gluon.jit
def _score(queries, current):
    """Begin the scores [64, 64] of a tile."""
    zeros = gl.zeros([HEADS, TILE], gl.float32, _S_MMA)
    return warpgroup_mma(queries, current.permute([1, 0]), zeros, use_acc=False, is_async=True)


@gluon.jit
def _store_bf16(values, target, head, num_heads, OWNER: gl.constexpr):
    """Store [64, 256] as words of two bf16: single conversions run at an eighth of the rate of packed ones."""
    even, odd = gl.split(gl.reshape(values, [HEADS, _HALF // 2, 2]))
    words = gl.inline_asm_elementwise(_PACK_BF16, "=r,r,r", [even, odd], dtype=gl.int32, is_pure=True, pack=1)
    words = gl.convert_layout(words, _O_WORDS, assert_trivial=True)
    heads = head + gl.arange(0, HEADS, layout=gl.SliceLayout(1, _O_WORDS))
    columns = OWNER * (_HALF // 2) + gl.arange(0, _HALF // 2, layout=gl.SliceLayout(0, _O_WORDS))
    offsets = gl.expand_dims(heads * 256, 1) + gl.expand_dims(columns, 0)
    mine = gl.expand_dims(heads < num_heads, 1)
    gl.store(target.to(gl.pointer_type(gl.int32)) + offsets, words, mask=mine)


@gluon.jit
def _finish(acc, top, total, tops, totals, done, place, sink, outputs, OWNER: gl.constexpr,
            HAS_SINK: gl.constexpr, SPLIT: gl.constexpr):  # fmt: skip
    """Join the consumers' totals, normalise this one's columns and store them."""
    out, lse, partial, partial_lse = outputs
    token, head, split, num_heads, num_splits = place
    totals.index(OWNER).store(total)
    mbarrier.arrive(done.index(OWNER), count=1)
    mbarrier.wait(done.index(1 - OWNER), 0)
    total += totals.index(1 - OWNER).load(_S_ROWS)
    heads = head + gl.arange(0, HEADS, layout=_S_ROWS)
    mine = heads < num_heads
    seen_any = total > 0
    natural = gl.where(seen_any, (top + gl.log2(gl.where(seen_any, total, 1.0))) * _LN2, float("-inf"))
    norm = gl.where(seen_any, 1.0 / gl.where(seen_any, total, 1.0), 0.0)
    columns = OWNER * _HALF + gl.arange(0, _HALF, layout=gl.SliceLayout(0, _O_MMA))
    o_heads = head + gl.arange(0, HEADS, layout=_O_ROWS)
    offsets = gl.expand_dims(o_heads * 512, 1) + gl.expand_dims(columns, 0)
    o_mine = gl.expand_dims(o_heads < num_heads, 1)
    if SPLIT:
        row = (token.to(gl.int64) * num_splits + split) * num_heads
        if OWNER == 0:
            gl.store(partial_lse + row + heads, natural, mask=mine)
        gl.store(partial + row * 512 + offsets, _shrink(acc, norm), mask=o_mine)
    else:
        row = token.to(gl.int64) * num_heads
        if HAS_SINK:
            logit = gl.load(sink + heads, mask=mine, other=0.0)
            norm = norm / (1.0 + gl.exp2((logit - gl.where(seen_any, natural, 0.0)) * _LOG2E))
        if OWNER == 0:
            gl.store(lse + row + heads, natural, mask=mine)
        _store_bf16(_shrink(acc, norm), out + row * 512, head, num_heads, OWNER)


@gluon.jit
def _consume_even(
    start, end, zero, lists, scale, q, q_head_stride, queries, keys, weights, tops, totals, queried, full, empty, ready,
    done, place, sink, outputs, HAS_SINK: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    """Score the even tiles; accumulate output columns 0..255 of all."""
    column = gl.arange(0, TILE, layout=gl.SliceLayout(0, _S_MMA))
    acc = gl.zeros([HEADS, _HALF], gl.float32, _O_MMA)
    top = gl.full([HEADS], float("-inf"), gl.float32, _S_ROWS)
    total = gl.zeros([HEADS], gl.float32, _S_ROWS)
    _store_queries(q, q_head_stride, place, queries, queried, 0)
    pairs = (end - start) // 2
    for pair in range(pairs):
        phase = pair & 1
        query, even, odd = _buffers(queries, keys, pair & zero)
        seen = _slots(start + 2 * pair, column, *lists) >= 0
        mbarrier.wait(full.index(0), phase)
        scores = warpgroup_mma_wait(0, deps=[_score(query, even)])
        p, top, keep = _weigh(scores, seen, scale, top)
        weights.index(0).store(p.to(gl.float16))
        tops.index(0).store(top)
        fence_async_shared()
        mbarrier.arrive(ready.index(0), count=1)
        acc = _shrink(acc, keep)
        acc = warpgroup_mma(weights.index(0), even.slice(0, _HALF, dim=1), acc, is_async=True)
        total = total * keep + gl.sum(p, axis=1)
        mbarrier.wait(ready.index(1), phase)
        top, keep = _adopt(tops.index(1), top)
        total = total * keep
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(0), count=1)
        acc = _shrink(acc, keep)
        mbarrier.wait(full.index(1), phase)
        acc = warpgroup_mma(weights.index(1), odd.slice(0, _HALF, dim=1), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(1), count=1)
    if (end - start) % 2 == 1:
        query, even, odd = _buffers(queries, keys, pairs & zero)
        seen = _slots(end - 1, column, *lists) >= 0
        mbarrier.wait(full.index(0), pairs & 1)
        scores = warpgroup_mma_wait(0, deps=[_score(query, even)])
        p, top, keep = _weigh(scores, seen, scale, top)
        weights.index(0).store(p.to(gl.float16))
        tops.index(0).store(top)
        fence_async_shared()
        mbarrier.arrive(ready.index(0), count=1)
        acc = _shrink(acc, keep)
        acc = warpgroup_mma(weights.index(0), even.slice(0, _HALF, dim=1), acc, is_async=True)
        total = total * keep + gl.sum(p, axis=1)
        acc = warpgroup_mma_wait(0, deps=[acc])
    _finish(acc, top, total, tops, totals, done, place, sink, outputs, 0, HAS_SINK, SPLIT)


@gluon.jit
def _consume_odd(
    start, end, zero, lists, scale, q, q_head_stride, queries, keys, weights, tops, totals, queried, full, empty, ready,
    done, place, sink, outputs, HAS_SINK: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    """Score the odd tiles; accumulate output columns 256..511 of all."""
    column = gl.arange(0, TILE, layout=gl.SliceLayout(0, _S_MMA))
    acc = gl.zeros([HEADS, _HALF], gl.float32, _O_MMA)
    top = gl.full([HEADS], float("-inf"), gl.float32, _S_ROWS)
    total = gl.zeros([HEADS], gl.float32, _S_ROWS)
    _store_queries(q, q_head_stride, place, queries, queried, 1)
    pairs = (end - start) // 2
    for pair in range(pairs):
        phase = pair & 1
        query, even, odd = _buffers(queries, keys, pair & zero)
        seen = _slots(start + 2 * pair + 1, column, *lists) >= 0
        mbarrier.wait(full.index(1), phase)
        scores = _score(query, odd)
        mbarrier.wait(ready.index(0), phase)
        top, keep = _adopt(tops.index(0), top)
        total = total * keep
        acc = _shrink(acc, keep)
        mbarrier.wait(full.index(0), phase)
        acc = warpgroup_mma(weights.index(0), even.slice(_HALF, _HALF, dim=1), acc, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[scores])
        p, top, keep = _weigh(scores, seen, scale, top)
        weights.index(1).store(p.to(gl.float16))
        tops.index(1).store(top)
        fence_async_shared()
        mbarrier.arrive(ready.index(1), count=1)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(0), count=1)
        acc = _shrink(acc, keep)
        acc = warpgroup_mma(weights.index(1), odd.slice(_HALF, _HALF, dim=1), acc, is_async=True)
        total = total * keep + gl.sum(p, axis=1)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(1), count=1)
    if (end - start) % 2 == 1:
        query, even, odd = _buffers(queries, keys, pairs & zero)
        mbarrier.wait(ready.index(0), pairs & 1)
        top, keep = _adopt(tops.index(0), top)
        total = total * keep
        acc = _shrink(acc, keep)
        mbarrier.wait(full.index(0), pairs & 1)
        acc = warpgroup_mma(weights.index(0), even.slice(_HALF, _HALF, dim=1), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
    _finish(acc, top, total, tops, totals, done, place, sink, outputs, 1, HAS_SINK, SPLIT)


@gluon.jit(do_not_specialize=["num_heads", "num_splits"])
def sparse_attention_kernel(
    q, q_token_stride, q_head_stride,
    window_pages, window_stride, window_indices, window_indices_stride, window_lens,
    compressed_pages, compressed_stride, compressed_indices, compressed_indices_stride, compressed_lens,
    sink, softmax_scale, out, lse, partial, partial_lse, num_heads, num_splits,
    HAS_WINDOW: gl.constexpr, HAS_COMPRESSED: gl.constexpr, HAS_SINK: gl.constexpr, SPLIT: gl.constexpr,
    W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr, UNIT: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Attend 64 heads of one token over one split of its entries.

    Pages must start at multiples of 16 bytes. ``UNIT`` divides both page strides and, times 2^31, exceeds the extent of
    either cache.
    """
    HALVES: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    WORDS: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    PLAIN_2D: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])

    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    split = gl.program_id(0) % num_splits
    head_blocks = (num_heads + HEADS - 1) // HEADS
    head = (gl.program_id(0) // num_splits) % head_blocks * HEADS
    token = gl.program_id(0) // num_splits // head_blocks

    queries = gl.allocate_shared_memory(gl.float16, [1, HEADS, 512], HALVES)
    keys = gl.allocate_shared_memory(gl.float16, [2, TILE, 512], HALVES)
    words = keys._reinterpret(gl.int32, [2, TILE, 256], WORDS)
    weights = gl.allocate_shared_memory(gl.float16, [2, HEADS, TILE], HALVES)
    tops = gl.allocate_shared_memory(gl.float32, [2, HEADS], PLAIN)
    totals = gl.allocate_shared_memory(gl.float32, [2, HEADS], PLAIN)
    records = gl.allocate_shared_memory(gl.int32, [2, TILE], PLAIN)
    factors = gl.allocate_shared_memory(gl.int32, [2, TILE, 8], PLAIN_2D)

    q += token.to(gl.int64) * q_token_stride + head * q_head_stride

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
    place = (token, head, split, num_heads, num_splits)
    outputs = (out, lse, partial, partial_lse)

    queried = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(queried, count=2)
    for stage in gl.static_range(2):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(done.index(stage), count=1)
    scale = softmax_scale * _LOG2E
    zero = gl.program_id(1)
    # the consumers are workers, whose register count is exact; the default partition takes what is left
    gl.warp_specialize(
        [
            (_produce, (
                start, end, lists, caches, words, records, factors, full, empty, W_ENTRIES, C_ENTRIES, UNIT,
            )),
            (_consume_even, (
                start, end, zero, lists, scale, q, q_head_stride, queries, keys, weights, tops, totals, queried, full,
                empty, ready, done, place, sink, outputs, HAS_SINK, SPLIT,
            )),
            (_consume_odd, (
                start, end, zero, lists, scale, q, q_head_stride, queries, keys, weights, tops, totals, queried, full,
                empty, ready, done, place, sink, outputs, HAS_SINK, SPLIT,
            )),
        ],
        [4, 4],
        [CONSUMER_REGISTERS, CONSUMER_REGISTERS],
    )  # fmt: skip
