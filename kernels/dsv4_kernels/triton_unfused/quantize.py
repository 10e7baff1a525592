"""Quantisation of rows, and their insertion into a cache, as steps of their own."""

import torch
import triton
import triton.language as tl

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.triton.casts import pack_fp8, unpack_bf16
from dsv4_kernels.triton.entries import (
    page_arguments,
    quantize_fp4_rows,
    quantize_fp8_rows,
    store_indexer_entries,
    store_main_entries,
)
from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton.pairs import as_words, block_maximum, pair_index
from dsv4_kernels.triton.scales import fp8_scale_byte, power_of_two, reciprocal_power_of_two

_AMAX_FLOOR = tl.constexpr(1e-10)


@triton.jit(do_not_specialize=["rows"])
def _quantize_blocks(x, values, scales, rows, ROWS: tl.constexpr, PDL: tl.constexpr):
    begin(PDL)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    mask = row < rows
    place = row[:, None, None] * 256 + pair_index(4, 64)
    even, odd = unpack_bf16(tl.load(x + place, mask=mask[:, None, None], other=0))
    byte = fp8_scale_byte(block_maximum(even, odd), _AMAX_FLOOR)
    inverse = reciprocal_power_of_two(byte)[:, :, None]
    tl.store(values + place, pack_fp8(even * inverse, odd * inverse), mask=mask[:, None, None])
    tl.store(scales + row[:, None] * 4 + tl.arange(0, 4)[None, :], power_of_two(byte), mask=mask[:, None])


def quantize_blocks(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise contiguous bf16 [T, H, 512] per 128 elements: e4m3 of the same shape, fp32 scales [T, H, 4]."""
    tokens, heads, _ = x.shape
    values = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((tokens, heads, 4), dtype=torch.float32, device=x.device)
    rows = tokens * heads
    per_program = 1 if rows <= 512 else 4
    if rows:
        _quantize_blocks[(triton.cdiv(rows, per_program),)](
            as_words(x),
            values.view(torch.uint16),
            scales,
            rows,
            ROWS=per_program,
            num_warps=1,
            **launch_options(triton.cdiv(rows, per_program)),
        )
    return values, scales


@triton.jit(do_not_specialize=["rows"])
def _quantize_index_queries(q, values, scales, rows, ROWS: tl.constexpr, FP4: tl.constexpr, PDL: tl.constexpr):
    begin(PDL)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    mask = row < rows
    BLOCKS: tl.constexpr = 4 if FP4 else 2
    place = row[:, None, None] * 64 + pair_index(BLOCKS, 64 // BLOCKS)
    even, odd = unpack_bf16(tl.load(q + place, mask=mask[:, None, None], other=0))
    if FP4:
        packed, scale = quantize_fp4_rows(even, odd)
        tl.store(scales + row, scale, mask=mask)
    else:
        packed, scale = quantize_fp8_rows(even, odd)
        tl.store(scales + row, power_of_two(scale), mask=mask)
    tl.store(values + place, packed, mask=mask[:, None, None])


def quantize_index_queries(q: torch.Tensor, precision: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise contiguous bf16 [T, HI, 128] with fp32 scales [T, HI] (fp8) or ue8m0 words, int32 [T, HI] (fp4)."""
    tokens, heads, dim = q.shape
    fp4 = precision == "fp4"
    values = torch.empty(
        (tokens, heads, dim // 2 if fp4 else dim), dtype=torch.uint8 if fp4 else torch.float8_e4m3fn, device=q.device
    )
    scales = torch.empty((tokens, heads), dtype=torch.int32 if fp4 else torch.float32, device=q.device)
    rows = tokens * heads
    per_program = 4 if rows <= 1024 else 16
    if rows:
        _quantize_index_queries[(triton.cdiv(rows, per_program),)](
            as_words(q), values if fp4 else values.view(torch.uint16), scales, rows,
            ROWS=per_program, FP4=fp4, num_warps=1, **launch_options(triton.cdiv(rows, per_program)),
        )  # fmt: skip
    return values, scales


@triton.jit
def _scale_weights(
    weights, scales, out, row_stride, factor, HEADS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, BLOCK)
    mask = head < HEADS
    w = tl.load(weights + token * row_stride + head, mask=mask, other=0.0).to(tl.float32) * factor
    if scales is not None:
        w *= tl.load(scales + token * HEADS + head, mask=mask, other=0.0)
    tl.store(out + token * HEADS + head, w, mask=mask)


def scale_weights(weights: torch.Tensor, scales: torch.Tensor | None, factor: float) -> torch.Tensor:
    """fp32 [T, HI] = weights · factor · scales."""
    tokens, heads = weights.shape
    out = torch.empty((tokens, heads), dtype=torch.float32, device=weights.device)
    if tokens:
        _scale_weights[(tokens,)](
            weights, scales, out, weights.stride(0), factor,
            HEADS=heads, BLOCK=triton.next_power_of_2(heads), num_warps=1, **launch_options(tokens),
        )  # fmt: skip
    return out


@triton.jit
def _insert(
    x, slots, pages, page_stride, D: tl.constexpr, ENTRIES: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    begin(PDL)
    row = tl.program_id(0) + tl.arange(0, 1)
    slot = tl.load(slots + row)
    if tl.max(slot, axis=0) >= 0:
        BLOCKS: tl.constexpr = 8 if D == 512 else 4
        place = row.to(tl.int64)[:, None, None] * (D // 2) + pair_index(BLOCKS, D // 2 // BLOCKS)
        words = tl.load(x + place)
        if x.dtype.element_ty == tl.int64:  # two fp32 a word
            even = words.to(tl.int32).to(tl.float32, bitcast=True)
            odd = (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)
        else:
            even, odd = unpack_bf16(words)
        if D == 512:
            store_main_entries(even, odd, slot, pages, page_stride, ENTRIES, PRECISION)
        else:
            store_indexer_entries(even, odd, slot, pages, page_stride, ENTRIES, PRECISION)


def insert(x: torch.Tensor, slots: torch.Tensor, cache: PagedCache) -> None:
    """Quantise contiguous bf16 or fp32 rows [T, 512 or 128] and store them at ``slots``; negative slots are skipped."""
    if x.shape[0]:
        words = x.view(torch.int64) if x.dtype == torch.float32 else as_words(x)
        _insert[(x.shape[0],)](
            words, slots, D=x.shape[1], num_warps=1, **page_arguments(cache), **launch_options(x.shape[0])
        )
