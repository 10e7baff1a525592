"""Stages as sequences of steps, with the contracts of the fused launchers."""

import torch
import triton
import triton.language as tl

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton_unfused.compressor import add_term, mix, store_state
from dsv4_kernels.triton_unfused.norm import rms_norm
from dsv4_kernels.triton_unfused.quantize import insert, quantize_blocks, quantize_index_queries, scale_weights
from dsv4_kernels.triton_unfused.rope import rope


def qkv_norm(
    *, qkv_latent: torch.Tensor, q_norm_weight: torch.Tensor, kv_norm_weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two norms. Parameters and results as ``dsv4_kernels.triton.qkv_norm``."""
    rank, width = q_norm_weight.shape[0], kv_norm_weight.shape[0]
    q_latent = rms_norm(qkv_latent[:, :rank], q_norm_weight, eps)
    return q_latent, rms_norm(qkv_latent[:, rank : rank + width], kv_norm_weight, eps)


def query_norm_rope_insert(
    *,
    q: torch.Tensor,
    kv: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    window_cache: PagedCache,
    window_slots: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Query norm, query RoPE, key/value RoPE, quantise and insert: four launches."""
    normed = rms_norm(q, None, eps)
    rotated = rope(normed, positions, cos_sin)
    entries = rope(kv.unsqueeze(1), positions, cos_sin)
    insert(entries.squeeze(1), window_slots, window_cache)
    return rotated


def compressor_state_save(
    *,
    kv_score: torch.Tensor,
    ape: torch.Tensor,
    positions: torch.Tensor,
    state_cache: torch.Tensor,
    state_slots: torch.Tensor,
) -> None:
    """Positional term, then the store: two launches."""
    store_state(kv_score, add_term(kv_score, ape, positions), state_cache, state_slots)


def compress_norm_rope_insert(
    *,
    state_cache: torch.Tensor,
    state_block_table: torch.Tensor,
    token_to_request: torch.Tensor,
    positions: torch.Tensor,
    compressed_slots: torch.Tensor,
    norm_weight: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: PagedCache,
    ratio: int,
    eps: float,
) -> None:
    """Mix, norm, RoPE, quantise and insert: four launches over one row per token, fp32 in between."""
    mixed = mix(
        state_cache, state_block_table, token_to_request, positions, compressed_slots, norm_weight.shape[0], ratio
    )
    normed = rms_norm(mixed, norm_weight, eps)
    insert(rope(normed, positions, cos_sin, anchor=ratio), compressed_slots, cache)


def indexer_query_rope_quant(
    *,
    index_q: torch.Tensor,
    head_weights: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    precision: str,
    rope_style: str,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """RoPE, quantise, weights: three launches. Precisions ``fp8`` and ``fp4`` in ``interleaved`` style.

    Raises:
        ValueError: another precision or style.
    """
    if precision not in ("fp8", "fp4") or rope_style != "interleaved":
        raise ValueError(f"the unfused indexer query has fp8 and fp4, interleaved; not {precision}, {rope_style}")
    heads, dim = index_q.shape[1:]
    values, scales = quantize_index_queries(rope(index_q, positions, cos_sin), precision)
    factor = dim**-0.5 * heads**-0.5
    if precision == "fp4":
        return values, scales.view(torch.uint8).unflatten(-1, (heads, 4)), scale_weights(head_weights, None, factor)
    return values, None, scale_weights(head_weights, scales, factor)


def inverse_rope_quant(
    *, o: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor, groups: int, precision: str
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Inverse RoPE, then quantise: two launches, row-major results."""
    tokens = o.shape[0]
    rotated = rope(o, positions, cos_sin, inverse=True)
    if precision != "fp8":
        return rotated.view(tokens, groups, -1), None
    values, scales = quantize_blocks(rotated)
    return values.view(tokens, groups, -1), scales.view(tokens, groups, -1)


@triton.jit
def _slots(
    topk, requests, block_table, slots, topk_stride, table_stride,
    K: tl.constexpr, BLOCK: tl.constexpr, ENTRIES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    index = tl.load(topk + token * topk_stride + column, mask=column < K, other=-1)
    request = tl.load(requests + token).to(tl.int64)
    page = tl.load(block_table + request * table_stride + index // ENTRIES, mask=index >= 0, other=0)
    slot = tl.where(index >= 0, page * ENTRIES + index % ENTRIES, -1)
    tl.store(slots + token * K + column, slot, mask=column < K)


@triton.jit
def _count(indices, lens, stride, K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    begin(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    index = tl.load(indices + token * stride + column, mask=column < K, other=-1)
    tl.store(lens + token, tl.sum((index >= 0).to(tl.int32), axis=0))


def index_map(
    *, topk_indices: torch.Tensor, token_to_request: torch.Tensor, block_table: torch.Tensor, entries: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots, then lengths: two launches."""
    tokens, k = topk_indices.shape
    slots = torch.empty((tokens, k), dtype=torch.int32, device=topk_indices.device)
    lens = torch.empty((tokens,), dtype=torch.int32, device=topk_indices.device)
    if tokens:
        block = triton.next_power_of_2(k)
        _slots[(tokens,)](
            topk_indices, token_to_request, block_table, slots, topk_indices.stride(0), block_table.stride(0),
            K=k, BLOCK=block, ENTRIES=entries, **launch_options(tokens),
        )  # fmt: skip
        _count[(tokens,)](topk_indices, lens, topk_indices.stride(0), K=k, BLOCK=block, **launch_options(tokens))
    return slots, lens


indexer_state_save = compressor_state_save
"""The indexer's state rows: the same steps, 512 wide."""
indexer_compress_insert = compress_norm_rope_insert
"""The indexer's entries: the same steps at width 128."""
