"""Selecting the k best of a row of any length by bisection, re-reading the row for every step.

Slow: for contrived rows of which thousands of equal logits stand at the threshold.
"""

import triton
import triton.language as tl

from dsv4_kernels.triton.row_selection import LARGEST


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
