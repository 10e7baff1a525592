"""Sparse attention over fp8 entries on Hopper: two consumer warpgroups take turns, a third dequantises for them.

An item of work is one token with 64 heads over a range of 64-entry tiles; a program takes one item after another. Both
consumers accumulate every tile, each half of the output columns, which is all that registers hold (64 x 256 in fp32).
Scores are made by one of them, in turns, so that one's softmax hides behind the other's matrix products; weights and
running maxima change hands through shared memory. The producer fetches records into registers, dequantises and
publishes tiles through a ring of two, the next item's while the consumers finish this one's.

Tiles, queries and weights are fp16, not bf16: e4m3 to fp16 is one instruction a pair and the power-of-two scale one
more, where bf16 takes three times as many. Every e4m3 value times a scale of 2^-15 .. 2^7 is exact in fp16; smaller
scales lose less than 2^-25 absolute (3e-4 of the smallest block maximum that quantisers store, 1e-4); larger ones,
which need keys beyond +-57,344, are taken as 2^7, and queries are clamped to +-65,280.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from dsv4_kernels.gluon.casts import DEQUANTISE, PACK_BF16, PACK_FP16
from dsv4_kernels.gluon.items import HEADS, TILE, assignment, column_of, place_of, share_of, slots_of
from dsv4_kernels.gluon.running_softmax import LN2, LOG2E, O_WORDS, S_MMA, S_ROWS, adopt, shrink, sink_logits, weigh

PRODUCER_WARPS = 4
MAX_REGISTERS = 168
"""Registers per thread at launch, for three warpgroups."""
CONSUMER_REGISTERS = tl.constexpr(192)
_HALF = tl.constexpr(256)
_BIASES = tl.constexpr(4)
"""Tiles whose biases are kept: two being consumed, two ahead."""
_RECORD = tl.constexpr(576)
_LARGEST_SCALE = tl.constexpr(127 + 7)


_O_MMA = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
_O_ROWS = gl.constexpr(gl.SliceLayout(1, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])))

_LINES = gl.constexpr(gl.BlockedLayout([1, 4], [1, 32], [4, 1], [1, 0]))
"""Words [64, 128] of queries and outputs as memory has them: 512 bytes of a row a warp."""

_CONVERT_QUERY = tl.constexpr("""
{
.reg .b32 clamped, low, high;
.reg .f32 even, odd;
mov.b32 low, 0x477f477f;
mov.b32 high, 0xc77fc77f;
min.NaN.bf16x2 clamped, $1, low;
max.NaN.bf16x2 clamped, clamped, high;
shl.b32 low, clamped, 16;
and.b32 high, clamped, 0xffff0000;
mov.b32 even, low;
mov.b32 odd, high;
cvt.rn.f16x2.f32 $0, odd, even;
}
""")
"""Two bf16 to two fp16, clamped to +-65,280, the largest bf16 that fp16 holds."""
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
def _begin_slots(tile, rows, lists, ring):
    """Begin to copy a tile's slot numbers to shared memory."""
    pointers, inside = column_of(tile, rows, *lists)
    async_copy.async_copy_global_to_shared(ring, pointers, mask=inside)


@gluon.jit
def _copied_slots(tile, rows, lists, ring, LAYOUT: gl.constexpr):
    """What ``_begin_slots`` copied, -1 where it copied nothing."""
    _, inside = column_of(tile, rows, *lists)
    return gl.where(inside, ring.load(LAYOUT), -1)


_BLOCK = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0]], [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 16]
    )
)
"""Words [64, 16] of a 64-byte block: a thread holds 16 bytes of two rows, the same two in every block."""
_PAIR = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 0, 1], [0, 0, 2], [0, 1, 0], [8, 0, 0]], [[0, 0, 4], [0, 0, 8], [1, 0, 0], [2, 0, 0], [4, 0, 0]],
        [[16, 0, 0], [32, 0, 0]], [], [64, 2, 16],
    )
)  # fmt: skip
_ROPE = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [8, 0]], [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 32]
    )
)
_SCALES = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [8, 0]], [[0, 0], [0, 0], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 2]
    )
)
"""Scale words [64, 2] of the rows that a thread holds."""
_TWICE = tl.constexpr("cvt.rn.f16x2.f32 $0, $1, $1;")


@gluon.jit
def _locate(tile, slots, lists, caches, bias, W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr):
    """Addresses of a tile's records [64]; leaves beside the tile what absent entries add to scores: -inf."""
    windowed = tile < lists[0]
    page, entry = place_of(slots, windowed, caches[1], caches[3], W_ENTRIES, C_ENTRIES)
    bias.store(gl.where(slots >= 0, 0.0, float("-inf")))
    return (gl.where(windowed, caches[0], caches[2]) + page + entry * _RECORD).to(gl.pointer_type(gl.int32))


@gluon.jit
def _scale_words(tile, slots, lists, caches, FACTORS: gl.constexpr, W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr):
    """Where the scale bytes of a tile lie, as words [64, 2], and whether they do."""
    windowed = tile < lists[0]
    page, entry = place_of(slots, windowed, caches[1], caches[3], W_ENTRIES, C_ENTRIES)
    scales = (
        gl.where(windowed, caches[0], caches[2]) + page + gl.where(windowed, W_ENTRIES, C_ENTRIES) * _RECORD + entry * 8
    )
    word = gl.arange(0, 2, layout=gl.SliceLayout(0, FACTORS))
    pointers = gl.expand_dims(scales.to(gl.pointer_type(gl.int32)), 1) + gl.expand_dims(word, 0)
    return pointers, gl.expand_dims(slots >= 0, 1)


@gluon.jit
def _factor(words, BYTE: gl.constexpr):
    """2^(byte - 127) of one byte of each word, as fp16, twice a word."""
    exponent = gl.minimum((words >> (8 * BYTE)) & 0xFF, _LARGEST_SCALE)
    value = (exponent << 23).to(gl.float32, bitcast=True)
    return gl.inline_asm_elementwise(_TWICE, "=r,r", [value], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _fetch(record, slots, LAYOUT: gl.constexpr, FIRST: gl.constexpr):
    """Words FIRST.. of a tile's records, as many as ``LAYOUT`` has."""
    WORDS: gl.constexpr = LAYOUT.shape[1]
    word = FIRST + gl.arange(0, WORDS, layout=gl.SliceLayout(0, LAYOUT))
    row = gl.convert_layout(record, gl.SliceLayout(1, LAYOUT), assert_trivial=True)
    found = gl.convert_layout(slots >= 0, gl.SliceLayout(1, LAYOUT), assert_trivial=True)
    return gl.load(gl.expand_dims(row, 1) + gl.expand_dims(word, 0), mask=gl.expand_dims(found, 1), other=0)


@gluon.jit
def _fetch_pair(record, slots, FIRST: gl.constexpr):
    """Words [64, 2, 16] of two blocks of a tile's records."""
    row = gl.convert_layout(record, gl.SliceLayout(1, gl.SliceLayout(2, _PAIR)), assert_trivial=True)
    found = gl.convert_layout(slots >= 0, gl.SliceLayout(1, gl.SliceLayout(2, _PAIR)), assert_trivial=True)
    block = FIRST + gl.arange(0, 2, layout=gl.SliceLayout(0, gl.SliceLayout(2, _PAIR)))
    word = gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(1, _PAIR)))
    within = gl.expand_dims(gl.expand_dims(block * 16, 0), 2) + gl.expand_dims(gl.expand_dims(word, 0), 1)
    pointers = gl.expand_dims(gl.expand_dims(row, 1), 2) + within
    return gl.load(pointers, mask=gl.expand_dims(gl.expand_dims(found, 1), 2), other=0)


@gluon.jit
def _store_pair(words, scales, target, BYTE: gl.constexpr):
    """Dequantise words [64, 2, 16] and store them as fp16 pairs [64, 64]."""
    factors = gl.join(_factor(scales, BYTE), _factor(scales, BYTE + 1))
    factors = gl.convert_layout(factors, gl.SliceLayout(2, _PAIR), assert_trivial=True)
    factors, words = gl.broadcast(gl.expand_dims(factors, 2), words)
    low, high = gl.inline_asm_elementwise(
        DEQUANTISE, "=r,=r,r,r", [words, factors], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
    )
    target.store(gl.reshape(gl.join(low, high), [TILE, 64]))


@gluon.jit
def _store_block(words, scales, target, BYTE: gl.constexpr):
    """Dequantise words [64, 16] and store them as fp16 pairs [64, 32]."""
    factors = gl.convert_layout(_factor(scales, BYTE), gl.SliceLayout(1, _BLOCK), assert_trivial=True)
    factors, words = gl.broadcast(gl.expand_dims(factors, 1), words)
    low, high = gl.inline_asm_elementwise(
        DEQUANTISE, "=r,=r,r,r", [words, factors], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
    )
    target.store(gl.reshape(gl.join(low, high), [TILE, 32]))


@gluon.jit
def _produce(work, window, compressed, words, biases, slot_ring, scale_ring, full, empty,
             HAS_WINDOW: gl.constexpr, HAS_COMPRESSED: gl.constexpr, W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr,
             PDL: gl.constexpr):  # fmt: skip
    """Fetch, dequantise and publish the tiles of every item."""
    MINE: gl.constexpr = gl.SliceLayout(1, _BLOCK)
    EACH: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    FACTORS: gl.constexpr = gl.BlockedLayout([1, 2], [32, 1], [4, 1], [1, 0])
    row = gl.arange(0, TILE, layout=EACH)
    my_row = gl.arange(0, TILE, layout=MINE)
    scale_row = gl.arange(0, TILE, layout=gl.SliceLayout(1, FACTORS))
    caches = (window[0], window[1], compressed[0], compressed[1])
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    num_items, num_heads, num_splits = work
    used_0 = 0
    used_1 = 0
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        token, _, split = assignment(item, num_heads, num_splits)
        start, end, window_tiles, window_len, compressed_len = share_of(
            token, split, num_splits, window, compressed, HAS_WINDOW, HAS_COMPRESSED
        )
        lists = (window_tiles, window[2] + token * window[3], window_len,
                 compressed[2] + token * compressed[3], compressed_len, end)  # fmt: skip
        # tile start: rows are on their way before anything else is asked for
        slots = slots_of(start, my_row, lists)
        scale_slots = slots_of(start, scale_row, lists)
        next_slots = slots_of(start + 1, my_row, lists)
        next_scale_slots = slots_of(start + 1, scale_row, lists)
        count = used_0 + used_1
        record = _locate(start, slots, lists, caches, biases.index(count % _BIASES), W_ENTRIES, C_ENTRIES)
        first = _fetch_pair(record, slots, 0)
        second = _fetch_pair(record, slots, 2)
        third = _fetch_pair(record, slots, 4)
        fourth = _fetch(record, slots, _BLOCK, 96)
        rope = _fetch(record, slots, _ROPE, 112)
        pointers, found = _scale_words(start, scale_slots, lists, caches, FACTORS, W_ENTRIES, C_ENTRIES)
        async_copy.async_copy_global_to_shared(scale_ring.index(0), pointers, mask=found)
        pointers, found = _scale_words(start + 1, next_scale_slots, lists, caches, FACTORS, W_ENTRIES, C_ENTRIES)
        async_copy.async_copy_global_to_shared(scale_ring.index(1), pointers, mask=found)
        _begin_slots(start + 2, row, lists, slot_ring.index(2))
        async_copy.commit_group()
        slots = next_slots
        record = _locate(start + 1, slots, lists, caches, biases.index((count + 1) % _BIASES), W_ENTRIES, C_ENTRIES)
        async_copy.wait_group(0)
        low, high = gl.split(scale_ring.index(0).load(_SCALES))
        for tile in range(start, end):
            # slots, record: of the next tile; low, high: scales of this one
            i = tile - start
            stage = i % 2
            use = gl.where(stage == 0, used_0, used_1) + i // 2
            target = words.index(stage)
            mbarrier.wait(empty.index(stage), (use & 1) ^ 1)
            # as soon as a part of a tile is stored, the same part of the next one is fetched into its registers
            _store_pair(first, low, target.slice(0, 64, dim=1), 0)
            first = _fetch_pair(record, slots, 0)
            _store_pair(second, low, target.slice(64, 64, dim=1), 2)
            second = _fetch_pair(record, slots, 2)
            _store_pair(third, high, target.slice(128, 64, dim=1), 0)
            _store_block(fourth, high, target.slice(192, 32, dim=1), 2)
            rope = gl.inline_asm_elementwise(_CONVERT_ROPE, "=r,r", [rope], dtype=gl.int32, is_pure=True, pack=1)
            target.slice(224, 32, dim=1).store(rope)
            fence_async_shared()
            mbarrier.arrive(full.index(stage), count=1)
            third = _fetch_pair(record, slots, 4)
            fourth = _fetch(record, slots, _BLOCK, 96)
            rope = _fetch(record, slots, _ROPE, 112)
            # two tiles ahead: where records lie; one ahead: what they are scaled by. Copies, not loads: the few
            # scoreboards of a warp would make the rows' addresses wait for them
            async_copy.wait_group(0)
            low, high = gl.split(scale_ring.index(1 - stage).load(_SCALES))
            slots = _copied_slots(tile + 2, my_row, lists, slot_ring.index((i + 2) % 4), MINE)
            scale_slots = _copied_slots(tile + 2, scale_row, lists, slot_ring.index((i + 2) % 4),
                                        gl.SliceLayout(1, FACTORS))  # fmt: skip
            pointers, found = _scale_words(tile + 2, scale_slots, lists, caches, FACTORS, W_ENTRIES, C_ENTRIES)
            async_copy.async_copy_global_to_shared(scale_ring.index(stage), pointers, mask=found)
            _begin_slots(tile + 3, row, lists, slot_ring.index((i + 3) % 4))
            async_copy.commit_group()
            record = _locate(tile + 2, slots, lists, caches, biases.index((count + i + 2) % _BIASES),
                             W_ENTRIES, C_ENTRIES)  # fmt: skip
        used_0 += (end - start + 1) // 2
        used_1 += (end - start) // 2


@gluon.jit
def _load_queries(item, work, q, OWNER: gl.constexpr):
    """This consumer's half of an item's query columns, as words [64, 128] of two bf16; zeros beyond the last item."""
    num_items, num_heads, num_splits = work
    token, head, _ = assignment(item, num_heads, num_splits)
    row = head + gl.arange(0, HEADS, layout=gl.SliceLayout(1, _LINES))
    column = OWNER * (_HALF // 2) + gl.arange(0, _HALF // 2, layout=gl.SliceLayout(0, _LINES))
    start = (q[0] + token * q[1]).to(gl.pointer_type(gl.int32))
    pointers = start + gl.expand_dims(row * (q[2] // 2), 1) + gl.expand_dims(column, 0)
    return gl.load(pointers, mask=gl.expand_dims((row < num_heads) & (item < num_items), 1), other=0)


@gluon.jit
def _store_queries(x, query_words, queried, turn, OWNER: gl.constexpr):
    """Put this consumer's half of the query columns into shared memory as fp16 and wait for the other half."""
    x = gl.inline_asm_elementwise(_CONVERT_QUERY, "=r,r", [x], dtype=gl.int32, is_pure=True, pack=1)
    query_words.index(0).slice(OWNER * (_HALF // 2), _HALF // 2, dim=1).store(x)
    fence_async_shared()
    mbarrier.arrive(queried, count=1)
    mbarrier.wait(queried, turn)


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
    zeros = gl.zeros([HEADS, TILE], gl.float32, S_MMA)
    return warpgroup_mma(queries, current.permute([1, 0]), zeros, use_acc=False, is_async=True)


@gluon.jit
def _pack(values, PACK: gl.constexpr):
    """[64, 256] to words [64, 128] of two, where they lie."""
    even, odd = gl.split(gl.reshape(values, [HEADS, _HALF // 2, 2]))
    words = gl.inline_asm_elementwise(PACK, "=r,r,r", [even, odd], dtype=gl.int32, is_pure=True, pack=1)
    return gl.convert_layout(words, O_WORDS, assert_trivial=True)


@gluon.jit
def _finish(acc, top, total, logit, turn, item, work, q, outputs, query_words, totals, done, OWNER: gl.constexpr,
            HAS_SINK: gl.constexpr, SPLIT: gl.constexpr):  # fmt: skip
    """Join the consumers' totals, normalise this one's columns and store them; return the next item's queries."""
    out, lse, partial, partial_lse = outputs
    _, num_heads, num_splits = work
    token, head, split = assignment(item, num_heads, num_splits)
    totals.index(OWNER).store(total)
    mbarrier.arrive(done.index(OWNER), count=1)
    mbarrier.wait(done.index(1 - OWNER), turn)
    total += totals.index(1 - OWNER).load(S_ROWS)
    heads = head + gl.arange(0, HEADS, layout=S_ROWS)
    mine = heads < num_heads
    seen_any = total > 0
    natural = gl.where(seen_any, (top + gl.log2(gl.where(seen_any, total, 1.0))) * LN2, float("-inf"))
    norm = gl.where(seen_any, 1.0 / gl.where(seen_any, total, 1.0), 0.0)
    if SPLIT:
        row = (token * num_splits + split) * num_heads
        if OWNER == 0:
            gl.store(partial_lse + row + heads, natural, mask=mine)
        words = _pack(shrink(acc, norm, _O_ROWS), PACK_FP16)
        target = partial
    else:
        row = token * num_heads
        if OWNER == 0:
            gl.store(lse + row + heads, natural, mask=mine)
        if HAS_SINK:
            norm = norm / (1.0 + gl.exp2((logit - gl.where(seen_any, natural, 0.0)) * LOG2E))
        words = _pack(shrink(acc, norm, _O_ROWS), PACK_BF16)
        target = out
    # through the queries' memory, which nobody reads any more, so that whole lines leave the program
    lines = query_words.index(0).slice(OWNER * (_HALF // 2), _HALF // 2, dim=1)
    lines.store(words)
    queries = _load_queries(item + gl.num_programs(0), work, q, OWNER)
    heads = head + gl.arange(0, HEADS, layout=gl.SliceLayout(1, _LINES))
    columns = OWNER * (_HALF // 2) + gl.arange(0, _HALF // 2, layout=gl.SliceLayout(0, _LINES))
    pointers = target.to(gl.pointer_type(gl.int32)) + row * 256 + gl.expand_dims(heads * 256, 1)
    gl.store(pointers + gl.expand_dims(columns, 0), lines.load(_LINES), mask=gl.expand_dims(heads < num_heads, 1))
    return queries


@gluon.jit
def _consume_even(
    work, window, compressed, zero, scale, q, sink, outputs, memory, barriers,
    HAS_WINDOW: gl.constexpr, HAS_COMPRESSED: gl.constexpr, HAS_SINK: gl.constexpr, SPLIT: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """Score the even tiles; accumulate output columns 0..255 of all."""
    if PDL:
        gdc_wait()
    queries, query_words, keys, weights, biases, tops, totals = memory
    queried, full, empty, ready, done = barriers
    num_items, num_heads, num_splits = work
    used_0 = 0
    used_1 = 0
    turn = 0
    halves = _load_queries(gl.program_id(0), work, q, 0)
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        token, head, split = assignment(item, num_heads, num_splits)
        share = share_of(token, split, num_splits, window, compressed, HAS_WINDOW, HAS_COMPRESSED)
        tiles = share[1] - share[0]
        logit = sink_logits(sink, head, num_heads, HAS_SINK and not SPLIT)
        _store_queries(halves, query_words, queried, turn, 0)
        acc = gl.zeros([HEADS, _HALF], gl.float32, _O_MMA)
        top = gl.full([HEADS], float("-inf"), gl.float32, S_ROWS)
        total = gl.zeros([HEADS], gl.float32, S_ROWS)
        pairs = tiles // 2
        for pair in range(pairs):
            even_phase = (used_0 + pair) & 1
            odd_phase = (used_1 + pair) & 1
            query, even, odd = _buffers(queries, keys, pair & zero)
            mbarrier.wait(full.index(0), even_phase)
            scores = warpgroup_mma_wait(0, deps=[_score(query, even)])
            p, top, keep = weigh(scores, biases.index((used_0 + used_1 + 2 * pair) % _BIASES), scale, top)
            weights.index(0).store(p.to(gl.float16))
            tops.index(0).store(top)
            fence_async_shared()
            mbarrier.arrive(ready.index(0), count=1)
            acc = shrink(acc, keep, _O_ROWS)
            acc = warpgroup_mma(weights.index(0), even.slice(0, _HALF, dim=1), acc, is_async=True)
            total = total * keep + gl.sum(p, axis=1)
            mbarrier.wait(ready.index(1), odd_phase)
            top, keep = adopt(tops.index(1), top)
            total = total * keep
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(empty.index(0), count=1)
            acc = shrink(acc, keep, _O_ROWS)
            mbarrier.wait(full.index(1), odd_phase)
            acc = warpgroup_mma(weights.index(1), odd.slice(0, _HALF, dim=1), acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(empty.index(1), count=1)
        if tiles % 2 == 1:
            query, even, odd = _buffers(queries, keys, pairs & zero)
            mbarrier.wait(full.index(0), (used_0 + pairs) & 1)
            scores = warpgroup_mma_wait(0, deps=[_score(query, even)])
            p, top, keep = weigh(scores, biases.index((used_0 + used_1 + 2 * pairs) % _BIASES), scale, top)
            weights.index(0).store(p.to(gl.float16))
            tops.index(0).store(top)
            fence_async_shared()
            mbarrier.arrive(ready.index(0), count=1)
            acc = shrink(acc, keep, _O_ROWS)
            acc = warpgroup_mma(weights.index(0), even.slice(0, _HALF, dim=1), acc, is_async=True)
            total = total * keep + gl.sum(p, axis=1)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(empty.index(0), count=1)
        halves = _finish(
            acc, top, total, logit, turn, item, work, q, outputs, query_words, totals, done, 0, HAS_SINK, SPLIT
        )
        used_0 += (tiles + 1) // 2
        used_1 += tiles // 2
        turn ^= 1


@gluon.jit
def _consume_odd(
    work, window, compressed, zero, scale, q, sink, outputs, memory, barriers,
    HAS_WINDOW: gl.constexpr, HAS_COMPRESSED: gl.constexpr, HAS_SINK: gl.constexpr, SPLIT: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """Score the odd tiles; accumulate output columns 256..511 of all."""
    if PDL:
        gdc_wait()
    queries, query_words, keys, weights, biases, tops, totals = memory
    queried, full, empty, ready, done = barriers
    num_items, num_heads, num_splits = work
    used_0 = 0
    used_1 = 0
    turn = 0
    halves = _load_queries(gl.program_id(0), work, q, 1)
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        token, head, split = assignment(item, num_heads, num_splits)
        share = share_of(token, split, num_splits, window, compressed, HAS_WINDOW, HAS_COMPRESSED)
        tiles = share[1] - share[0]
        logit = sink_logits(sink, head, num_heads, HAS_SINK and not SPLIT)
        _store_queries(halves, query_words, queried, turn, 1)
        acc = gl.zeros([HEADS, _HALF], gl.float32, _O_MMA)
        top = gl.full([HEADS], float("-inf"), gl.float32, S_ROWS)
        total = gl.zeros([HEADS], gl.float32, S_ROWS)
        pairs = tiles // 2
        for pair in range(pairs):
            even_phase = (used_0 + pair) & 1
            odd_phase = (used_1 + pair) & 1
            query, even, odd = _buffers(queries, keys, pair & zero)
            mbarrier.wait(full.index(1), odd_phase)
            scores = _score(query, odd)
            mbarrier.wait(ready.index(0), even_phase)
            top, keep = adopt(tops.index(0), top)
            total = total * keep
            acc = shrink(acc, keep, _O_ROWS)
            mbarrier.wait(full.index(0), even_phase)
            acc = warpgroup_mma(weights.index(0), even.slice(_HALF, _HALF, dim=1), acc, is_async=True)
            scores = warpgroup_mma_wait(1, deps=[scores])
            p, top, keep = weigh(scores, biases.index((used_0 + used_1 + 2 * pair + 1) % _BIASES), scale, top)
            weights.index(1).store(p.to(gl.float16))
            tops.index(1).store(top)
            fence_async_shared()
            mbarrier.arrive(ready.index(1), count=1)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(empty.index(0), count=1)
            acc = shrink(acc, keep, _O_ROWS)
            acc = warpgroup_mma(weights.index(1), odd.slice(_HALF, _HALF, dim=1), acc, is_async=True)
            total = total * keep + gl.sum(p, axis=1)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(empty.index(1), count=1)
        if tiles % 2 == 1:
            query, even, odd = _buffers(queries, keys, pairs & zero)
            mbarrier.wait(ready.index(0), (used_0 + pairs) & 1)
            top, keep = adopt(tops.index(0), top)
            total = total * keep
            acc = shrink(acc, keep, _O_ROWS)
            mbarrier.wait(full.index(0), (used_0 + pairs) & 1)
            acc = warpgroup_mma(weights.index(0), even.slice(_HALF, _HALF, dim=1), acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(empty.index(0), count=1)
        halves = _finish(
            acc, top, total, logit, turn, item, work, q, outputs, query_words, totals, done, 1, HAS_SINK, SPLIT
        )
        used_0 += (tiles + 1) // 2
        used_1 += tiles // 2
        turn ^= 1


@gluon.jit(do_not_specialize=["num_items", "num_heads", "num_splits"])
def sparse_attention_kernel(
    q, q_token_stride, q_head_stride,
    window_pages, window_stride, window_indices, window_indices_stride, window_lens,
    compressed_pages, compressed_stride, compressed_indices, compressed_indices_stride, compressed_lens,
    sink, softmax_scale, out, lse, partial, partial_lse, num_heads, num_splits, num_items,
    HAS_WINDOW: gl.constexpr, HAS_COMPRESSED: gl.constexpr, HAS_SINK: gl.constexpr, SPLIT: gl.constexpr,
    W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Attend items of work: 64 heads of one token over one split of its entries. Programs take every so many items.

    Pages must start at multiples of 16 bytes. ``partial`` is fp16.
    """
    HALVES: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    WORDS: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    PLAIN_2D: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])

    queries = gl.allocate_shared_memory(gl.float16, [1, HEADS, 512], HALVES)
    query_words = queries._reinterpret(gl.int32, [1, HEADS, 256], WORDS)
    keys = gl.allocate_shared_memory(gl.float16, [2, TILE, 512], HALVES)
    words = keys._reinterpret(gl.int32, [2, TILE, 256], WORDS)
    weights = gl.allocate_shared_memory(gl.float16, [2, HEADS, TILE], HALVES)
    tops = gl.allocate_shared_memory(gl.float32, [2, HEADS], PLAIN)
    totals = gl.allocate_shared_memory(gl.float32, [2, HEADS], PLAIN)
    biases = gl.allocate_shared_memory(gl.float32, [_BIASES, TILE], PLAIN)
    slot_ring = gl.allocate_shared_memory(gl.int32, [4, TILE], PLAIN)
    scale_ring = gl.allocate_shared_memory(gl.int32, [2, TILE, 2], PLAIN_2D)
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
    scale = softmax_scale * LOG2E
    zero = gl.program_id(1)
    work = (num_items, num_heads, num_splits)
    window = (window_pages, window_stride, window_indices, window_indices_stride, window_lens)
    compressed = (compressed_pages, compressed_stride, compressed_indices, compressed_indices_stride, compressed_lens)
    query = (q, q_token_stride, q_head_stride)
    outputs = (out, lse, partial, partial_lse)
    memory = (queries, query_words, keys, weights, biases, tops, totals)
    barriers = (queried, full, empty, ready, done)
    # the consumers are workers, whose register count is exact; the default partition takes what is left
    gl.warp_specialize(
        [
            (_produce, (
                work, window, compressed, words, biases, slot_ring, scale_ring, full, empty,
                HAS_WINDOW, HAS_COMPRESSED, W_ENTRIES, C_ENTRIES, PDL,
            )),
            (_consume_even, (
                work, window, compressed, zero, scale, query, sink, outputs, memory, barriers,
                HAS_WINDOW, HAS_COMPRESSED, HAS_SINK, SPLIT, PDL,
            )),
            (_consume_odd, (
                work, window, compressed, zero, scale, query, sink, outputs, memory, barriers,
                HAS_WINDOW, HAS_COMPRESSED, HAS_SINK, SPLIT, PDL,
            )),
        ],
        [4, 4],
        [CONSUMER_REGISTERS, CONSUMER_REGISTERS],
    )  # fmt: skip
