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

_LOWEST = tl.constexpr(-(2**31))
_FLOAT_STEPS = tl.constexpr(24)
_SEGMENT = tl.constexpr(32)
"""Consecutive candidates that stay with one program when a row is shared: 128 bytes."""

_STRIDES = ["logits_stride", "found_stride"]
"""Kept from specialisation: loads of several elements, which a stride known to be a multiple of 16 allows, would not
have the layout of the scattered stores that follow, and the whole row would go through shared memory in between."""

_DIRECT = 4096
_ONE_PROGRAM = 16384


@triton.jit
def _ordered(bits):
    """fp32 bits to integers of the same order; an involution."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _keys(row, index, length):
    """Sortable keys of the candidates at ``index``; below every valid key from ``length`` on."""
    valid = index < length
    bits = tl.load(row + index, mask=valid, other=0.0).to(tl.int32, bitcast=True)
    return tl.where(valid, tl.maximum(_ordered(bits), _LOWEST + 1), _LOWEST)


@triton.jit
def _count(flags):
    """Number of true elements of [C, R]."""
    return tl.sum(tl.sum(flags.to(tl.int32), axis=1), axis=0)


@triton.jit
def _threshold(keys, low, high, k, slack):
    """A key that at least ``k`` of ``keys`` [C, R] reach, at most ``k + slack`` unless equal keys forbid it.

    Args:
        keys: to search.
        low: a key that at least k reach.
        high: a key that fewer than k reach.
        k: wanted.
        slack: how many more are good enough.
    """
    reached = k + slack + 1
    step = 0
    while (low + 1 < high) & (reached > k + slack):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        if step < _FLOAT_STEPS:
            # halving values rather than bits: most of the bit patterns lie around zero
            low_value = _ordered(low).to(tl.float32, bitcast=True)
            high_value = _ordered(high).to(tl.float32, bitcast=True)
            guess = _ordered((low_value * 0.5 + high_value * 0.5).to(tl.int32, bitcast=True))
            middle = tl.where((guess > low) & (guess < high), guess, middle)
        count = _count(keys >= middle)
        if count >= k:
            low = middle
            reached = count
        else:
            high = middle
        step += 1
    return low


@triton.jit
def _emit(keys, index, low, k, out):
    """Write the indices of the ``k`` best: keys above ``low``, then as many equal to it as are missing."""
    above = keys > low
    equal = keys == low
    packed = above.to(tl.int32) + (equal.to(tl.int32) << 16)
    within = tl.cumsum(packed, axis=1)
    per_column = tl.sum(packed, axis=1)
    before = (tl.cumsum(per_column, axis=0) - per_column)[:, None] + within - packed
    better = _count(above)
    rank = tl.where(above, before & 0xFFFF, better + (before >> 16))
    tl.store(out + rank, index, mask=(above | equal) & (rank < k))


@triton.jit
def _emit_all(length, k, out, K: tl.constexpr):
    """Write 0..length - 1, then -1: every candidate is selected."""
    column = tl.arange(0, K)
    tl.store(out + column, tl.where(column < length, column, -1), mask=column < k)


@triton.jit(do_not_specialize=_STRIDES)
def _direct_kernel(
    logits, logits_stride, lens, out, k, COLUMNS: tl.constexpr, K: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Select in a row that fits into registers."""
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    length = tl.load(lens + token)
    row = logits + token * logits_stride
    index = tl.arange(0, COLUMNS)[:, None]
    keys = _keys(row, index, length)
    if length <= k:
        _emit_all(length, k, out + token * k, K)
    else:
        highest = tl.max(tl.max(keys, axis=1), axis=0)
        lowest = tl.min(tl.min(tl.where(keys == _LOWEST, highest, keys), axis=1), axis=0)
        _emit(keys, index, _threshold(keys, lowest, highest + 1, k, 0), k, out + token * k)


@triton.jit
def _select(keys, index, k, out):
    """The exact search over keys [C, R] of which more than k are valid."""
    highest = tl.max(tl.max(keys, axis=1), axis=0)
    lowest = tl.min(tl.min(tl.where(keys == _LOWEST, highest, keys), axis=1), axis=0)
    _emit(keys, index, _threshold(keys, lowest, highest + 1, k, 0), k, out)


@triton.jit
def _filter_threshold(maxima, k):
    """A key that at least k group maxima [C, 1] reach, and few more."""
    highest = tl.max(tl.max(maxima, axis=1), axis=0)
    lowest = tl.min(tl.min(maxima, axis=1), axis=0)
    return _threshold(maxima, lowest, highest + 1, k, k // 8)


@triton.jit
def _compact(keys, index, flags, offset, found_keys, found_index, capacity):
    """Append flagged candidates at ``offset`` of the lists; what exceeds the capacity is dropped."""
    flag = flags.to(tl.int32)
    per_column = tl.sum(flag, axis=1)
    place = offset + (tl.cumsum(per_column, axis=0) - per_column)[:, None] + tl.cumsum(flag, axis=1) - flag
    kept = flags & (place < capacity)
    tl.store(found_keys + place, keys, mask=kept)
    tl.store(found_index + place, index, mask=kept)


@triton.jit
def _select_found(found_keys, found_index, found, k, out, CAPACITY: tl.constexpr):
    """The exact search over the first ``found`` filtered candidates."""
    place = tl.arange(0, CAPACITY)[:, None]
    keys = tl.load(found_keys + place, mask=place < found, other=_LOWEST)
    index = tl.load(found_index + place, mask=place < found, other=-1)
    _select(keys, index, k, out)


@triton.jit(do_not_specialize=_STRIDES)
def _one_program_kernel(
    logits, logits_stride, lens, out, k, found_keys, found_index, found_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAPACITY: tl.constexpr, K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Filter and select in a row that one program holds as [COLUMNS, ROWS]; a column is a group."""
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    length = tl.load(lens + token)
    row = logits + token * logits_stride
    index = tl.arange(0, COLUMNS)[:, None] + COLUMNS * tl.arange(0, ROWS)[None, :]
    keys = _keys(row, index, length)
    out += token * k
    if length <= k:
        _emit_all(length, k, out, K)
    else:
        # with fewer than k valid groups the threshold is that of empty groups: everything valid passes
        low = tl.maximum(_filter_threshold(tl.max(keys, axis=1)[:, None], k), _LOWEST + 1)
        flags = keys >= low
        found = _count(flags)
        if found <= CAPACITY:
            found_keys += token * found_stride
            found_index += token * found_stride
            _compact(keys, index, flags, 0, found_keys, found_index, CAPACITY)
            tl.debug_barrier()
            _select_found(found_keys, found_index, found, k, out, CAPACITY)
        else:
            _select(keys, index, k, out)


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
    keys = _keys(logits + token * logits_stride, _shared_index(part, parts, ROWS, COLUMNS), length)
    place = (token * parts + part) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(maxima + place, tl.max(keys, axis=1))
    tl.store(counts + token * parts + part, 0)


@triton.jit(do_not_specialize=_STRIDES)
def _filter_kernel(
    logits, logits_stride, lens, k, maxima, counts, found_keys, found_index, found_stride, parts,
    PARTS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAPACITY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Append one program's candidates that reach the filter's threshold."""
    begin(PDL)
    part = tl.program_id(0) % parts
    token = (tl.program_id(0) // parts).to(tl.int64)
    length = tl.load(lens + token)
    if length > k:
        every = tl.arange(0, GROUPS)[:, None]
        tops = tl.load(maxima + token * parts * COLUMNS + every, mask=every < parts * COLUMNS, other=_LOWEST)
        index = _shared_index(part, parts, ROWS, COLUMNS)
        keys = _keys(logits + token * logits_stride, index, length)
        flags = keys >= tl.maximum(_filter_threshold(tops, k), _LOWEST + 1)
        count = _count(flags)
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
            keys, index, flags, total, found_keys + token * found_stride, found_index + token * found_stride, CAPACITY
        )


@triton.jit(do_not_specialize=_STRIDES)
def _select_kernel(
    logits, logits_stride, lens, out, k, counts, found_keys, found_index, found_stride, parts,
    PARTS: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr, PDL: tl.constexpr,
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
            _select_found(
                found_keys + token * found_stride, found_index + token * found_stride, found, k, out, CAPACITY
            )
        else:
            _select_streaming(logits + token * logits_stride, length, k, out, BLOCK)


@triton.jit
def _select_streaming(row, length, k, out, BLOCK: tl.constexpr):
    """The exact search over a row of any length, re-read for each of at most 32 steps: slow, for contrived rows."""
    block = tl.arange(0, BLOCK)
    low = _LOWEST + 0
    high = 0x7FFFFFFF + 0
    while low + 1 < high:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        count = 0
        at = 0
        while at < length:
            count += tl.sum((_keys(row, at + block, length) >= middle).to(tl.int32), axis=0)
            at += BLOCK
        if count >= k:
            low = middle
        else:
            high = middle
    better = 0
    at = 0
    while at < length:
        better += tl.sum((_keys(row, at + block, length) > low).to(tl.int32), axis=0)
        at += BLOCK
    above_before = 0
    equal_before = better
    at = 0
    while at < length:
        keys = _keys(row, at + block, length)
        above = (keys > low).to(tl.int32)
        equal = (keys == low).to(tl.int32)
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
    """
    tokens, width = logits.shape
    out = torch.empty(tokens, k, dtype=torch.int32, device=logits.device)
    if tokens == 0:
        return out
    common = (logits, logits.stride(0), candidate_lens)
    padded = max(triton.next_power_of_2(max(width, 1)), 128)
    constants = {"K": triton.next_power_of_2(k), **launch_options()}
    if padded <= _DIRECT:
        _direct_kernel[(tokens,)](*common, out, k, COLUMNS=padded, num_warps=4 if padded <= 1024 else 8, **constants)
        return out
    capacity = max(4096, 4 * triton.next_power_of_2(k))
    found = torch.empty(2, tokens, capacity, dtype=torch.int32, device=logits.device)
    if padded <= _ONE_PROGRAM:
        columns = min(max(2048, 2 * triton.next_power_of_2(k)), padded)
        _one_program_kernel[(tokens,)](
            *common, out, k, found[0], found[1], capacity, ROWS=padded // columns, COLUMNS=columns, CAPACITY=capacity,
            num_warps=16, **constants,
        )  # fmt: skip
        return out
    _shared(common, out, k, found, width, constants)
    return out


def _shared(
    common: tuple[object, ...], out: torch.Tensor, k: int, found: torch.Tensor, width: int, constants: dict[str, object]
) -> None:
    """Rows that several programs share: about a GPU's worth of programs, each with 2,048 to 16,384 candidates."""
    tokens, capacity = found.shape[1:]
    wanted = max(1, _PROGRAMS // tokens)
    per_program = min(max(triton.next_power_of_2(triton.cdiv(width, wanted)), 2048), 16384)
    parts = triton.cdiv(width, per_program)
    groups = 4 * triton.next_power_of_2(k)
    columns = min(max(triton.next_power_of_2(triton.cdiv(groups, parts)), 16), per_program // 2)
    rows = per_program // columns
    device = out.device
    maxima = torch.empty(tokens, parts, columns, dtype=torch.int32, device=device)
    counts = torch.empty(tokens, parts, dtype=torch.int32, device=device)
    shape = {"ROWS": rows, "COLUMNS": columns, "num_warps": 8 if per_program <= 4096 else 16}
    padded_parts = triton.next_power_of_2(parts)
    options = {name: value for name, value in constants.items() if name != "K"}
    _maxima_kernel[(tokens * parts,)](*common, maxima, counts, parts, **shape, **options)
    _filter_kernel[(tokens * parts,)](
        *common, k, maxima, counts, found[0], found[1], capacity, parts, PARTS=padded_parts,
        GROUPS=triton.next_power_of_2(parts * columns), CAPACITY=capacity, **shape, **options,
    )  # fmt: skip
    _select_kernel[(tokens,)](
        *common, out, k, counts, found[0], found[1], capacity, parts, PARTS=padded_parts, CAPACITY=capacity, BLOCK=4096,
        num_warps=8, **constants,
    )  # fmt: skip


_PROGRAMS = 128
