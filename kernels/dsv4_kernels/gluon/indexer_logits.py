"""Indexer logits over fp8 keys on Hopper: one warp asks for whole pages, two or three warpgroups score them.

A program takes an equal run of steps of as many pages as it has scoring warpgroups, laid end to end over groups of
tokens. A group is one token, or up to two neighbours of one request, for which keys arrive once. The producer keeps a
ring of steps in flight by bulk tensor copies of keys and scales, far ahead of the consumers, which multiply a page each
with the queries of the group's tokens, and tells them with the queries which group comes next.
"""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Shape:
    """How a program is divided.

    Attributes:
        pages: pages of a step, each scored by a warpgroup of its own: 2 or 3.
        ring: steps in flight.
        consumer: registers of a consumer's threads.
        producer: of the producer's.
        registers: of every thread at launch; the partitions then divide them anew.
        programs: programs that fit a multiprocessor.
    """

    pages: int
    ring: int
    consumer: int
    producer: int
    registers: int
    programs: int


SINGLE = Shape(pages=2, ring=5, consumer=96, producer=48, registers=80, programs=2)
PAIRS = Shape(pages=2, ring=4, consumer=104, producer=32, registers=80, programs=2)
LONG_PAIRS = Shape(pages=3, ring=6, consumer=152, producer=40, registers=128, programs=1)
"""With room for the products of both tokens at once. NVIDIA H200, 2026-11-30, us beside ``PAIRS``: 4,096 tokens to 4K
67.5 and 57.3, to 16K equal, 512 to 64K 133 and 145, 4,096 to 64K 1,075 and 1,132, to 256K 4,389 and 4,643."""
KEYS_LAYOUT = gl.constexpr(gl.NVMMASharedLayout(128, 8, 3))
SCALES_LAYOUT = gl.constexpr(gl.NVMMASharedLayout(0, 32, 2))
"""Also of weights."""
QUERIES_LAYOUT = gl.constexpr(gl.NVMMASharedLayout(128, 8, 2))
_ENTRIES = gl.constexpr(64)
"""Entries of a page, and rows of a matrix tile."""
_FIELDS = gl.constexpr(5)
"""Of what the producer tells the consumers of a group: its first token's number in the launch, its first step, the step
that ends it, and the entries that its first and its last member see."""
_NUMBERS = gl.constexpr(32)
"""Page numbers that the producer reads at once, or as many of them as make whole steps."""


@gluon.jit
def _plus(a, b):
    return a + b


@gluon.jit
def _sum(x):
    return gl.reduce(x, 0, _plus)


@gluon.jit
def _group(requests, nth, GROUP: gl.constexpr):
    """The group that begins with token ``nth`` of the launch.

    Groups of two begin at even tokens, or where a request does. One that begins elsewhere, or beyond the last token,
    has no entries.

    Returns:
        Entries that its longest member sees, request, members, and the entries that the first and the last one see.
    """
    token_to_request, lens, first_token, tokens = requests
    length = gl.load(lens + first_token + nth, mask=nth < tokens, other=0)
    request = gl.load(token_to_request + first_token + nth, mask=nth < tokens, other=0)
    # of the shape of nth
    members = 0 * nth + 1
    longest = length
    last = length
    if GROUP == 2:
        beside = nth ^ 1
        owner = gl.load(token_to_request + first_token + beside, mask=beside < tokens, other=-1)
        other = gl.load(lens + first_token + beside, mask=beside < tokens, other=0)
        first = beside > nth
        joined = owner == request
        longest = gl.where(joined, gl.where(first, gl.maximum(length, other), 0), length)
        # a member that the group lacks sees nothing
        last = gl.where(joined, other, 0)
        members += (joined & first).to(gl.int32)
    return longest, request, members, length, last


@gluon.jit
def _write(records, slot, values):
    """Store a record of integers for the consumers; its barrier has to be arrived at afterwards."""
    for field in gl.static_range(_FIELDS):
        one = gl.full([1], values[field], gl.int32, gl.BlockedLayout([1], [32], [1], [0]))
        records.index(slot * _FIELDS + field).store(one)
    gl.thread_barrier()


@gluon.jit
def _read(records, slot):
    """A record as it was written."""
    values = ()
    for field in gl.static_range(_FIELDS):
        values += (_sum(records.index(slot * _FIELDS + field).load(gl.BlockedLayout([1], [32], [4], [0]))),)
    return values


@gluon.jit
def _produce(task, HEADS: gl.constexpr, GROUP: gl.constexpr, PAGES: gl.constexpr, RING: gl.constexpr):
    """Ask for the queries and pages of the run, as places for them become free."""
    STEP: gl.constexpr = PAGES * _ENTRIES
    STEPS_READ: gl.constexpr = _NUMBERS // PAGES
    run, requests, maps, block_table, table_stride, memory, barriers = task
    at, end, nth, begins = run
    length, request, members, own, last = _group(requests, nth, GROUP)
    query_map, weight_map, keys, scales = maps
    pages, page_scales, queries, weights, records = memory
    full, empty, queried, answered = barriers
    # a page beyond the cache arrives as zeros, without a read
    none = keys.shape[0]
    lane = gl.arange(0, _NUMBERS, layout=gl.BlockedLayout([1], [32], [1], [0]))
    done = 0
    turn = 0
    while at < end:
        next_length, next_request, next_members, next_own, next_last = _group(requests, nth + members, GROUP)
        count = (length + STEP - 1) // STEP
        stop = gl.minimum(end - begins, count)
        first = at - begins
        if first < stop:
            table = block_table + request.to(gl.int64) * table_stride
            needed = gl.minimum(stop * PAGES, (length + _ENTRIES - 1) // _ENTRIES)
            numbers = gl.load(table + first * PAGES + lane, mask=first * PAGES + lane < needed, other=none)
            mine = turn % 2
            mbarrier.wait(answered.index(mine), ((turn // 2) & 1) ^ 1)
            _write(records, mine, (nth, first, stop, own, last))
            mbarrier.expect(queried.index(mine), GROUP * HEADS * 132)
            token = requests[2] + nth
            tma.async_copy_global_to_shared(query_map, [token * HEADS, 0], queried.index(mine), queries.index(mine))
            tma.async_copy_global_to_shared(weight_map, [token, 0], queried.index(mine), weights.index(mine))
            for chunk in range(first, stop, STEPS_READ):
                ahead = (chunk + STEPS_READ) * PAGES + lane
                following = gl.load(table + ahead, mask=ahead < needed, other=none)
                for step in range(chunk, gl.minimum(chunk + STEPS_READ, stop)):
                    slot = done % RING
                    mbarrier.wait(empty.index(slot), ((done // RING) & 1) ^ 1)
                    mbarrier.expect(full.index(slot), STEP * 132)
                    for page in gl.static_range(PAGES):
                        number = _sum(gl.where(lane == (step - chunk) * PAGES + page, numbers, 0))
                        place = slot * PAGES + page
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
        own = next_own
        last = next_last
    mbarrier.wait(answered.index(turn % 2), ((turn // 2) & 1) ^ 1)
    _write(records, turn % 2, (0, 0, 0, 0, 0))
    mbarrier.arrive(queried.index(turn % 2), count=1)


@gluon.jit
def _multiply(keys, queries, member, zeros):
    """Begin the products of a page's keys [64, 128] with the queries of one member of the group."""
    HEADS: gl.constexpr = zeros.shape[1]
    asked = queries.slice(member * HEADS, HEADS).permute([1, 0])
    return warpgroup_mma(keys, asked, zeros, use_acc=False, is_async=True)


@gluon.jit
def _consume(
    share, MINE: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, PAGES: gl.constexpr, RING: gl.constexpr
):
    """Score page ``MINE`` of every step that the producer asked for."""
    STEP: gl.constexpr = PAGES * _ENTRIES
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 32])
    ROWS: gl.constexpr = gl.SliceLayout(1, SCORES)
    COLUMNS: gl.constexpr = gl.SliceLayout(0, SCORES)
    first_token, out, out_stride, memory, barriers = share
    tiles, row_scales, queries, weights, records = memory
    full, empty, queried, answered = barriers
    row = MINE * _ENTRIES + gl.arange(0, _ENTRIES, layout=ROWS)
    zeros = gl.zeros([_ENTRIES, HEADS], gl.float32, SCORES)
    done = 0
    turn = 0
    mbarrier.wait(queried.index(0), 0)
    nth, first, stop, own, last = _read(records, 0)
    while stop > 0:
        mine = turn % 2
        token = (first_token + nth).to(gl.int64)
        weight = ()
        for member in gl.static_range(GROUP):
            weight += (weights.index(mine * GROUP + member).load(COLUMNS),)
        visible = (own, last)
        out_row = out + token * out_stride
        for step in range(first, stop):
            slot = done % RING
            mbarrier.wait(full.index(slot), (done // RING) & 1)
            tile = tiles.index(slot * PAGES + MINE)
            products = ()
            if PAGES > 2:
                for member in gl.static_range(GROUP):
                    products += (_multiply(tile, queries.index(mine), member, zeros),)
            scale = row_scales.index(slot * PAGES + MINE).load(ROWS)
            for member in gl.static_range(GROUP):
                if PAGES > 2:
                    scores = warpgroup_mma_wait(GROUP - 1 - member, deps=[products[member]])
                else:
                    scores = warpgroup_mma_wait(0, deps=[_multiply(tile, queries.index(mine), member, zeros)])
                if member == GROUP - 1:
                    gl.thread_barrier()
                    mbarrier.arrive(empty.index(slot), count=1)
                    done += 1
                logits = gl.reduce(gl.maximum(scores, 0.0) * gl.expand_dims(weight[member], 0), 1, _plus)
                seen = row < visible[member] - step * STEP
                gl.store(out_row + member * out_stride + step * STEP + row, logits * scale, mask=seen)
        gl.thread_barrier()
        mbarrier.arrive(answered.index(mine), count=1)
        turn += 1
        mbarrier.wait(queried.index(turn % 2), (turn // 2) & 1)
        nth, first, stop, own, last = _read(records, turn % 2)


@gluon.jit
def _count(requests, item, GROUP: gl.constexpr, PAGES: gl.constexpr):
    """Steps of the groups that begin with tokens ``item * GROUP`` and, of two, the one after it."""
    STEP: gl.constexpr = PAGES * _ENTRIES
    nth = item * GROUP
    longest, request, members, _, _ = _group(requests, nth, GROUP)
    # no request is negative; saying so makes both loads leave together
    count = gl.where(request >= 0, (longest + STEP - 1) // STEP, 0)
    if GROUP == 2:
        other = gl.load(requests[1] + requests[2] + nth + 1, mask=nth + 1 < requests[3], other=0)
        count += gl.where(members == 1, (other + STEP - 1) // STEP, 0)
    return count


@gluon.jit
def _run(requests, ITEMS: gl.constexpr, PER_THREAD: gl.constexpr, GROUP: gl.constexpr, PAGES: gl.constexpr):
    """This program's equal share of the steps, laid end to end over the groups.

    Returns:
        First and last step, number in the launch of the token that begins the first step's group, that group's first
        step.
    """
    STEP: gl.constexpr = PAGES * _ENTRIES
    # short vectors are kept by every warp whole, so that sums over them need no exchange between warps; of long ones
    # neighbouring threads read neighbouring tokens
    counts = _count(requests, gl.arange(0, ITEMS, layout=gl.BlockedLayout([PER_THREAD], [32], [4], [0])), GROUP, PAGES)
    ends = gl.associative_scan(counts, 0, _plus)
    total = _sum(counts)
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    # program * total // programs, without 64 bits
    share = total // programs
    rest = total - share * programs
    at = program * share + program * rest // programs
    end = (program + 1) * share + (program + 1) * rest // programs
    nth = _sum((ends <= at).to(gl.int32)) * GROUP
    begins = _sum(gl.where(ends <= at, counts, 0))
    if GROUP == 2:
        # of two neighbours of different requests, each is a group
        longest, _, members, _, _ = _group(requests, nth, GROUP)
        count = (longest + STEP - 1) // STEP
        if (members == 1) & (at >= begins + count):
            begins += count
            nth += 1
    return at, end, nth, begins


@gluon.jit
def indexer_logits_kernel(
    query_map, weight_map, keys, scales, block_table, table_stride, token_to_request, lens, out, out_stride,
    first_token, tokens,
    ITEMS: gl.constexpr, PER_THREAD: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, PAGES: gl.constexpr,
    RING: gl.constexpr, CONSUMER: gl.constexpr, PRODUCER: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Programs take equal runs of steps, laid end to end over the groups."""
    tiles = gl.allocate_shared_memory(gl.float8e4nv, [RING * PAGES, _ENTRIES, 128], QUERIES_LAYOUT)
    queries = gl.allocate_shared_memory(gl.float8e4nv, [2, GROUP * HEADS, 128], QUERIES_LAYOUT)
    page_scales = gl.allocate_shared_memory(gl.float32, [RING * PAGES, 1, _ENTRIES], SCALES_LAYOUT)
    token_weights = gl.allocate_shared_memory(gl.float32, [2, GROUP, HEADS], SCALES_LAYOUT)
    # the same memory, on one side of it as tensor copies see it, on the other as warpgroups do
    pages = tiles._reinterpret(gl.float8e4nv, [RING * PAGES, 1, _ENTRIES, 128], KEYS_LAYOUT)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    row_scales = page_scales._reinterpret(gl.float32, [RING * PAGES, _ENTRIES], plain)
    weights = token_weights._reinterpret(gl.float32, [2 * GROUP, HEADS], plain)
    records = gl.allocate_shared_memory(gl.int32, [2 * _FIELDS, 1], plain)
    full = gl.allocate_shared_memory(gl.int64, [RING, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [RING, 1], mbarrier.MBarrierLayout())
    queried = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    answered = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(RING):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=PAGES)
        if slot < 2:
            mbarrier.init(queried.index(slot), count=1)
            mbarrier.init(answered.index(slot), count=PAGES)
    fence_async_shared()
    gl.thread_barrier()
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    requests = (token_to_request, lens, first_token, tokens)
    run = _run(requests, ITEMS, PER_THREAD, GROUP, PAGES)
    # what warps exchanged for the sums lies where the compiler hands the run to the partitions
    gl.thread_barrier()
    barriers = (full, empty, queried, answered)
    maps = (query_map, weight_map, keys, scales)
    landed = (pages, page_scales, queries, token_weights, records)
    memory = (tiles, row_scales, queries, weights, records)
    task = (run, requests, maps, block_table, table_stride, landed, barriers)
    share = (first_token, out, out_stride, memory, barriers)
    if PAGES == 2:
        gl.warp_specialize(
            [
                (_consume, (share, 0, HEADS, GROUP, PAGES, RING)),
                (_consume, (share, 1, HEADS, GROUP, PAGES, RING)),
                (_produce, (task, HEADS, GROUP, PAGES, RING)),
            ],
            [4, 1],
            [CONSUMER, PRODUCER],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (share, 0, HEADS, GROUP, PAGES, RING)),
                (_consume, (share, 1, HEADS, GROUP, PAGES, RING)),
                (_consume, (share, 2, HEADS, GROUP, PAGES, RING)),
                (_produce, (task, HEADS, GROUP, PAGES, RING)),
            ],
            [4, 4, 1],
            [CONSUMER, CONSUMER, PRODUCER],
        )
