"""KV bytes that a step holds of what was allocated, beside those that are predicted."""

from dataclasses import replace

import pytest

from dsv4bench.bench.device import Device
from dsv4bench.bench.footprint import held_bytes, memory_of
from dsv4bench.bench.model_side import load_casts, make_contestant
from dsv4bench.bench.settings import Settings
from dsv4bench.model.shape import LayerKind
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.scenario.expand import expand
from dsv4bench.stack.layer import prepare
from dsv4bench.stack.model import prepare_model
from dsv4bench.stack.pages import page_spans
from tests.dsv4bench.bench.small import small_scenario


def case_of(tmp_path, kind="c4a", **workload):
    (case,) = expand(small_scenario(tmp_path, layers=kind, workload={"context": 1000, "batch": 3} | workload))
    return case


def layer_of(case, *others):
    return prepare(case.shape, case.kind, case.cache, [one.workload for one in (case, *others)])


@pytest.mark.parametrize("kind", ["swa", "c4a", "c128a"])
def test_in_allocations_of_their_own_a_step_holds_the_pages_of_its_requests_without_padding(tmp_path, kind):
    case = case_of(tmp_path, kind)
    case = replace(case, cache=replace(case.cache, slab=False))
    layer = layer_of(case)
    lens = zip(case.workload.seq_lens, case.workload.query_lens, strict=True)
    spans = [page_spans(case.kind, case.shape, *one) for one in lens]
    padding = sum(
        len(span["state" if page.kind.is_state else page.group]) * (page.page_bytes - page.raw_bytes)
        for page in layer.caches.layout.pages
        for span in spans
    )
    held = held_bytes(layer.caches, layer.draw(case.workload, 1))
    assert held == memory_of(case).engine_bytes - padding
    assert held < layer.caches.allocated_bytes


def test_in_a_slab_a_block_takes_its_whole_row_whatever_group_it_belongs_to(tmp_path):
    case = case_of(tmp_path)
    layer = layer_of(case)
    values = layer.draw(case.workload, 1)
    tables = [values[name] for name in ("block_table", "window_block_table", "state_block_table")]
    blocks = sum(len(set(table.flatten().tolist()) - {0}) for table in tables)
    held = held_bytes(layer.caches, values)
    assert held == blocks * layer.caches.layout.bytes_per_block
    assert memory_of(case).engine_bytes < held < layer.caches.allocated_bytes


def test_what_a_step_holds_does_not_depend_on_the_cases_it_shares_caches_with_or_on_the_draw(tmp_path):
    case, longer = case_of(tmp_path), case_of(tmp_path, context=5000, batch=4)
    alone, shared = layer_of(case), layer_of(case, longer)
    assert shared.caches.allocated_bytes > 2 * alone.caches.allocated_bytes
    found = {
        held_bytes(layer.caches, layer.draw(case.workload, seed)) for layer in (alone, shared) for seed in (1, 2, 3)
    }
    assert len(found) == 1


@pytest.mark.parametrize("copies", [1, 2])
def test_a_model_has_measured_bytes_only_if_no_set_of_caches_stands_in_for_several_layers(tmp_path, copies):
    kinds = (LayerKind.SWA, LayerKind.C4A, LayerKind.C4A)
    (case,) = expand(small_scenario(tmp_path, kind="model", layers=None))
    case = replace(case, shape=replace(case.shape, layers=kinds), layers=kinds, copies=copies)
    model = prepare_model(case.shape, case.layers, case.copies, case.cache, [case.workload])
    settings = Settings(small_scenario(tmp_path).timing, Device("cpu"))
    side = make_contestant(case, settings, model, load_casts(case, settings))
    values = side.inputs(1)
    held = [held_bytes(layer.caches, one) for layer, one in zip(model.layers, values, strict=True)]
    assert side.kv_bytes(values) == (None if copies == 1 else sum(held))


def test_the_precision_of_the_caches_shows_in_what_is_held(tmp_path):
    case = case_of(tmp_path)
    wide = replace(case, cache=CachePrecision("bf16", "bf16"))
    small, large = (
        held_bytes(layer.caches, layer.draw(case.workload, 1)) for layer in (layer_of(case), layer_of(wide))
    )
    assert large > 1.5 * small
