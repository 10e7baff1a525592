"""Whole measurements on a GPU: every timer and L2 state, and kernels that break the context."""

from pathlib import Path

import pytest

from dsv4bench.bench.comparison import Comparison
from dsv4bench.bench.compilation import watch_compilation
from dsv4bench.bench.device import find_device
from dsv4bench.bench.session import Request, exit_code, start_run
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.spending import Spending
from dsv4bench.bench.telemetry import open_sensor
from dsv4bench.results.row import Status
from dsv4bench.scenario.expand import expand
from dsv4bench.stack.layer import prepare
from tests.dsv4bench.bench.small import small_scenario

pytestmark = pytest.mark.gpu
FAILING = Path(__file__).with_name("failing_kernels.py")
COMBINATIONS = [
    ("events", "warm", False),
    ("events", "cold", False),
    ("events", "warm", True),
    ("graph", "warm", True),
    ("graph", "cold", True),
    ("cupti", "warm", False),
    ("cupti", "cold", True),
]


@pytest.mark.parametrize(("timer", "l2", "graph"), COMBINATIONS)
def test_a_layer_is_measured_and_right_under_every_timer(tmp_path, timer, l2, graph):
    scenario = small_scenario(
        tmp_path,
        layers="c128a",
        workload={"context": 1024, "batch": 4},
        schedule={"graph": graph},
        timing={"rounds": 2, "iterations": 5, "warmup": 1, "timer": timer, "l2": l2},
    )
    (case,) = expand(scenario)
    device = find_device("cuda")
    settings, sensor = Settings(scenario.timing, device), open_sensor(device.uuid)[0]
    layer = prepare(case.shape, case.kind, case.cache, [case.workload], device=device.torch_name)
    with watch_compilation() as log:
        comparison = Comparison(settings, sensor, log, Spending(), lambda *words: None, lambda number: None)
        (measured,) = comparison.measure([case], lambda able: layer)
    row = measured.row
    assert row.status is Status.OK, row.reason
    assert (row.contract.timer, row.contract.l2, row.contract.graph) == (timer, l2, graph)
    assert row.layer.launches is None or row.layer.launches >= len(row.stages)
    assert all(stage.timing.median > 0 for stage in row.stages)
    assert row.layer.rounds[0].sm_clock_hz
    print(
        f"{timer} {l2} graph={graph}: {row.layer.median * 1e6:.1f} µs, {row.layer.launches} launches, "
        f"{row.energy_joules} J, host {row.layer.host}"
    )


def test_an_illegal_access_and_an_allocation_too_large_cost_their_case_alone(tmp_path):
    providers = ["eager", f"{FAILING}:IllegalAccess", f"{FAILING}:Hungry", "reference"]
    scenario = small_scenario(tmp_path, providers=providers, timing={"rounds": 2, "iterations": 2, "warmup": 0})
    run = start_run(Request(scenario, expand(scenario), "cuda"), tmp_path / "run", lambda event: None)
    rows = {row.case["provider"].rsplit(":")[-1]: row for row in run.rows}
    assert rows["eager"].status is rows["reference"].status is Status.OK
    assert rows["IllegalAccess"].status is Status.RUNTIME_ERROR
    assert "illegal memory access" in rows["IllegalAccess"].reason
    assert rows["Hungry"].status is Status.OOM
    assert exit_code(run.rows) == 5
    assert run.manifest.ceilings
    assert run.manifest.environment.gpu.sm_count
    print(run.manifest.environment.gpu, run.manifest.calibration, run.manifest.timer_floor, run.manifest.spent)
