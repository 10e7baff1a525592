"""The indexer: queries, logits of a decode step over pages, logits of a prompt over gathered keys (DeepGEMM)."""

import functools
from dataclasses import dataclass

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import INDEX_DIM

from dsv4bench.providers.step import Split, following, once, split_step, zeros
from dsv4bench.providers.vllm.choice import without_cute
from dsv4bench.providers.vllm.library import Library
from dsv4bench.providers.vllm.pages import by_entry, by_head
from dsv4bench.providers.vllm.release import KNOWN, NATIVE_DRAFTS

_QUERY_MODULE = "vllm.models.deepseek_v4.common.ops.fused_indexer_q"


def query_rope_quant(
    library: Library,
    variant: str,
    *,
    index_q: torch.Tensor,
    head_weights: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    precision: str,
    rope_style: str,
) -> tuple[torch.Tensor, None, torch.Tensor]:
    """Rotate and quantise the indexer's queries; their scales go into the head weights.

    V4 has the CuTe DSL and Triton, V3.2 (``rope_style`` half) Triton alone.
    """
    if precision != "fp8":
        raise NotImplementedError(f"the adapter of vLLM's indexer covers fp8, not {precision}")
    scales = (INDEX_DIM**-0.5, index_q.shape[1] ** -0.5)
    if not len(positions):
        return index_q.to(torch.float8_e4m3fn), None, head_weights.float()
    if rope_style == "half":
        values, weights = library.function("latent_indexer_query")(
            positions=positions,
            q=index_q,
            cos_sin_cache=cos_sin,
            weights=head_weights,
            softmax_scale=scales[0],
            head_scale=scales[1],
            is_neox=True,
        )
        return values, None, weights
    with without_cute(library, variant, _QUERY_MODULE):
        values, weights = library.function("indexer_query")(
            positions=positions,
            index_q=index_q,
            index_q_cos_sin_cache=cos_sin,
            index_weights=head_weights,
            index_weights_softmax_scale=scales[0],
            index_weights_head_scale=scales[1],
            use_fp4=False,
        )
    return values, None, weights


def logits(
    library: Library,
    *,
    index_q_values: torch.Tensor,
    index_q_scales: torch.Tensor | None,
    index_weights: torch.Tensor,
    indexer_cache: PagedCache,
    block_table: torch.Tensor,
    token_to_request: torch.Tensor,
    candidate_lens: torch.Tensor,
    max_candidates: int,
    query_start: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Paged logits for the decoding requests, ragged ones for prompts.

    Once per step, outside: the schedule over multiprocessors and, where a request has more query tokens than the kernel
    takes, a block table with a row per token. A step that is either all decode or a single prompt is returned as vLLM
    made it; otherwise the parts are copied into one tensor, since here logits of all tokens are one. vLLM runs several
    prompts through one ragged call, whose columns count through all of them; a call per prompt gives columns that count
    from its own first entry. vLLM also cuts prompts where logits would exceed a budget; here nothing is cut.
    """
    tokens = len(candidate_lens)
    if not tokens or not max_candidates:
        return index_weights.new_empty((tokens, max_candidates))
    split = split_step(query_start, seq_lens)
    boundary = split.decode_tokens if split else tokens
    if boundary == tokens:
        rows = (index_q_values, index_weights, candidate_lens)
        plan = _plan(library, block_table, token_to_request, candidate_lens, indexer_cache.entries, tokens, split)
        return _decode(library, *rows, indexer_cache, plan, max_candidates)
    assert split is not None
    pieces: list[tuple[slice, torch.Tensor]] = []
    if boundary:
        part = slice(0, boundary)
        rows = (index_q_values[part], index_weights[part], candidate_lens[part])
        plan = _plan(library, block_table, token_to_request, candidate_lens, indexer_cache.entries, boundary, split)
        pieces.append((part, _decode(library, *rows, indexer_cache, plan, max_candidates)))
    visible = once("visible", (candidate_lens,), lambda: candidate_lens.tolist())
    for request in range(split.decodes, len(split.query_lens)):
        part = split.tokens_of(request, request + 1)
        rows = (index_q_values[part], index_weights[part], candidate_lens[part])
        table, entries = block_table[request : request + 1], visible[part.stop - 1] if part.stop > part.start else 0
        if entries:
            pieces.append((part, _prefill(library, *rows, indexer_cache, table, entries, max_candidates)))
    if len(pieces) == 1 and pieces[0][0] == slice(0, tokens):
        return pieces[0][1]
    together = index_weights.new_empty((tokens, max_candidates))
    for part, found in pieces:
        together[part] = found[:, :max_candidates]
    return together


@dataclass(frozen=True)
class Plan:
    """How a decode step's logits are divided, worked out once per step.

    Attributes:
        drafts: query tokens of a row of the batch.
        block_table: int32 [rows, pages].
        schedule: of DeepGEMM, int32 [multiprocessors + 1, 2].
    """

    drafts: int
    block_table: torch.Tensor
    schedule: torch.Tensor


def _plan(
    library: Library,
    block_table: torch.Tensor,
    token_to_request: torch.Tensor,
    candidate_lens: torch.Tensor,
    entries: int,
    tokens: int,
    split: Split | None,
) -> Plan:
    """The plan for the leading ``tokens`` of a step."""
    requests = split.decodes if split else len(block_table)
    drafts = split.drafts if split else int(_a_token_each(token_to_request, requests))
    if drafts not in NATIVE_DRAFTS[library.release or KNOWN[-1]] or drafts * requests != tokens:
        drafts = 1
        requests_of = once("requests", (token_to_request,), lambda: token_to_request[:tokens].long(), tokens)
        table = following("table", (token_to_request, block_table), lambda: block_table[requests_of], tokens)
    else:
        table = block_table[:requests]

    def schedule() -> torch.Tensor:
        found: torch.Tensor = library.function("paged_schedule")(
            context_lens=candidate_lens[:tokens].view(-1, drafts),
            block_size=entries,
            num_sms=torch.cuda.get_device_properties(candidate_lens.device).multi_processor_count,
        )
        return found

    return Plan(drafts, table, once("schedule", (candidate_lens,), schedule, tokens, drafts, entries))


def _decode(
    library: Library,
    values: torch.Tensor,
    weights: torch.Tensor,
    candidate_lens: torch.Tensor,
    cache: PagedCache,
    plan: Plan,
    width: int,
) -> torch.Tensor:
    found: torch.Tensor = library.function("paged_logits")(
        q=(values.view(-1, plan.drafts, *values.shape[1:]), None),
        kv_cache=by_head(cache),
        weights=weights,
        context_lens=candidate_lens.view(-1, plan.drafts),
        block_tables=plan.block_table,
        schedule_metadata=plan.schedule,
        max_model_len=width,
        **({"clean_logits": False} if library.takes("paged_logits", "clean_logits") else {}),
    )
    return found


def _a_token_each(token_to_request: torch.Tensor, requests: int) -> bool:
    """Whether token t is the only one of request t."""
    if len(token_to_request) != requests:
        return False
    return once("a token each", (token_to_request,), lambda: token_to_request.tolist() == list(range(requests)))


def _prefill(
    library: Library,
    values: torch.Tensor,
    weights: torch.Tensor,
    candidate_lens: torch.Tensor,
    cache: PagedCache,
    block_table: torch.Tensor,
    entries: int,
    width: int,
) -> torch.Tensor:
    """Logits of one prompt [q, width]: its keys are gathered from their pages into a contiguous workspace first."""
    keys = torch.empty((width, INDEX_DIM), dtype=torch.float8_e4m3fn, device=values.device)
    scales = torch.empty((width, 4), dtype=torch.uint8, device=values.device)
    library.function("gather_index_keys")(
        kv_cache=by_entry(cache),
        dst_k=keys,
        dst_scale=scales,
        block_table=block_table,
        cu_seq_lens=_bounds(entries, values.device),
    )
    compressed = library.takes("ragged_logits", "max_seqlen_k")
    found: torch.Tensor = library.function("ragged_logits")(
        q=(values, None),
        kv=(keys, scales.view(torch.float32).squeeze(-1)),
        weights=weights,
        cu_seqlen_ks=zeros(len(values), values.device),
        cu_seqlen_ke=candidate_lens,
        **({"max_seqlen_k": width} if compressed else {"clean_logits": False}),
    )
    return found


@functools.cache
def _bounds(entries: int, device: torch.device) -> torch.Tensor:
    """int32 [0, entries], kept so that graphs may point at it."""
    return torch.tensor([0, entries], dtype=torch.int32, device=device)
