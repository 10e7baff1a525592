"""Indexer logits over fp8 keys on Hopper: whole pages arrive by bulk tensor copies, many of them at once.

Programs share the step's entries as in the plain form. Each keeps a ring of pages in shared memory and asks for another
as soon as all its warps have multiplied the one that lay in its place.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

ENTRIES = tl.constexpr(64)
"""Entries of a page, and rows of a matrix tile."""
KEYS_LAYOUT = gl.constexpr(gl.NVMMASharedLayout(128, 8, 3))
_KEY_BYTES = tl.constexpr(64 * 128)


@gluon.jit
def _plus(a, b):
    return a + b


@gluon.jit
def _sum(x):
    return gl.reduce(x, 0, _plus)


@gluon.jit
def _fetch(keys, page, slot, pages, full, wanted):
    """Ask for a page's keys in a slot of the ring."""
    mbarrier.expect(full.index(slot), _KEY_BYTES, pred=wanted)
    tma.async_copy_global_to_shared(keys, [page, 0, 0], full.index(slot), pages.index(slot), pred=wanted)


@gluon.jit
def _score_pages(
    keys, scales, page_stride, table, first, count, length, query, queries, weights, out_row, pages, full, done,
    RING: gl.constexpr, SCORES: gl.constexpr, HEADS: gl.constexpr,
):  # fmt: skip
    """Logits of one token for pages ``first`` .. ``first + count - 1``; ``done`` pages went through the ring before.

    ``query`` becomes ``queries`` here, behind the first pages' departure.
    """
    FLAT: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    row = gl.arange(0, ENTRIES, layout=ROWS)
    scaled = scales + row
    numbers = ()
    for ahead in gl.static_range(RING):
        numbers = numbers + (gl.load(table + first + ahead, mask=ahead < count, other=0),)  # noqa: RUF005
    for ahead in gl.static_range(RING):
        _fetch(keys, numbers[ahead], (done + ahead) % RING, pages, full, ahead < count)
    scale = gl.load(scaled + numbers[0].to(gl.int64) * page_stride, mask=first * ENTRIES + row < length, other=0.0)
    following = numbers[1]
    after = gl.load(table + first + RING, mask=count > RING, other=0)
    queries.store(query)
    fence_async_shared()
    gl.thread_barrier()
    zeros = gl.zeros([ENTRIES, HEADS], gl.float32, SCORES)
    for nth in range(count):
        index = (first + nth) * ENTRIES + row
        next_scale = gl.load(
            scaled + following.to(gl.int64) * page_stride,
            mask=(nth + 1 < count) & (index + ENTRIES < length),
            other=0.0,
        )
        following = gl.load(table + first + nth + 2, mask=nth + 2 < count, other=0)
        slot = (done + nth) % RING
        mbarrier.wait(full.index(slot), ((done + nth) // RING) & 1)
        tile = pages.index(slot)._reinterpret(gl.float8e4nv, [ENTRIES, 128], FLAT)
        scores = warpgroup_mma(tile, queries.permute([1, 0]), zeros, use_acc=False, is_async=True)
        scores = warpgroup_mma_wait(0, deps=[scores])
        gl.thread_barrier()
        _fetch(keys, after, slot, pages, full, nth + RING < count)
        after = gl.load(table + first + nth + RING + 1, mask=nth + RING + 1 < count, other=0)
        logits = gl.reduce(gl.maximum(scores, 0.0) * gl.expand_dims(weights, 0), 1, _plus)
        gl.store(out_row + index, logits * scale, mask=index < length)
        scale = next_scale


@gluon.jit
def indexer_logits_kernel(
    q, weights, keys, page_bytes, page_stride, block_table, table_stride, token_to_request, lens, out, out_stride,
    first_token, tokens,
    TOKENS: gl.constexpr, PER_THREAD: gl.constexpr, HEADS: gl.constexpr, RING: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Programs take equal runs of pages, laid end to end over the tokens."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 32])
    QUERIES: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [4, 1], [1, 0])
    # short vectors are kept by every warp whole, so that sums over tokens need no exchange between warps
    EACH: gl.constexpr = gl.BlockedLayout([PER_THREAD], [32], [4], [0])
    pages = gl.allocate_shared_memory(gl.float8e4nv, [RING, 1, ENTRIES, 128], KEYS_LAYOUT)
    queries = gl.allocate_shared_memory(gl.float8e4nv, [HEADS, 128], gl.NVMMASharedLayout(128, 8, 2))
    full = gl.allocate_shared_memory(gl.int64, [RING, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(RING):
        mbarrier.init(full.index(slot), count=1)
    fence_async_shared()
    gl.thread_barrier()
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    scales = (page_bytes + _KEY_BYTES).to(gl.pointer_type(gl.float32))
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    every = gl.arange(0, TOKENS, layout=EACH)
    lengths = gl.load(lens + first_token + every, mask=every < tokens, other=0)
    requests = gl.load(token_to_request + first_token + every, mask=every < tokens, other=0)
    counts = (lengths + ENTRIES - 1) // ENTRIES
    ends = gl.associative_scan(counts, 0, _plus)
    total = _sum(counts)
    # program * total // programs, without 64 bits
    share = total // programs
    rest = total - share * programs
    at = program * share + program * rest // programs
    end = (program + 1) * share + (program + 1) * rest // programs
    done = 0
    while at < end:
        nth = _sum((ends <= at).to(gl.int32))
        mine = every == nth
        begins = _sum(gl.where(mine, ends - counts, 0))
        length = _sum(gl.where(mine, lengths, 0))
        request = _sum(gl.where(mine, requests, 0))
        stop = gl.minimum(end - begins, (length + ENTRIES - 1) // ENTRIES)
        token = (first_token + nth).to(gl.int64)
        head = gl.arange(0, HEADS, layout=gl.SliceLayout(1, QUERIES))
        dim = gl.arange(0, 128, layout=gl.SliceLayout(0, QUERIES))
        query = gl.load(q + (token * HEADS + gl.expand_dims(head, 1)) * 128 + gl.expand_dims(dim, 0))
        column = gl.arange(0, HEADS, layout=gl.SliceLayout(0, SCORES))
        weight = gl.load(weights + token * HEADS + column)
        first = at - begins
        _score_pages(
            keys, scales, page_stride // 4, block_table + request.to(gl.int64) * table_stride, first, stop - first,
            length, query, queries, weight, out + token * out_stride, pages, full, done, RING, SCORES, HEADS,
        )  # fmt: skip
        done += stop - first
        at = begins + stop
