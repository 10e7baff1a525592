"""What a cache precision costs in accuracy: figures, not verdicts.

Conformance compares a provider with the reference over the *same* quantised cache. These figures compare it with
unquantised caches instead, so they say how good fp8 and fp4 are, whoever computes them.
"""

from collections.abc import Mapping
from typing import Any

import torch
from dsv4_kernels import reference
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import read_entries, write_entries
from dsv4_kernels.formats import EntryFormat, entry_format

from dsv4bench.model.shape import LayerKind, ModelShape
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.verify.entries import exact_format
from dsv4bench.verify.quantised import snr_db

ENTRIES_LIMIT = 16_384
"""Most entries that figures are measured over; more cost time and change little."""
TOKENS = 16
_PAGE = 64
_INSERTS = {
    LayerKind.SWA: "query_norm_rope_insert",
    LayerKind.C4A: "compress_norm_rope_insert",
    LayerKind.C128A: "compress_norm_rope_insert",
    LayerKind.DSA: "latent_insert",
}
"""Stage that writes the entries which are attended."""


def format_accuracy(
    providers: Mapping[str, object],
    shape: ModelShape,
    kind: LayerKind,
    precision: CachePrecision,
    *,
    context: int,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> dict[str, dict[str, float]]:
    """Accuracy of a layer's cache precisions against fp32 caches of the same normal entries.

    Args:
        providers: stage name → provider, for the stages that it has; the reference fills in the others.
        shape: the model.
        kind: layer kind.
        precision: of the caches.
        context: sequence length; entries beyond ``ENTRIES_LIMIT`` are left out.
        device: where.
        seed: of entries and queries.

    Returns:
        figures by stage: ``snr_db`` (of the entries), ``recall`` (share of the fp32 top-k that is selected, mean over
        tokens) and ``lse_error_fp32`` (largest |LSE − LSE over fp32 entries|).
    """
    generator = torch.Generator(device).manual_seed(seed)
    figures: dict[str, dict[str, float]] = {}
    entries = min(shape.entries(kind, context), ENTRIES_LIMIT)
    if kind.has_indexer and entries:
        figures |= _indexer(providers, shape, kind, precision.indexer, entries, generator)
    figures |= _attention(providers, shape, kind, precision.main, entries, generator)
    return figures


def _indexer(
    providers: Mapping[str, object],
    shape: ModelShape,
    kind: LayerKind,
    precision: str,
    entries: int,
    generator: torch.Generator,
) -> dict[str, dict[str, float]]:
    device = generator.device
    keys = torch.randn((entries, shape.index_dim), generator=generator, device=device)
    index_q = torch.randn((TOKENS, shape.index_heads, shape.index_dim), generator=generator, device=device)
    head_weights = torch.randn((TOKENS, shape.index_heads), generator=generator, device=device)
    stored = entry_format("indexer", precision)
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    index_q, head_weights = index_q.to(dtype), head_weights.to(dtype)
    lossy, cache = _select(providers, shape, kind, stored, keys, index_q, head_weights)
    exact, _ = _select({}, shape, kind, exact_format(stored), keys, index_q.float(), head_weights.float())
    count = min(shape.index_topk, entries)
    shares = [
        len(set(a) & set(b)) / count for a, b in zip(lossy[:, :count].tolist(), exact[:, :count].tolist(), strict=True)
    ]
    insert = "indexer_key_insert" if kind is LayerKind.DSA else "indexer_compress_insert"
    snr = snr_db(read_entries(cache, torch.arange(entries, device=device)), keys)
    return {"topk": {"recall": sum(shares) / len(shares)}, insert: {"snr_db": snr}}


def _select(
    providers: Mapping[str, object],
    shape: ModelShape,
    kind: LayerKind,
    stored: EntryFormat,
    keys: torch.Tensor,
    index_q: torch.Tensor,
    head_weights: torch.Tensor,
) -> tuple[torch.Tensor, PagedCache]:
    """Indices that the indexer selects over keys kept in a format, and the cache that holds them."""
    device, tokens, entries = keys.device, len(index_q), len(keys)
    cache = _cache(stored, keys)
    values, scales, weights = _call(
        providers,
        "indexer_query_rope_quant",
        index_q=index_q,
        head_weights=head_weights,
        positions=torch.zeros(tokens, dtype=torch.int64, device=device),
        cos_sin=torch.cat((torch.ones(1, 32), torch.zeros(1, 32)), dim=1).to(device),
        precision=stored.precision,
        rope_style="half" if kind is LayerKind.DSA else "interleaved",
    )
    lens = torch.full((tokens,), entries, dtype=torch.int32, device=device)
    logits = _call(
        providers,
        "indexer_logits",
        index_q_values=values,
        index_q_scales=scales,
        index_weights=weights,
        indexer_cache=cache,
        block_table=torch.arange(cache.num_pages, dtype=torch.int32, device=device)[None],
        token_to_request=torch.zeros(tokens, dtype=torch.int32, device=device),
        candidate_lens=lens,
        max_candidates=entries,
    )
    chosen: torch.Tensor = _call(providers, "topk", logits=logits, candidate_lens=lens, k=shape.index_topk)
    return chosen, cache


def _attention(
    providers: Mapping[str, object],
    shape: ModelShape,
    kind: LayerKind,
    precision: str,
    entries: int,
    generator: torch.Generator,
) -> dict[str, dict[str, float]]:
    device = generator.device
    dsa = kind is LayerKind.DSA
    stored = entry_format("latent" if dsa else "main", precision)
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    attended = min(entries, shape.index_topk) if kind.has_indexer else entries
    parts = {"window": 0 if dsa else shape.sliding_window, "compressed": attended}
    q = torch.randn((TOKENS, shape.num_heads, shape.kv_dim), generator=generator, device=device)
    sink = None if dsa else torch.randn(shape.num_heads, generator=generator, device=device)
    arguments: dict[str, Any] = {"sink": sink, "softmax_scale": shape.softmax_scale}
    exact_arguments = dict(arguments)
    snr = 200.0
    for part, count in parts.items():
        values = torch.randn((count, stored.dim), generator=generator, device=device)
        for format, target in ((stored, arguments), (exact_format(stored), exact_arguments)):
            target |= _source(part, format, values)
        if count:
            decoded = read_entries(arguments[f"{part}_cache"], torch.arange(count, device=device))
            snr = min(snr, snr_db(decoded, values))
    _, lse = _call(providers, "sparse_attention", q=q.to(dtype), **arguments)
    _, right = _call({}, "sparse_attention", q=q.to(dtype).float(), **exact_arguments)
    error = float((lse.float() - right).abs().max())
    return {"sparse_attention": {"lse_error_fp32": error}, _INSERTS[kind]: {"snr_db": snr}}


def _source(part: str, format: EntryFormat, values: torch.Tensor) -> dict[str, Any]:
    """Cache, indices and lengths under which every token attends all of the values; None where there are none."""
    names = (f"{part}_cache", f"{part}_indices", f"{part}_lens")
    if not len(values):
        return dict.fromkeys(names)
    indices = torch.arange(len(values), dtype=torch.int32, device=values.device).expand(TOKENS, -1).contiguous()
    width = -(-len(values) // 128) * 128
    indices = torch.nn.functional.pad(indices, (0, width - len(values)), value=-1)
    lens = torch.full((TOKENS,), len(values), dtype=torch.int32, device=values.device)
    return dict(zip(names, (_cache(format, values), indices, lens), strict=True))


def _cache(format: EntryFormat, values: torch.Tensor) -> PagedCache:
    pages = -(-len(values) // _PAGE)
    raw = torch.zeros((pages, format.page_bytes(_PAGE)), dtype=torch.uint8, device=values.device)
    cache = PagedCache(raw, format, _PAGE)
    write_entries(cache, torch.arange(len(values), device=values.device), values)
    return cache


def _call(providers: Mapping[str, object], stage: str, **arguments: Any) -> Any:
    owner = providers.get(stage)
    method = getattr(owner, stage, None) if owner is not None else None
    return (method or getattr(reference, stage))(**arguments)
