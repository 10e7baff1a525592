"""Steps of the compressor: the positional term, the state row, and the mix of a window's rows."""

import torch
import triton
import triton.language as tl

from dsv4_kernels.triton.compress_norm_rope_insert import mix_overlap, mix_rows
from dsv4_kernels.triton.launch import begin, launch_options

_COLUMNS = 64
_ROWS = 32


@triton.jit
def _add_term(
    kv_score, ape, positions, out, row_stride, RATIO: tl.constexpr, HALF: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, HALF)
    position = tl.load(positions + token)
    score = tl.load(kv_score + token * row_stride + HALF + column)
    tl.store(out + token * HALF + column, score + tl.load(ape + position % RATIO * HALF + column))


def add_term(kv_score: torch.Tensor, ape: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Score half of ``kv_score`` plus the positional term: fp32 [T, coff · d]."""
    tokens, half = kv_score.shape[0], ape.shape[1]
    out = torch.empty((tokens, half), dtype=torch.float32, device=kv_score.device)
    if tokens:
        _add_term[(tokens,)](
            kv_score, ape, positions, out, kv_score.stride(0), RATIO=ape.shape[0], HALF=half, **launch_options(tokens)
        )
    return out


@triton.jit
def _store_state(
    kv_score, score, state, slots, row_stride, page_stride, token_stride,
    PAGE_TOKENS: tl.constexpr, HALF: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, HALF)
    slot = tl.load(slots + token)
    target = state + slot // PAGE_TOKENS * page_stride + slot % PAGE_TOKENS * token_stride + column
    kept = slot >= 0
    tl.store(target, tl.load(kv_score + token * row_stride + column), mask=kept)
    tl.store(target + HALF, tl.load(score + token * HALF + column), mask=kept)


def store_state(kv_score: torch.Tensor, score: torch.Tensor, state_cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Write ``[kv | score]`` rows at ``slots``; negative slots are skipped."""
    tokens, half = score.shape
    if tokens:
        _store_state[(tokens,)](
            kv_score, score, state_cache, slots, kv_score.stride(0), state_cache.stride(0), state_cache.stride(1),
            PAGE_TOKENS=state_cache.shape[1], HALF=half, **launch_options(tokens),
        )  # fmt: skip


@triton.jit
def _mix(
    state, block_table, requests, positions, slots, out, block_stride, state_page_stride, state_token_stride,
    D: tl.constexpr, RATIO: tl.constexpr, PAGE_TOKENS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    token = tl.program_id(0) // (D // COLUMNS)
    position = tl.load(positions + token)
    request = tl.load(requests + token)
    if tl.load(slots + token) >= 0:
        anchor = position // RATIO * RATIO
        pages_of = block_table + request.to(tl.int64) * block_stride
        column = tl.program_id(0) % (D // COLUMNS) * COLUMNS + tl.arange(0, COLUMNS)
        if RATIO == 4:
            c = mix_overlap(state, pages_of, anchor, state_page_stride, state_token_stride, D, PAGE_TOKENS)
        else:
            _, total, mixed = mix_rows(
                state, pages_of, anchor, 0, column, state_page_stride, state_token_stride,
                D, PAGE_TOKENS, ROWS, COLUMNS, RATIO, 0,
            )  # fmt: skip
            c = mixed / total
        tl.store(out + token.to(tl.int64) * D + column, c)


def mix(
    state_cache: torch.Tensor, block_table: torch.Tensor, token_to_request: torch.Tensor, positions: torch.Tensor,
    slots: torch.Tensor, dim: int, ratio: int,
) -> torch.Tensor:  # fmt: skip
    """Softmax-weighted rows, fp32 [T, d]; rows of tokens that complete nothing stay unwritten."""
    tokens = slots.shape[0]
    out = torch.empty((tokens, dim), dtype=torch.float32, device=state_cache.device)
    columns = dim if ratio == 4 else _COLUMNS
    if tokens:
        _mix[(tokens * (dim // columns),)](
            state_cache, block_table, token_to_request, positions, slots, out,
            block_table.stride(0), state_cache.stride(0), state_cache.stride(1),
            D=dim, RATIO=ratio, PAGE_TOKENS=state_cache.shape[1], ROWS=_ROWS, COLUMNS=columns,
            num_warps=1 if dim == 128 else 4, **launch_options(tokens * (dim // columns)),
        )  # fmt: skip
    return out
