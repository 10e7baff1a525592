"""Tracing launch gaps without a GPU: real layers under a profiler made to order, and a real worker that has none."""

import os
from pathlib import Path

import pytest

from dsv4bench.analysis.gaps import Record
from dsv4bench.bench import gaps
from dsv4bench.bench.device import Device
from dsv4bench.bench.messages import Traced
from dsv4bench.bench.session import Request, start_run
from dsv4bench.bench.settings import Settings
from dsv4bench.results.row import Status
from dsv4bench.results.run_directory import CASES
from dsv4bench.scenario.expand import expand
from dsv4bench.stack.layer import prepare
from tests.dsv4bench.bench.small import small_scenario

ROOT = Path(__file__).parents[3]
FAILING = Path(__file__).with_name("failing_providers.py")


class Profiler:
    """Runs what it is to profile; each pass shows two kernels, 1 µs each, and between them a pause that grows."""

    def __init__(self):
        self.passes = 0

    def unavailable(self):
        return ""

    def profile(self, calls, passes, before):
        records = []
        for number in range(passes):
            calls[0]()
            begin, self.passes = 100_000 * self.passes, self.passes + 1
            records += [Record("first", begin, 1000), Record("second", begin + 2000 + 100 * number, 1000)]
        return records


@pytest.fixture
def traced(tmp_path, monkeypatch):
    def _traced(providers, profiler):
        scenario = small_scenario(tmp_path, providers=providers)
        cases = expand(scenario)
        layer = prepare(cases[0].shape, cases[0].kind, cases[0].cache, [case.workload for case in cases])
        monkeypatch.setattr(gaps, "CuptiTimer", lambda: profiler)
        monkeypatch.setattr(gaps, "profile_calls", getattr(profiler, "profile", None))
        heard = []
        found = list(
            gaps.trace_cases(cases, layer, Settings(scenario.timing, Device("cpu")), lambda *said: heard.append(said))
        )
        assert heard == [(case.case_id, "tracing launch gaps") for case in cases]
        return found

    return _traced


def test_each_layer_is_traced_and_what_one_raises_costs_no_other_its_gaps(traced):
    first, second, third = traced(["eager", f"{FAILING}:Raises", "reference"], Profiler())
    assert second == Traced(second.case_id, None, "ValueError: no such head size (failing_providers.py:38)")
    for one in (first, third):
        assert one.gaps.launches == 2
        assert one.gaps.idle == pytest.approx(1.2e-6), "of passes 2 to 4, the middle one"
        assert one.gaps.after == "first"


def test_without_a_profiler_no_layer_is_run(traced):
    class Absent:
        def unavailable(self):
            return "no permission"

    found = traced(["eager", f"{FAILING}:Raises"], Absent())
    assert {(one.gaps, one.reason) for one in found} == {(None, "no permission")}


def test_a_run_whose_worker_cannot_trace_keeps_its_rows_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'kernels'}")
    monkeypatch.setattr(Settings, "wants_gaps", lambda self, case: True)
    scenario = small_scenario(tmp_path, workload={"context": 256, "batch": [1, 2]})
    request = Request(scenario, expand(scenario), "cpu", ["run"], ["dsv4bench", "run", "small"])
    run = start_run(request, tmp_path / "run", lambda event: None)
    assert [(row.status, row.extra["no_gaps"]) for row in run.rows] == [(Status.OK, "torch sees no GPU")] * 2
    assert [row.case["batch"] for row in run.rows] == [1, 2]
    assert len((run.path / CASES).read_text().splitlines()) == 4, "each row is written again"
    assert "launch gaps" in run.manifest.spent
