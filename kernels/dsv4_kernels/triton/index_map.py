"""From request-local entry indices to cache slots."""

import torch
import triton
import triton.language as tl

from dsv4_kernels.triton.launch import begin, launch_options


@triton.jit
def _index_map(
    topk, requests, block_table, slots, lens, topk_stride, table_stride,
    K: tl.constexpr, BLOCK: tl.constexpr, ENTRIES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    index = tl.load(topk + token * topk_stride + column, mask=column < K, other=-1)
    request = tl.load(requests + token).to(tl.int64)
    valid = index >= 0
    page = tl.load(block_table + request * table_stride + index // ENTRIES, mask=valid, other=0)
    tl.store(slots + token * K + column, tl.where(valid, page * ENTRIES + index % ENTRIES, -1), mask=column < K)
    tl.store(lens + token, tl.sum(valid.to(tl.int32), axis=0))


def index_map(
    *, topk_indices: torch.Tensor, token_to_request: torch.Tensor, block_table: torch.Tensor, entries: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Map indices to slots, column by column.

    Args:
        topk_indices: int32 [T, k], negative where invalid, any row stride.
        token_to_request: int32 [T].
        block_table: int32 [B, n], any row stride; only pages that hold a valid index are read.
        entries: entries per page.

    Returns:
        ``compressed_indices`` int32 [T, k], −1 where invalid, and ``compressed_lens`` int32 [T], the valid columns.
    """
    tokens, k = topk_indices.shape
    slots = torch.empty((tokens, k), dtype=torch.int32, device=topk_indices.device)
    lens = torch.empty((tokens,), dtype=torch.int32, device=topk_indices.device)
    if tokens:
        _index_map[(tokens,)](
            topk_indices, token_to_request, block_table, slots, lens, topk_indices.stride(0), block_table.stride(0),
            K=k, BLOCK=triton.next_power_of_2(k), ENTRIES=entries, **launch_options(tokens),
        )  # fmt: skip
    return slots, lens
