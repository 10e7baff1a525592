"""Sparse attention over bf16 entries on Hopper, tiles copied and released in quarters of their columns.

Work is divided as in the fp8 form (``gluon/sparse_attention.py``): an item is one token with 64 heads over a range of
64-entry tiles, a program takes one item after another, each consumer accumulates half of the output columns and they
score tiles in turns. What differs:

- A consumer accumulates its 256 columns as two accumulators of 128, so that one is rescaled, and its quarter of the
  tile released, while the other is multiplied.
- Rows go to the swizzled tile by 16-byte ``cp.async`` and announce themselves: no thread waits for them. Absent rows
  are filled with zeros by the copy itself. A tile's quarters of columns are copied and released one by one, because
  each consumer multiplies weights with two of them only: they are free before the other consumer is done.
- The producer copies queries as well, the next item's as soon as the last tile of this one is scored. The outputs
  therefore leave from registers, exchanged within quads of lanes so that a thread stores 16 and a quad 64 bytes of a
  row.
- Weights, and shares of a split, are bf16, since keys may exceed what fp16 holds.
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

from dsv4_kernels.gluon.casts import PACK_BF16
from dsv4_kernels.gluon.items import HEADS, TILE, assignment, place_of, share_of, slots_of
from dsv4_kernels.gluon.running_softmax import LN2, LOG2E, S_MMA, S_ROWS, adopt, shrink, sink_logits, weigh

PRODUCER_WARPS = 4
MAX_REGISTERS = 168
"""Registers per thread at launch, for three warpgroups."""
CONSUMER_REGISTERS = tl.constexpr(216)
_PRODUCERS = tl.constexpr(128)
"""Threads that announce a copy, each its own part."""
_PART = tl.constexpr(128)
_PARTS = tl.constexpr(4)
_RECORD = tl.constexpr(1024)

_O_MMA = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16]))
_O_ROWS = gl.constexpr(gl.SliceLayout(1, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])))
_COPY = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
"""Copies of [64, 128]: 128 bytes of four rows a warp, so four rows a thread at constant distances."""
_QUADS = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0], [0, 16], [0, 32]], [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]], [], [64, 64],
    )
)  # fmt: skip
"""Output pairs [64, 64] after the exchange: a thread holds 16, a quad 64 consecutive bytes of a row."""
_TRANSPOSE = tl.constexpr("""
{
.reg .pred odd, upper;
.reg .b32 lane, a, b, c, d, x, y;
mov.u32 lane, %laneid;
and.b32 x, lane, 1;
and.b32 y, lane, 2;
setp.ne.u32 odd, x, 0;
setp.ne.u32 upper, y, 0;
selp.b32 x, $4, $5, odd;
selp.b32 y, $6, $7, odd;
shfl.sync.bfly.b32 x, x, 1, 31, -1;
shfl.sync.bfly.b32 y, y, 1, 31, -1;
selp.b32 a, x, $4, odd;
selp.b32 b, $5, x, odd;
selp.b32 c, y, $6, odd;
selp.b32 d, $7, y, odd;
selp.b32 x, a, c, upper;
selp.b32 y, b, d, upper;
shfl.sync.bfly.b32 x, x, 2, 31, -1;
shfl.sync.bfly.b32 y, y, 2, 31, -1;
selp.b32 $0, x, a, upper;
selp.b32 $1, y, b, upper;
selp.b32 $2, c, x, upper;
selp.b32 $3, d, y, upper;
}
""")
"""Word r of lane l to word l of lane r, within quads of lanes."""


# producer -------------------------------------------------------------------------------------------------------------


@gluon.jit
def _begin_rows(rows, found, target, FIRST: gl.constexpr):
    """Begin to copy 128 columns of 64 rows to shared memory; zeros where ``found`` is false."""
    column = FIRST + gl.arange(0, _PART, layout=gl.SliceLayout(0, _COPY))
    pointers = gl.expand_dims(rows, 1) + gl.expand_dims(column, 0)
    async_copy.async_copy_global_to_shared(target.slice(FIRST, _PART, dim=1), pointers, mask=gl.expand_dims(found, 1))


@gluon.jit
def _rows(tile, slots, lists, caches, W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr):
    """Where the rows of a tile begin."""
    windowed = tile < lists[0]
    page, entry = place_of(slots, windowed, caches[1], caches[3], W_ENTRIES, C_ENTRIES)
    base = gl.where(windowed, caches[0], caches[2])
    return (base + page + entry * _RECORD).to(gl.pointer_type(gl.bfloat16))


@gluon.jit
def _produce(work, window, compressed, q, queries, keys, biases, queried, scored, full, empty,
             HAS_WINDOW: gl.constexpr, HAS_COMPRESSED: gl.constexpr, W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr,
             PDL: gl.constexpr):  # fmt: skip
    """Copy the queries and tiles of every item."""
    row = gl.arange(0, TILE, layout=gl.SliceLayout(1, _COPY))
    caches = (window[0], window[1], compressed[0], compressed[1])
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    num_items, num_heads, num_splits = work
    used_0 = 0
    used_1 = 0
    turn = 0
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        token, head, split = assignment(item, num_heads, num_splits)
        start, end, window_tiles, window_len, compressed_len = share_of(
            token, split, num_splits, window, compressed, HAS_WINDOW, HAS_COMPRESSED
        )
        lists = (window_tiles, window[2] + token * window[3], window_len,
                 compressed[2] + token * compressed[3], compressed_len, end)  # fmt: skip
        slots = slots_of(start, row, lists)
        next_slots = slots_of(start + 1, row, lists)
        heads = head + row
        query_rows = q[0] + token * q[1] + heads * q[2]
        mbarrier.wait(scored, turn ^ 1)
        for part in gl.static_range(_PARTS):
            _begin_rows(query_rows, heads < num_heads, queries.index(0), part * _PART)
        async_copy.mbarrier_arrive(queried, increment_count=False)
        for tile in range(start, end):
            stage = (tile - start) % 2
            phase = ((gl.where(stage == 0, used_0, used_1) + (tile - start) // 2) & 1) ^ 1
            rows = _rows(tile, slots, lists, caches, W_ENTRIES, C_ENTRIES)
            found = slots >= 0
            slots = next_slots
            next_slots = slots_of(tile + 2, row, lists)
            target = keys.index(stage)
            for part in gl.static_range(_PARTS):
                mbarrier.wait(empty.index(_PARTS * stage + part), phase)
                _begin_rows(rows, found, target, part * _PART)
                async_copy.mbarrier_arrive(full.index(_PARTS * stage + part), increment_count=False)
            biases.index(stage).store(gl.where(found, 0.0, float("-inf")))
            # the bias is an ordinary store, which the copies' announcement does not order
            mbarrier.arrive(full.index(_PARTS * stage + _PARTS - 1), count=1)
        used_0 += (end - start + 1) // 2
        used_1 += (end - start) // 2
        turn ^= 1
    # shared memory must outlive its copies
    async_copy.commit_group()
    async_copy.wait_group(0)


# consumers ------------------------------------------------------------------------------------------------------------


@gluon.jit
def _await(barrier, phase):
    """Wait for copied data that matrix products will read: through the asynchronous proxy, hence the fence."""
    mbarrier.wait(barrier, phase)
    fence_async_shared()


@gluon.jit
def _buffers(queries, keys, zero):
    """The queries and the two tiles, at an index that the compiler cannot know to be zero (see the fp8 form)."""
    return queries.index(zero), keys.index(zero), keys.index(zero + 1)


@gluon.jit
def _score(query, tile, full, stage: gl.constexpr, phase):
    """Begin the scores [64, 64] of a tile, each quarter of the columns when it is there."""
    scores = gl.zeros([HEADS, TILE], gl.float32, S_MMA)
    for part in gl.static_range(_PARTS):
        _await(full.index(_PARTS * stage + part), phase)
        scores = warpgroup_mma(
            query.slice(part * _PART, _PART, dim=1), tile.slice(part * _PART, _PART, dim=1).permute([1, 0]), scores,
            use_acc=part > 0, is_async=True,
        )  # fmt: skip
    return scores


@gluon.jit
def _publish(p, top, weights, tops, ready):
    """Leave a tile's weights and the new maximum for both consumers' products."""
    weights.store(p.to(gl.bfloat16))
    tops.store(top)
    fence_async_shared()
    mbarrier.arrive(ready, count=1)


@gluon.jit
def _exchange(values):
    """Outputs [64, 128] to words [64, 64] of two bf16, four neighbours a lane."""
    even, odd = gl.split(gl.reshape(values, [HEADS, _PART // 2, 2]))
    words = gl.inline_asm_elementwise(PACK_BF16, "=r,r,r", [even, odd], dtype=gl.int32, is_pure=True, pack=1)
    blocks = gl.permute(gl.reshape(words, [HEADS, 4, 4, 4]), [0, 1, 3, 2])
    even, odd = gl.split(gl.reshape(blocks, [HEADS, 4, 4, 2, 2]))
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    first, second, third, fourth = gl.inline_asm_elementwise(
        _TRANSPOSE, "=r,=r,=r,=r,r,r,r,r", [first, second, third, fourth],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32), is_pure=False, pack=1,
    )  # fmt: skip
    lines = gl.join(gl.join(first, third), gl.join(second, fourth))
    return gl.convert_layout(gl.reshape(lines, [HEADS, _PART // 2]), _QUADS, assert_trivial=True)


@gluon.jit
def _finish(accs, top, total, logit, turn, item, work, outputs, totals, done, OWNER: gl.constexpr,
            HAS_SINK: gl.constexpr, SPLIT: gl.constexpr):  # fmt: skip
    """Join the consumers' totals, normalise this one's columns and store them."""
    out, lse, partial, partial_lse = outputs
    _, num_heads, num_splits = work
    token, head, split = assignment(item, num_heads, num_splits)
    # two sets of totals: an item without tiles lets a consumer come here again before the other has read its total
    totals.index(2 * turn + OWNER).store(total)
    mbarrier.arrive(done.index(OWNER), count=1)
    mbarrier.wait(done.index(1 - OWNER), turn)
    total += totals.index(2 * turn + 1 - OWNER).load(S_ROWS)
    heads = head + gl.arange(0, HEADS, layout=S_ROWS)
    mine = heads < num_heads
    seen_any = total > 0
    natural = gl.where(seen_any, (top + gl.log2(gl.where(seen_any, total, 1.0))) * LN2, float("-inf"))
    norm = gl.where(seen_any, 1.0 / gl.where(seen_any, total, 1.0), 0.0)
    if SPLIT:
        row = (token * num_splits + split) * num_heads
        if OWNER == 0:
            gl.store(partial_lse + row + heads, natural, mask=mine)
        target = partial
    else:
        row = token * num_heads
        if OWNER == 0:
            gl.store(lse + row + heads, natural, mask=mine)
        if HAS_SINK:
            norm = norm / (1.0 + gl.exp2((logit - gl.where(seen_any, natural, 0.0)) * LOG2E))
        target = out
    heads = head + gl.arange(0, HEADS, layout=gl.SliceLayout(1, _QUADS))
    start = target.to(gl.pointer_type(gl.int32)) + row * 256 + gl.expand_dims(heads * 256, 1)
    seen_heads = gl.expand_dims(heads < num_heads, 1)
    for part in gl.static_range(2):
        words = _exchange(shrink(accs[part], norm, _O_ROWS))
        columns = (2 * OWNER + part) * (_PART // 2) + gl.arange(0, _PART // 2, layout=gl.SliceLayout(0, _QUADS))
        gl.store(start + gl.expand_dims(columns, 0), words, mask=seen_heads)


@gluon.jit
def _multiply(weights, tile, accs, keep, FIRST: gl.constexpr):
    """Begin to add a tile's values to both accumulators; one is rescaled while the other is multiplied."""
    first = shrink(accs[0], keep, _O_ROWS)
    first = warpgroup_mma(weights, tile.slice(FIRST, _PART, dim=1), first, is_async=True)
    second = shrink(accs[1], keep, _O_ROWS)
    second = warpgroup_mma(weights, tile.slice(FIRST + _PART, _PART, dim=1), second, is_async=True)
    return first, second


@gluon.jit
def _release(accs, empty, place: gl.constexpr):
    """Wait for both accumulators, and release each one's quarter as soon as it is done."""
    first = warpgroup_mma_wait(1, deps=[accs[0]])
    mbarrier.arrive(empty.index(place), count=1)
    second = warpgroup_mma_wait(0, deps=[accs[1]])
    mbarrier.arrive(empty.index(place + 1), count=1)
    return first, second


@gluon.jit
def _consume_even(
    work, window, compressed, zero, scale, sink, outputs, memory, barriers,
    HAS_WINDOW: gl.constexpr, HAS_COMPRESSED: gl.constexpr, HAS_SINK: gl.constexpr, SPLIT: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """Score the even tiles; accumulate output columns 0..255 of all."""
    if PDL:
        gdc_wait()
    queries, keys, weights, biases, tops, totals = memory
    queried, scored, full, empty, ready, done = barriers
    num_items, num_heads, num_splits = work
    even_phase = 0
    odd_phase = 0
    turn = 0
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        token, head, split = assignment(item, num_heads, num_splits)
        share = share_of(token, split, num_splits, window, compressed, HAS_WINDOW, HAS_COMPRESSED)
        tiles = share[1] - share[0]
        logit = sink_logits(sink, head, num_heads, HAS_SINK and not SPLIT)
        accs = (gl.zeros([HEADS, _PART], gl.float32, _O_MMA), gl.zeros([HEADS, _PART], gl.float32, _O_MMA))
        top = gl.full([HEADS], float("-inf"), gl.float32, S_ROWS)
        total = gl.zeros([HEADS], gl.float32, S_ROWS)
        _await(queried, turn)
        if tiles == 0:
            mbarrier.arrive(scored, count=1)
        pairs = tiles // 2
        for pair in range(pairs):
            query, even, odd = _buffers(queries, keys, pair & zero)
            scores = warpgroup_mma_wait(0, deps=[_score(query, even, full, 0, even_phase)])
            if 2 * pair + 2 == tiles:
                mbarrier.arrive(scored, count=1)
            p, top, keep = weigh(scores, biases.index(0), scale, top)
            _publish(p, top, weights.index(0), tops.index(0), ready.index(0))
            accs = _multiply(weights.index(0), even, accs, keep, 0)
            total = total * keep + gl.sum(p, axis=1)
            accs = _release(accs, empty, 0)
            mbarrier.wait(ready.index(1), odd_phase)
            top, keep = adopt(tops.index(1), top)
            total = total * keep
            _await(full.index(_PARTS), odd_phase)
            accs = _multiply(weights.index(1), odd, accs, keep, 0)
            accs = _release(accs, empty, _PARTS)
            even_phase ^= 1
            odd_phase ^= 1
        if tiles % 2 == 1:
            query, even, odd = _buffers(queries, keys, pairs & zero)
            scores = warpgroup_mma_wait(0, deps=[_score(query, even, full, 0, even_phase)])
            mbarrier.arrive(scored, count=1)
            p, top, keep = weigh(scores, biases.index(0), scale, top)
            _publish(p, top, weights.index(0), tops.index(0), ready.index(0))
            accs = _multiply(weights.index(0), even, accs, keep, 0)
            total = total * keep + gl.sum(p, axis=1)
            accs = _release(accs, empty, 0)
        _finish(accs, top, total, logit, turn, item, work, outputs, totals, done, 0, HAS_SINK, SPLIT)
        even_phase ^= tiles & 1
        turn ^= 1


@gluon.jit
def _consume_odd(
    work, window, compressed, zero, scale, sink, outputs, memory, barriers,
    HAS_WINDOW: gl.constexpr, HAS_COMPRESSED: gl.constexpr, HAS_SINK: gl.constexpr, SPLIT: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """Score the odd tiles; accumulate output columns 256..511 of all."""
    if PDL:
        gdc_wait()
    queries, keys, weights, biases, tops, totals = memory
    queried, scored, full, empty, ready, done = barriers
    num_items, num_heads, num_splits = work
    even_phase = 0
    odd_phase = 0
    turn = 0
    for item in range(gl.program_id(0), num_items, gl.num_programs(0)):
        token, head, split = assignment(item, num_heads, num_splits)
        share = share_of(token, split, num_splits, window, compressed, HAS_WINDOW, HAS_COMPRESSED)
        tiles = share[1] - share[0]
        logit = sink_logits(sink, head, num_heads, HAS_SINK and not SPLIT)
        accs = (gl.zeros([HEADS, _PART], gl.float32, _O_MMA), gl.zeros([HEADS, _PART], gl.float32, _O_MMA))
        top = gl.full([HEADS], float("-inf"), gl.float32, S_ROWS)
        total = gl.zeros([HEADS], gl.float32, S_ROWS)
        pairs = tiles // 2
        _await(queried, turn)
        if pairs == 0:
            mbarrier.arrive(scored, count=1)
        for pair in range(pairs):
            query, even, odd = _buffers(queries, keys, pair & zero)
            scores = _score(query, odd, full, 1, odd_phase)
            mbarrier.wait(ready.index(0), even_phase)
            top, keep = adopt(tops.index(0), top)
            total = total * keep
            _await(full.index(2), even_phase)
            accs = _multiply(weights.index(0), even, accs, keep, 2 * _PART)
            scores = warpgroup_mma_wait(2, deps=[scores])
            if pair == pairs - 1:
                mbarrier.arrive(scored, count=1)
            p, top, keep = weigh(scores, biases.index(1), scale, top)
            _publish(p, top, weights.index(1), tops.index(1), ready.index(1))
            accs = _release(accs, empty, 2)
            accs = _multiply(weights.index(1), odd, accs, keep, 2 * _PART)
            total = total * keep + gl.sum(p, axis=1)
            accs = _release(accs, empty, _PARTS + 2)
            even_phase ^= 1
            odd_phase ^= 1
        if tiles % 2 == 1:
            query, even, odd = _buffers(queries, keys, pairs & zero)
            mbarrier.wait(ready.index(0), even_phase)
            top, keep = adopt(tops.index(0), top)
            total = total * keep
            _await(full.index(2), even_phase)
            accs = _multiply(weights.index(0), even, accs, keep, 2 * _PART)
            accs = _release(accs, empty, 2)
        _finish(accs, top, total, logit, turn, item, work, outputs, totals, done, 1, HAS_SINK, SPLIT)
        even_phase ^= tiles & 1
        turn ^= 1


@gluon.jit(do_not_specialize=["num_items", "num_heads", "num_splits"])
def rows_attention_kernel(
    q, q_token_stride, q_head_stride,
    window_pages, window_stride, window_indices, window_indices_stride, window_lens,
    compressed_pages, compressed_stride, compressed_indices, compressed_indices_stride, compressed_lens,
    sink, softmax_scale, out, lse, partial, partial_lse, num_heads, num_splits, num_items,
    HAS_WINDOW: gl.constexpr, HAS_COMPRESSED: gl.constexpr, HAS_SINK: gl.constexpr, SPLIT: gl.constexpr,
    W_ENTRIES: gl.constexpr, C_ENTRIES: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Attend items of work: 64 heads of one token over one split of its entries. Programs take every so many items.

    Pages, their strides and the rows of queries must start at multiples of 16 bytes. ``partial`` is bf16.
    """
    HALVES: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])

    queries = gl.allocate_shared_memory(gl.bfloat16, [1, HEADS, 512], HALVES)
    keys = gl.allocate_shared_memory(gl.bfloat16, [2, TILE, 512], HALVES)
    weights = gl.allocate_shared_memory(gl.bfloat16, [2, HEADS, TILE], HALVES)
    tops = gl.allocate_shared_memory(gl.float32, [2, HEADS], PLAIN)
    totals = gl.allocate_shared_memory(gl.float32, [4, HEADS], PLAIN)
    biases = gl.allocate_shared_memory(gl.float32, [2, TILE], PLAIN)
    queried = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    scored = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [2 * _PARTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2 * _PARTS, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(queried, count=_PRODUCERS)
    mbarrier.init(scored, count=2)
    for stage in gl.static_range(2):
        for part in gl.static_range(_PARTS):
            mbarrier.init(empty.index(_PARTS * stage + part), count=1)
            mbarrier.init(
                full.index(_PARTS * stage + part),
                count=_PRODUCERS + 1 if part == _PARTS - 1 else _PRODUCERS,
            )
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(done.index(stage), count=1)
    scale = softmax_scale * LOG2E
    zero = gl.program_id(1)
    work = (num_items, num_heads, num_splits)
    window = (window_pages, window_stride, window_indices, window_indices_stride, window_lens)
    compressed = (compressed_pages, compressed_stride, compressed_indices, compressed_indices_stride, compressed_lens)
    query = (q, q_token_stride, q_head_stride)
    outputs = (out, lse, partial, partial_lse)
    memory = (queries, keys, weights, biases, tops, totals)
    barriers = (queried, scored, full, empty, ready, done)
    # the consumers are workers, whose register count is exact; the default partition takes what is left
    gl.warp_specialize(
        [
            (_produce, (
                work, window, compressed, query, queries, keys, biases, queried, scored, full, empty,
                HAS_WINDOW, HAS_COMPRESSED, W_ENTRIES, C_ENTRIES, PDL,
            )),
            (_consume_even, (
                work, window, compressed, zero, scale, sink, outputs, memory, barriers,
                HAS_WINDOW, HAS_COMPRESSED, HAS_SINK, SPLIT, PDL,
            )),
            (_consume_odd, (
                work, window, compressed, zero, scale, sink, outputs, memory, barriers,
                HAS_WINDOW, HAS_COMPRESSED, HAS_SINK, SPLIT, PDL,
            )),
        ],
        [4, 4],
        [CONSUMER_REGISTERS, CONSUMER_REGISTERS],
    )  # fmt: skip
