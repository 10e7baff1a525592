"""The indexer: quantised queries, logits over compressed keys, top-k, and the way from indices to slots."""

import torch

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import dequantize_fp4, power_of_two, quantize_fp4, quantize_fp8, read_entries, ue8m0
from dsv4_kernels.reference.precision import chunk_rows, wide
from dsv4_kernels.rope import rotate


def indexer_query_rope_quant(
    *,
    index_q: torch.Tensor,
    head_weights: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    precision: str,
    rope_style: str,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Rotate and quantise indexer queries, scale the head weights.

    Args:
        index_q: [T, HI, 128].
        head_weights: [T, HI].
        positions: int64 [T].
        cos_sin: fp32 [positions, 64].
        precision: ``fp8`` (one scale per token and head, folded into the weights), ``fp4`` (a ue8m0 scale per 32
            elements), ``bf16``, ``fp32`` or ``fp64``.
        rope_style: ``interleaved`` (last 64 dims) or ``half`` (first 64 dims).

    Returns:
        ``index_q_values``, ``index_q_scales`` (fp4 only, else None) and ``index_weights`` fp32 [T, HI].
    """
    heads, dim = index_q.shape[1:]
    rotated = rotate(wide(index_q), positions, cos_sin, style=rope_style)
    weights = wide(head_weights) * (dim**-0.5 * heads**-0.5)
    if precision == "fp8":
        values, exponents = quantize_fp8(rotated.to(torch.bfloat16), dim)
        return values, None, weights.float() * power_of_two(exponents[..., 0])
    if precision == "fp4":
        packed, exponents = quantize_fp4(rotated.to(torch.bfloat16))
        return packed, ue8m0(exponents), weights.float()
    dtypes = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
    return rotated.to(dtypes[precision]), None, weights


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
    """Score of every visible entry: ``sum over heads of weight · relu(q · k)``.

    Args:
        index_q_values: as ``indexer_query_rope_quant`` returns them.
        index_q_scales: likewise.
        index_weights: fp32 [T, HI].
        indexer_cache: index keys.
        block_table: int32 [B, n], pages per request.
        token_to_request: int32 [T].
        candidate_lens: int32 [T], visible entries per token.
        max_candidates: width of the result.

    Returns:
        fp32 [T, max_candidates] (float64 for float64 queries), −inf from ``candidate_lens`` on.
    """
    if index_q_scales is not None:
        queries = dequantize_fp4(index_q_values, index_q_scales.int() - 127)
    else:
        queries = wide(index_q_values)
    tokens, heads, _ = queries.shape
    logits = queries.new_full((tokens, max_candidates), float("-inf"))
    weights = index_weights.to(queries.dtype)
    for request in sorted(set(token_to_request.tolist())):
        mine = torch.nonzero(token_to_request == request).flatten()
        length = min(int(candidate_lens[mine].max()), max_candidates)
        if length <= 0:
            continue
        keys = read_entries(indexer_cache, _entry_slots(block_table[request], length, indexer_cache.entries))
        for part in torch.split(mine, chunk_rows(heads * length)):
            scores = torch.relu(queries[part] @ keys.to(queries.dtype).T)
            row = torch.einsum("th,thn->tn", weights[part], scores)
            beyond = torch.arange(length, device=row.device) >= candidate_lens[part, None]
            logits[part, :length] = row.masked_fill(beyond, float("-inf"))
    return logits


def _entry_slots(table: torch.Tensor, length: int, entries: int) -> torch.Tensor:
    """Slots of entries 0 … length − 1 of the request whose block-table row is given."""
    index = torch.arange(length, device=table.device)
    return table.long()[index // entries] * entries + index % entries


def topk(*, logits: torch.Tensor, candidate_lens: torch.Tensor, k: int) -> torch.Tensor:
    """The k best candidates of every token.

    Args:
        logits: fp32 [T, ≥ max candidates]; columns from ``candidate_lens`` on may hold anything.
        candidate_lens: int32 [T].
        k: entries to select.

    Returns:
        int32 [T, k]: request-local indices in no particular order, then −1.
    """
    width = logits.shape[1]
    column = torch.arange(width, device=logits.device)
    visible = column < candidate_lens[:, None]
    order = torch.topk(logits.masked_fill(~visible, float("-inf")), min(k, width), dim=-1).indices
    chosen = torch.where(order < candidate_lens[:, None], order, -1).int()
    chosen = torch.nn.functional.pad(chosen, (0, k - chosen.shape[1]), value=-1)
    return _valid_first(chosen)


def _valid_first(indices: torch.Tensor) -> torch.Tensor:
    """Move −1 behind the valid indices, keeping their order."""
    return indices.gather(1, (indices < 0).int().argsort(dim=1, stable=True))


def index_map(
    *, topk_indices: torch.Tensor, token_to_request: torch.Tensor, block_table: torch.Tensor, entries: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Request-local entry indices to cache slots.

    Args:
        topk_indices: int32 [T, k], −1 invalid.
        token_to_request: int32 [T].
        block_table: int32 [B, n].
        entries: entries per page.

    Returns:
        ``compressed_indices`` int32 [T, k] in the same columns, and ``compressed_lens`` int32 [T], the valid ones.
    """
    valid = topk_indices >= 0
    index = topk_indices.clamp_min(0).long()
    pages = block_table.long()[token_to_request.long()[:, None], index // entries]
    slots = torch.where(valid, pages * entries + index % entries, -1)
    return slots.int(), valid.sum(dim=1).int()
