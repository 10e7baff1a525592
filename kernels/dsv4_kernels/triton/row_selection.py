"""Selecting the k best of the candidates that a program holds in registers.

Of at least k groups of them, every group's maximum reaches the lowest such maximum, so at least k candidates do: those
are counted in a histogram of equal steps from there to the row's maximum. One scan of it finds the bin of the k-th
best; bins above are selected whole, and the few candidates within it are ranked against each other. Where too many
share that bin, equal steps from its lowest to its highest candidate take the histogram's place, until few are left or
all of them are equal.
"""

import triton
import triton.language as tl

from dsv4_kernels.triton.shared_words import (
    increment,
    load_four,
    load_word,
    raise_word,
    store_four,
    store_two,
    store_word,
)

LARGEST = tl.constexpr(2.0**126)
_LEAST_APART = tl.constexpr(2.0**-100)
"""Logits beyond the first, infinity included, count as equal, and so do those no farther apart than the second, where
more than a hundred of them compete for the last places. NaN and -inf count as the lowest."""
_LISTED = tl.constexpr(128)
"""Candidates of one bin that are ranked against each other; more are divided again."""
_LIST = tl.constexpr(4096)
_BOUNDS = tl.constexpr(4352)
_FOUND = tl.constexpr(4356)
"""Places in a program's words, after up to 4,096 counters: values and indices of a bin, bounds, what a scan found."""
_LEAST = tl.constexpr(-(2**31))


@triton.jit
def numbers_of(values, SHARED: tl.constexpr):
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
def clear_counters(mine, COLUMNS: tl.constexpr, SHARED: tl.constexpr):
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
    low = tl.minimum(low, LARGEST)
    scale = (4.0 * COLUMNS - 3.0) / (tl.minimum(high, LARGEST) - low)
    return low, tl.minimum(tl.maximum(scale, 1e-37), 3e38)


@triton.jit
def bins_of(values, low, scale, COLUMNS: tl.constexpr):
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
def search_bins(mine, values, k, COLUMNS: tl.constexpr, K: tl.constexpr, SHARED: tl.constexpr):
    """A bin with the k-th best of values [C, R] in it, few of which, or just those wanted, or equal ones share it.

    Returns:
        The bins of all values, their beginning and scale, the bin found (0 if fewer than k lie above -inf), how many
        lie in bins above it, and how many in it.
    """
    ROWS: tl.constexpr = values.shape[1]
    WANTED: tl.constexpr = K // COLUMNS if K > COLUMNS else 1
    high, low = _bounds(mine, values, WANTED if WANTED < ROWS else ROWS, COLUMNS, SHARED)
    low, scale = _steps(high, low, COLUMNS)
    bins = bins_of(values, low, scale, COLUMNS)
    chosen, above, count = _kth_bin(mine, bins, k, COLUMNS, SHARED)
    apart = chosen > 0
    while (count > _LISTED) & (above + count != k) & apart:
        inside = bins == chosen
        tl.debug_barrier()
        clear_counters(mine, COLUMNS, SHARED)
        highest = tl.max(tl.where(inside, values, float("-inf")), axis=1)
        lowest = tl.min(tl.where(inside, values, float("inf")), axis=1)
        high, low = _raise_bounds(mine, highest, lowest, SHARED)
        apart = tl.minimum(high, LARGEST) - low > _LEAST_APART
        low, scale = _steps(high, low, COLUMNS)
        bins = bins_of(values, low, scale, COLUMNS)
        chosen, above, count = _kth_bin(mine, bins, k, COLUMNS, SHARED)
    return bins, low, scale, chosen, above, count


@triton.jit
def select_candidates(
    mine, values, index, beyond, row, names, k, out,
    COLUMNS: tl.constexpr, K: tl.constexpr, NAMED: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Write the indices of the k best of values [C, R], more than k of which are valid; the words must be clear.

    Args:
        beyond: negative where a value is valid; the others are -inf.
        row: the values again, in memory.
        names: their indices in memory if ``NAMED``, which otherwise are their places in ``row``.
    """
    bins, _, _, chosen, above, count = search_bins(mine, values, k, COLUMNS, K, SHARED)
    if chosen == 0:
        # any of those that don't count will do
        bins = tl.maximum(2 * tl.minimum(bins, 1), (beyond >> 31) & 1)
        count = k - above
        # a warp that is late still reads the word
        tl.debug_barrier()
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
def flag_bits(flags):
    """Flags [C, R] as the bits of int32 [C]."""
    ROWS: tl.constexpr = flags.shape[1]
    tl.static_assert(ROWS <= 32)
    return tl.sum(tl.where(flags, (1 << tl.arange(0, ROWS))[None, :], 0), axis=1)


@triton.jit
def population(bits):
    """Ones in int32."""
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    return ((((bits + (bits >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24) & 0xFF


@triton.jit
def lowest_bit(bits):
    """Number of the lowest one in int32; any where there is none."""
    lowest = (bits & -bits).to(tl.uint32, bitcast=True).to(tl.float32)
    return (lowest.to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def last_and_most(mine, values, rising, COLUMNS: tl.constexpr, SHARED: tl.constexpr):
    """The last of ``values`` [C], and the largest of ``rising`` [C]: for all threads, with one barrier.

    Between two calls there is another barrier, and any of the second's ``rising`` exceeds all of the first's.
    """
    thread = tl.arange(0, COLUMNS)
    store_word(mine, _BOUNDS + 2 + thread * 0, values, thread == COLUMNS - 1, SHARED)
    raise_word(mine, _BOUNDS + 3, rising, SHARED)
    tl.debug_barrier()
    _, _, last, most = load_four(mine, _BOUNDS, SHARED)
    return last, most


@triton.jit
def _emit_sparse(
    mine, row, names, bins, above, count, k, out, COLUMNS: tl.constexpr, NAMED: tl.constexpr, SHARED: tl.constexpr
):  # fmt: skip
    """Like ``_emit``, for threads with many candidates of which few are selected: by way of a bit for each."""
    chosen = load_word(mine, _FOUND, SHARED)
    better = flag_bits(bins > chosen)
    level = flag_bits(bins == chosen)
    better_count = population(better)
    level_count = population(level)
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
        index = thread + COLUMNS * lowest_bit(better)
        if NAMED:
            index = tl.load(names + index, mask=better != 0, other=0)
        tl.store(out + rank, index, mask=better != 0)
        better = better & (better - 1)
        rank += 1
        index = thread + COLUMNS * lowest_bit(level)
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
def emit_all(length, k, out, K: tl.constexpr):
    """Write 0..length - 1, then -1: every candidate is selected."""
    column = tl.arange(0, K)
    tl.store(out + column, tl.where(column < length, column, -1), mask=column < k)
