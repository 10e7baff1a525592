"""Floors in rows, and rates that no card can reach."""

from dataclasses import replace

import pytest

from dsv4bench.analysis.roofline import Peaks
from dsv4bench.bench.device import Device
from dsv4bench.bench.roofline import cost_of, together, with_floors
from dsv4bench.bench.settings import Settings
from dsv4bench.model.gpus import gpu_named
from dsv4bench.results.manifest import Ceilings
from dsv4bench.results.row import StageRow, Status, Timing
from dsv4bench.scenario.case import WeightChoice
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.schema import Scenario

H200 = Device("cuda", name="NVIDIA H200", l2_bytes=60 * 2**20)
CEILINGS = Ceilings(copy_bytes_per_second=4.3e12, bf16_flops_per_second=790e12, fp8_flops_per_second=1220e12)


def measured(seconds, device=H200, ceilings=CEILINGS, streams="serial", **timing):
    """A row with floors: a projection that took a millisecond, and an insert that took ``seconds``."""
    scenario = Scenario.model_validate(
        {
            "name": "t",
            "model": "v4-flash",
            "layers": "c128a",
            "workload": {"context": "1M", "batch": 64},
            "schedule": {"streams": streams},
            "timing": timing,
        }
    )
    (case,) = expand(scenario)
    settings = Settings(scenario.timing, device)
    stages = [
        StageRow(
            name=name,
            provider="eager",
            timing=Timing(median=took, min=took, mad=0.0),
        )
        for name, took in (("query_projection", 1e-3), ("query_norm_rope_insert", seconds))
    ]
    layer = Timing(median=2 * seconds, min=2 * seconds, mad=0.0)
    row = settings.measured(case, layer=layer, stages=stages)
    return with_floors(row, case, settings, ceilings), case


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
    peaks = Peaks.datasheet(gpu_named("H200"))
    assert together(costs, peaks, "multi") <= together(costs, peaks, "serial")


def test_a_cold_row_faster_than_the_memory_is_invalid():
    row, _ = measured(1e-9, l2="cold")
    assert row.status is Status.INVALID_RATE
    assert row.reason.startswith("query_norm_rope_insert: ")
    assert "exceed" in row.reason
    assert row.layer is None
    assert not row.stages
    slow, _ = measured(1e-3, l2="cold")
    assert slow.status is Status.OK


def test_a_warm_row_may_exceed_the_memory_but_not_the_matrix_units():
    row, case = measured(1e-3)
    cost = cost_of(case, "query_norm_rope_insert")
    from_l2 = 0.5 * cost.bytes / 4.8e12
    assert cost.flops / from_l2 < 989e12
    warm, _ = measured(from_l2)
    assert warm.status is Status.OK
    assert warm.stages[1].extra["in_l2"]
    assert not row.stages[1].extra["in_l2"]
    cold, _ = measured(from_l2, l2="cold")
    assert cold.status is Status.INVALID_RATE
    impossible, _ = measured(0.5 * cost.flops / 989.4e12)
    assert impossible.status is Status.INVALID_RATE
    assert "TFLOP/s exceed" in impossible.reason


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
