"""A comparison on the CPU: what goes wrong with a side is its row, and costs no other side anything."""

from pathlib import Path

import pytest

from dsv4bench.bench.comparison import Comparison, PoisonedError
from dsv4bench.bench.compilation import CompileLog
from dsv4bench.bench.device import Device
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.spending import Spending
from dsv4bench.bench.telemetry import Telemetry
from dsv4bench.bench.timers import FEWEST_SAMPLES
from dsv4bench.results.row import Status
from dsv4bench.scenario.expand import expand
from dsv4bench.stack.layer import prepare
from tests.dsv4bench.bench.small import small_scenario

FAILING = Path(__file__).with_name("failing_providers.py")


class Sensor:
    """A card that throttles on the readings whose numbers are given."""

    def __init__(self, hot=()):
        self.hot, self.readings = hot, 0

    def read(self):
        self.readings += 1
        hot = self.hot == "always" or self.readings in self.hot
        return Telemetry(0.0, 1.98e9, 3.2e9, 60.0, 400.0, None, ("hw_slowdown",) if hot else ())


@pytest.fixture
def measure(tmp_path, monkeypatch):
    monkeypatch.setattr("dsv4bench.bench.comparison.read_cpu", lambda: None)  # whoever else is on this machine

    def _measure(providers, sensor=None, check=True, **changes):
        scenario = small_scenario(
            tmp_path, providers=[f"{FAILING}:{p}" if p[0].isupper() else p for p in providers], **changes
        )
        cases = expand(scenario)
        first, said = cases[0], []
        layer = prepare(first.shape, first.kind, first.cache, [case.workload for case in cases])
        settings = Settings(scenario.timing, Device("cpu"), check)
        comparison = Comparison(
            settings, sensor, CompileLog(), Spending(), lambda *words: said.append(words), lambda number: None
        )
        measured = list(comparison.measure(cases, lambda able: layer))
        assert [one.row.case_id for one in measured] == [case.case_id for case in cases]
        return measured, said

    return _measure


def test_a_layer_is_timed_as_a_whole_and_stage_by_stage(measure):
    (one,), _ = measure(["eager"], layers="c4a", timing={"rounds": 2, "iterations": 3, "warmup": 0})
    row = one.row
    assert row.status is Status.OK
    assert [stage.name for stage in row.stages][-1] == "output_projection"
    assert len(row.stages) == 20
    assert all(stage.timing.median > 0 for stage in row.stages)
    assert row.layer.min > max(stage.timing.min for stage in row.stages)
    assert [one_round.index for one_round in row.layer.rounds] == [0, 1]
    assert row.layer.min <= row.layer.median
    assert row.accuracy.worst_error <= row.accuracy.tolerance
    assert all(stage.accuracy.worst_error <= stage.accuracy.tolerance for stage in row.stages)


@pytest.mark.parametrize(("indexer", "least", "most"), [("fp8", 0.85, 1.0), ("fp4", 0.5, 0.95)])
def test_a_row_says_what_its_cache_precisions_cost_beside_fp32(measure, indexer, least, most):
    (one,), _ = measure(["eager"], layers="c4a", cache={"main": "fp8", "indexer": indexer}, workload={"context": 4096})
    numbers = {stage.name: stage.accuracy.numbers for stage in one.row.stages}
    assert least < numbers["topk"]["recall"] <= most
    assert 25 < numbers["compress_norm_rope_insert"]["snr_db"] < 40
    assert 0 < numbers["sparse_attention"]["lse_error_fp32"] < 0.1


def test_a_stage_that_overwrites_what_its_result_is_judged_by_is_incorrect(measure):
    (one,), _ = measure(["Clears"], kind="stage", stages=["topk"], layers="c4a", workload={"context": 4096})
    assert one.row.status is Status.INCORRECT
    assert one.row.reason == "topk: inputs: the stage has overwritten its input logits; inputs are only read"


def test_the_bytes_that_a_step_held_come_with_its_row(measure):
    (one, bad), _ = measure(["eager", "Wrong"], workload={"context": 256, "batch": 2})
    assert one.kv_bytes > 2 * 128 * 584
    assert bad.kv_bytes is None


def test_raw_samples_of_every_round_are_kept(measure):
    (one,), _ = measure(["eager"], timing={"rounds": 4, "iterations": FEWEST_SAMPLES, "warmup": 0})
    assert {record["round"] for record in one.samples} == {0, 1, 2, 3}
    assert {record["what"] for record in one.samples} == {"layer", *(stage.name for stage in one.row.stages)}
    assert all(len(record["seconds"]) == FEWEST_SAMPLES for record in one.samples)
    layer = [record["seconds"] for record in one.samples if record["what"] == "layer"]
    assert one.row.layer.min == min(min(seconds) for seconds in layer)


def test_each_way_to_fail_has_its_status_and_the_good_side_is_measured(measure):
    measured, _ = measure(["eager", "Wrong", "Raises", "Hungry", "Picky", "RaisesLater", "reference"])
    rows = [one.row for one in measured]
    assert [row.status for row in rows] == [
        Status.OK,
        Status.INCORRECT,
        Status.RUNTIME_ERROR,
        Status.OOM,
        Status.UNSUPPORTED,
        Status.RUNTIME_ERROR,
        Status.OK,
    ]
    assert rows[1].reason.startswith("qkv_norm: output off by")
    assert rows[2].reason == "ValueError: no such head size (failing_providers.py:38)"
    assert rows[4].reason.endswith(":Picky: no fp8 cache")
    assert rows[5].reason == "ValueError: tired (failing_providers.py:50)"
    assert all(row.layer is None and row.stages == [] for row in rows[1:6])
    assert all(len(row.layer.rounds) == 2 for row in (rows[0], rows[6]))


def test_a_plain_yes_in_place_of_a_support_says_what_to_return(measure):
    (one,), _ = measure(["PlainYes"])
    assert one.row.status is Status.RUNTIME_ERROR
    assert one.row.reason.startswith("supports(need) of provider 'plain-yes' returned True; return a Support of")


def test_a_wrong_result_is_not_looked_for_when_checks_are_off(measure):
    (one,), _ = measure(["Wrong"], check=False)
    assert one.row.status is Status.OK
    assert one.row.accuracy is None


@pytest.fixture
def partial(tmp_path):
    """A provider of a single stage, as a scenario names it."""

    def _partial(stage):
        path = tmp_path / "partial.py"
        path.write_text(
            "from dsv4bench.providers.base import SUPPORTED\n"
            "class Partial:\n    name = 'partial'\n    def supports(self, need): return SUPPORTED\n"
            f"    def {stage}: ...\n"
        )
        return f"{path}:Partial"

    return _partial


def test_a_provider_without_a_stage_is_unsupported(measure, partial):
    (one,), _ = measure([partial("topk(self, logits, candidate_lens, k)")])
    assert one.row.status is Status.UNSUPPORTED
    assert "has no stage inverse_rope_quant, qkv_norm, " in one.row.reason
    assert "another can run the rest" not in one.row.reason  # a swa layer has no top-k


def test_a_provider_of_some_stages_is_told_how_to_run_them_within_a_layer(measure, partial):
    spec = partial("inverse_rope_quant(self, o, positions, cos_sin, groups, precision)")
    (one,), _ = measure([spec])
    hint = f"; another can run the rest: --provider eager,inverse_rope_quant={spec}"
    assert one.row.reason.endswith(hint)


def test_a_provider_file_that_does_not_import_is_a_failure_and_not_unsupported(measure, tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    (one,), _ = measure([f"{tmp_path / 'broken.py'}:Mine"])
    assert one.row.status is Status.RUNTIME_ERROR
    assert "failed to import: ModuleNotFoundError: No module named 'nothing_of_that_name'" in one.row.reason


def test_single_stages_run_behind_the_eager_ones_that_feed_them(measure):
    (one,), _ = measure(["reference"], kind="stage", stages=["qkv_norm", "sparse_attention"])
    row = one.row
    assert row.status is Status.OK
    assert [stage.name for stage in row.stages] == ["qkv_norm", "sparse_attention"]
    assert row.layer.median > 0
    (single,), _ = measure(["reference"], kind="stage", stages=["qkv_norm"])
    assert single.row.stages[0].timing.median == single.row.layer.median


def test_a_graph_on_a_cpu_is_unsupported(measure):
    (one,), _ = measure(["eager"], schedule={"graph": True})
    assert (one.row.status, one.row.reason) == (Status.UNSUPPORTED, "a CUDA graph needs a GPU")


def test_rounds_of_all_sides_are_interleaved(measure):
    _, said = measure(["eager", "reference"], timing={"rounds": 4, "iterations": 1, "warmup": 0})
    turns = [(case_id, doing) for case_id, doing in said if doing.startswith("round")]
    for number in range(4):
        of_round = turns[2 * number : 2 * number + 2]
        assert {doing for _, doing in of_round} == {f"round {number + 1} of 4"}
        assert len({case_id for case_id, _ in of_round}) == 2


def test_a_throttled_round_is_repeated_and_said(measure):
    (one,), said = measure(["eager"], sensor=Sensor(hot=(2,)))
    assert one.row.status is Status.OK
    assert one.row.warnings == ["1 throttled rounds were repeated"]
    assert ("round 1 of 2, attempt 2") in [doing for _, doing in said]
    assert one.row.layer.rounds[0].sm_clock_hz == 1.98e9
    assert [record["attempt"] for record in one.telemetry] == [1, 1, 0, 0]


def test_a_card_that_never_cools_makes_the_row_invalid(measure):
    (one,), _ = measure(["eager"], sensor=Sensor("always"))
    assert one.row.status is Status.INVALID_THERMAL
    assert one.row.reason == "3 rounds throttled (hw_slowdown); cool the card and run it again"
    assert one.row.layer is None


def test_a_row_measured_while_others_computed_says_so(measure, monkeypatch):
    """Clocks that a neighbour drives: in each turn of a second all cores are busy, and a tenth of that is our own."""
    import os
    from itertools import count

    from dsv4bench.bench.load import CpuTimes

    clock, cores = count(), os.cpu_count()
    monkeypatch.setattr(
        "dsv4bench.bench.comparison.read_cpu", lambda: CpuTimes(at := next(clock), at * cores, at * cores / 10)
    )
    (one,), _ = measure(["eager"])
    assert one.row.extra["busy_elsewhere"] == pytest.approx(0.9 * cores)
    assert [text for text in one.row.warnings if text.startswith(f"others kept {0.9 * cores:.1f} of the {cores} cores")]
    monkeypatch.setattr("dsv4bench.bench.comparison.read_cpu", lambda: None)
    (one,), _ = measure(["eager"])
    assert "busy_elsewhere" not in one.row.extra


def test_every_round_draws_inputs_of_its_own(measure):
    (one, other), _ = measure(["eager", "reference"])
    seeds = [one_round.seed for one_round in one.row.layer.rounds]
    assert len(set(seeds)) == 2
    assert seeds == [one_round.seed for one_round in other.row.layer.rounds]


def test_a_broken_device_ends_the_comparison_after_the_row_of_its_case(tmp_path, monkeypatch):
    import torch

    def broken():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    scenario = small_scenario(tmp_path, providers=["eager", f"{FAILING}:Raises", "reference"])
    cases = expand(scenario)
    layer = prepare(cases[0].shape, cases[0].kind, cases[0].cache, [cases[0].workload])
    settings = Settings(scenario.timing, Device("cuda", name="X", l2_bytes=1), check=False)
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("dsv4bench.bench.comparison.count_all", lambda calls: {})
    comparison = Comparison(settings, None, CompileLog(), Spending(), lambda *words: None, lambda number: None)
    rows = []
    with pytest.raises(PoisonedError, match="illegal memory access"):
        rows.extend(one.row for one in comparison.measure(cases, lambda able: layer))
    measured = comparison.measure(cases, lambda able: layer)
    assert next(measured).row.reason == "ValueError: no such head size (failing_providers.py:38)"
    with pytest.raises(PoisonedError):
        next(measured)


def test_nothing_is_drawn_for_cases_that_no_provider_runs(tmp_path):
    cases = expand(small_scenario(tmp_path, providers=["eager"], schedule={"graph": True}))
    settings = Settings(small_scenario(tmp_path).timing, Device("cpu"))
    comparison = Comparison(settings, None, CompileLog(), Spending(), lambda *words: None, lambda number: None)
    (measured,) = comparison.measure(cases, lambda able: pytest.fail("tensors were drawn"))
    assert (measured.row.status, measured.row.reason) == (Status.UNSUPPORTED, "a CUDA graph needs a GPU")


def test_what_prevents_the_tensors_is_the_row_of_every_case_that_needs_them(tmp_path, capfd):
    def too_much(able):
        assert [case.provider.label for case in able] == ["eager"]
        raise MemoryError("no room for 1 TiB")

    cases = expand(small_scenario(tmp_path, providers=["vllm", "eager"]))
    settings = Settings(small_scenario(tmp_path).timing, Device("cpu"))
    comparison = Comparison(settings, None, CompileLog(), Spending(), lambda *words: None, lambda number: None)
    rows = [one.row for one in comparison.measure(cases, too_much)]
    assert [row.status for row in rows] == [Status.UNSUPPORTED, Status.OOM]
    assert "no room for 1 TiB" in rows[1].reason
    assert "MemoryError" in capfd.readouterr().err
