"""The k best logits of every row, exactly, in an order that depends on the row alone.

Up to 16,384 candidates one program selects in its registers (``row_selection``). Beyond, or of many rows, a program
reads its row once (``streaming_selection``): a sample gives a threshold, and it selects among what reaches it. A few
long rows are shared: one launch for the maxima of many groups, one that filters the row by the bin of the k-th best
maximum (its programs wait for their predecessors' counts, so that candidates keep a fixed order), and one that selects
among the candidates left, hardly more than k. Rows of which thousands are left fall back to a search over all of it.
"""

import torch
import triton
import triton.language as tl

from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton.row_selection import (
    bins_of,
    clear_counters,
    emit_all,
    flag_bits,
    lowest_bit,
    numbers_of,
    population,
    search_bins,
    select_candidates,
)
from dsv4_kernels.triton.shared_words import buffer, in_shared_memory, words
from dsv4_kernels.triton.streaming_selection import (
    SEGMENT,
    append,
    append_reaching,
    sampled_threshold,
    select_streaming,
)

_STRIDES = ["logits_stride", "found_stride", "groups", "parts", "k", "width"]
"""Kept from specialisation: loads of several elements, which a stride known to be a multiple of 16 allows, would not
have the layout of the scattered stores that follow, and the whole row would go through shared memory in between."""

_MOST_SELECTED = 4096
_ONE_PROGRAM = 16384
_SHAPES = {2048: (8, True), 4096: (8, True), _ONE_PROGRAM: (16, False)}
"""Warps of a program that holds a row, and whether it asks for the row before it knows the length, by row width."""
_PROGRAMS = 128
"""Programs that share the rows of a step."""
_MOST_SHARED = 32
"""Rows up to which programs share them. NVIDIA H200, 2026-11-30, us shared and with a program for each, k 512: 32 rows
of 65,536 11.6 and 11.6, 64 17.8 and 11.8; 16 rows of 262,144 18.5 and 26.9, 32 30.3 and 29.0, 64 56.8 and 35.9."""
_MANY = 512
_MANY_K = 512
"""Rows from which on, and k up to which, those of more than half of what one program could hold are streamed too.
NVIDIA H200, 2026-11-30, us held and streamed, rows of 16,384, k 512: 256 rows 10.2 and 10.4, 512 18.9 and 15.9, 4,096
144 and 128; k 1,024: 1,024 rows 44.5 and 53.1."""
_MOST_STREAMED = 2048
"""k up to which rows are streamed: the list is selected from in registers, up to 16 candidates a thread."""
_SAMPLED = 8
"""A program with a row of its own samples one segment in so many."""
_DEVIATIONS = 8
"""Standard deviations that the threshold's rank in the sample lies above what it would be of independent values.
Neighbours that resemble each other scatter more. NVIDIA H200, 2026-11-30, 4 and 8 of them, k 512: 64 rows of 262,144
35.7 and 35.9 us, where a row is a moving mean of 32 63.5 and 39.3."""
_SURPLUS = 4
"""Times k, rounded up to a power of two, that a row's list has room for, within 2,048 to 4,096 candidates."""
_TRIALS = 6
"""Thresholds tried before the whole row is searched."""
_STREAM_WARPS = {264: 16}
"""Warps of a program with a row of its own, by rows up to which, beyond 8: few rows want more of the memory each.
NVIDIA H200, 2026-11-30, 8 and 16 warps: 128 rows of 262,144 55.1 and 43.3 us, 264 of 65,536 26.0 and 24.9, 512 of
32,768 25.6 and 30.1, 4,096 of 65,536 302 and 318."""
_STREAM_REGISTERS = 64
"""1,024 threads to a multiprocessor, so that some wait for memory while others count."""


@triton.jit(do_not_specialize=_STRIDES)
def _row_kernel(
    logits, logits_stride, lens, out, k, width, memory,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr, K: tl.constexpr, EAGER: tl.constexpr, SHARED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Select in a row that one program holds; EAGER asks for the row before its length is known."""
    mine = words(memory, SHARED)
    clear_counters(mine, COLUMNS, SHARED)
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
        emit_all(length, k, out, K)
    else:
        values = numbers_of(values, SHARED)
        select_candidates(
            mine, values, thread + turn, thread + turn - length, row, row, k, out, COLUMNS, K, False, SHARED
        )


@triton.jit
def _shared_index(part, parts, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Candidates [COLUMNS, ROWS] of one of ``parts`` programs: segments dealt out in turn, so that neighbours part.

    Returns:
        The first candidate of each column, and what lies between those of a column.
    """
    thread = tl.arange(0, COLUMNS)
    return (thread // SEGMENT * parts + part) * SEGMENT + thread % SEGMENT, COLUMNS * parts


@triton.jit(do_not_specialize=_STRIDES)
def _maxima_kernel(
    logits, logits_stride, lens, maxima, counts, parts,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, APART: tl.constexpr, SHARED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Maxima of one program's groups, each of ROWS candidates: every APART-th of its column.

    Neighbouring segments begin at different ones, so that a run of the best candidates is never passed over whole. Also
    clears the count that the program publishes in the next launch.
    """
    begin(PDL)
    part = tl.program_id(0) % parts
    token = (tl.program_id(0) // parts).to(tl.int64)
    length = tl.load(lens + token)
    first, step = _shared_index(part, parts, ROWS, COLUMNS)
    begins = (tl.arange(0, COLUMNS) // SEGMENT + part) % APART
    index = (first + step * begins)[:, None] + APART * step * tl.arange(0, ROWS)[None, :]
    values = tl.load(logits + token * logits_stride + index, mask=index < length, other=float("-inf"))
    place = (token * parts + part) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(maxima + place, tl.max(numbers_of(values, SHARED), axis=1))
    tl.store(counts + token * parts + part, 0)


@triton.jit(do_not_specialize=_STRIDES)
def _filter_kernel(
    logits, logits_stride, lens, k, maxima, groups, counts, found_values, found_index, found_stride, parts, memory,
    PARTS: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAPACITY: tl.constexpr,
    K: tl.constexpr, SHARED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Append one program's candidates that reach the bin of the k-th best maximum, or all where maxima are too few."""
    mine = words(memory, SHARED)
    clear_counters(mine, COLUMNS, SHARED)
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
        _, low, scale, chosen, _, _ = search_bins(mine, tops, k, COLUMNS, K, SHARED)
        bits = flag_bits((bins_of(numbers_of(values, SHARED), low, scale, COLUMNS) >= chosen) & (index < length))
        counts_here = population(bits)
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
            place = first + step * lowest_bit(bits)
            append(row, place, found_values, found_index, at, (bits != 0) & (at < end))
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
    clear_counters(mine, COLUMNS, SHARED)
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
        emit_all(length, k, out, K)
    else:
        found = tl.sum(published - 1, axis=0)
        if found <= CAPACITY:
            values = tl.where(at < found, numbers_of(values, SHARED), float("-inf"))
            select_candidates(
                mine, values, index, at - found, found_values, found_index, k, out, COLUMNS, K, True, SHARED
            )
        else:
            select_streaming(logits + token * logits_stride, length, k, out, BLOCK)


@triton.jit(do_not_specialize=[*_STRIDES, "rank"])
def _stream_kernel(
    logits, logits_stride, lens, out, k, rank, found_values, found_index, found_stride, memory,
    COLUMNS: tl.constexpr, GROUPS: tl.constexpr, SAMPLES: tl.constexpr, APART: tl.constexpr, CAPACITY: tl.constexpr,
    TRIALS: tl.constexpr, K: tl.constexpr, NEIGHBOURS: tl.constexpr, SHARED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Select in a row that one program reads once: among the candidates that reach a threshold from a sample of it.

    Where the best are bunched, fewer than k may reach it, or more than the list holds: then another is tried.
    """
    mine = words(memory, SHARED)
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    length = tl.load(lens + token)
    row = logits + token * logits_stride
    out += token * k
    if length <= k:
        emit_all(length, k, out, K)
    else:
        found_values += token * found_stride
        found_index += token * found_stride
        aligned = logits + tl.multiple_of(token * logits_stride, 4 if NEIGHBOURS else 1)
        found = 0
        trials = 0
        while trials < TRIALS:
            clear_counters(mine, COLUMNS, SHARED)
            threshold = sampled_threshold(mine, row, length, rank, COLUMNS, GROUPS, SAMPLES, APART, SHARED)
            found = append_reaching(
                mine, aligned, length, threshold, found_values, found_index, COLUMNS, CAPACITY, NEIGHBOURS, SHARED
            )
            trials += 1
            if found > CAPACITY:
                lower = tl.maximum(rank * k // found * 3 // 2, 1)
                trials = tl.where(lower == rank, TRIALS, trials)
                rank = lower
            elif (found < k) & (threshold > float("-inf")):
                rank *= 2
            else:
                trials = TRIALS
        clear_counters(mine, COLUMNS, SHARED)
        if (found >= k) & (found <= CAPACITY):
            at = tl.arange(0, COLUMNS)[:, None] + COLUMNS * tl.arange(0, CAPACITY // COLUMNS)[None, :]
            values = tl.load(found_values + at, mask=at < found, other=float("-inf"))
            index = tl.load(found_index + at, mask=at < found, other=0)
            select_candidates(
                mine, values, index, at - found, found_values, found_index, k, out, COLUMNS, K, True, SHARED
            )
        else:
            select_streaming(row, length, k, out, 1024)


def topk(*, logits: torch.Tensor, candidate_lens: torch.Tensor, k: int) -> torch.Tensor:
    """The ``k`` best candidates of every token.

    Which of equal logits are taken is decided by the row alone, so equal rows give equal results, bit for bit, wherever
    they stand in a batch.

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
    constants = {"K": triton.next_power_of_2(k), "SHARED": in_shared_memory()}
    if padded > _ONE_PROGRAM:
        streams = tokens > _MOST_SHARED and k <= _MOST_STREAMED
    else:
        streams = tokens >= _MANY and k <= _MANY_K and padded == _ONE_PROGRAM
    if streams:
        _streamed(common, out, k, width, constants | launch_options(tokens))
        return out
    if padded > _ONE_PROGRAM:
        _shared(common, out, k, width, constants | launch_options())
        return out
    warps, eager = next(shape for most, shape in _SHAPES.items() if padded <= most)
    columns = 32 * warps
    _row_kernel[(tokens,)](
        *common, out, k, width, buffer(tokens, out.device), COLUMNS=columns, ROWS=max(padded // columns, 1),
        EAGER=eager, num_warps=warps, **constants, **launch_options(),
    )  # fmt: skip
    return out


def _streamed(common: tuple[object, ...], out: torch.Tensor, k: int, width: int, constants: dict[str, object]) -> None:
    """Many rows: a program for each, which reads it once, but for the sample."""
    tokens, device = out.shape[0], out.device
    warps = next((warps for most, warps in _STREAM_WARPS.items() if tokens <= most), 8)
    columns = 32 * warps
    capacity = min(max(_SURPLUS * constants["K"], 2048), 4096)
    values = torch.empty(tokens, capacity, dtype=torch.float32, device=device)
    index = torch.empty(tokens, capacity, dtype=torch.int32, device=device)
    groups = 2048 // columns
    samples = min(max(triton.next_power_of_2(triton.cdiv(width, _SAMPLED * columns)), groups), 32)
    aligned = common[0].data_ptr() % 16 == 0 and common[1] % 4 == 0
    # so many of the k best are in the sample, give or take
    rank = round(k / _SAMPLED + _DEVIATIONS * (k / _SAMPLED) ** 0.5)
    _stream_kernel[(tokens,)](
        *common, out, k, rank, values, index, capacity, buffer(tokens, device), COLUMNS=columns, GROUPS=groups,
        SAMPLES=samples, APART=_SAMPLED, CAPACITY=capacity, TRIALS=_TRIALS, NEIGHBOURS=aligned,
        num_warps=warps, maxnreg=_STREAM_REGISTERS, **constants,
    )  # fmt: skip


def _apart(tokens: int, width: int, k: int) -> int:
    """Which candidates the maxima are of: every second, or every fourth, whereby less of the row is read for them.

    The k-th best of fewer maxima is lower, so that more candidates are left to select among. NVIDIA H200, 2026-11-30,
    every second and fourth, rows of 262,144, k 512: one 7.9 and 8.6 us, 8 11.9 and 11.6, 32 31.1 and 29.8; k 1,024: 8
    12.6 and 14.2.
    """
    return 4 if width >= 512 * k and tokens >= 8 and k <= 2048 else 2


def _shared(common: tuple[object, ...], out: torch.Tensor, k: int, width: int, constants: dict[str, object]) -> None:
    """Rows that several programs share: about a GPU's worth of programs, each with 2,048 to 16,384 candidates."""
    tokens, device = out.shape[0], out.device
    apart = _apart(tokens, width, k)
    wanted = max(1, _PROGRAMS // tokens)
    per_program = min(max(triton.next_power_of_2(triton.cdiv(width, wanted)), 2048), _ONE_PROGRAM)
    parts = triton.cdiv(width, per_program)
    per_part = triton.cdiv(4 * constants["K"], parts)
    groups = min(max(triton.next_power_of_2(per_part), 32), per_program // apart)
    capacity = max(2048, 2 * apart * constants["K"])
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
        *common, maxima, counts, parts, COLUMNS=groups, ROWS=per_program // groups // apart, APART=apart,
        num_warps=warps // apart, **options,
    )  # fmt: skip
    _filter_kernel[(tokens * parts,)](
        *common, k, maxima, parts * groups, counts, values, index, capacity, parts, buffer(tokens * parts, device),
        PARTS=padded_parts, GROUPS=max(triton.next_power_of_2(parts * groups), columns, constants["K"]),
        COLUMNS=columns, ROWS=per_program // columns, CAPACITY=capacity, num_warps=warps, **constants,
    )  # fmt: skip
    _select_kernel[(tokens,)](
        *common, out, k, counts, values, index, capacity, parts, buffer(tokens, device), PARTS=padded_parts,
        CAPACITY=capacity, COLUMNS=32 * select_warps, BLOCK=256 * select_warps, num_warps=select_warps, **constants,
    )  # fmt: skip
