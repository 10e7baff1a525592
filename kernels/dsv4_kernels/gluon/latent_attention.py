"""Sparse attention over V3.2's fp8 latent entries on Hopper: 576-dim keys whose first 512 dims are the values.

One program attends one token with 64 heads over a range of 64-entry tiles. Eight warps fetch records into registers a
tile ahead, dequantise them and publish tiles through a ring of two; two consumer warpgroups accumulate every tile, each
half of the output columns, and take turns at scoring, so that one's softmax runs behind the other's matrix products.
A tile's rope keys are read by its score alone: its weights are written over them.

Values and queries are fp16, because e4m3 to fp16 is one instruction a pair; scales are rounded to fp16, which with the
rounding of the product stays below half of bf16's error. Scales below 2^-14 lose up to 2^-25 absolute, scales beyond
146 (keys of 65,504) are taken as 146. Rope keys and their queries stay bf16.
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

from dsv4_kernels.gluon.casts import DEQUANTISE, PACK_BF16
from dsv4_kernels.gluon.items import HEADS, TILE
from dsv4_kernels.gluon.running_softmax import LN2, LOG2E, O_WORDS, S_MMA, S_ROWS, adopt, shrink

PRODUCER_WARPS = 8
MAX_REGISTERS = 128
"""Registers per thread at launch, for four warpgroups."""
CONSUMER_REGISTERS = tl.constexpr(192)
_ROWS = tl.constexpr(32)
_VALUE = tl.constexpr(512)
_ROPE = tl.constexpr(64)
_HALF = tl.constexpr(256)
_RECORD = tl.constexpr(656)
_LARGEST_SCALE = tl.constexpr(146.0)
_LARGEST_FP16 = tl.constexpr(65504.0)

_TWICE_FP16 = tl.constexpr("cvt.rn.f16x2.f32 $0, $1, $1;")
"""fp32 to a word that holds it twice as fp16."""

_O_MMA = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
_O_ROWS = gl.constexpr(gl.SliceLayout(1, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])))
_WORDS = gl.constexpr(gl.BlockedLayout([1, 1, 4], [4, 1, 8], [8, 1, 1], [2, 1, 0]))
"""Half a tile's values [32 rows, 4 scales, 32 words]: a thread holds 16 bytes under each scale of one row."""
_ROPE_WORDS = gl.constexpr(gl.BlockedLayout([1, 4], [4, 8], [8, 1], [1, 0]))
"""Half a tile's rope keys [32 rows, 32 words], rows as above."""


@gluon.jit
def _slots(tile, rows, entries):
    """Slot numbers of a tile's ``rows``, -1 where there is none."""
    indices, length = entries
    column = tile * TILE + rows
    return gl.load(indices + column, mask=column < length, other=-1)


@gluon.jit
def _records(slots, cache, ENTRIES: gl.constexpr):
    """Addresses of the slots' records, in bytes."""
    pages, stride = cache
    safe = gl.maximum(slots, 0)
    return pages + (safe // ENTRIES).to(gl.int64) * stride + safe % ENTRIES * _RECORD


@gluon.jit
def _fetch(slots, cache, ENTRIES: gl.constexpr):
    """Begin to load half a tile: value words [32, 4, 32], scales [32, 4], rope words [32, 32]."""
    record = _records(slots, cache, ENTRIES).to(gl.pointer_type(gl.int32))
    group = gl.arange(0, 4, layout=gl.SliceLayout(0, gl.SliceLayout(2, _WORDS)))
    word = gl.arange(0, 32, layout=gl.SliceLayout(0, gl.SliceLayout(1, _WORDS)))
    within = gl.expand_dims(gl.expand_dims(group * 32, 0), 2) + gl.expand_dims(gl.expand_dims(word, 0), 1)
    seen = gl.expand_dims(slots >= 0, 1)
    row = gl.expand_dims(record, 1)
    values = gl.load(gl.expand_dims(row, 2) + within, mask=gl.expand_dims(seen, 2), other=0)
    scales = gl.load((row + 128).to(gl.pointer_type(gl.float32)) + gl.expand_dims(group, 0), mask=seen, other=0.0)
    rope_row = gl.expand_dims(gl.convert_layout(record, gl.SliceLayout(1, _ROPE_WORDS), assert_trivial=True), 1)
    rope_seen = gl.expand_dims(gl.convert_layout(slots >= 0, gl.SliceLayout(1, _ROPE_WORDS), assert_trivial=True), 1)
    rope_word = 132 + gl.arange(0, 32, layout=gl.SliceLayout(0, _ROPE_WORDS))
    rope = gl.load(rope_row + gl.expand_dims(rope_word, 0), mask=rope_seen, other=0)
    return values, scales, rope


@gluon.jit
def _publish(values, scales, rope, value_words, rope_words, FIRST: gl.constexpr):
    """Dequantise half a tile and store it."""
    scales = gl.minimum(scales, _LARGEST_SCALE)
    factors = gl.inline_asm_elementwise(_TWICE_FP16, "=r,r", [scales], dtype=gl.int32, is_pure=True, pack=1)
    factors, values = gl.broadcast(gl.expand_dims(factors, 2), values)
    low, high = gl.inline_asm_elementwise(
        DEQUANTISE, "=r,=r,r,r", [values, factors], dtype=(gl.int32, gl.int32), is_pure=True, pack=1
    )
    value_words.slice(FIRST, _ROWS, dim=0).store(gl.reshape(gl.join(low, high), [_ROWS, 256]))
    rope_words.slice(FIRST, _ROWS, dim=0).store(rope)


@gluon.jit
def _produce(start, end, entries, cache, value_words, rope_words, full, empty, ENTRIES: gl.constexpr):
    """Fetch, dequantise and publish tiles start..end - 1."""
    row = gl.arange(0, _ROWS, layout=gl.SliceLayout(1, gl.SliceLayout(2, _WORDS)))
    slots = _slots(start, row, entries)
    late_slots = _slots(start, _ROWS + row, entries)
    values, scales, rope = _fetch(slots, cache, ENTRIES)
    late_values, late_scales, late_rope = _fetch(late_slots, cache, ENTRIES)
    slots = _slots(start + 1, row, entries)
    late_slots = _slots(start + 1, _ROWS + row, entries)
    for tile in range(start, end):
        stage = (tile - start) % 2
        mbarrier.wait(empty.index(stage), ((tile - start) // 2 & 1) ^ 1)
        # as soon as half a tile is stored, the same half of the next one is fetched into its registers
        _publish(values, scales, rope, value_words.index(stage), rope_words.index(stage), 0)
        values, scales, rope = _fetch(slots, cache, ENTRIES)
        slots = _slots(tile + 2, row, entries)
        _publish(late_values, late_scales, late_rope, value_words.index(stage), rope_words.index(stage), _ROWS)
        fence_async_shared()
        mbarrier.arrive(full.index(stage), count=1)
        late_values, late_scales, late_rope = _fetch(late_slots, cache, ENTRIES)
        late_slots = _slots(tile + 2, _ROWS + row, entries)


@gluon.jit
def _weigh(scores, seen, scale, top):
    """Softmax weights of a tile relative to the new running maximum, that maximum, and what the old one shrinks to."""
    scores = gl.where(gl.expand_dims(seen, 0), scores * scale, float("-inf"))
    new_top = gl.maximum(top, gl.max(scores, axis=1))
    shift = gl.where(new_top == float("-inf"), 0.0, new_top)
    return gl.exp2(scores - gl.expand_dims(shift, 1)), new_top, gl.exp2(top - shift)


@gluon.jit
def _store_queries(q, q_head_stride, place, queries, rope_queries, queried, OWNER: gl.constexpr):
    """Store this consumer's half of the query columns, the first also the rope's, and wait for the other's."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    ROPE: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    head = place[1]
    num_heads = place[3]
    row = gl.arange(0, HEADS, layout=gl.SliceLayout(1, LAYOUT))
    column = OWNER * _HALF + gl.arange(0, _HALF, layout=gl.SliceLayout(0, LAYOUT))
    pointers = q + gl.expand_dims(row * q_head_stride, 1) + gl.expand_dims(column, 0)
    x = gl.load(pointers, mask=gl.expand_dims(head + row < num_heads, 1), other=0.0).to(gl.float32)
    x = gl.minimum(gl.maximum(x, -_LARGEST_FP16), _LARGEST_FP16).to(gl.float16)
    queries.index(0).slice(OWNER * _HALF, _HALF, dim=1).store(x)
    if OWNER == 0:
        row = gl.arange(0, HEADS, layout=gl.SliceLayout(1, ROPE))
        column = _VALUE + gl.arange(0, _ROPE, layout=gl.SliceLayout(0, ROPE))
        pointers = q + gl.expand_dims(row * q_head_stride, 1) + gl.expand_dims(column, 0)
        rope_queries.index(0).store(gl.load(pointers, mask=gl.expand_dims(head + row < num_heads, 1), other=0.0))
    fence_async_shared()
    mbarrier.arrive(queried, count=1)
    mbarrier.wait(queried, 0)


@gluon.jit
def _score(queries, rope_queries, values, ropes):
    """Begin the scores [64, 64] of a tile."""
    zeros = gl.zeros([HEADS, TILE], gl.float32, S_MMA)
    scores = warpgroup_mma(queries, values.permute([1, 0]), zeros, use_acc=False, is_async=True)
    return warpgroup_mma(rope_queries, ropes.permute([1, 0]), scores, is_async=True)


@gluon.jit
def _store_bf16(values, target, head, num_heads, OWNER: gl.constexpr):
    """Store [64, 256] as words of two bf16: single conversions run at an eighth of the rate of packed ones."""
    even, odd = gl.split(gl.reshape(values, [HEADS, _HALF // 2, 2]))
    words = gl.inline_asm_elementwise(PACK_BF16, "=r,r,r", [even, odd], dtype=gl.int32, is_pure=True, pack=1)
    words = gl.convert_layout(words, O_WORDS, assert_trivial=True)
    heads = head + gl.arange(0, HEADS, layout=gl.SliceLayout(1, O_WORDS))
    columns = OWNER * (_HALF // 2) + gl.arange(0, _HALF // 2, layout=gl.SliceLayout(0, O_WORDS))
    offsets = gl.expand_dims(heads * 256, 1) + gl.expand_dims(columns, 0)
    mine = gl.expand_dims(heads < num_heads, 1)
    gl.store(target.to(gl.pointer_type(gl.int32)) + offsets, words, mask=mine)


@gluon.jit
def _finish(acc, top, total, totals, done, place, outputs, OWNER: gl.constexpr, SPLIT: gl.constexpr):
    """Join the consumers' totals, normalise this one's columns and store them."""
    out, lse, partial, partial_lse = outputs
    token, head, split, num_heads, num_splits = place
    totals.index(OWNER).store(total)
    mbarrier.arrive(done.index(OWNER), count=1)
    mbarrier.wait(done.index(1 - OWNER), 0)
    total += totals.index(1 - OWNER).load(S_ROWS)
    heads = head + gl.arange(0, HEADS, layout=S_ROWS)
    mine = heads < num_heads
    seen_any = total > 0
    natural = gl.where(seen_any, (top + gl.log2(gl.where(seen_any, total, 1.0))) * LN2, float("-inf"))
    norm = gl.where(seen_any, 1.0 / gl.where(seen_any, total, 1.0), 0.0)
    if SPLIT:
        row = (token.to(gl.int64) * num_splits + split) * num_heads
        if OWNER == 0:
            gl.store(partial_lse + row + heads, natural, mask=mine)
        columns = OWNER * _HALF + gl.arange(0, _HALF, layout=gl.SliceLayout(0, _O_MMA))
        o_heads = head + gl.arange(0, HEADS, layout=_O_ROWS)
        offsets = gl.expand_dims(o_heads * _VALUE, 1) + gl.expand_dims(columns, 0)
        gl.store(
            partial + row * _VALUE + offsets, shrink(acc, norm, _O_ROWS), mask=gl.expand_dims(o_heads < num_heads, 1)
        )
    else:
        row = token.to(gl.int64) * num_heads
        if OWNER == 0:
            gl.store(lse + row + heads, natural, mask=mine)
        _store_bf16(shrink(acc, norm, _O_ROWS), out + row * _VALUE, head, num_heads, OWNER)


@gluon.jit
def _buffers(queries, rope_queries, values, ropes, zero):
    """Queries and tiles at an index that the compiler cannot know to be zero.

    Otherwise it computes all matrix descriptors ahead of the loop, keeps none of the hundred in registers, and reloads
    them from local memory between the matrix products.
    """
    return (
        queries.index(zero), rope_queries.index(zero), values.index(zero), values.index(zero + 1), ropes.index(zero),
        ropes.index(zero + 1),
    )  # fmt: skip


@gluon.jit
def _weights(ropes):
    """The weights [64, 64] of a tile, which lie where its rope keys were."""
    return ropes._reinterpret(gl.float16, [HEADS, TILE], gl.NVMMASharedLayout(128, 16, 2))


@gluon.jit
def _consume_even(
    start, end, zero, entries, scale, q, q_head_stride, queries, rope_queries, values, ropes, tops, totals, queried,
    full, empty, ready, done, place, outputs, SPLIT: gl.constexpr,
):  # fmt: skip
    """Score the even tiles; accumulate output columns 0..255 of all."""
    column = gl.arange(0, TILE, layout=gl.SliceLayout(0, S_MMA))
    acc = gl.zeros([HEADS, _HALF], gl.float32, _O_MMA)
    top = gl.full([HEADS], float("-inf"), gl.float32, S_ROWS)
    total = gl.zeros([HEADS], gl.float32, S_ROWS)
    _store_queries(q, q_head_stride, place, queries, rope_queries, queried, 0)
    pairs = (end - start) // 2
    for pair in range(pairs):
        phase = pair & 1
        query, rope_query, even, odd, even_rope, odd_rope = _buffers(queries, rope_queries, values, ropes, pair & zero)
        seen = _slots(start + 2 * pair, column, entries) >= 0
        mbarrier.wait(full.index(0), phase)
        scores = warpgroup_mma_wait(0, deps=[_score(query, rope_query, even, even_rope)])
        p, top, keep = _weigh(scores, seen, scale, top)
        _weights(even_rope).store(p.to(gl.float16))
        tops.index(0).store(top)
        fence_async_shared()
        mbarrier.arrive(ready.index(0), count=1)
        acc = shrink(acc, keep, _O_ROWS)
        acc = warpgroup_mma(_weights(even_rope), even.slice(0, _HALF, dim=1), acc, is_async=True)
        total = total * keep + gl.sum(p, axis=1)
        mbarrier.wait(ready.index(1), phase)
        top, keep = adopt(tops.index(1), top)
        total = total * keep
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(0), count=1)
        acc = shrink(acc, keep, _O_ROWS)
        mbarrier.wait(full.index(1), phase)
        acc = warpgroup_mma(_weights(odd_rope), odd.slice(0, _HALF, dim=1), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(1), count=1)
    if (end - start) % 2 == 1:
        query, rope_query, even, odd, even_rope, odd_rope = _buffers(queries, rope_queries, values, ropes, pairs & zero)
        seen = _slots(end - 1, column, entries) >= 0
        mbarrier.wait(full.index(0), pairs & 1)
        scores = warpgroup_mma_wait(0, deps=[_score(query, rope_query, even, even_rope)])
        p, top, keep = _weigh(scores, seen, scale, top)
        _weights(even_rope).store(p.to(gl.float16))
        tops.index(0).store(top)
        fence_async_shared()
        mbarrier.arrive(ready.index(0), count=1)
        acc = shrink(acc, keep, _O_ROWS)
        acc = warpgroup_mma(_weights(even_rope), even.slice(0, _HALF, dim=1), acc, is_async=True)
        total = total * keep + gl.sum(p, axis=1)
        acc = warpgroup_mma_wait(0, deps=[acc])
    _finish(acc, top, total, totals, done, place, outputs, 0, SPLIT)


@gluon.jit
def _consume_odd(
    start, end, zero, entries, scale, q, q_head_stride, queries, rope_queries, values, ropes, tops, totals, queried,
    full, empty, ready, done, place, outputs, SPLIT: gl.constexpr,
):  # fmt: skip
    """Score the odd tiles; accumulate output columns 256..511 of all."""
    column = gl.arange(0, TILE, layout=gl.SliceLayout(0, S_MMA))
    acc = gl.zeros([HEADS, _HALF], gl.float32, _O_MMA)
    top = gl.full([HEADS], float("-inf"), gl.float32, S_ROWS)
    total = gl.zeros([HEADS], gl.float32, S_ROWS)
    _store_queries(q, q_head_stride, place, queries, rope_queries, queried, 1)
    pairs = (end - start) // 2
    for pair in range(pairs):
        phase = pair & 1
        query, rope_query, even, odd, even_rope, odd_rope = _buffers(queries, rope_queries, values, ropes, pair & zero)
        seen = _slots(start + 2 * pair + 1, column, entries) >= 0
        mbarrier.wait(full.index(1), phase)
        scores = _score(query, rope_query, odd, odd_rope)
        mbarrier.wait(ready.index(0), phase)
        top, keep = adopt(tops.index(0), top)
        total = total * keep
        acc = shrink(acc, keep, _O_ROWS)
        mbarrier.wait(full.index(0), phase)
        acc = warpgroup_mma(_weights(even_rope), even.slice(_HALF, _HALF, dim=1), acc, is_async=True)
        scores = warpgroup_mma_wait(1, deps=[scores])
        p, top, keep = _weigh(scores, seen, scale, top)
        _weights(odd_rope).store(p.to(gl.float16))
        tops.index(1).store(top)
        fence_async_shared()
        mbarrier.arrive(ready.index(1), count=1)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(0), count=1)
        acc = shrink(acc, keep, _O_ROWS)
        acc = warpgroup_mma(_weights(odd_rope), odd.slice(_HALF, _HALF, dim=1), acc, is_async=True)
        total = total * keep + gl.sum(p, axis=1)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(1), count=1)
    if (end - start) % 2 == 1:
        query, rope_query, even, odd, even_rope, odd_rope = _buffers(queries, rope_queries, values, ropes, pairs & zero)
        mbarrier.wait(ready.index(0), pairs & 1)
        top, keep = adopt(tops.index(0), top)
        total = total * keep
        acc = shrink(acc, keep, _O_ROWS)
        mbarrier.wait(full.index(0), pairs & 1)
        acc = warpgroup_mma(_weights(even_rope), even.slice(_HALF, _HALF, dim=1), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
    _finish(acc, top, total, totals, done, place, outputs, 1, SPLIT)


@gluon.jit(do_not_specialize=["num_heads", "num_splits"])
def latent_attention_kernel(
    q, q_token_stride, q_head_stride, pages, page_stride, indices, indices_stride, lens, softmax_scale,
    out, lse, partial, partial_lse, num_heads, num_splits,
    SPLIT: gl.constexpr, ENTRIES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Attend 64 heads of one token over one split of its entries. Pages must start at multiples of 16 bytes."""
    HALVES: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    WORDS: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])

    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    split = gl.program_id(0) % num_splits
    head_blocks = (num_heads + HEADS - 1) // HEADS
    head = (gl.program_id(0) // num_splits) % head_blocks * HEADS
    token = gl.program_id(0) // num_splits // head_blocks

    queries = gl.allocate_shared_memory(gl.float16, [1, HEADS, _VALUE], HALVES)
    rope_queries = gl.allocate_shared_memory(gl.bfloat16, [1, HEADS, _ROPE], HALVES)
    values = gl.allocate_shared_memory(gl.float16, [2, TILE, _VALUE], HALVES)
    ropes = gl.allocate_shared_memory(gl.bfloat16, [2, TILE, _ROPE], HALVES)
    value_words = values._reinterpret(gl.int32, [2, TILE, _VALUE // 2], WORDS)
    rope_words = ropes._reinterpret(gl.int32, [2, TILE, _ROPE // 2], WORDS)
    tops = gl.allocate_shared_memory(gl.float32, [2, HEADS], PLAIN)
    totals = gl.allocate_shared_memory(gl.float32, [2, HEADS], PLAIN)

    q += token.to(gl.int64) * q_token_stride + head * q_head_stride
    length = gl.load(lens + token)
    tiles = (length + TILE - 1) // TILE
    start = split * tiles // num_splits
    end = (split + 1) * tiles // num_splits
    entries = (indices + token.to(gl.int64) * indices_stride, length)
    cache = (pages, page_stride)
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
    scale = softmax_scale * LOG2E
    zero = gl.program_id(1)
    # the consumers are workers, whose register count is exact; the default partition takes what is left
    gl.warp_specialize(
        [
            (_produce, (start, end, entries, cache, value_words, rope_words, full, empty, ENTRIES)),
            (_consume_even, (
                start, end, zero, entries, scale, q, q_head_stride, queries, rope_queries, values, ropes, tops, totals,
                queried, full, empty, ready, done, place, outputs, SPLIT,
            )),
            (_consume_odd, (
                start, end, zero, entries, scale, q, q_head_stride, queries, rope_queries, values, ropes, tops, totals,
                queried, full, empty, ready, done, place, outputs, SPLIT,
            )),
        ],
        [4, 4],
        [CONSUMER_REGISTERS, CONSUMER_REGISTERS],
    )  # fmt: skip
