"""Selecting in a row of any length, which one program reads in chunks.

A sample of the row gives a threshold that k candidates reach, but few others; those that reach it are appended to a
list in memory, in the order of chunks, then of threads. Where thousands of equal logits stand at the threshold, for
contrived rows, there is a search over the whole row by bisection: slow, since every step reads it again.
"""

import triton
import triton.language as tl

from dsv4_kernels.triton.row_selection import LARGEST, last_and_most, lowest_bit, numbers_of, population, search_bins

SEGMENT = tl.constexpr(32)
"""Consecutive candidates that are sampled, or that stay with one program, together: 128 bytes."""


@triton.jit
def sampled_threshold(
    mine, row, length, rank, COLUMNS: tl.constexpr, GROUPS: tl.constexpr, SAMPLES: tl.constexpr, APART: tl.constexpr,
    SHARED: tl.constexpr,
):  # fmt: skip
    """About the ``rank``-th best of every APART-th segment of a row, by maxima of groups; -inf where they are too few.

    Args:
        mine: words, clear.
        COLUMNS: threads; each has GROUPS groups.
        SAMPLES: candidates that a thread loads at a time.
    """
    thread = tl.arange(0, COLUMNS)
    segment = thread // SEGMENT
    # neighbouring segments of the sample are APART + 1 apart, so that they fall on all places of a period of APART
    first = (segment * APART + segment % APART) * SEGMENT + thread % SEGMENT
    step = APART * COLUMNS * tl.arange(0, SAMPLES)[None, :]
    tops = tl.full([COLUMNS, GROUPS], float("-inf"), tl.float32)
    at = 0
    while at < length:
        begins = (row + at + first)[:, None]
        values = tl.load(begins + step, mask=step < (length - at - first)[:, None], other=float("-inf"))
        values = tl.reshape(numbers_of(values, SHARED), [COLUMNS, SAMPLES // GROUPS, GROUPS])
        tops = tl.maximum(tops, tl.max(values, axis=1))
        at += APART * COLUMNS * SAMPLES
    bins, _, _, chosen, _, _ = search_bins(mine, tops, rank, COLUMNS, COLUMNS * GROUPS, SHARED)
    lowest = tl.min(tl.min(tl.where(bins >= chosen, tops, float("inf")), axis=1), axis=0)
    return tl.where(chosen > 0, lowest, float("-inf"))


@triton.jit
def _turn(row, length, turn: tl.constexpr, COLUMNS: tl.constexpr, PARTLY: tl.constexpr):
    """Four neighbours for each thread, [4 * COLUMNS]; NaN from ``length`` on if PARTLY."""
    place = tl.arange(0, 4 * COLUMNS)
    at: tl.constexpr = 4 * COLUMNS * turn
    if PARTLY:
        values = tl.load(row + at + place, mask=place < length - at, other=float("nan"))
    else:
        values = tl.load(row + at + place)
    return values


@triton.jit
def _turns(row, length, COLUMNS: tl.constexpr, PARTLY: tl.constexpr):
    """32 candidates for each thread: 8 times 4 neighbours."""
    return (
        _turn(row, length, 0, COLUMNS, PARTLY), _turn(row, length, 1, COLUMNS, PARTLY),
        _turn(row, length, 2, COLUMNS, PARTLY), _turn(row, length, 3, COLUMNS, PARTLY),
        _turn(row, length, 4, COLUMNS, PARTLY), _turn(row, length, 5, COLUMNS, PARTLY),
        _turn(row, length, 6, COLUMNS, PARTLY), _turn(row, length, 7, COLUMNS, PARTLY),
    )  # fmt: skip


@triton.jit
def append(row, index, list_values, list_index, to, kept):
    """Put a candidate of each thread, and its place in the row, into the lists at ``to``, where ``kept``."""
    tl.store(list_values + to, tl.load(row + index, mask=kept, other=0.0), mask=kept)
    tl.store(list_index + to, index, mask=kept)


@triton.jit
def append_reaching(
    mine, row, length, threshold, list_values, list_index, COLUMNS: tl.constexpr, CAPACITY: tl.constexpr,
    NEIGHBOURS: tl.constexpr, SHARED: tl.constexpr,
):  # fmt: skip
    """Append the candidates that reach ``threshold``, and their places, to lists of CAPACITY; NaN reaches none.

    Returns:
        How many reach it, those beyond CAPACITY included.
    """
    thread = tl.arange(0, COLUMNS)
    found = 0
    at = 0
    while at < length:
        if at + 32 * COLUMNS <= length:
            values = _turns(row + at, length, COLUMNS, False)
        else:
            values = _turns(row + at, length - at, COLUMNS, True)
        bits = tl.zeros([COLUMNS], tl.int32)
        for turn in tl.static_range(8):
            flag = 1 << (4 * turn + tl.arange(0, 4))
            if NEIGHBOURS:
                flags = tl.where(tl.reshape(values[turn], [COLUMNS, 4]) >= threshold, flag[None, :], 0)
                bits += tl.sum(flags, axis=1)
            else:
                flags = tl.where(tl.reshape(values[turn], [4, COLUMNS]) >= threshold, flag[:, None], 0)
                bits += tl.sum(flags, axis=0)
        count = population(bits)
        through = tl.cumsum(count, axis=0)
        total, most = last_and_most(mine, through, at + count, COLUMNS, SHARED)
        most -= at
        to = found + through - count
        found += total
        while most > 0:
            bit = lowest_bit(bits)
            if NEIGHBOURS:
                index = at + 4 * thread + 4 * COLUMNS * (bit >> 2) + (bit & 3)
            else:
                index = at + thread + COLUMNS * bit
            append(row, index, list_values, list_index, to, (bits != 0) & (to < CAPACITY))
            bits = bits & (bits - 1)
            to += 1
            most -= 1
        at += 32 * COLUMNS
    # a warp that is late still reads the last count, which the caller is about to clear
    tl.debug_barrier()
    return found


@triton.jit
def _values(row, index, length):
    """Logits bounded so that sums are finite, NaN the lowest; below every valid one from ``length`` on."""
    valid = index < length
    x = tl.load(row + index, mask=valid, other=0.0)
    # the interpreter's maxima hand NaN on
    x = tl.where(x == x, x, -LARGEST)
    return tl.where(valid, tl.minimum(tl.maximum(x, -LARGEST), LARGEST), float("-inf"))


@triton.jit
def select_streaming(row, length, k, out, BLOCK: tl.constexpr):
    """The exact search over a row of any length, re-read for every step: slow, for contrived rows."""
    block = tl.arange(0, BLOCK)
    highest = float("-inf")
    low = LARGEST + 0.0
    at = 0
    while at < length:
        values = _values(row, at + block, length)
        highest = tl.maximum(highest, tl.max(values, axis=0))
        low = tl.minimum(low, tl.min(tl.where(values == float("-inf"), LARGEST, values), axis=0))
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
