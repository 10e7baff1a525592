"""Holding vLLM's measured kernels against the figures: which row stands beside which figure, and what is said."""

import importlib.util
import sys
from pathlib import Path

import pytest

from dsv4bench.bench.device import Device
from dsv4bench.bench.settings import Settings
from dsv4bench.results.row import StageRow, Timing
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.loader import load_scenario

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("vllm_agreement", ROOT / "scripts/vllm_agreement.py")
agreement = importlib.util.module_from_spec(spec)
sys.modules["vllm_agreement"] = agreement
spec.loader.exec_module(agreement)

CELLS = agreement.read_cells(agreement.FIGURES)
MICROSECOND = 1e-6
SETTINGS = Settings(load_scenario("vs_vllm").timing, Device("cuda", name="NVIDIA H200", l2_bytes=60 * 2**20))
COLD = {"timer": "events", "l2": "cold", "flush": "memset", "graph": False, "iterations_per_graph": 0}
"""How a contract of figures from a cold L2 differs."""


def cases():
    return [case for name in ("vs_vllm", "vs_vllm_long") for case in expand(load_scenario(name))]


def row_of(case, seconds, *, l2="warm"):
    timing = {name: Timing(median=value, min=value, mad=0.0) for name, value in seconds.items()}
    stages = [StageRow(name=name, provider=case.provider.of(name), timing=one) for name, one in timing.items()]
    row = SETTINGS.measured(case, layer=next(iter(timing.values())), stages=stages)
    contract = row.contract.model_copy(update=COLD if l2 == "cold" else {})
    return row.model_copy(update={"contract": contract})


def synthetic(factor, *, l2="warm"):
    """Rows of both scenarios in which each figure was measured ``factor`` times as long."""
    rows = []
    for case in cases():
        blank = row_of(case, dict.fromkeys(case.stage_names, MICROSECOND), l2=l2)
        seconds = {}
        for found in agreement.measured_stages([blank]):
            cell = next((cell for cell in CELLS if agreement.matches(cell, found)), None)
            seconds[found.stage] = cell.seconds[l2] * factor if cell else MICROSECOND
        rows.append(row_of(case, seconds, l2=l2))
    return rows


@pytest.fixture(scope="module")
def measured():
    return list(agreement.measured_stages(synthetic(1.04)))


def test_the_scenarios_measure_every_figure_but_window_attention_of_a_model_without_window_layers(measured):
    lines = agreement.compare(CELLS, measured)
    missing = {cell.name for cell in CELLS} - {line.cell.name for line in lines}
    not_taken = {cell.name for cell in CELLS if not cell.provider}
    assert len(CELLS) == 180
    assert all("vllm-persistent" in name for name in not_taken)
    assert missing - not_taken == {f"sparse_attention_decode flashmla swa H=128 T={t} N=8192" for t in (1, 8, 64, 128)}


def test_each_figure_stands_beside_the_rows_that_measured_it(measured):
    lines = agreement.compare(CELLS, measured)
    assert {round(line.ratio, 6) for line in lines} == {1.04}
    assert "all within 10%" in agreement.report(lines, CELLS, 0.1)


def test_cold_rows_are_held_against_the_cold_column():
    lines = agreement.compare(CELLS, list(agreement.measured_stages(synthetic(1.0, l2="cold"))))
    assert {line.l2 for line in lines} == {"cold"}
    assert all(line.figure == line.cell.seconds["cold"] for line in lines)


def test_what_lies_further_off_is_named_with_both_differences(measured):
    slow = [
        one if one.stage != "topk" else agreement.Measured(**{**vars(one), "seconds": one.seconds * 2})
        for one in measured
    ]
    lines = agreement.compare(CELLS, slow)
    text = agreement.report(lines, CELLS, 0.1)
    off = [line for line in lines if line.cell.stage == "topk"]
    assert f"{len(off)} further off than 10%:" in text
    assert all(f"2.08 ({(line.seconds - line.figure) * 1e6:+.2f} µs) warm {line.cell.name}" in text for line in off)


def test_another_providers_rows_stand_beside_all_figures(measured):
    lines = agreement.compare(CELLS, measured, "triton")
    assert {line.cell.name for line in lines} > {cell.name for cell in CELLS if not cell.provider}


def test_it_ends_with_what_it_found(tmp_path, monkeypatch, capsys):
    class Run:
        rows = synthetic(1.2)

    monkeypatch.setattr(agreement, "read_run", lambda path: Run)
    assert agreement.main(["run"]) == 1
    assert agreement.main(["run", "--within", "0.25"]) == 0
    assert "not what vLLM takes there" in capsys.readouterr().out
    Run.rows = []
    assert agreement.main(["run"]) == 2
    assert "no row of these runs" in capsys.readouterr().err
