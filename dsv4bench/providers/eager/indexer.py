"""The indexer: quantised queries and keys, logits over every visible entry, top-k, and slots of the chosen ones."""

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import INDEX_DIM
from torch.nn.functional import layer_norm

from dsv4bench.providers.eager.entries import (
    dequantize_fp4,
    exp2_int,
    quantize_fp4,
    quantize_fp8,
    read_pages,
    write_entries,
)
from dsv4bench.providers.eager.products import bmm_fp32, operand_dtype
from dsv4bench.providers.eager.rotary import rotate
from dsv4bench.providers.eager.workspace import chunks


def indexer_key_insert(
    *,
    index_k: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: PagedCache,
    slots: torch.Tensor,
    eps: float,
) -> None:
    """V3.2: layer norm, half-split rotation of the first 64 dims, insert.

    Args:
        index_k: [T, 128].
        norm_weight: [128].
        norm_bias: [128].
        positions: int64 [T].
        cos_sin: fp32 [rows, 64].
        cache: written at ``slots``.
        slots: int64 [T]; −1 writes nothing.
        eps: of the norm.
    """
    normed = layer_norm(index_k.float(), (index_k.shape[-1],), norm_weight.float(), norm_bias.float(), eps)
    write_entries(cache, slots, rotate(normed, positions, cos_sin, style="half"))


def indexer_query_rope_quant(
    *,
    index_q: torch.Tensor,
    head_weights: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    precision: str,
    rope_style: str,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Rotate and quantise index queries; scale the head weights.

    Args:
        index_q: [T, HI, 128].
        head_weights: [T, HI].
        positions: int64 [T].
        cos_sin: fp32 [rows, 64].
        precision: ``fp8``, ``fp4``, ``bf16`` or ``fp32``.
        rope_style: ``interleaved`` (last 64 dims) or ``half`` (first 64 dims).

    Returns:
        Values, scales (None except for ``fp4``) and fp32 weights [T, HI], which carry the query's scale for ``fp8``.
    """
    rotated = rotate(index_q, positions, cos_sin, style=rope_style)
    weights = head_weights.float() * (index_q.shape[-1] * index_q.shape[-2]) ** -0.5
    if precision == "fp8":
        values, exponent = quantize_fp8(rotated, INDEX_DIM)
        return values, None, weights * exp2_int(exponent).squeeze(-1)
    if precision == "fp4":
        packed, exponent = quantize_fp4(rotated)
        return packed, (exponent + 127).to(torch.uint8), weights
    return rotated.to({"bf16": torch.bfloat16, "fp32": torch.float32}[precision]), None, weights


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
) -> torch.Tensor:
    """Score every entry of a token's request: ``Σ_h w_h · relu(q_h · k)``.

    Keys are dequantised once per request, a group of pages at a time, then repeated for the request's tokens.

    Args:
        index_q_values: e4m3, bf16 or fp32 [T, HI, 128], or e2m1 pairs uint8 [T, HI, 64].
        index_q_scales: ue8m0 [T, HI, 4] of e2m1 pairs, else None.
        index_weights: fp32 [T, HI].
        indexer_cache: index keys.
        block_table: int32 [B, n].
        token_to_request: int32 [T].
        candidate_lens: int32 [T]; unused, columns beyond are unspecified.
        max_candidates: width of the result.

    Returns:
        fp32 [T, max_candidates].
    """
    device, entries = indexer_cache.device, indexer_cache.entries
    dtype = operand_dtype(index_q_values.dtype, indexer_cache.format.precision, device)
    if index_q_scales is None:
        queries = index_q_values.to(dtype)
    else:
        queries = dequantize_fp4(index_q_values, index_q_scales, dtype)
    tokens, heads, dim = queries.shape
    weights = index_weights.unsqueeze(1)
    logits = torch.empty(tokens, max_candidates, dtype=torch.float32, device=device)
    table = block_table[:, : -(-max_candidates // entries)].long().clamp(0, indexer_cache.num_pages - 1)
    key_bytes = entries * dim * 12
    for pages in chunks(table.shape[1], table.shape[0] * key_bytes, device):
        keys = read_pages(indexer_cache, table[:, pages], dtype).flatten(1, 2)
        columns = slice(pages.start * entries, min(pages.stop * entries, max_candidates))
        keys = keys[:, : columns.stop - columns.start].transpose(1, 2)
        for part in chunks(tokens, keys.shape[2] * (dim * dtype.itemsize + heads * 8), device):
            scores = bmm_fp32(queries[part], keys.index_select(0, token_to_request[part]))
            logits[part, columns] = torch.bmm(weights[part], scores.relu_()).squeeze(1)
    return logits


def topk(*, logits: torch.Tensor, candidate_lens: torch.Tensor, k: int) -> torch.Tensor:
    """The k entries with the highest logits.

    Args:
        logits: fp32 [T, width]; columns from ``candidate_lens`` on may hold anything.
        candidate_lens: int32 [T].
        k: entries to select.

    Returns:
        int32 [T, k]: request-local indices, best first, then −1.
    """
    tokens, width = logits.shape
    column = torch.arange(width, device=logits.device)
    lens = candidate_lens.unsqueeze(1)
    chosen = torch.full((tokens, k), -1, dtype=torch.int32, device=logits.device)
    kept = min(k, width)
    for part in chunks(tokens, 12 * width, logits.device):
        visible = logits[part].masked_fill(column >= lens[part], float("-inf"))
        best = visible.topk(kept, dim=1).indices
        chosen[part, :kept] = best.masked_fill(column[:kept] >= lens[part], -1).int()
    return chosen


def index_map(
    *, topk_indices: torch.Tensor, token_to_request: torch.Tensor, block_table: torch.Tensor, entries: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Request-local indices to cache slots.

    Args:
        topk_indices: int32 [T, k]; −1 invalid.
        token_to_request: int32 [T].
        block_table: int32 [B, n].
        entries: entries per page.

    Returns:
        Slots int32 [T, k], −1 where the index was, and how many are valid, int32 [T].
    """
    valid = topk_indices >= 0
    index = topk_indices.clamp(min=0).long()
    page = block_table[token_to_request].long().gather(1, index // entries)
    slots = (page * entries + index % entries).masked_fill(~valid, -1)
    return slots.int(), valid.sum(dim=1, dtype=torch.int32)
