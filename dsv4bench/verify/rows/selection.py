"""Rows about the indexer: what is selected, and what never may be."""

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import write_entries
from dsv4_kernels.formats import entry_format

from dsv4bench.model.shape import V4_FLASH, V4_PRO
from dsv4bench.verify.trial import Trial

H200_SMS = 132
TILE = 64
"""Keys of a tile of the paged logits kernels that split rows over SMs."""
NAN = float("nan")


def planar_scales(trial: Trial) -> None:
    """Every key has a scale of its own; a page read with its scales elsewhere selects other entries."""
    entries = max(512 if trial.setting.quick else 2048, 2 * trial.shape.index_topk)
    context = entries * trial.kind.ratio
    seqs = trial.sequences(requests=2, limit=context, start=[context - 1, context - 90])
    cache = seqs.caches["indexer_cache"]
    assert isinstance(cache, PagedCache)
    index = torch.arange(entries, device=trial.setting.device)
    for row in range(2):
        slots = seqs.tables["full"][row].long()[index // cache.entries] * cache.entries + index % cache.entries
        keys = trial.randn(entries, 128, salt=row, dtype=torch.float32)
        write_entries(cache, slots, keys * torch.exp2((index * 7 % 13 - 6).float())[:, None])
    values = seqs.step([1, 1])
    trial.layer(values, [stage.name for stage in trial.stages if stage.name != "indexer_compress_insert"])


def zero_contexts(trial: Trial) -> None:
    """A batch whose requests have nothing to select from: no fault, nothing selected, nothing attended."""
    shape = trial.shape
    precision = trial.setting.precision
    fmt = entry_format("indexer", precision.indexer)
    cache = PagedCache(
        torch.full((2, fmt.page_bytes(64)), 0xFF, dtype=torch.uint8, device=trial.setting.device), fmt, 64
    )
    for batch in (1, 31, 32, 64, 128):
        tokens = torch.arange(batch, dtype=torch.int32, device=trial.setting.device)
        lens = torch.zeros_like(tokens)
        table = torch.zeros((batch, 1), dtype=torch.int32, device=trial.setting.device)
        values, scales, weights = trial.plain(
            "indexer_query_rope_quant",
            index_q=trial.randn(batch, shape.index_heads, 128),
            head_weights=trial.randn(batch, shape.index_heads, salt=1),
            positions=torch.zeros(batch, dtype=torch.int64, device=trial.setting.device),
            cos_sin=torch.cat((torch.ones(1, 32), torch.zeros(1, 32)), 1).to(trial.setting.device),
            precision=precision.indexer,
            rope_style="interleaved",
        )
        (logits,) = trial.stage(
            "indexer_logits",
            index_q_values=values,
            index_q_scales=scales,
            index_weights=weights,
            indexer_cache=cache,
            block_table=table,
            token_to_request=tokens,
            candidate_lens=lens,
            max_candidates=64,
        )
        (chosen,) = trial.stage("topk", logits=torch.full_like(logits, NAN), candidate_lens=lens, k=shape.index_topk)
        trial.expect("topk", "empty selection", bool((chosen == -1).all()), f"batch {batch}: selects from nothing")
        _, count = trial.stage("index_map", topk_indices=chosen, token_to_request=tokens, block_table=table, entries=64)
        trial.expect("index_map", "empty lengths", bool((count == 0).all()), f"batch {batch}: lengths must be 0")


def short_contexts(trial: Trial) -> None:
    """Requests with fewer entries than top-k beside longer ones, one to five query tokens each."""
    lens = (3, 100, 511, 512, 513, 5000)
    for queries in (1, 3) if trial.setting.quick else range(1, 6):
        rows = [max(n - q, 0) for n in lens for q in range(queries - 1, -1, -1)]
        _select(trial, rows, V4_FLASH.index_topk, salt=queries, queries=queries)


def tile_edges(trial: Trial) -> None:
    """Rows that end on or just past a tile, a block of columns, or a tile on every SM."""
    edges = [1024, 1025, 8191, 8192, 8193, H200_SMS * TILE, H200_SMS * TILE + 1]
    for k in (V4_FLASH.index_topk, V4_PRO.index_topk):
        _select(trial, edges, k, salt=k)
    contexts = edges[:2] if trial.setting.quick else edges
    context = [n * trial.kind.ratio for n in contexts]
    seqs = trial.sequences(requests=len(context), limit=max(context), start=[n - 1 for n in context])
    feeds = ("input_projection", "qkv_norm", "indexer_weights_projection", "indexer_query_projection")
    trial.layer(seqs.step([1] * len(context)), (*feeds, "indexer_query_rope_quant", "indexer_logits", "topk"))


def pro_topk(trial: Trial) -> None:
    """V4-Pro selects 1,024 entries, not Flash's 512, and its 128 heads attend them all."""
    k = V4_PRO.index_topk
    chosen = _select(trial, [1025, 1500, 4096], k, salt=0)
    counts = (chosen >= 0).sum(1).tolist()
    trial.expect("topk", "selected entries", counts == [k] * 3, f"selects {counts} entries, expected {k} each")
    fmt = entry_format("main", trial.setting.precision.main)
    device = trial.setting.device
    cache = PagedCache(torch.empty((70, fmt.page_bytes(64)), dtype=torch.uint8, device=device), fmt, 64)
    write_entries(cache, torch.arange(70 * 64, device=device), trial.randn(70 * 64, 512, dtype=torch.float32))
    table = torch.arange(64, dtype=torch.int32, device=device).expand(3, 64)
    tokens = torch.arange(3, dtype=torch.int32, device=device)
    slots, lens = trial.stage("index_map", topk_indices=chosen, token_to_request=tokens, block_table=table, entries=64)
    trial.stage(
        "sparse_attention",
        q=trial.randn(3, V4_PRO.num_heads, 512, salt=3),
        window_cache=cache,
        window_indices=torch.arange(64 * 64, 64 * 64 + 3 * 128, dtype=torch.int32, device=device).view(3, 128),
        window_lens=torch.full((3,), 128, dtype=torch.int32, device=device),
        compressed_cache=cache,
        compressed_indices=slots,
        compressed_lens=lens,
        sink=trial.randn(V4_PRO.num_heads, salt=4, dtype=torch.float32),
        softmax_scale=V4_PRO.softmax_scale,
    )


def _select(trial: Trial, rows: list[int], k: int, *, salt: int, queries: int = 1) -> torch.Tensor:
    """Run top-k and index map on random logits with NaN past the end; returns the indices."""
    device = trial.setting.device
    lens = torch.tensor(rows, dtype=torch.int32, device=device)
    width = max(rows)
    logits = trial.randn(len(rows), width, salt=salt, dtype=torch.float32)
    logits = torch.where(torch.arange(width, device=device) < lens[:, None], logits, NAN)
    (chosen,) = trial.stage("topk", logits=logits, candidate_lens=lens, k=k)
    requests = len(rows) // queries
    table = torch.randperm(requests * (-(-width // 64)), generator=torch.Generator().manual_seed(salt))
    trial.stage(
        "index_map",
        topk_indices=chosen,
        token_to_request=torch.arange(requests, dtype=torch.int32, device=device).repeat_interleave(queries),
        block_table=table.view(requests, -1).int().to(device),
        entries=64,
    )
    return torch.as_tensor(chosen)
