"""Indexer logits over fp8 keys on Hopper: one warp asks for whole pages, two warpgroups score them.

A program takes an equal run of steps of two pages, laid end to end over groups of tokens. A group is one token, or up
to two neighbours of one request, for which keys arrive once. The producer keeps a ring of steps in flight by bulk
tensor copies of keys and scales, far ahead of the consumers, which multiply a page each with the queries of the group's
tokens.
"""

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

PROGRAMS = 2
"""Programs per multiprocessor, as shared memory allows."""
REGISTERS = 80
"""Per thread at launch; the partitions then divide them anew."""
SHAPES = {1: {"RING": 5, "CONSUMER": 96, "PRODUCER": 48}, 2: {"RING": 4, "CONSUMER": 104, "PRODUCER": 32}}
"""By tokens of a group: steps in flight, and registers of a consumer's and the producer's threads."""
KEYS_LAYOUT = gl.constexpr(gl.NVMMASharedLayout(128, 8, 3))
SCALES_LAYOUT = gl.constexpr(gl.NVMMASharedLayout(0, 32, 2))
QUERIES_LAYOUT = gl.constexpr(gl.NVMMASharedLayout(128, 8, 2))
_ENTRIES = gl.constexpr(64)
"""Entries of a page, and rows of a matrix tile."""
_PAGES = gl.constexpr(2)
"""Pages of a step: one a consumer."""
_STEP = gl.constexpr(2 * 64)
_STEP_BYTES = gl.constexpr(2 * 64 * 132)
_NUMBERS = gl.constexpr(32)
"""Page numbers that the producer reads at once."""


@gluon.jit
def _plus(a, b):
    return a + b


@gluon.jit
def _sum(x):
    return gl.reduce(x, 0, _plus)


@gluon.jit
def _group(requests, nth, GROUP: gl.constexpr):
    """The group that begins with token ``nth`` of the launch: entries that its longest member sees, request, members.

    Groups of two begin at even tokens, or where a request does. One that begins elsewhere, or beyond the last token,
    has no entries.
    """
    token_to_request, lens, first_token, tokens = requests
    length = gl.load(lens + first_token + nth, mask=nth < tokens, other=0)
    request = gl.load(token_to_request + first_token + nth, mask=nth < tokens, other=0)
    # of the shape of nth
    members = 0 * nth + 1
    if GROUP == 2:
        beside = nth ^ 1
        owner = gl.load(token_to_request + first_token + beside, mask=beside < tokens, other=-1)
        longer = gl.load(lens + first_token + beside, mask=beside < tokens, other=0)
        first = beside > nth
        joined = owner == request
        length = gl.where(joined, gl.where(first, gl.maximum(length, longer), 0), length)
        members += (joined & first).to(gl.int32)
    return length, request, members


@gluon.jit
def _produce(
    run, requests, maps, block_table, table_stride, memory, barriers,
    HEADS: gl.constexpr, GROUP: gl.constexpr, RING: gl.constexpr,
):  # fmt: skip
    """Ask for the queries and pages of the run, as places for them become free."""
    at, end, nth, begins, length, request, members = run
    query_map, keys, scales = maps
    pages, page_scales, queries = memory
    full, empty, queried, answered = barriers
    # a page beyond the cache arrives as zeros, without a read
    none = keys.shape[0]
    lane = gl.arange(0, _NUMBERS, layout=gl.BlockedLayout([1], [32], [1], [0]))
    done = 0
    turn = 0
    while at < end:
        next_length, next_request, next_members = _group(requests, nth + members, GROUP)
        count = (length + _STEP - 1) // _STEP
        stop = gl.minimum(end - begins, count)
        first = at - begins
        if first < stop:
            table = block_table + request.to(gl.int64) * table_stride
            last = gl.minimum(stop * _PAGES, (length + _ENTRIES - 1) // _ENTRIES)
            numbers = gl.load(table + first * _PAGES + lane, mask=first * _PAGES + lane < last, other=none)
            mine = turn % 2
            mbarrier.wait(answered.index(mine), ((turn // 2) & 1) ^ 1)
            mbarrier.expect(queried.index(mine), GROUP * HEADS * 128)
            token = requests[2] + nth
            tma.async_copy_global_to_shared(query_map, [token * HEADS, 0], queried.index(mine), queries.index(mine))
            for chunk in range(first, stop, _NUMBERS // _PAGES):
                ahead = (chunk * _PAGES + _NUMBERS) + lane
                following = gl.load(table + ahead, mask=ahead < last, other=none)
                for step in range(chunk, gl.minimum(chunk + _NUMBERS // _PAGES, stop)):
                    slot = done % RING
                    mbarrier.wait(empty.index(slot), ((done // RING) & 1) ^ 1)
                    mbarrier.expect(full.index(slot), _STEP_BYTES)
                    for page in gl.static_range(_PAGES):
                        number = _sum(gl.where(lane == (step - chunk) * _PAGES + page, numbers, 0))
                        place = slot * _PAGES + page
                        tma.async_copy_global_to_shared(keys, [number, 0, 0], full.index(slot), pages.index(place))
                        tma.async_copy_global_to_shared(scales, [number, 0], full.index(slot), page_scales.index(place))
                    done += 1
                numbers = following
            turn += 1
        begins += count
        at = begins
        nth += members
        length = next_length
        request = next_request
        members = next_members


@gluon.jit
def _consume(
    run, requests, weights, out, out_stride, memory, barriers,
    MINE: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, RING: gl.constexpr,
):  # fmt: skip
    """Score page ``MINE`` of every step of the run."""
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 32])
    ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    at, end, nth, begins, length, _, members = run
    tiles, row_scales, queries = memory
    full, empty, queried, answered = barriers
    row = MINE * _ENTRIES + gl.arange(0, _ENTRIES, layout=ROWS)
    column = gl.arange(0, HEADS, layout=gl.SliceLayout(0, SCORES))
    zeros = gl.zeros([_ENTRIES, HEADS], gl.float32, SCORES)
    done = 0
    turn = 0
    while at < end:
        next_length, _, next_members = _group(requests, nth + members, GROUP)
        count = (length + _STEP - 1) // _STEP
        stop = gl.minimum(end - begins, count)
        first = at - begins
        if first < stop:
            token = (requests[2] + nth).to(gl.int64)
            weight = ()
            visible = ()
            for member in gl.static_range(GROUP):
                # a member that the group lacks is scored with the first one's weights, and not stored
                weight += (gl.load(weights + (token + gl.minimum(member, members - 1)) * HEADS + column),)
                if GROUP == 1:
                    visible += (length,)
                else:
                    visible += (gl.load(requests[1] + token + member, mask=member < members, other=0),)
            out_row = out + token * out_stride
            query = queries.index(turn % 2)
            mbarrier.wait(queried.index(turn % 2), (turn // 2) & 1)
            for step in range(first, stop):
                slot = done % RING
                mbarrier.wait(full.index(slot), (done // RING) & 1)
                tile = tiles.index(slot * _PAGES + MINE)
                for member in gl.static_range(GROUP):
                    asked = query.slice(member * HEADS, HEADS).permute([1, 0])
                    scores = warpgroup_mma(tile, asked, zeros, use_acc=False, is_async=True)
                    if member == 0:
                        scale = row_scales.index(slot * _PAGES + MINE).load(ROWS)
                    scores = warpgroup_mma_wait(0, deps=[scores])
                    if member == GROUP - 1:
                        gl.thread_barrier()
                        mbarrier.arrive(empty.index(slot), count=1)
                        done += 1
                    logits = gl.reduce(gl.maximum(scores, 0.0) * gl.expand_dims(weight[member], 0), 1, _plus)
                    seen = row < visible[member] - step * _STEP
                    gl.store(out_row + member * out_stride + step * _STEP + row, logits * scale, mask=seen)
            gl.thread_barrier()
            mbarrier.arrive(answered.index(turn % 2), count=1)
            turn += 1
        begins += count
        at = begins
        nth += members
        length = next_length
        members = next_members


@gluon.jit
def _run(requests, TOKENS: gl.constexpr, PER_THREAD: gl.constexpr, GROUP: gl.constexpr):
    """This program's equal share of the steps.

    First and last step, laid end to end over the groups; then the group of the first: its first token's number in the
    launch, its own first step, the entries that its longest member sees, its request and its members.
    """
    # short vectors are kept by every warp whole, so that sums over tokens need no exchange between warps
    every = gl.arange(0, TOKENS, layout=gl.BlockedLayout([PER_THREAD], [32], [4], [0]))
    lengths, owners, sizes = _group(requests, every, GROUP)
    # no request is negative; saying so makes both loads leave together
    counts = gl.where(owners >= 0, (lengths + _STEP - 1) // _STEP, 0)
    ends = gl.associative_scan(counts, 0, _plus)
    total = _sum(counts)
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    # program * total // programs, without 64 bits
    share = total // programs
    rest = total - share * programs
    at = program * share + program * rest // programs
    end = (program + 1) * share + (program + 1) * rest // programs
    nth = _sum((ends <= at).to(gl.int32))
    mine = every == nth
    begins = _sum(gl.where(mine, ends - counts, 0))
    length = _sum(gl.where(mine, lengths, 0))
    request = _sum(gl.where(mine, owners, 0))
    members = 1
    if GROUP == 2:
        members = _sum(gl.where(mine, sizes, 0))
    return at, end, nth, begins, length, request, members


@gluon.jit
def indexer_logits_kernel(
    query_map, weights, keys, scales, block_table, table_stride, token_to_request, lens, out, out_stride,
    first_token, tokens,
    TOKENS: gl.constexpr, PER_THREAD: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, RING: gl.constexpr,
    CONSUMER: gl.constexpr, PRODUCER: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Programs take equal runs of steps, laid end to end over the groups."""
    tiles = gl.allocate_shared_memory(gl.float8e4nv, [RING * _PAGES, _ENTRIES, 128], QUERIES_LAYOUT)
    row_scales = gl.allocate_shared_memory(gl.float32, [RING * _PAGES, _ENTRIES], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    queries = gl.allocate_shared_memory(gl.float8e4nv, [2, GROUP * HEADS, 128], QUERIES_LAYOUT)
    # the same memory as tensor copies see it
    pages = tiles._reinterpret(gl.float8e4nv, [RING * _PAGES, 1, _ENTRIES, 128], KEYS_LAYOUT)
    page_scales = row_scales._reinterpret(gl.float32, [RING * _PAGES, 1, _ENTRIES], SCALES_LAYOUT)
    full = gl.allocate_shared_memory(gl.int64, [RING, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [RING, 1], mbarrier.MBarrierLayout())
    queried = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    answered = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(RING):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=_PAGES)
        if slot < 2:
            mbarrier.init(queried.index(slot), count=1)
            mbarrier.init(answered.index(slot), count=_PAGES)
    fence_async_shared()
    gl.thread_barrier()
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    requests = (token_to_request, lens, first_token, tokens)
    run = _run(requests, TOKENS, PER_THREAD, GROUP)
    # what warps exchanged for the sums lies where the compiler hands the run to the partitions
    gl.thread_barrier()
    barriers = (full, empty, queried, answered)
    asked = (query_map, keys, scales)
    landed = (pages, page_scales, queries)
    memory = (tiles, row_scales, queries)
    gl.warp_specialize(
        [
            (_consume, (run, requests, weights, out, out_stride, memory, barriers, 0, HEADS, GROUP, RING)),
            (_consume, (run, requests, weights, out, out_stride, memory, barriers, 1, HEADS, GROUP, RING)),
            (_produce, (run, requests, asked, block_table, table_stride, landed, barriers, HEADS, GROUP, RING)),
        ],
        [4, 1],
        [CONSUMER, PRODUCER],
    )
