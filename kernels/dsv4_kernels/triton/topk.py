"""The k best logits of every row, exactly, in an order that depends on the row alone.

Everything rests on one step, ``_search``, over candidates that a program holds in registers. Of at least k groups of
them, every group's maximum reaches the lowest such maximum, so at least k candidates do: those are counted in a
histogram of equal steps from there to the row's maximum. One scan of it finds the bin of the k-th best; bins above are
selected whole, and the few candidates within it are ranked against each other. Where too many share that bin, equal
steps from its lowest to its highest candidate take the histogram's place, until few are left or all of them are equal.

Up to 16,384 candidates all of that happens in one program. Beyond, programs share the row: one launch for the maxima
of many groups, one that filters the row by the bin of the k-th best maximum (its programs wait for their predecessors'
counts, so that candidates keep a fixed order), and one that selects among the candidates left, hardly more than k. Rows
of which thousands are left fall back to a search over the whole row.
"""

import torch
import triton
import triton.language as tl

from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton.shared_words import (
    buffer,
    in_shared_memory,
    increment,
    load_four,
    load_word,
    raise_word,
    store_four,
    store_two,
    store_word,
    words,
)

_LARGEST = tl.constexpr(2.0**126)
_LEAST_APART = tl.constexpr(2.0**-100)
"""Logits beyond the first, infinity included, count as equal, and so do those no farther apart than the second, where
more than a hundred of them compete for the last places. NaN and -inf count as the lowest."""
_SEGMENT = tl.constexpr(32)
"""Consecutive candidates that stay with one program when a row is shared: 128 bytes."""
_LISTED = tl.constexpr(128)
"""Candidates of one bin that are ranked against each other; more are divided again."""
_LIST = tl.constexpr(4096)
_BOUNDS = tl.constexpr(4352)
_FOUND = tl.constexpr(4356)
"""Places in a program's words, after up to 4,096 counters: values and indices of a bin, bounds, what a scan found."""
_LEAST = tl.constexpr(-(2**31))

_STRIDES = ["logits_stride", "found_stride", "groups", "parts", "k", "width"]
"""Kept from specialisation: loads of several elements, which a stride known to be a multiple of 16 allows, would not
have the layout of the scattered stores that follow, and the whole row would go through shared memory in between."""

_MOST_SELECTED = 4096
_ONE_PROGRAM = 16384


@triton.jit
def _numbers(values, SHARED: tl.constexpr):
    """NaN as -inf where maxima hand it on, as the interpreter's do; on NVIDIA they pass it over."""
    if not SHARED:
        values = tl.where(values == values, values, float("-inf"))
    return values


@triton.jit
def _keys(values):
    """fp32 as int32 of the same order; its own inverse on the bits."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _clear(mine, COLUMNS: tl.constexpr, SHARED: tl.constexpr):
    """Zero the 4 * COLUMNS counters and lower the bounds."""
    thread = tl.arange(0, COLUMNS)
    zero = thread * 0
    store_four(mine, 4 * thread, zero, zero, zero, zero, zero == 0, SHARED)
    store_word(mine, _BOUNDS + thread, zero + _LEAST, thread < 4, SHARED)
    tl.debug_barrier()


@triton.jit
def _raise_bounds(mine, high, low, SHARED: tl.constexpr):
    """The highest of ``high`` and the lowest of ``low`` [C], of all threads, into clear words."""
    raise_word(mine, _BOUNDS, _keys(high), SHARED)
    raise_word(mine, _BOUNDS + 1, ~_keys(low), SHARED)
    tl.debug_barrier()
    highest, lowest, _, _ = load_four(mine, _BOUNDS, SHARED)
    return _value(highest), _value(~lowest)


@triton.jit
def _bounds(mine, values, GROUPS: tl.constexpr, COLUMNS: tl.constexpr, SHARED: tl.constexpr):
    """The highest of values [C, R], and a value that at least as many reach as there are groups, GROUPS in each column.

    Where a group has no value above -inf, the second is the lowest of those.
    """
    ROWS: tl.constexpr = values.shape[1]
    maxima = tl.max(tl.reshape(values, [COLUMNS, GROUPS, ROWS // GROUPS]), axis=2)
    maxima = tl.where(maxima == maxima, maxima, float("-inf"))
    high, low = _raise_bounds(mine, tl.max(maxima, axis=1), tl.min(maxima, axis=1), SHARED)
    if low == float("-inf"):
        above = tl.where(values > float("-inf"), values, float("inf"))
        raise_word(mine, _BOUNDS + 2, ~_keys(tl.min(above, axis=1)), SHARED)
        tl.debug_barrier()
        low = _value(~load_word(mine, _BOUNDS + 2, SHARED))
    return high, low


@triton.jit
def _steps(high, low, COLUMNS: tl.constexpr):
    """Where to begin counting, and how many of the 4 * COLUMNS steps up to ``high`` fit into one."""
    low = tl.minimum(low, _LARGEST)
    scale = (4.0 * COLUMNS - 3.0) / (tl.minimum(high, _LARGEST) - low)
    return low, tl.minimum(tl.maximum(scale, 1e-37), 3e38)


@triton.jit
def _bins(values, low, scale, COLUMNS: tl.constexpr):
    """The step of each value, from 1 on, never decreasing in the value; 0 if it lies below ``low`` or is NaN."""
    return tl.minimum(tl.maximum((values - low) * scale + 1.0, 0.0), 4.0 * COLUMNS - 1.0).to(tl.int32)


@triton.jit
def _kth_bin(mine, bins, k, COLUMNS: tl.constexpr, SHARED: tl.constexpr):
    """The bin that holds the k-th best candidate, how many lie in bins above it, and how many in it.

    Args:
        mine: words, counters zero.
        bins: [C, R], 0 for what does not count; the bin is 0 if fewer than k count.
    """
    increment(mine, bins, SHARED)
    tl.debug_barrier()
    quad = COLUMNS - 1 - tl.arange(0, COLUMNS)
    zeroth, first, second, third = load_four(mine, 4 * quad, SHARED)
    zeroth = tl.where(quad == 0, 0, zeroth)
    counts = zeroth + first + second + third
    through = tl.cumsum(counts, axis=0)
    above = through - counts
    holds = (above < k) & ((through >= k) | (quad == 0))
    chosen = 4 * quad + 3
    count = third
    beyond = above + third < k
    chosen = tl.where(beyond, 4 * quad + 2, chosen)
    above = tl.where(beyond, above + third, above)
    count = tl.where(beyond, second, count)
    beyond = beyond & (above + second < k)
    chosen = tl.where(beyond, 4 * quad + 1, chosen)
    above = tl.where(beyond, above + second, above)
    count = tl.where(beyond, first, count)
    beyond = beyond & (above + first < k)
    chosen = tl.where(beyond, 4 * quad, chosen)
    above = tl.where(beyond, above + first, above)
    count = tl.where(beyond, zeroth, count)
    store_four(mine, quad * 0 + _FOUND, chosen, above, count, count, holds, SHARED)
    tl.debug_barrier()
    chosen, above, count, _ = load_four(mine, _FOUND, SHARED)
    return chosen, above, count


@triton.jit
def _search(mine, values, k, COLUMNS: tl.constexpr, K: tl.constexpr, SHARED: tl.constexpr):
    """A bin with the k-th best of values [C, R] in it, few of which, or just those wanted, or equal ones share it.

    Returns:
        The bins of all values, their beginning and scale, the bin found (0 if fewer than k lie above -inf), how many
        lie in bins above it, and how many in it.
    """
    ROWS: tl.constexpr = values.shape[1]
    WANTED: tl.constexpr = K // COLUMNS if K > COLUMNS else 1
    high, low = _bounds(mine, values, WANTED if WANTED < ROWS else ROWS, COLUMNS, SHARED)
    low, scale = _steps(high, low, COLUMNS)
    bins = _bins(values, low, scale, COLUMNS)
    chosen, above, count = _kth_bin(mine, bins, k, COLUMNS, SHARED)
    apart = chosen > 0
    while (count > _LISTED) & (above + count != k) & apart:
        inside = bins == chosen
        tl.debug_barrier()
        _clear(mine, COLUMNS, SHARED)
        highest = tl.max(tl.where(inside, values, float("-inf")), axis=1)
        lowest = tl.min(tl.where(inside, values, float("inf")), axis=1)
        high, low = _raise_bounds(mine, highest, lowest, SHARED)
        apart = tl.minimum(high, _LARGEST) - low > _LEAST_APART
        low, scale = _steps(high, low, COLUMNS)
        bins = _bins(values, low, scale, COLUMNS)
        chosen, above, count = _kth_bin(mine, bins, k, COLUMNS, SHARED)
    return bins, low, scale, chosen, above, count


@triton.jit
def _select(
    mine, values, index, beyond, row, names, k, out,
    COLUMNS: tl.constexpr, K: tl.constexpr, NAMED: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Write the indices of the k best of values [C, R], more than k of which are valid; the words must be clear.

    Args:
        beyond: negative where a value is valid; the others are -inf.
        row: the values again, in memory.
        names: their indices in memory if ``NAMED``, which otherwise are their places in ``row``.
    """
    bins, _, _, chosen, above, count = _search(mine, values, k, COLUMNS, K, SHARED)
    if chosen == 0:
        # any of those that don't count will do
        bins = tl.maximum(2 * tl.minimum(bins, 1), (beyond >> 31) & 1)
        count = k - above
        store_word(mine, _FOUND, 1, count >= 0, SHARED)
        tl.debug_barrier()
    if values.shape[1] <= 8:
        _emit(mine, values, index, bins, above, count, k, out, COLUMNS, SHARED)
    else:
        _emit_sparse(mine, row, names, bins, above, count, k, out, COLUMNS, NAMED, SHARED)


@triton.jit
def _emit(mine, values, index, bins, above, count, k, out, COLUMNS: tl.constexpr, SHARED: tl.constexpr):
    """Write the indices of the k best: those in bins above the one found, and as many of those in it as are missing."""
    chosen = load_word(mine, _FOUND, SHARED)
    packed = tl.where(bins > chosen, 1, tl.where(bins == chosen, 65536, 0))
    within = tl.cumsum(packed, axis=1)
    per_column = tl.sum(packed, axis=1)
    before = (tl.cumsum(per_column, axis=0) - per_column)[:, None] + within - packed
    # asked for again, so that comparisons are repeated rather than 64 of their outcomes carried along
    chosen = load_word(mine, _FOUND, SHARED)
    tl.store(out + (before & 0xFFFF), index, mask=bins > chosen)
    place = before >> 16
    if (count <= _LISTED) & (above + count != k):
        store_two(mine, _LIST + 2 * place, values.to(tl.int32, bitcast=True), index, bins, chosen, SHARED)
        tl.debug_barrier()
        _emit_listed(mine, count, k - above, out + above, COLUMNS, SHARED)
    else:
        tl.store(out + above + place, index, mask=(bins == chosen) & (above + place < k))


@triton.jit
def _bits(flags):
    """Flags [C, R] as the bits of int32 [C]."""
    ROWS: tl.constexpr = flags.shape[1]
    tl.static_assert(ROWS <= 32)
    return tl.sum(tl.where(flags, (1 << tl.arange(0, ROWS))[None, :], 0), axis=1)


@triton.jit
def _population(bits):
    """Ones in int32."""
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    return ((((bits + (bits >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24) & 0xFF


@triton.jit
def _lowest_bit(bits):
    """Number of the lowest one in int32; any where there is none."""
    lowest = (bits & -bits).to(tl.uint32, bitcast=True).to(tl.float32)
    return (lowest.to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def _emit_sparse(
    mine, row, names, bins, above, count, k, out, COLUMNS: tl.constexpr, NAMED: tl.constexpr, SHARED: tl.constexpr
):  # fmt: skip
    """Like ``_emit``, for threads with many candidates of which few are selected: by way of a bit for each."""
    chosen = load_word(mine, _FOUND, SHARED)
    better = _bits(bins > chosen)
    level = _bits(bins == chosen)
    better_count = _population(better)
    level_count = _population(level)
    raise_word(mine, _BOUNDS + 3, tl.maximum(better_count, level_count), SHARED)
    tl.debug_barrier()
    packed = better_count + (level_count << 16)
    before = tl.cumsum(packed, axis=0) - packed
    most = load_word(mine, _BOUNDS + 3, SHARED)
    rank = before & 0xFFFF
    place = before >> 16
    thread = tl.arange(0, COLUMNS)
    listed = (count <= _LISTED) & (above + count != k)
    while most > 0:
        index = thread + COLUMNS * _lowest_bit(better)
        if NAMED:
            index = tl.load(names + index, mask=better != 0, other=0)
        tl.store(out + rank, index, mask=better != 0)
        better = better & (better - 1)
        rank += 1
        index = thread + COLUMNS * _lowest_bit(level)
        wanted = level != 0
        if listed:
            value = tl.load(row + index, mask=wanted, other=0.0).to(tl.int32, bitcast=True)
            if NAMED:
                index = tl.load(names + index, mask=wanted, other=0)
            store_two(mine, _LIST + 2 * place, value, index, wanted.to(tl.int32), 1, SHARED)
        else:
            if NAMED:
                index = tl.load(names + index, mask=wanted, other=0)
            tl.store(out + above + place, index, mask=wanted & (above + place < k))
        level = level & (level - 1)
        place += 1
        most -= 1
    if listed:
        tl.debug_barrier()
        _emit_listed(mine, count, k - above, out + above, COLUMNS, SHARED)


@triton.jit
def _precedes(value, at, own, thread):
    """Whether the list's entry ``at`` ranks before entry ``thread``."""
    other = value.to(tl.float32, bitcast=True)
    return ((other > own) | ((other == own) & (at < thread))).to(tl.int32)


@triton.jit
def _emit_listed(mine, count, wanted, out, COLUMNS: tl.constexpr, SHARED: tl.constexpr):
    """Rank the ``count`` candidates of the list against each other and write the indices of the ``wanted`` best."""
    thread = tl.arange(0, COLUMNS)
    place = _LIST + 2 * tl.minimum(thread, _LISTED - 1)
    own = load_word(mine, place, SHARED).to(tl.float32, bitcast=True)
    index = load_word(mine, place + 1, SHARED)
    rank = thread * 0
    at = 0
    while at < count:
        first, _, second, _ = load_four(mine, _LIST + 2 * at, SHARED)
        third, _, fourth, _ = load_four(mine, _LIST + 2 * at + 4, SHARED)
        rank += _precedes(first, at, own, thread)
        rank += tl.where(at + 1 < count, _precedes(second, at + 1, own, thread), 0)
        rank += tl.where(at + 2 < count, _precedes(third, at + 2, own, thread), 0)
        rank += tl.where(at + 3 < count, _precedes(fourth, at + 3, own, thread), 0)
        at += 4
    tl.store(out + rank, index, mask=(thread < count) & (rank < wanted))


@triton.jit
def _emit_all(length, k, out, K: tl.constexpr):
    """Write 0..length - 1, then -1: every candidate is selected."""
    column = tl.arange(0, K)
    tl.store(out + column, tl.where(column < length, column, -1), mask=column < k)


@triton.jit(do_not_specialize=_STRIDES)
def _row_kernel(
    logits, logits_stride, lens, out, k, width, memory,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr, EAGER: tl.constexpr, SHARED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Select in a row that one program holds; EAGER asks for the row before its length is known."""
    mine = words(memory, SHARED)
    _clear(mine, COLUMNS, SHARED)
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    length = tl.load(lens + token)
    thread = tl.arange(0, COLUMNS)[:, None]
    turn = COLUMNS * tl.arange(0, ROWS)[None, :]
    row = logits + token * logits_stride
    out += token * k
    # compared and added up so that what differs between a thread's candidates is a constant
    if EAGER:
        values = tl.load((row + thread) + turn, mask=turn < width - thread, other=0.0)
        values = tl.where(turn < length - thread, values, float("-inf"))
    else:
        values = tl.load((row + thread) + turn, mask=turn < length - thread, other=float("-inf"))
    if length <= k:
        _emit_all(length, k, out, K)
    else:
        values = _numbers(values, SHARED)
        _select(mine, values, thread + turn, thread + turn - length, row, row, k, out, COLUMNS, K, False, SHARED)


@triton.jit
def _shared_index(part, parts, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Candidates [COLUMNS, ROWS] of one of ``parts`` programs: segments dealt out in turn, so that neighbours part.

    Returns:
        The first candidate of each column, and what lies between those of a column.
    """
    thread = tl.arange(0, COLUMNS)
    return (thread // _SEGMENT * parts + part) * _SEGMENT + thread % _SEGMENT, COLUMNS * parts


@triton.jit(do_not_specialize=_STRIDES)
def _maxima_kernel(
    logits, logits_stride, lens, maxima, counts, parts,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SHARED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Maxima of one program's groups; also clears the count that it publishes in the next launch."""
    begin(PDL)
    part = tl.program_id(0) % parts
    token = (tl.program_id(0) // parts).to(tl.int64)
    length = tl.load(lens + token)
    first, step = _shared_index(part, parts, ROWS, COLUMNS)
    index = first[:, None] + step * tl.arange(0, ROWS)[None, :]
    values = tl.load(logits + token * logits_stride + index, mask=index < length, other=float("-inf"))
    place = (token * parts + part) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(maxima + place, tl.max(_numbers(values, SHARED), axis=1))
    tl.store(counts + token * parts + part, 0)


@triton.jit(do_not_specialize=_STRIDES)
def _filter_kernel(
    logits, logits_stride, lens, k, maxima, groups, counts, found_values, found_index, found_stride, parts, memory,
    PARTS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAPACITY: tl.constexpr,
    K: tl.constexpr, SHARED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Append one program's candidates that reach the bin of the k-th best maximum, or all where maxima are too few."""
    mine = words(memory, SHARED)
    _clear(mine, COLUMNS, SHARED)
    begin(PDL)
    part = tl.program_id(0) % parts
    token = (tl.program_id(0) // parts).to(tl.int64)
    length = tl.load(lens + token)
    every = tl.arange(0, COLUMNS)[:, None] + COLUMNS * tl.arange(0, GROUPS // COLUMNS)[None, :]
    tops = tl.load(maxima + token * groups + every, mask=every < groups, other=float("-inf"))
    if length > k:
        row = logits + token * logits_stride
        first, step = _shared_index(part, parts, ROWS, COLUMNS)
        index = first[:, None] + step * tl.arange(0, ROWS)[None, :]
        values = tl.load(row + index, mask=index < length, other=float("-inf"))
        _, low, scale, chosen, _, _ = _search(mine, tops, k, COLUMNS, K, SHARED)
        bits = _bits((_bins(_numbers(values, SHARED), low, scale, COLUMNS) >= chosen) & (index < length))
        counts_here = _population(bits)
        count = tl.sum(counts_here, axis=0)
        most = tl.max(counts_here, axis=0)
        tl.atomic_xchg(counts + token * parts + part, count + 1, sem="release")
        # a count is published as its value plus one; programs start in order, so predecessors are running or done
        before = tl.arange(0, PARTS)
        waiting = part
        total = 0
        while waiting > 0:
            published = tl.load(counts + token * parts + before, mask=before < part, other=0, volatile=True)
            waiting = part - tl.sum((published > 0).to(tl.int32), axis=0)
            total = tl.sum(published, axis=0) - part
        at = token * found_stride + total + tl.cumsum(counts_here, axis=0) - counts_here
        end = token * found_stride + CAPACITY
        while most > 0:
            place = first + step * _lowest_bit(bits)
            kept = (bits != 0) & (at < end)
            tl.store(found_values + at, tl.load(row + place, mask=kept, other=0.0), mask=kept)
            tl.store(found_index + at, place, mask=kept)
            bits = bits & (bits - 1)
            at += 1
            most -= 1


@triton.jit(do_not_specialize=_STRIDES)
def _select_kernel(
    logits, logits_stride, lens, out, k, counts, found_values, found_index, found_stride, parts, memory,
    PARTS: tl.constexpr, CAPACITY: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr,
    SHARED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Select among a row's filtered candidates, or in the whole row where they are too many."""
    mine = words(memory, SHARED)
    _clear(mine, COLUMNS, SHARED)
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    length = tl.load(lens + token)
    every = tl.arange(0, PARTS)
    published = tl.load(counts + token * parts + every, mask=every < parts, other=1)
    # the lists are asked for before it is known how much of them was written
    at = tl.arange(0, COLUMNS)[:, None] + COLUMNS * tl.arange(0, CAPACITY // COLUMNS)[None, :]
    found_values += token * found_stride
    found_index += token * found_stride
    values = tl.load(found_values + at)
    index = tl.load(found_index + at)
    out += token * k
    if length <= k:
        _emit_all(length, k, out, K)
    else:
        found = tl.sum(published - 1, axis=0)
        if found <= CAPACITY:
            values = tl.where(at < found, _numbers(values, SHARED), float("-inf"))
            _select(mine, values, index, at - found, found_values, found_index, k, out, COLUMNS, K, True, SHARED)
        else:
            _select_streaming(logits + token * logits_stride, length, k, out, BLOCK)


@triton.jit
def _values(row, index, length):
    """Logits bounded so that sums are finite, NaN the lowest; below every valid one from ``length`` on."""
    valid = index < length
    x = tl.load(row + index, mask=valid, other=0.0)
    return tl.where(valid, tl.minimum(tl.maximum(x, -_LARGEST), _LARGEST), float("-inf"))


@triton.jit
def _select_streaming(row, length, k, out, BLOCK: tl.constexpr):
    """The exact search over a row of any length, re-read for every step: slow, for contrived rows."""
    block = tl.arange(0, BLOCK)
    highest = float("-inf")
    low = _LARGEST + 0.0
    at = 0
    while at < length:
        values = _values(row, at + block, length)
        highest = tl.maximum(highest, tl.max(values, axis=0))
        low = tl.minimum(low, tl.min(tl.where(values == float("-inf"), _LARGEST, values), axis=0))
        at += BLOCK
    high = highest + tl.maximum(tl.abs(highest) * 2.0**-22, 1e-37)
    middle = low * 0.5 + high * 0.5
    reached = k + 1
    while (low < middle) & (middle < high) & (reached != k):
        count = 0
        at = 0
        while at < length:
            count += tl.sum((_values(row, at + block, length) >= middle).to(tl.int32), axis=0)
            at += BLOCK
        low = tl.where(count >= k, middle, low)
        high = tl.where(count >= k, high, middle)
        reached = tl.where(count >= k, count, reached)
        middle = low * 0.5 + high * 0.5
    better = 0
    at = 0
    while at < length:
        better += tl.sum((_values(row, at + block, length) > low).to(tl.int32), axis=0)
        at += BLOCK
    above_before = 0
    equal_before = better
    at = 0
    while at < length:
        values = _values(row, at + block, length)
        above = (values > low).to(tl.int32)
        equal = (values == low).to(tl.int32)
        above_place = above_before + tl.cumsum(above, axis=0) - above
        equal_place = equal_before + tl.cumsum(equal, axis=0) - equal
        tl.store(out + above_place, at + block, mask=above > 0)
        tl.store(out + equal_place, at + block, mask=(equal > 0) & (equal_place < k))
        above_before += tl.sum(above, axis=0)
        equal_before += tl.sum(equal, axis=0)
        at += BLOCK


def topk(*, logits: torch.Tensor, candidate_lens: torch.Tensor, k: int) -> torch.Tensor:
    """The ``k`` best candidates of every token.

    Equal logits go to the lower place in a fixed order of the row's candidates, so equal rows give equal results, bit
    for bit, wherever they stand in a batch.

    Args:
        logits: fp32 [T, ≥ max candidates], unit inner stride; columns from ``candidate_lens`` on may hold anything.
        candidate_lens: int32 [T].
        k: entries to select.

    Returns:
        int32 [T, k]: request-local indices in no particular order, then −1.

    Raises:
        ValueError: ``k`` exceeds 4,096.
    """
    if k > _MOST_SELECTED:
        raise ValueError(f"topk selects at most {_MOST_SELECTED} candidates, not {k}: ranks are 16-bit")
    tokens, width = logits.shape
    out = torch.empty(tokens, k, dtype=torch.int32, device=logits.device)
    if tokens == 0:
        return out
    common = (logits, logits.stride(0), candidate_lens)
    padded = max(triton.next_power_of_2(max(width, 1)), 256)
    constants = {"K": triton.next_power_of_2(k), "SHARED": in_shared_memory(), **launch_options()}
    if padded > _ONE_PROGRAM:
        _shared(common, out, k, width, constants)
        return out
    warps, eager = next(shape for most, shape in _SHAPES.items() if padded <= most)
    columns = 32 * warps
    _row_kernel[(tokens,)](
        *common, out, k, width, buffer(tokens, out.device), COLUMNS=columns, ROWS=max(padded // columns, 1),
        EAGER=eager, num_warps=warps, **constants,
    )  # fmt: skip
    return out


def _shared(common: tuple[object, ...], out: torch.Tensor, k: int, width: int, constants: dict[str, object]) -> None:
    """Rows that several programs share: about a GPU's worth of programs, each with 2,048 to 16,384 candidates."""
    tokens, device = out.shape[0], out.device
    wanted = max(1, _PROGRAMS // tokens)
    per_program = min(max(triton.next_power_of_2(triton.cdiv(width, wanted)), 2048), _ONE_PROGRAM)
    parts = triton.cdiv(width, per_program)
    per_part = triton.cdiv(4 * constants["K"], parts)
    groups = min(max(triton.next_power_of_2(per_part), 32), per_program // 2)
    capacity = max(2048, 4 * constants["K"])
    values = torch.empty(tokens, capacity, dtype=torch.float32, device=device)
    index = torch.empty(tokens, capacity, dtype=torch.int32, device=device)
    maxima = torch.empty(tokens, parts, groups, dtype=torch.float32, device=device)
    counts = torch.empty(tokens, parts, dtype=torch.int32, device=device)
    padded_parts = triton.next_power_of_2(parts)
    warps = 8 if per_program <= 4096 else 16
    select_warps = 8 if capacity == 2048 else 16
    columns = 32 * warps
    options = {name: value for name, value in constants.items() if name != "K"}
    _maxima_kernel[(tokens * parts,)](
        *common, maxima, counts, parts, COLUMNS=groups, ROWS=per_program // groups, num_warps=warps, **options
    )
    _filter_kernel[(tokens * parts,)](
        *common, k, maxima, parts * groups, counts, values, index, capacity, parts, buffer(tokens * parts, device),
        PARTS=padded_parts, GROUPS=max(triton.next_power_of_2(parts * groups), columns, constants["K"]),
        COLUMNS=columns, ROWS=per_program // columns, CAPACITY=capacity, num_warps=warps, **constants,
    )  # fmt: skip
    _select_kernel[(tokens,)](
        *common, out, k, counts, values, index, capacity, parts, buffer(tokens, device), PARTS=padded_parts,
        CAPACITY=capacity, COLUMNS=32 * select_warps, BLOCK=256 * select_warps, num_warps=select_warps, **constants,
    )  # fmt: skip


_SHAPES = {2048: (8, True), 4096: (8, True), _ONE_PROGRAM: (16, False)}
"""Warps of a program that holds a row, and whether it asks for the row before it knows the length, by row width."""
_PROGRAMS = 128
