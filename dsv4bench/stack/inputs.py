"""Inputs of one step: fresh activations and a fresh page order from a seed, over caches that stay."""

from collections.abc import Mapping
from typing import Any

import torch
from dsv4_kernels.weight import Weight

from dsv4bench.model.shape import LayerKind, ModelShape
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.scenario.workload import Workload
from dsv4bench.stack.caches import LayerCaches
from dsv4bench.stack.metadata import BlockTables, step_metadata
from dsv4bench.stack.pages import FULL_BLOCK, page_spans
from dsv4bench.stack.selection import PLANTED, plant

Values = dict[str, Any]
"""Tensors, caches and scalars of a layer by the names of the stage graph."""


def capacity(kind: LayerKind, shape: ModelShape, workloads: list[Workload], *, slack: float = 1.25) -> dict[str, int]:
    """Blocks of each group that any of the workloads fits in; slack makes the pages drawn differ between inputs."""
    need: dict[str, int] = {}
    for workload in workloads:
        total: dict[str, int] = {}
        for seq_len, query_len in zip(workload.seq_lens, workload.query_lens, strict=True):
            for group, span in page_spans(kind, shape, seq_len, query_len).items():
                total[group] = total.get(group, 0) + len(span)
        for group, blocks in total.items():
            need[group] = max(need.get(group, 0), blocks)
    return {group: int(blocks * slack) + 1 for group, blocks in need.items()}


def draw(
    shape: ModelShape,
    kind: LayerKind,
    workload: Workload,
    precision: CachePrecision,
    layer: LayerCaches,
    weights: Mapping[str, Weight],
    cos_sin: torch.Tensor,
    *,
    seed: int,
) -> Values:
    """Everything the stages of a layer read, for one step.

    Args:
        shape: the model.
        kind: the layer kind.
        workload: the step's requests.
        precision: cache precisions; they also decide the precision of quantised activations.
        layer: the caches.
        weights: of ``stack.weights.make_weights`` or ``stack.checkpoint.load_weights``.
        cos_sin: rotary table of the layer kind, fp32 [≥ longest sequence, 64].
        seed: decides activations and page order.
    """
    device = cos_sin.device
    generator = torch.Generator().manual_seed(seed)
    seq_lens, query_lens = workload.seq_lens, workload.query_lens
    tables = _draw_tables(shape, kind, seq_lens, query_lens, layer, generator, device)
    values: Values = dict(weights) | dict(layer.caches)
    values |= step_metadata(shape, kind, seq_lens, query_lens, tables)
    values |= constants(shape, kind, precision)
    on_device = torch.Generator(device).manual_seed(seed)
    x = torch.randn((workload.tokens, shape.hidden_size), generator=on_device, device=device, dtype=torch.float32)
    values |= {"x": x.bfloat16(), "cos_sin": cos_sin}
    if workload.index_pattern != "random" and kind.has_indexer:
        chosen = plant(workload.index_pattern, values["candidate_lens"], shape.index_topk, on_device)
        values[PLANTED] = chosen
    return values


def constants(shape: ModelShape, kind: LayerKind, precision: CachePrecision) -> Values:
    """Scalars that stages take beside tensors."""
    return {
        "eps": shape.rms_norm_eps,
        "ratio": kind.ratio,
        "head_dim": shape.head_dim,
        "softmax_scale": shape.softmax_scale,
        "index_topk": shape.index_topk,
        "indexer_precision": precision.indexer,
        "rope_style": "half" if kind is LayerKind.DSA else "interleaved",
        "o_groups": shape.o_groups,
        "o_precision": precision.main,
        "compressed_entries": FULL_BLOCK[kind] // kind.ratio if kind in FULL_BLOCK else 0,
        **({} if kind is not LayerKind.DSA else {"sink": None}),
    }


def _draw_tables(
    shape: ModelShape,
    kind: LayerKind,
    seq_lens: tuple[int, ...],
    query_lens: tuple[int, ...],
    layer: LayerCaches,
    generator: torch.Generator,
    device: torch.device,
) -> BlockTables:
    """Give every request pages in random order; columns it no longer needs point to block 0."""
    spans = [page_spans(kind, shape, *lens) for lens in zip(seq_lens, query_lens, strict=True)]
    tables: dict[str, torch.Tensor] = {}
    for group in spans[0] if spans else ():
        ids = layer.blocks[group]
        order = torch.randperm(len(ids), generator=generator).to(torch.int32) + ids.start
        width = max(span[group].stop for span in spans)
        table = torch.zeros((len(spans), width), dtype=torch.int32)
        used = 0
        for row, span in enumerate(spans):
            columns = span[group]
            table[row, columns.start : columns.stop] = order[used : used + len(columns)]
            used += len(columns)
        tables[group] = table.to(device)
    return BlockTables(**tables)
