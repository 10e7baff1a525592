"""Sparse attention with FlashMLA: decode over pages, prompts over a gathered workspace, V3.2's decode."""

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import HEAD_DIM
from torch.nn.functional import pad

from dsv4bench.providers.step import Split, once, split_step
from dsv4bench.providers.vllm.library import Library
from dsv4bench.providers.vllm.pages import by_head
from dsv4bench.providers.vllm.prompts import Prompts, attend_prompts
from dsv4bench.providers.vllm.query import padded_heads

INDEX_ALIGNMENT = 128
"""FlashMLA takes index lists of a multiple of this width."""
FEW_HEADS = 32
"""Fewer local heads than this make vLLM hand all tokens of a V3.2 step to FlashMLA as one row of its batch."""
Result = tuple[torch.Tensor, torch.Tensor]


def sparse_attention(
    library: Library,
    variant: str,
    *,
    q: torch.Tensor,
    window_cache: PagedCache | None,
    window_indices: torch.Tensor | None,
    window_lens: torch.Tensor | None,
    compressed_cache: PagedCache | None,
    compressed_indices: torch.Tensor | None,
    compressed_lens: torch.Tensor | None,
    sink: torch.Tensor | None,
    softmax_scale: float,
    query_start: torch.Tensor | None = None,
    seq_lens: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    window_block_table: torch.Tensor | None = None,
    topk_indices: torch.Tensor | None = None,
    candidate_lens: torch.Tensor | None = None,
    ratio: int | None = None,
) -> Result:
    """Attention as vLLM divides it: decoding requests over the pages, prompts over what is gathered from them.

    Prompts need the step's metadata; without it all tokens go over the pages, which gives the same result. The plan of
    the decode kernel is made at the first call for given lengths and reused, as vLLM does for all layers of a step. A
    c4a layer makes its lengths anew; what they will be follows from the candidates of the step, so its plan hangs on
    those.

    A token of a step sees at least itself, and lists end in −1. Where the arguments aren't known to be a step's, small
    kernels that vLLM doesn't need see to what it doesn't promise: 0 and an LSE of −∞ for a token that sees nothing,
    where FlashMLA gives +∞ or, in V3.2, anything; and V3.2's lengths, which it isn't handed.
    """
    if not len(q):
        return q.new_empty((0, q.shape[1], HEAD_DIM)), q.new_empty((0, q.shape[1]), dtype=torch.float32)
    split = split_step(query_start, seq_lens)
    if window_cache is None:
        assert compressed_cache is not None
        assert compressed_indices is not None
        assert compressed_lens is not None
        if split is None:
            compressed_indices = _cut(compressed_indices, compressed_lens)
        plan_for = compressed_lens if split is None or candidate_lens is None else candidate_lens
        rows = latent_rows(len(q), q.shape[1], split)
        o, lse = _latent_decode(library, q, rows, compressed_cache, compressed_indices, plan_for, softmax_scale)
        return (o, lse) if split else _emptied(o, lse, (compressed_indices, compressed_lens))
    assert window_indices is not None
    assert window_lens is not None
    boundary = split.decode_tokens if split and window_block_table is not None else len(q)
    heads, padded = q.shape[1], with_padding(q)
    out = padded.new_empty((len(q), padded.shape[1], HEAD_DIM))
    sinks = _padded_sink(sink, padded.shape[1])
    found: list[torch.Tensor] = []
    if boundary:
        entries = (window_cache, window_indices, window_lens, compressed_cache, compressed_indices, compressed_lens)
        lens = candidate_lens if split and candidate_lens is not None else compressed_lens
        lengths = (window_lens,) if compressed_cache is None or lens is None else (lens, window_lens)
        found.append(_decode(library, padded, out, boundary, *entries, lengths, sinks, softmax_scale))
    if boundary < len(q):
        assert split is not None
        assert query_start is not None
        assert seq_lens is not None
        assert window_block_table is not None
        prompts = Prompts(split, query_start, seq_lens, window_block_table, block_table, topk_indices, candidate_lens)
        caches = (window_cache, compressed_cache, ratio or 0)
        arguments = (padded, out, *caches, prompts, sinks, softmax_scale)
        found += attend_prompts(library, variant, *arguments)
    lse = (found[0] if len(found) == 1 else torch.cat(found))[:, :heads]
    if split:
        return out[:, :heads], lse
    seen = [(window_indices, window_lens)]
    if compressed_indices is not None and compressed_lens is not None:
        seen.append((compressed_indices, compressed_lens))
    return _emptied(out[:, :heads], lse, *seen)


def _cut(indices: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """Index lists with −1 from their lengths on."""
    column = torch.arange(indices.shape[1], device=indices.device)
    return torch.where(column < lens[:, None], indices, -1)


def _emptied(o: torch.Tensor, lse: torch.Tensor, *lists: Result) -> Result:
    """Output 0 and an LSE of −∞ for tokens that have no entry in any list, each of indices [T, n] and lengths [T]."""
    seen = torch.zeros(len(o), dtype=torch.bool, device=o.device)
    for indices, lens in lists:
        column = torch.arange(indices.shape[1], device=indices.device)
        seen |= ((indices >= 0) & (column < lens[:, None])).any(1)
    return o.masked_fill(~seen[:, None, None], 0), lse.masked_fill(~seen[:, None], float("-inf"))


def with_padding(q: torch.Tensor) -> torch.Tensor:
    """Queries with the heads that FlashMLA wants, [T, 64 or 128, dim].

    If ``q`` is the head of such a tensor already, as vLLM's own ``query_norm_rope_insert`` returns it, that is found
    again; other queries are copied into zeros, which vLLM never has to do.
    """
    tokens, heads, dim = q.shape
    wanted = padded_heads(heads)
    if wanted == heads:
        return q if q.is_contiguous() else q.contiguous()
    room = q.untyped_storage().nbytes() // q.element_size() - q.storage_offset()
    if q.stride() == (wanted * dim, dim, 1) and room >= tokens * wanted * dim:
        return q.as_strided((tokens, wanted, dim), q.stride())
    return pad(q, (0, 0, 0, wanted - heads))


def _padded_sink(sink: torch.Tensor | None, heads: int) -> torch.Tensor | None:
    """Sinks with −∞ for padding heads, made once per weight."""
    if sink is None or len(sink) == heads:
        return sink
    weight = sink
    return once("sink", (weight,), lambda: pad(weight, (0, heads - len(weight)), value=float("-inf")), heads)


def _decode(
    library: Library,
    q: torch.Tensor,
    out: torch.Tensor,
    tokens: int,
    window_cache: PagedCache,
    window_indices: torch.Tensor,
    window_lens: torch.Tensor,
    compressed_cache: PagedCache | None,
    compressed_indices: torch.Tensor | None,
    compressed_lens: torch.Tensor | None,
    plan_for: tuple[torch.Tensor, ...],
    sink: torch.Tensor | None,
    softmax_scale: float,
) -> torch.Tensor:
    """Write the leading tokens' outputs by the plan for given lengths; returns their LSE [tokens, padded heads]."""
    extra: dict[str, torch.Tensor] = {}
    width = 0
    if compressed_cache is not None and compressed_indices is not None and compressed_lens is not None:
        listed = _aligned(compressed_indices[:tokens])
        width = listed.shape[1]
        extra = {
            "extra_k_cache": by_head(compressed_cache),
            "extra_indices_in_kvcache": listed.unsqueeze(1),
            "extra_topk_length": compressed_lens[:tokens],
        }
    _, lse = library.function("sparse_decode")(
        q=q[:tokens].unsqueeze(1),
        k_cache=by_head(window_cache),
        block_table=None,
        cache_seqlens=None,
        head_dim_v=HEAD_DIM,
        tile_scheduler_metadata=_plan(library, plan_for, tokens, q.shape[1], width),
        softmax_scale=softmax_scale,
        is_fp8_kvcache=True,
        indices=window_indices[:tokens].unsqueeze(1),
        attn_sink=sink,
        topk_length=window_lens[:tokens],
        out=out[:tokens].unsqueeze(1),
        **extra,
    )
    found: torch.Tensor = lse
    return found.squeeze(-1)


def _plan(library: Library, lens: tuple[torch.Tensor, ...], *shapes: int) -> object:
    """The kernel's plan for given lengths: empty when new, filled by the call that it is handed to."""
    fresh = library.function("decode_plan")
    return once("plan", lens, lambda: fresh()[0], *shapes)


def _aligned(indices: torch.Tensor) -> torch.Tensor:
    """Index lists of a width that FlashMLA takes; a copy unless they have one already."""
    missing = -indices.shape[1] % INDEX_ALIGNMENT
    return pad(indices, (0, missing), value=-1) if missing else indices


def latent_rows(tokens: int, heads: int, split: Split | None) -> tuple[int, int]:
    """How vLLM divides the tokens of V3.2's decode: batch rows, and query tokens of a row.

    A row per request, with its drafted tokens; few heads take all tokens as one row. Tokens of which neither is known
    have a row each.
    """
    if split is None or split.decode_tokens < tokens:
        return tokens, 1
    if heads < FEW_HEADS:
        return 1, tokens
    return (split.decodes, split.drafts) if split.decodes * split.drafts == tokens else (tokens, 1)


def _latent_decode(
    library: Library,
    q: torch.Tensor,
    rows: tuple[int, int],
    cache: PagedCache,
    indices: torch.Tensor,
    plan_for: torch.Tensor,
    softmax_scale: float,
) -> Result:
    """V3.2: all tokens over the pages of 656 B entries, which is vLLM's decode.

    The kernel takes no lengths here; lists have to end in −1, as ``index_map`` leaves them. Queries of other than 64 or
    128 heads are padded by a copy, as vLLM does too.
    """
    heads, padded = q.shape[1], with_padding(q)
    indices = _aligned(indices)
    out, lse = library.function("sparse_decode")(
        q=torch.unflatten(padded, 0, rows),
        k_cache=by_head(cache),
        block_table=None,
        cache_seqlens=None,
        head_dim_v=HEAD_DIM,
        tile_scheduler_metadata=_plan(library, (plan_for,), *rows, padded.shape[1], indices.shape[1]),
        softmax_scale=softmax_scale,
        is_fp8_kvcache=True,
        indices=torch.unflatten(indices, 0, rows),
    )
    return out.flatten(0, 1)[:, :heads], lse.transpose(1, 2).flatten(0, 1)[:, :heads]
