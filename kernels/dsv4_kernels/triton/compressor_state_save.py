"""Store each token's compressor state row ``[kv | score + ape]``.

Moves 8 B an element (fp32 in, fp32 out); the positional term comes from L1. A program copies one row, or a slice of it
where there are few tokens.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from dsv4_kernels.triton.launch import begin, launch_options


@dataclass(frozen=True)
class Tile:
    """Elements of a row per program (the whole row where it is shorter), and warps per program."""

    slice: int
    warps: int


TILE = Tile(1024, 2)
"""Best or within 3 % of it from 1 to 8,192 tokens and in all three widths. NVIDIA H200, 2026-11-29."""


@triton.jit
def _compressor_state_save(
    kv_score, ape, positions, state, slots, row_stride, page_stride, token_stride,
    PAGE_TOKENS: tl.constexpr, RATIO: tl.constexpr, WIDTH: tl.constexpr, SLICE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    SLICES: tl.constexpr = WIDTH // SLICE
    program = tl.program_id(0)
    token = program // SLICES
    column = program % SLICES * SLICE + tl.arange(0, SLICE)
    slot = tl.load(slots + token)
    position = tl.load(positions + token)
    row = tl.load(kv_score + token.to(tl.int64) * row_stride + column)
    score = column >= WIDTH // 2
    term = tl.load(ape + position % RATIO * (WIDTH // 2) + column - WIDTH // 2, mask=score, other=0.0)
    target = state + slot // PAGE_TOKENS * page_stride + slot % PAGE_TOKENS * token_stride + column
    tl.store(target, tl.where(score, row + term, row), mask=slot >= 0)


def compressor_state_save(
    *,
    kv_score: torch.Tensor,
    ape: torch.Tensor,
    positions: torch.Tensor,
    state_cache: torch.Tensor,
    state_slots: torch.Tensor,
    tile: Tile = TILE,
) -> None:
    """Write state rows in place.

    Args:
        kv_score: fp32 [T, 2·coff·d], any row stride.
        ape: fp32 [m, coff·d], contiguous.
        positions: int64 [T].
        state_cache: fp32 [num_pages, block, 2·coff·d], any page and token strides.
        state_slots: int64 [T]; negative slots are skipped.
        tile: for tuning.
    """
    tokens, width = kv_score.shape
    if tokens == 0:
        return
    part = min(width, tile.slice)
    programs = tokens * (width // part)
    _compressor_state_save[(programs,)](
        kv_score, ape, positions, state_cache, state_slots,
        kv_score.stride(0), state_cache.stride(0), state_cache.stride(1),
        PAGE_TOKENS=state_cache.shape[1], RATIO=ape.shape[0], WIDTH=width, SLICE=part,
        num_warps=tile.warps, **launch_options(programs),
    )  # fmt: skip


indexer_state_save = compressor_state_save
"""The indexer's state rows: the same copy, 512 wide."""
