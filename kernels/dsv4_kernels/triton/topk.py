"""The k best logits of every row, exactly, in an order that depends on the row alone.

Everything rests on one step, ``_threshold``: bisect for a value that at least k of some keys reach, counting in
registers. A row of up to 4,096 candidates is one such search. For a longer one the search first runs over maxima of
strided groups: at least k candidates reach the k-th best of them, and unless the row is contrived hardly more do, so
that one pass filters the row down to a few thousand candidates for the exact search. Where they don't suffice, the
search falls back to the whole row.

Up to 16,384 candidates all of that happens in one program. Beyond, programs share the row: one launch for the maxima,
one for the filter (whose programs wait for their predecessors' counts, so that candidates keep a fixed order), and one
for the exact search.
"""

import torch
import triton
import triton.language as tl

from dsv4_kernels.triton.launch import begin, launch_options

_LARGEST = tl.constexpr(2.0**126)
"""Bound of the values compared: beyond it, and at infinity, logits count as equal; NaN counts as the lowest."""
_SEGMENT = tl.constexpr(32)
"""Consecutive candidates that stay with one program when a row is shared: 128 bytes."""

_STRIDES = ["logits_stride", "found_stride", "groups", "parts", "k"]
"""Kept from specialisation: loads of several elements, which a stride known to be a multiple of 16 allows, would not
have the layout of the scattered stores that follow, and the whole row would go through shared memory in between."""

_MOST_SELECTED = 4096
_DIRECT = 4096
_ONE_PROGRAM = 16384


@triton.jit
def _values(row, index, length):
    """Logits at ``index``, bounded so that sums of two are finite; below every valid one from ``length`` on."""
    valid = index < length
    x = tl.load(row + index, mask=valid, other=0.0)
    return tl.where(valid, tl.minimum(tl.maximum(x, -_LARGEST), _LARGEST), float("-inf"))


@triton.jit
def _total(counts):
    """Sum over [C, R]."""
    return tl.sum(tl.sum(counts, axis=1), axis=0)


@triton.jit
def _highest(values):
    return tl.max(tl.max(values, axis=1), axis=0)


@triton.jit
def _lowest_valid(values, highest):
    return tl.min(tl.min(tl.where(values == float("-inf"), highest, values), axis=1), axis=0)


@triton.jit
def _above(highest):
    """A value that none reaches."""
    return highest + tl.maximum(tl.abs(highest) * 2.0**-22, 1e-37)


@triton.jit
def _threshold(values, low, high, k, slack):
    """A value that at least ``k`` of ``values`` [C, R] reach, at most ``k + slack`` unless equal values forbid it.

    Args:
        values: to search, at most 32,767.
        low: a value that at least k reach.
        high: a value that fewer than k reach.
        k: wanted.
        slack: how many more are good enough.
    """
    reached = k + slack + 1
    middle = low * 0.5 + high * 0.5
    while (low < middle) & (middle < high) & (reached > k + slack):
        third = (high - low) * 0.33333334
        first = tl.where((low < low + third) & (low + third < high), low + third, middle)
        second = tl.where((low < high - third) & (high - third < high), high - third, middle)
        # two probes a step, their counts in one word: what a step costs is the reduction
        both = _total((values >= first).to(tl.int32) + ((values >= second).to(tl.int32) << 16))
        reached_first = both & 0xFFFF
        reached_second = both >> 16
        high = tl.where(reached_first < k, first, tl.where(reached_second < k, second, high))
        low = tl.where(reached_second >= k, second, tl.where(reached_first >= k, first, low))
        reached = tl.where(reached_second >= k, reached_second, tl.where(reached_first >= k, reached_first, reached))
        middle = low * 0.5 + high * 0.5
    return low


@triton.jit
def _emit(values, index, low, k, out):
    """Write the indices of the ``k`` best: values above ``low``, then as many equal to it as are missing."""
    above = values > low
    equal = values == low
    packed = above.to(tl.int32) + (equal.to(tl.int32) << 16)
    within = tl.cumsum(packed, axis=1)
    per_column = tl.sum(packed, axis=1)
    before = (tl.cumsum(per_column, axis=0) - per_column)[:, None] + within - packed
    better = _total(above.to(tl.int32))
    rank = tl.where(above, before & 0xFFFF, better + (before >> 16))
    tl.store(out + rank, index, mask=(above | equal) & (rank < k))


@triton.jit
def _emit_all(length, k, out, K: tl.constexpr):
    """Write 0..length - 1, then -1: every candidate is selected."""
    column = tl.arange(0, K)
    tl.store(out + column, tl.where(column < length, column, -1), mask=column < k)


@triton.jit
def _select(values, index, low, high, k, out):
    """The exact search over values [C, R], at least k of which reach ``low`` and none ``high``."""
    _emit(values, index, _threshold(values, low, high, k, 0), k, out)


@triton.jit
def _filter_threshold(maxima, k):
    """A value that at least k group maxima [C, R] reach, and few more; and one that no maximum reaches.

    With fewer than k groups that hold anything it is the bound of valid values, which all of them reach.
    """
    high = _above(_highest(maxima))
    enough = _total((maxima > float("-inf")).to(tl.int32)) >= k
    low = _lowest_valid(maxima, high)
    return tl.where(enough, _threshold(maxima, low, high, k, k // 8), -_LARGEST), high


@triton.jit
def _compact(values, index, flags, offset, found_values, found_index, capacity):
    """Write flagged candidates from ``offset`` of the lists on, those that have room."""
    flag = flags.to(tl.int32)
    per_column = tl.sum(flag, axis=1)
    place = offset + (tl.cumsum(per_column, axis=0) - per_column)[:, None] + tl.cumsum(flag, axis=1) - flag
    kept = flags & (place < capacity)
    tl.store(found_values + place, values, mask=kept)
    tl.store(found_index + place, index, mask=kept)


@triton.jit
def _select_found(values, index, found, low, high, k, out, CAPACITY: tl.constexpr, THREADS: tl.constexpr):
    """The exact search among ``found`` listed candidates; ``low`` and ``high`` bound them."""
    place = tl.arange(0, THREADS)[:, None] + THREADS * tl.arange(0, CAPACITY // THREADS)[None, :]
    x = tl.load(values + place, mask=place < found, other=float("-inf"))
    number = tl.load(index + place, mask=place < found, other=-1)
    _select(x, number, low, high, k, out)


@triton.jit(do_not_specialize=_STRIDES)
def _direct_kernel(
    logits, logits_stride, lens, out, k, COLUMNS: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Select in a row that one program searches at once."""
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    length = tl.load(lens + token)
    index = tl.arange(0, COLUMNS)[:, None] + COLUMNS * tl.arange(0, ROWS)[None, :]
    values = _values(logits + token * logits_stride, index, length)
    out += token * k
    if length <= k:
        _emit_all(length, k, out, K)
    else:
        high = _above(_highest(values))
        _select(values, index, _lowest_valid(values, high), high, k, out)


@triton.jit(do_not_specialize=_STRIDES)
def _one_program_kernel(
    logits, logits_stride, lens, out, k, found_values, found_index, found_stride,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, GROUPS: tl.constexpr, CAPACITY: tl.constexpr, K: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Filter a row that one program holds by way of GROUPS groups per column, list what is left, and select there."""
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    length = tl.load(lens + token)
    index = tl.arange(0, COLUMNS)[:, None] + COLUMNS * tl.arange(0, ROWS)[None, :]
    values = _values(logits + token * logits_stride, index, length)
    out += token * k
    if length <= k:
        _emit_all(length, k, out, K)
    else:
        low, high = _filter_threshold(tl.max(tl.reshape(values, [COLUMNS, GROUPS, ROWS // GROUPS]), axis=2), k)
        flags = values >= low
        found = _total(flags.to(tl.int32))
        if found <= CAPACITY:
            found_values += token * found_stride
            found_index += token * found_stride
            _compact(values, index, flags, 0, found_values, found_index, CAPACITY)
            tl.debug_barrier()
            _select_found(found_values, found_index, found, low, high, k, out, CAPACITY, COLUMNS)
        else:
            _select(values, index, low, high, k, out)


@triton.jit
def _shared_index(part, parts, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Candidates [COLUMNS, ROWS] of one of ``parts`` programs: segments dealt out in turn, so that neighbours part."""
    mine = tl.arange(0, COLUMNS)[:, None] + COLUMNS * tl.arange(0, ROWS)[None, :]
    return (mine // _SEGMENT * parts + part) * _SEGMENT + mine % _SEGMENT


@triton.jit(do_not_specialize=_STRIDES)
def _maxima_kernel(
    logits, logits_stride, lens, maxima, counts, parts,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Maxima of one program's groups; also clears the count that it publishes in the next launch."""
    begin(PDL)
    part = tl.program_id(0) % parts
    token = (tl.program_id(0) // parts).to(tl.int64)
    length = tl.load(lens + token)
    values = _values(logits + token * logits_stride, _shared_index(part, parts, ROWS, COLUMNS), length)
    place = (token * parts + part) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(maxima + place, tl.max(values, axis=1))
    tl.store(counts + token * parts + part, 0)


@triton.jit(do_not_specialize=_STRIDES)
def _filter_kernel(
    logits, logits_stride, lens, k, maxima, groups, counts, found_values, found_index, found_stride, parts,
    PARTS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAPACITY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Append one program's candidates that reach the filter's threshold."""
    begin(PDL)
    part = tl.program_id(0) % parts
    token = (tl.program_id(0) // parts).to(tl.int64)
    length = tl.load(lens + token)
    if length > k:
        every = tl.arange(0, COLUMNS)[:, None] + COLUMNS * tl.arange(0, GROUPS // COLUMNS)[None, :]
        tops = tl.load(maxima + token * groups + every, mask=every < groups, other=float("-inf"))
        index = _shared_index(part, parts, ROWS, COLUMNS)
        values = _values(logits + token * logits_stride, index, length)
        low, _ = _filter_threshold(tops, k)
        flags = values >= low
        count = _total(flags.to(tl.int32))
        tl.atomic_xchg(counts + token * parts + part, count + 1, sem="release")
        # a count is published as its value plus one; programs start in order, so predecessors are running or done
        before = tl.arange(0, PARTS)
        waiting = part
        total = 0
        while waiting > 0:
            published = tl.load(counts + token * parts + before, mask=before < part, other=0, volatile=True)
            waiting = part - tl.sum((published > 0).to(tl.int32), axis=0)
            total = tl.sum(published, axis=0) - part
        _compact(
            values,
            index,
            flags,
            total,
            found_values + token * found_stride,
            found_index + token * found_stride,
            CAPACITY,
        )


@triton.jit(do_not_specialize=_STRIDES)
def _select_kernel(
    logits, logits_stride, lens, out, k, counts, found_values, found_index, found_stride, parts,
    PARTS: tl.constexpr, CAPACITY: tl.constexpr, THREADS: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The exact search among a row's filtered candidates, or through the whole row where they are too many."""
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    length = tl.load(lens + token)
    out += token * k
    if length <= k:
        _emit_all(length, k, out, K)
    else:
        every = tl.arange(0, PARTS)
        found = tl.sum(tl.load(counts + token * parts + every, mask=every < parts, other=1) - 1, axis=0)
        if found <= CAPACITY:
            first = token * found_stride
            place = tl.arange(0, THREADS)[:, None] + THREADS * tl.arange(0, CAPACITY // THREADS)[None, :]
            values = tl.load(found_values + first + place, mask=place < found, other=float("-inf"))
            high = _above(_highest(values))
            low = _lowest_valid(values, high)
            index = tl.load(found_index + first + place, mask=place < found, other=-1)
            _select(values, index, low, high, k, out)
        else:
            _select_streaming(logits + token * logits_stride, length, k, out, BLOCK)


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
    high = _above(highest)
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
    padded = max(triton.next_power_of_2(max(width, 1)), 128)
    constants = {"K": triton.next_power_of_2(k), **launch_options()}
    if padded > _ONE_PROGRAM:
        _shared(common, out, k, width, constants)
        return out
    warps = 4 if padded <= 2048 else 8 if padded <= _DIRECT else 16
    columns = 32 * warps
    shape = {"COLUMNS": columns, "ROWS": padded // columns, "num_warps": warps}
    if padded <= _DIRECT:
        _direct_kernel[(tokens,)](*common, out, k, **shape, **constants)
        return out
    values, index = _lists(tokens, 2 * constants["K"], out.device)
    groups = min(max(2048, 2 * constants["K"]), padded // 2) // columns
    _one_program_kernel[(tokens,)](
        *common, out, k, values, index, values.stride(0), GROUPS=groups, CAPACITY=values.shape[1], **shape, **constants
    )
    return out


def _lists(tokens: int, least: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for the candidates that pass a row's filter: values and indices, 2,048 or more a row."""
    capacity = max(2048, least)
    shape = (tokens, capacity)
    return torch.empty(shape, dtype=torch.float32, device=device), torch.empty(shape, dtype=torch.int32, device=device)


def _shared(common: tuple[object, ...], out: torch.Tensor, k: int, width: int, constants: dict[str, object]) -> None:
    """Rows that several programs share: about a GPU's worth of programs, each with 2,048 to 16,384 candidates."""
    tokens, device = out.shape[0], out.device
    wanted = max(1, _PROGRAMS // tokens)
    per_program = min(max(triton.next_power_of_2(triton.cdiv(width, wanted)), 2048), _ONE_PROGRAM)
    parts = triton.cdiv(width, per_program)
    per_part = triton.cdiv(4 * constants["K"], parts)
    groups = min(max(triton.next_power_of_2(per_part), 32), per_program // 2)
    values, index = _lists(tokens, 4 * constants["K"], device)
    capacity = values.shape[1]
    warps = 8 if per_program <= 4096 else 16
    maxima = torch.empty(tokens, parts, groups, dtype=torch.float32, device=device)
    counts = torch.empty(tokens, parts, dtype=torch.int32, device=device)
    padded_parts = triton.next_power_of_2(parts)
    columns = 32 * warps
    options = {name: value for name, value in constants.items() if name != "K"}
    _maxima_kernel[(tokens * parts,)](
        *common, maxima, counts, parts, COLUMNS=groups, ROWS=per_program // groups, num_warps=warps, **options
    )
    _filter_kernel[(tokens * parts,)](
        *common, k, maxima, parts * groups, counts, values, index, capacity, parts, PARTS=padded_parts,
        GROUPS=max(triton.next_power_of_2(parts * groups), columns), COLUMNS=columns, ROWS=per_program // columns,
        CAPACITY=capacity, num_warps=warps, **options,
    )  # fmt: skip
    _select_kernel[(tokens,)](
        *common, out, k, counts, values, index, capacity, parts, PARTS=padded_parts, CAPACITY=capacity, THREADS=512,
        BLOCK=8192, num_warps=16, **constants,
    )  # fmt: skip


_PROGRAMS = 128
