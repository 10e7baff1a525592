"""Floors against a table of measured cells, and the rates that cannot be."""

import csv
from pathlib import Path

import pytest

from dsv4bench.analysis.roofline import (
    Floor,
    Least,
    Peaks,
    floor,
    floors,
    from_cache,
    least_traffic,
    serial_floor,
)
from dsv4bench.model.cost import Cost, layer_costs
from dsv4bench.model.gpus import gpu_named
from dsv4bench.model.shape import V4_PRO, LayerKind
from dsv4bench.model.step import LayerStep
from dsv4bench.results.manifest import Ceilings

TABLE = Path(__file__).parents[2] / "data" / "roofline" / "h200_floors.csv"
H200 = Peaks.datasheet(gpu_named("H200"))
MEASURED = Peaks(4.3e12, 790e12, 1220e12, "measured")


def test_floors_equal_the_table_of_measured_cells() -> None:
    with TABLE.open(newline="") as file:
        for cell in csv.DictReader(file):
            cost = Cost(int(cell["min_bytes"]), int(cell["flops"]))
            assert floor(cost, MEASURED).seconds * 1e6 == pytest.approx(float(cell["floor_us"]), abs=6e-4), cell


def test_the_larger_side_bounds() -> None:
    assert floor(Cost(4_300_000, 790_000), MEASURED) == Floor(pytest.approx(1e-6), "memory")
    assert floor(Cost(4_300, 790_000_000), MEASURED) == Floor(pytest.approx(1e-6), "compute")
    assert floor(Cost(0, 0), MEASURED) == Floor(0.0, "memory")


def test_fp8_work_is_held_to_the_fp8_peak_and_to_bf16_where_there_is_none() -> None:
    work = Cost(1, 1_220_000_000, "fp8")
    assert floor(work, MEASURED).seconds == pytest.approx(1e-6)
    a100 = Peaks.datasheet(gpu_named("A100-80G"))
    assert floor(work, a100).seconds == pytest.approx(1_220_000_000 / 312e12)


def test_percent_is_the_share_of_the_measured_time_that_is_unavoidable() -> None:
    """FlashMLA at batch 128 and a million tokens: 445 µs over a floor of 177 µs is 40 %."""
    assert Floor(176.692e-6, "compute").percent(445.21e-6) == pytest.approx(39.7, abs=0.05)


def test_measured_peaks_fall_back_to_the_datasheet() -> None:
    gpu = gpu_named("H200")
    assert Peaks.measured(Ceilings(copy_bytes_per_second=4.2e12, bf16_flops_per_second=7e14), gpu) == Peaks(
        4.2e12, 7e14, gpu.fp8_flops, "measured"
    )
    assert Peaks.measured(Ceilings(copy_bytes_per_second=4.2e12)) is None


def test_a_faster_card_has_lower_floors_for_every_stage() -> None:
    costs = layer_costs(LayerStep(V4_PRO, LayerKind.C4A, (65536,) * 8, (1,) * 8))
    slow, fast = floors(costs, H200), floors(costs, Peaks.datasheet(gpu_named("B200")))
    assert tuple(slow) == tuple(costs)
    assert all(fast[stage].seconds < slow[stage].seconds for stage in costs)
    assert serial_floor(slow.values()) == pytest.approx(sum(part.seconds for part in slow.values()))


def test_bytes_faster_than_the_memory_come_in_part_from_l2() -> None:
    work = Cost(4_800_000_000, 1)
    assert from_cache(work, 0.5e-3, H200)
    assert not from_cache(work, 1.1e-3, H200)


@pytest.mark.parametrize(
    ("cold", "overlap", "traffic"),
    [
        (True, False, 1100 + (800 - 200) + 0),
        (False, False, 1000 + (800 - 200) + 0),
        (True, True, 1100),
        (False, True, 1000),
    ],
)
def test_traffic_is_weights_and_what_exceeds_two_l2_fulls_a_stage(cold: bool, overlap: bool, traffic: int) -> None:
    costs, weights = [Cost(1800, 1), Cost(250, 1)], [Cost(1000, 0), Cost(100, 0)]
    assert least_traffic(costs, weights, 100, cold=cold, overlap=overlap) == traffic


def test_weights_that_fit_the_l2_may_all_come_from_it_when_it_is_warm() -> None:
    assert least_traffic([Cost(90, 1)], [Cost(90, 0)], 100, cold=False, overlap=False) == 0
    assert least_traffic([Cost(90, 1)], [Cost(90, 0)], 100, cold=True, overlap=False) == 90


def test_less_time_than_the_least_work_takes_is_impossible() -> None:
    least = Least(2e-6, 4.8e6) + Least(1e-6, 4.8e6).times(2)
    assert least == Least(4e-6, 14.4e6)
    assert least.impossible(4.1e-6, H200) == ""
    assert least.impossible(3.5e-6, H200).startswith("the FLOPs alone take 4 µs at the rates of the datasheet H200")
    assert "the bytes from memory alone take 3 µs" in Least(0.0, 14.4e6).impossible(2.9e-6, H200)
