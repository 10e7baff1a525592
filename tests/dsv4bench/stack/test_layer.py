"""A whole layer over real pages: shapes, reproducibility, and no request in another's pages."""

import pytest
import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import read_entries

from dsv4bench.errors import MeasurementError
from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.registry import load_provider
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.scenario.workload import Workload
from dsv4bench.stack.inputs import capacity
from dsv4bench.stack.layer import prepare, run_layer, stage_outputs
from dsv4bench.stack.pages import page_spans

PRECISIONS = [
    CachePrecision(),
    CachePrecision(slab=False),
    CachePrecision("bf16", "bf16"),
    CachePrecision("fp8", "fp4"),
]


def run(layer, workload, seed):
    values = layer.draw(workload, seed)
    reference = load_provider("reference")
    stages = STAGES[layer.kind]
    run_layer(stages, {stage.name: reference for stage in stages}, values)
    return values


@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda p: p.label)
@pytest.mark.parametrize("kind", list(LayerKind))
def test_a_layer_runs_over_every_kind_of_cache(small_shape, kind, precision):
    workload = Workload("decode", 3, 640, 1, "spread")
    layer = prepare(small_shape(kind), kind, precision, [workload])
    values = run(layer, workload, seed=1)
    assert values["y"].shape == (3, 256)
    assert values["y"].isfinite().all()
    assert values["lse"].isfinite().all()
    assert values["y"].float().std() > 0.01


@pytest.mark.parametrize("kind", list(LayerKind))
def test_slab_and_separate_allocations_give_the_same_result_for_the_same_bytes(small_shape, kind):
    """Row 9 of the conformance list in small: the page stride must not matter."""
    workload = Workload("decode", 2, 512, 1, "all")
    packed = prepare(small_shape(kind), kind, CachePrecision(slab=False), [workload])
    slab = prepare(small_shape(kind), kind, CachePrecision(slab=True), [workload])
    a, b = packed.draw(workload, 5), slab.draw(workload, 5)
    for name, cache in packed.caches.caches.items():
        group = {"window_cache": "window"}.get(name, "state" if name.endswith("state") else "full")
        source = cache.pages if isinstance(cache, PagedCache) else cache
        target = b[name].pages if isinstance(cache, PagedCache) else b[name]
        ids, there = packed.caches.blocks[group], slab.caches.blocks[group]
        target[there.start : there.stop] = source[ids.start : ids.stop]
    reference = load_provider("reference")
    for values in (a, b):
        run_layer(STAGES[kind], {stage.name: reference for stage in STAGES[kind]}, values)
    assert torch.equal(a["y"], b["y"])


def test_the_same_seed_gives_the_same_inputs_and_another_seed_other_pages(small_shape):
    workload = Workload("decode", 2, 2048, 1, "spread")
    layer = prepare(small_shape(LayerKind.C4A), LayerKind.C4A, CachePrecision(), [workload])
    first, again, other = layer.draw(workload, 1), layer.draw(workload, 1), layer.draw(workload, 2)
    assert torch.equal(first["x"], again["x"])
    assert torch.equal(first["block_table"], again["block_table"])
    assert not torch.equal(first["x"], other["x"])
    assert not torch.equal(first["block_table"], other["block_table"])


@pytest.mark.parametrize("kind", list(LayerKind))
def test_no_page_belongs_to_two_requests_or_two_groups(small_shape, kind):
    workload = Workload("decode", 5, 1500, 3, "spread")
    layer = prepare(small_shape(kind), kind, CachePrecision(), [workload])
    values = layer.draw(workload, 3)
    owned = []
    for group, table in (("full", "block_table"), ("window", "window_block_table"), ("state", "state_block_table")):
        if table not in values:
            continue
        for row, (n, q) in enumerate(zip(workload.seq_lens, workload.query_lens, strict=True)):
            span = page_spans(kind, layer.shape, n, q)[group]
            owned += values[table][row, span.start : span.stop].tolist()
    assert len(owned) == len(set(owned))
    assert 0 not in owned


def test_a_stage_repeated_gives_the_same_layer(small_shape):
    """Timing repeats stages over the same caches, so running one twice must change nothing."""
    workload = Workload("decode", 4, 512, 1, "all")
    for kind in LayerKind:
        layer = prepare(small_shape(kind), kind, CachePrecision(), [workload])
        values = layer.draw(workload, 1)
        reference = load_provider("reference")
        providers = {stage.name: reference for stage in STAGES[kind]}
        run_layer(STAGES[kind], providers, values)
        once = values["y"].clone()
        run_layer(STAGES[kind], providers, values)
        assert torch.equal(once, values["y"])


def test_caches_are_filled_with_finite_entries(small_shape):
    workload = Workload("decode", 2, 1024, 1, "spread")
    for precision in PRECISIONS:
        layer = prepare(small_shape(LayerKind.C4A), LayerKind.C4A, precision, [workload])
        values = layer.draw(workload, 0)
        for name in ("window_cache", "compressed_cache", "indexer_cache"):
            cache = values[name]
            ids = layer.caches.blocks["window" if name == "window_cache" else "full"]
            entries = read_entries(cache, torch.arange(ids.start * cache.entries, ids.stop * cache.entries))
            assert entries.isfinite().all()
            assert 0.5 < entries.std() < 2


def test_capacity_holds_the_largest_workload_with_slack(small_shape):
    small, large = Workload("decode", 1, 1024, 1, "all"), Workload("decode", 4, 4096, 1, "all")
    blocks = capacity(LayerKind.C4A, small_shape(LayerKind.C4A), [small, large])
    assert blocks["full"] > 4 * 16
    assert blocks["full"] <= 4 * 16 * 1.25 + 1


@pytest.mark.parametrize(
    ("name", "result", "message"),
    [
        ("qkv_norm", torch.ones(2, 3), "qkv_norm returned 1 output, 2 expected"),
        ("qkv_norm", None, "qkv_norm returned 0 outputs, 2 expected"),
        ("input_projection", (torch.ones(1), torch.ones(1)), "input_projection returned 2 outputs, 1 expected"),
    ],
)
def test_another_number_of_outputs_than_a_stage_has_is_refused_in_a_sentence(name, result, message):
    stage = next(stage for stage in STAGES[LayerKind.SWA] if stage.name == name)
    with pytest.raises(MeasurementError, match=message):
        stage_outputs(stage, result)
