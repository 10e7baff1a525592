"""Dequantise the entries that a chunk of prefill attends into one bf16 workspace.

Prefill reads an entry once per query; dequantised once, it is read as bf16 through L2. The workspace is itself a page
of ``main-bf16`` entries per request, so that ``sparse_attention`` takes it like any other cache.
"""

import torch
import triton
import triton.language as tl

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton.sparse_attention import load_entries

_TILE = 16


@triton.jit
def _gather_dequant(
    pages, page_stride, block_table, table_stride, firsts, lens, out, out_stride, offset,
    ENTRIES: tl.constexpr, FORMAT: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    request = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    found = at < tl.load(lens + request)
    position = tl.load(firsts + request) + at
    table = block_table + request * table_stride
    page = pages + tl.load(table + position // ENTRIES, mask=found, other=0).to(tl.int64) * page_stride
    entry = (position % ENTRIES).to(tl.int64)
    main, tail = load_entries(page, entry, page + ENTRIES * 576 + entry * 8, found, FORMAT)
    column = tl.arange(0, 512)[None, :]
    target = out + request * out_stride + (offset + at)[:, None].to(tl.int64) * 512
    if FORMAT == "main-fp8":
        tl.store(target + column, main, mask=found[:, None] & (column < 448))
        tl.store(target + 448 + tl.arange(0, 64)[None, :], tail, mask=found[:, None])
    else:
        tl.store(target + column, main, mask=found[:, None])


def gather_dequant(
    *,
    cache: PagedCache,
    block_table: torch.Tensor,
    firsts: torch.Tensor,
    lens: torch.Tensor,
    max_len: int,
    out: torch.Tensor,
    offset: int,
) -> None:
    """Copy entries ``firsts[r] .. firsts[r] + lens[r] − 1`` of every request to rows ``offset ..`` of its workspace.

    Args:
        cache: ``main`` entries, fp8 or bf16.
        block_table: int32 [B, n], pages per request.
        firsts: int32 [B], first entry to copy.
        lens: int32 [B], entries to copy.
        max_len: upper bound of ``lens``.
        out: bf16 [B, rows, 512], contiguous rows; written in place, other rows are left alone.
        offset: first row written.

    Raises:
        ValueError: the cache has another format or the workspace too few rows.
    """
    if cache.format.name not in ("main-fp8", "main-bf16"):
        raise ValueError(f"gather_dequant reads main-fp8 or main-bf16 entries, not {cache.format.name}")
    if offset + max_len > out.shape[1]:
        raise ValueError(f"a workspace of {out.shape[1]} rows cannot take {max_len} entries from row {offset} on")
    if max_len == 0 or out.shape[0] == 0:
        return
    blocks = triton.cdiv(max_len, _TILE)
    _gather_dequant[(blocks, out.shape[0])](
        cache.pages, cache.pages.stride(0), block_table, block_table.stride(0), firsts, lens, out, out.stride(0),
        offset, ENTRIES=cache.entries, FORMAT=cache.format.name, TILE=_TILE, num_warps=4,
        **launch_options(blocks * out.shape[0]),
    )  # fmt: skip
