"""Indexer logits over paged keys, decode and prefill alike: every token against every entry its request can see.

A persistent grid shares the step's real work: programs take equal runs of two-page steps, laid end to end over the
tokens by the lengths that the device holds, so that neither the model's maximum nor the longest request sizes anything.
Scores are laid out entries x heads, which keeps the sum over heads within four threads. On Hopper, fp8 keys in pages of
64 take the Gluon form, which does the same with bulk tensor copies.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.triton.launch import begin, launch_options

_PIPELINE = {"long": (3, 3), "short": (4, 2)}
"""Programs per multiprocessor and pipeline stages, as shared memory allows. NVIDIA H200, 2026-11-29: many short tokens
want more programs (64 x 2,048 entries: 6.9 us against 7.6), everything else deeper ones."""
_SHORT_STEPS = 2048
_MANY_TOKENS = 32
_MOST_TOKENS = 4096
"""Tokens of one launch, or pairs of them: every program holds all of their lengths."""
_LONG = 8192
"""Entries from which on pairs of tokens take the Hopper form's shape for long rows."""
_SHARING_STEPS = 2048
"""Steps of two pages, over all tokens, from which on the Hopper form lets two neighbours of a request share their keys.
NVIDIA H200, 2026-11-30: 2 tokens of each of 8 requests, to 16,384 entries, 8.1 and 8.8 us on two cards against 8.5 on
either; 4 tokens of each 11.3 and 11.8 against 13.5; 2 tokens to 2,048, 4.9 against 4.0."""
_LOADED = {"fp8": tl.float8e4nv, "bf16": tl.bfloat16, "fp4": tl.uint8}


@triton.jit
def _e2m1(packed):
    """Packed e2m1 pairs uint8 [N, 64] as fp32 [N, 128], low nibble first."""
    byte = packed.to(tl.int32)
    code = tl.reshape(tl.join(byte & 15, byte >> 4), [packed.shape[0], 128])
    exponent = (code >> 1) & 3
    mantissa = (code & 1).to(tl.float32)
    power = ((exponent + 126) << 23).to(tl.float32, bitcast=True)
    value = tl.where(exponent == 0, 0.5 * mantissa, (1.0 + 0.5 * mantissa) * power)
    return tl.where(code > 7, -value, value)


@triton.jit
def _apply_ue8m0(values, bytes):
    """Scale fp32 [N, 128] per 32 elements by ue8m0 bytes [N, 4]."""
    N: tl.constexpr = values.shape[0]
    exponent = bytes.to(tl.int32)
    scale = tl.where(exponent > 0, exponent << 23, 0x400000).to(tl.float32, bitcast=True)
    return tl.reshape(tl.reshape(values, [N, 4, 32]) * scale[:, :, None], [N, 128])


@triton.jit
def _load_query(q, q_scales, token, HEADS: tl.constexpr, PRECISION: tl.constexpr, DOT: tl.constexpr):
    """One token's queries [HEADS, 128] in the type they are multiplied in."""
    head = tl.arange(0, HEADS)
    row = token * HEADS + head
    if PRECISION == "fp4":
        packed = tl.load(q + row[:, None] * 64 + tl.arange(0, 64)[None, :])
        scales = tl.load(q_scales + row[:, None] * 4 + tl.arange(0, 4)[None, :])
        return _apply_ue8m0(_e2m1(packed), scales).to(DOT)
    return tl.load(q + row[:, None] * 128 + tl.arange(0, 128)[None, :]).to(DOT)


@triton.jit
def _page_number(table, number, length, ENTRIES: tl.constexpr):
    """Page that holds entries ``number * ENTRIES`` .. of a request, any where it has none."""
    return tl.load(table + number, mask=number * ENTRIES < length, other=0)


@triton.jit
def _score_page(
    number, place, query, weights, pages, page_stride, length, out_row,
    ENTRIES: tl.constexpr, PRECISION: tl.constexpr, LOADED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Logits of one token for the entries of its page ``number``, which lies at ``place``."""
    entry = tl.arange(0, ENTRIES)
    index = number * ENTRIES + entry
    inside = index < length
    page = pages + place.to(tl.int64) * page_stride
    if PRECISION == "fp4":
        packed = tl.load(page + entry[:, None] * 64 + tl.arange(0, 64)[None, :], mask=inside[:, None], other=0)
        scale_bytes = tl.load(
            page + ENTRIES * 64 + entry[:, None] * 4 + tl.arange(0, 4)[None, :], mask=inside[:, None], other=127
        )
        keys = _apply_ue8m0(_e2m1(packed), scale_bytes).to(DOT)
    else:
        records = page.to(tl.pointer_type(LOADED)) + entry[:, None] * 128 + tl.arange(0, 128)[None, :]
        keys = tl.load(records, mask=inside[:, None], other=0.0).to(DOT)
    scores = tl.dot(keys, tl.trans(query))
    logits = tl.sum(tl.maximum(scores, 0.0) * weights[None, :], axis=1)
    if PRECISION == "fp8":
        scales = (page + ENTRIES * 128).to(tl.pointer_type(tl.float32)) + entry
        logits *= tl.load(scales, mask=inside, other=0.0)
    tl.store(out_row + index, logits, mask=inside)


@triton.jit
def _score_step(
    step, first, second, query, weights, pages, page_stride, length, out_row,
    ENTRIES: tl.constexpr, PRECISION: tl.constexpr, LOADED: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Logits of two pages."""
    _score_page(2 * step, first, query, weights, pages, page_stride, length, out_row, ENTRIES, PRECISION, LOADED, DOT)
    _score_page(
        2 * step + 1, second, query, weights, pages, page_stride, length, out_row, ENTRIES, PRECISION, LOADED, DOT
    )


@triton.jit
def _indexer_logits_kernel(
    q, q_scales, weights, pages, page_stride, block_table, table_stride, token_to_request, lens, out, out_stride,
    first_token, tokens,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, ENTRIES: tl.constexpr, PRECISION: tl.constexpr,
    LOADED: tl.constexpr, DOT: tl.constexpr, STAGES: tl.constexpr, INTERPRETED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    STEP: tl.constexpr = 2 * ENTRIES
    program = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0)
    if TOKENS == 1:
        first_length = tl.load(lens + first_token)
        first_request = tl.load(token_to_request + first_token)
        total = tl.cdiv(first_length, STEP)
    else:
        every = tl.arange(0, TOKENS)
        lengths = tl.load(lens + first_token + every, mask=every < tokens, other=0)
        requests = tl.load(token_to_request + first_token + every, mask=every < tokens, other=0)
        steps = tl.cdiv(lengths, STEP)
        ends = tl.cumsum(steps, axis=0)
        total = tl.sum(steps, axis=0)
    at = (program * total // programs).to(tl.int32)
    end = ((program + 1) * total // programs).to(tl.int32)
    head = tl.arange(0, HEADS)
    while at < end:
        if TOKENS == 1:
            nth = 0
            begins = 0
            length = first_length
            request = first_request
        else:
            nth = tl.sum((ends <= at).to(tl.int32), axis=0)
            begins = tl.sum(tl.where(every < nth, steps, 0), axis=0)
            length = tl.sum(tl.where(every == nth, lengths, 0), axis=0)
            request = tl.sum(tl.where(every == nth, requests, 0), axis=0)
        stop = tl.minimum(end - begins, tl.cdiv(length, STEP))
        token = (first_token + nth).to(tl.int64)
        query = _load_query(q, q_scales, token, HEADS, PRECISION, DOT)
        weight = tl.load(weights + token * HEADS + head)
        table = block_table + request.to(tl.int64) * table_stride
        out_row = out + token * out_stride
        step = at - begins
        first = _page_number(table, 2 * step, length, ENTRIES)
        second = _page_number(table, 2 * step + 1, length, ENTRIES)
        # the interpreter cannot iterate over a range of its own scalars, the compiler pipelines nothing else
        if INTERPRETED:
            while step < stop:
                _score_step(
                    step, first, second, query, weight, pages, page_stride, length, out_row, ENTRIES, PRECISION, LOADED,
                    DOT,
                )  # fmt: skip
                step += 1
                first = _page_number(table, 2 * step, length, ENTRIES)
                second = _page_number(table, 2 * step + 1, length, ENTRIES)
        else:
            for ahead in tl.range(step + 1, stop + 1, num_stages=STAGES):
                next_first = _page_number(table, 2 * ahead, length, ENTRIES)
                next_second = _page_number(table, 2 * ahead + 1, length, ENTRIES)
                _score_step(
                    ahead - 1, first, second, query, weight, pages, page_stride, length, out_row, ENTRIES, PRECISION,
                    LOADED, DOT,
                )  # fmt: skip
                first = next_first
                second = next_second
        at = begins + stop


def indexer_logits(
    *,
    index_q_values: torch.Tensor,
    index_q_scales: torch.Tensor | None,
    index_weights: torch.Tensor,
    indexer_cache: PagedCache,
    block_table: torch.Tensor,
    token_to_request: torch.Tensor,
    candidate_lens: torch.Tensor,
    max_candidates: int,
    form: str | None = None,
) -> torch.Tensor:
    """Score of every visible entry: ``sum over heads of weight · relu(q · k)``.

    Args:
        index_q_values: e4m3 or bf16 [T, HI, 128], or packed e2m1 uint8 [T, HI, 64]; contiguous.
        index_q_scales: ue8m0 uint8 [T, HI, 4] for fp4, else None.
        index_weights: fp32 [T, HI].
        indexer_cache: index keys in the queries' precision.
        block_table: int32 [B, n], pages per request.
        token_to_request: int32 [T].
        candidate_lens: int32 [T], visible entries per token.
        max_candidates: width of the result.
        form: ``gluon`` or ``plain``; None takes the Gluon form where it applies.

    Returns:
        fp32 [T, max_candidates]; columns from ``candidate_lens`` on are not written.

    Raises:
        ValueError: the cache's precision has no kernel, the queries are not contiguous, or the form does not apply.
    """
    precision = indexer_cache.format.precision
    if precision not in _LOADED:
        raise ValueError(f"no logits kernel over {indexer_cache.format.name} caches; known: {', '.join(_LOADED)}")
    if not index_q_values.is_contiguous() or not index_weights.is_contiguous():
        raise ValueError("indexer queries and weights must be contiguous")
    applies = form != "plain" and gluon_applies(index_q_values, index_weights, indexer_cache)
    if form == "gluon" and not applies:
        raise ValueError("the Gluon form takes fp8 keys in 16-byte aligned pages of 64 and 32 or 64 heads, on Hopper")
    tokens = len(index_q_values)
    out = torch.empty(tokens, max_candidates, dtype=torch.float32, device=index_q_values.device)
    requests = (block_table, block_table.stride(0), token_to_request, candidate_lens)
    steps = tokens * triton.cdiv(max_candidates, 2 * indexer_cache.entries)
    group = 2 if applies and steps >= _SHARING_STEPS and tokens >= 2 * len(block_table) else 1
    for first in range(0, tokens if max_candidates else 0, group * _MOST_TOKENS):
        count = min(tokens - first, group * _MOST_TOKENS)
        shared = (*requests, out, out.stride(0), first, count)
        if applies:
            _launch_gluon(index_q_values, index_weights, indexer_cache, shared, count, max_candidates, group)
        else:
            _launch_plain(index_q_values, index_q_scales, index_weights, indexer_cache, shared, count, max_candidates)
    return out


def _programs(per_processor: int, count: int, steps: int, device: torch.device) -> int:
    """Size of the grid: equally long tokens start where programs do."""
    programs = min(_processors(device) * per_processor, steps)
    return programs - programs % count if programs > count else programs


def _launch_plain(
    q: torch.Tensor, q_scales: torch.Tensor | None, weights: torch.Tensor, cache: PagedCache,
    shared: tuple[object, ...], count: int, candidates: int,
) -> None:  # fmt: skip
    steps = count * triton.cdiv(candidates, 2 * cache.entries)
    precision = cache.format.precision
    interpreted = triton.knobs.runtime.interpret
    dot = tl.float8e4nv if precision == "fp8" else tl.float32 if interpreted else tl.bfloat16
    per_processor, stages = _PIPELINE["short" if count >= _MANY_TOKENS and steps <= _SHORT_STEPS else "long"]
    _indexer_logits_kernel[(_programs(per_processor, count, steps, q.device),)](
        q, q if q_scales is None else q_scales, weights, cache.pages, cache.pages.stride(0), *shared,
        TOKENS=triton.next_power_of_2(count), HEADS=q.shape[1], ENTRIES=cache.entries, PRECISION=precision,
        LOADED=_LOADED[precision], DOT=dot, STAGES=stages, INTERPRETED=interpreted, num_warps=4, **launch_options(),
    )  # fmt: skip


def gluon_applies(q: torch.Tensor, weights: torch.Tensor, cache: PagedCache) -> bool:
    """Whether the Hopper form takes these queries, weights and keys on the current device."""
    if triton.knobs.runtime.interpret or cache.format.precision != "fp8" or cache.entries != 64:
        return False
    target = triton.runtime.driver.active.get_current_target()
    aligned = (cache.pages.data_ptr() | cache.pages.stride(0) | q.data_ptr() | weights.data_ptr()) % 16 == 0
    takes = q.shape[1] in (32, 64) and weights.dtype == torch.float32
    return target.backend == "cuda" and target.arch // 10 == 9 and aligned and takes


def _launch_gluon(
    q: torch.Tensor, weights: torch.Tensor, cache: PagedCache, shared: tuple[object, ...], count: int, candidates: int,
    group: int,
) -> None:  # fmt: skip
    from dsv4_kernels.gluon.indexer_logits import LONG_PAIRS, PAIRS, SINGLE, indexer_logits_kernel

    shape = SINGLE if group == 1 else LONG_PAIRS if candidates >= _LONG else PAIRS
    items = triton.cdiv(count, group)
    steps = count * triton.cdiv(candidates, shape.pages * cache.entries)
    # with fewer than 32, groups of two spill in their loop; up to 512 every warp holds all of them
    padded = max(triton.next_power_of_2(items), 32 if group > 1 else 1)
    indexer_logits_kernel[(_programs(shape.programs, items, steps, q.device),)](
        *_tensor_maps(q, weights, cache, group), *shared, ITEMS=padded,
        PER_THREAD=max(padded // 32, 1) if padded <= 512 else 1, HEADS=q.shape[1], GROUP=group, PAGES=shape.pages,
        RING=shape.ring, CONSUMER=shape.consumer, PRODUCER=shape.producer, num_warps=4, maxnreg=shape.registers,
        **launch_options(),
    )  # fmt: skip


def _tensor_maps(q: torch.Tensor, weights: torch.Tensor, cache: PagedCache, group: int) -> tuple[object, ...]:
    """How bulk copies find the queries and weights of a group of tokens, one page's keys and one page's scales."""
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from dsv4_kernels.gluon.indexer_logits import KEYS_LAYOUT, QUERIES_LAYOUT, SCALES_LAYOUT

    pages, number, stride, heads = cache.pages, cache.num_pages, cache.pages.stride(0), q.shape[1]
    asked = [group * heads, 128]
    queries = TensorDescriptor(q.view(-1, 128), [len(q) * heads, 128], [128, 1], asked, QUERIES_LAYOUT.value)
    of_tokens = TensorDescriptor(weights, [len(q), heads], [heads, 1], [group, heads], SCALES_LAYOUT.value)
    keys = TensorDescriptor(
        pages.view(torch.float8_e4m3fn), [number, 64, 128], [stride, 128, 1], [1, 64, 128], KEYS_LAYOUT.value
    )
    floats = pages[:, 64 * 128 : 64 * 132].view(torch.float32)
    scales = TensorDescriptor(floats, [number, 64], [stride // 4, 1], [1, 64], SCALES_LAYOUT.value)
    return queries, of_tokens, keys, scales


@lru_cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
