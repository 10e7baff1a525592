"""Floors in rows, and rates that no card can reach."""

from dataclasses import replace
from pathlib import Path

import pytest

from dsv4bench.analysis.roofline import Peaks
from dsv4bench.bench.device import Device
from dsv4bench.bench.roofline import cost_of, impossible, together, weights_of, with_floors
from dsv4bench.bench.settings import Settings
from dsv4bench.model.gpus import gpu_named, gpu_of_device
from dsv4bench.results.manifest import Ceilings
from dsv4bench.results.row import StageRow, Status, Timing
from dsv4bench.results.run_directory import read_run
from dsv4bench.scenario.case import WeightChoice
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.schema import Scenario

H200 = Device("cuda", name="NVIDIA H200", l2_bytes=60 * 2**20)
CEILINGS = Ceilings(copy_bytes_per_second=4.3e12, bf16_flops_per_second=790e12, fp8_flops_per_second=1220e12)


DATASHEET = Peaks.datasheet(gpu_named("H200"))
STORED = Path(__file__).parents[3] / "reports" / "baselines"


def took(seconds):
    return Timing(median=seconds, min=seconds, mad=0.0)


def row_of(scenario, times, whole, device=H200, ceilings=CEILINGS):
    """The row of a scenario's only case, with floors, whose stages took ``times`` and all of it ``whole``."""
    scenario = Scenario.model_validate({"name": "t", **scenario})
    (case,) = expand(scenario)
    settings = Settings(scenario.timing, device)
    stages = [StageRow(name=name, provider="eager", timing=took(seconds)) for name, seconds in times.items()]
    return with_floors(settings.measured(case, layer=took(whole), stages=stages), case, settings, ceilings), case


def measured(seconds, device=H200, ceilings=CEILINGS, streams="serial", whole=None, **timing):
    """A row with floors: a projection that took a millisecond, an insert that took ``seconds``, both ``whole``."""
    scenario = {
        "model": "v4-flash",
        "layers": "c128a",
        "workload": {"context": "1M", "batch": 64},
        "schedule": {"streams": streams},
        "timing": timing,
    }
    times = {"query_projection": 1e-3, "query_norm_rope_insert": seconds}
    return row_of(scenario, times, 1e-3 + seconds if whole is None else whole, device, ceilings)


def test_floors_are_over_what_the_card_was_measured_to_reach_with_the_datasheets_beside():
    row, case = measured(1e-3)
    insert = row.stages[1]
    cost = cost_of(case, "query_norm_rope_insert")
    assert (insert.bytes, insert.flops) == (cost.bytes, cost.flops)
    assert insert.floor == pytest.approx(max(cost.bytes / 4.3e12, cost.flops / 790e12))
    assert insert.extra["datasheet_floor"] == pytest.approx(max(cost.bytes / 4.8e12, cost.flops / 989.4e12))
    assert insert.extra["datasheet_floor"] < insert.floor
    assert insert.bound == "memory"
    assert row.floor == pytest.approx(sum(stage.floor for stage in row.stages))


def test_overlapping_streams_have_a_lower_floor_than_one_after_another():
    serial, case = measured(1e-3)
    multi, _ = measured(1e-3, streams="multi")
    assert multi.floor <= serial.floor
    costs = [cost_of(case, name) for name in case.stage_names]
    assert together(costs, DATASHEET, "multi") <= together(costs, DATASHEET, "serial")


def test_a_row_may_exceed_the_memory_within_what_the_l2_holds_but_not_the_matrix_units():
    row, case = measured(1e-3)
    cost = cost_of(case, "query_norm_rope_insert")
    from_l2 = 0.5 * cost.bytes / 4.8e12
    assert cost.flops / from_l2 < 989e12
    warm, _ = measured(from_l2)
    assert warm.status is Status.OK
    assert warm.stages[1].extra["in_l2"]
    assert not row.stages[1].extra["in_l2"]
    cold, _ = measured(from_l2, l2="cold")
    assert cold.status is Status.OK, "what it reads comes from memory, what it writes may stay"
    for l2 in ("warm", "cold"):
        impossible_, _ = measured(0.5 * cost.flops / 989.4e12, l2=l2)
        assert impossible_.status is Status.INVALID_RATE
        assert impossible_.reason.startswith("query_norm_rope_insert: the FLOPs alone take")
        assert impossible_.layer is None
        assert not impossible_.stages


def test_without_a_known_card_bytes_and_flops_are_all_there_is():
    row, _ = measured(1e-3, device=Device("cpu"), ceilings=None)
    assert row.floor is None
    assert row.stages[0].bytes > 0
    assert row.stages[0].floor is None


def test_fp8_weights_halve_the_bytes_of_a_projection():
    _, case = measured(1e-3)
    fp8 = replace(case, weights=WeightChoice("fp8"))
    wide, narrow = cost_of(case, "query_projection"), cost_of(fp8, "query_projection")
    assert narrow.bytes < 0.7 * wide.bytes
    assert (wide.unit, narrow.unit) == ("bf16", "fp8")


def test_a_layer_faster_than_the_flops_of_its_stages_is_invalid_though_each_stage_alone_is_not():
    _, case = measured(1e-3)
    costs = [cost_of(case, name) for name in ("query_projection", "query_norm_rope_insert")]
    least = sum(cost.flops / 989.4e12 for cost in costs)
    row, _ = measured(1e-3, whole=0.5 * least)
    assert row.status is Status.INVALID_RATE
    assert row.reason.startswith("layer: the FLOPs alone take ")
    assert row.layer is None
    assert measured(1e-3, whole=1e-3)[0].status is Status.OK


@pytest.mark.parametrize("streams", ["serial", "multi"])
def test_a_cold_layer_has_read_its_weights_from_memory_and_a_warm_one_all_but_an_l2_full(streams):
    _, case = measured(1e-3, streams=streams)
    weights = weights_of(case, "query_projection").bytes
    assert weights == 1024 * 64 * 512 * 2
    assert weights_of(case, "query_norm_rope_insert").bytes == 0
    seconds, flops = weights / 4.8e12, cost_of(case, "query_projection").flops / 989.4e12
    assert flops < 0.5 * seconds
    cold, _ = measured(1e-3, streams=streams, whole=0.9 * seconds, l2="cold")
    assert cold.status is Status.INVALID_RATE
    assert cold.reason.startswith("layer: the bytes from memory alone take 14 µs at the rates of the datasheet H200")
    assert measured(1e-3, streams=streams, whole=1.1 * seconds, l2="cold")[0].status is Status.OK
    part = (weights - 60 * 2**20) / 4.8e12
    assert measured(1e-3, streams=streams, whole=max(1.1 * part, 1.1 * flops))[0].status is Status.OK


def stage_of_many(seconds, **changes):
    """A row of logits over 64 requests of a million tokens: gigabytes of keys, which no L2 holds."""
    scenario = {
        "kind": "stage",
        "model": "v4-flash",
        "layers": "c4a",
        "stages": ["indexer_logits"],
        "workload": {"context": "1M", "batch": 64},
    }
    return row_of(scenario | changes, {"indexer_logits": seconds}, seconds)


def test_a_stage_is_invalid_only_beyond_what_the_l2_can_have_given_and_kept():
    _, case = stage_of_many(1.0)
    bytes_ = cost_of(case, "indexer_logits").bytes
    l2 = 60 * 2**20
    assert bytes_ > 20 * l2
    possible, _ = stage_of_many(1.01 * (bytes_ - 2 * l2) / 4.8e12)
    assert possible.status is Status.OK
    assert possible.stages[0].extra["in_l2"]
    for state in ("warm", "cold"):
        impossible_, _ = stage_of_many(0.99 * (bytes_ - 2 * l2) / 4.8e12, timing={"l2": state})
        assert impossible_.status is Status.INVALID_RATE
        assert impossible_.reason.startswith("indexer_logits: the bytes from memory alone take")
    layer = {"kind": "layer", "stages": None, "schedule": {"streams": "multi"}}
    alone, _ = stage_of_many(0.99 * (bytes_ - 2 * l2) / 4.8e12, **layer)
    assert alone.status is Status.INVALID_RATE, "timed alone, nothing overlaps it"


def model(kinds, whole, l2="warm"):
    """A row of V3.2's model in decode: one layer of its only kind, and all 61."""
    workload = {"context": "8K", "batch": 1}
    scenario = {"kind": "model", "model": "v3.2", "workload": workload, "timing": {"l2": l2}}
    return row_of(scenario, {"dsa": kinds}, whole)


def test_a_model_and_each_of_its_layer_kinds_are_held_to_their_work():
    _, case = model(1.0, 61.0)
    (kind,) = case.kinds
    layer = case.of_kind(kind)
    weights = sum(weights_of(layer, name).bytes for name in layer.stage_names)
    cold, warm = weights / 4.8e12, (weights - 60 * 2**20) / 4.8e12
    assert warm > 0.5 * cold
    assert model(1.05 * warm, 61 * 1.05 * warm)[0].status is Status.OK
    layer_too_fast, _ = model(0.95 * warm, 61 * 1.05 * warm)
    assert layer_too_fast.status is Status.INVALID_RATE
    assert layer_too_fast.reason.startswith("dsa: the bytes from memory alone take")
    model_too_fast, _ = model(1.05 * warm, 61 * 0.95 * warm)
    assert model_too_fast.status is Status.INVALID_RATE
    assert model_too_fast.reason.startswith("model: the bytes from memory alone take")
    assert not model_too_fast.stages
    assert model(0.95 * cold, 61 * cold, l2="cold")[0].status is Status.INVALID_RATE
    shared, _ = model(1.05 * cold, 61 * 1.05 * warm, l2="cold")
    assert shared.status is Status.OK, "layers of a model may share weights, which the L2 then keeps in part"


@pytest.mark.parametrize(
    "path", sorted(STORED.glob("*/*/*Z*.json")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_no_stored_run_is_called_impossible(path):
    run = read_run(path)
    cases = {case.case_id: case for case in expand(Scenario.model_validate(run.manifest.scenario))}
    gpu = gpu_of_device(run.manifest.environment.gpu.name)
    for row in run.rows:
        assert impossible(row, cases[row.case_id], Peaks.datasheet(gpu), gpu.l2_bytes) == ""
