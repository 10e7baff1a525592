"""Steps of a model weighted over boundaries, and how much faster they are than another model's."""

import pytest

from dsv4bench.analysis.model_step import STEPS, model_steps, speedup_over
from dsv4bench.results.row import Contract, MemoryFigures, Row, Status, Timing
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.schema import Scenario


def rows(seconds, **workload):
    """Rows of a model scenario; ``seconds`` is asked for each case."""
    given = {"context": ["8K", "1M"], **workload}
    scenario = Scenario.model_validate(
        {"name": "t", "kind": "model", "model": ["v4-flash", "v3.2"], "workload": given, "baseline": {"model": "v3.2"}}
    )
    contract = Contract(timer="graph", l2="warm", graph=True)
    for case in expand(scenario):
        time = seconds(case)
        yield Row(
            case_id=case.case_id, pair_id=case.pair_id, contract_id=contract.contract_id, label=case.label,
            case=case.describe(), contract=contract, status=Status.OK, layer=Timing(median=time, min=time, mad=0),
            memory=MemoryFigures(ideal_bytes=case.workload.context),
        )  # fmt: skip


def flash_or_old(case):
    if case.shape.name == "v3.2":
        return 10e-3
    return {"none": 1e-3, "c4a": 2e-3, "all": 4e-3, "spread": 1.5e-3}[case.workload.boundary]


def test_of_128_steps_96_complete_nothing_31_c4a_entries_and_one_both():
    assert sum(STEPS.values()) == 128
    completes = [(step % 4 == 0, step % 128 == 0) for step in range(128)]
    assert [completes.count(kind) for kind in ((False, False), (True, False), (True, True))] == list(STEPS.values())


def test_a_decode_step_is_weighted_over_its_boundaries():
    steps = model_steps(rows(flash_or_old, boundary=["none", "c4a", "all"]))
    assert [(step.model, step.context, step.weighted) for step in steps] == [
        ("v4-flash", 8192, True), ("v4-flash", 1048576, True), ("v3.2", 8192, True), ("v3.2", 1048576, True),
    ]  # fmt: skip
    assert steps[0].seconds == pytest.approx((96 * 1e-3 + 31 * 2e-3 + 1 * 4e-3) / 128)
    assert steps[2].seconds == pytest.approx(10e-3)
    assert steps[0].ideal_bytes == 8192


def test_without_all_three_kinds_steps_stay_as_they_are():
    steps = model_steps(rows(flash_or_old, boundary=["none", "spread"], context="8K"))
    assert [(step.case["boundary"], step.weighted) for step in steps if step.model == "v4-flash"] == [
        ("none", False), ("spread", False),
    ]  # fmt: skip


def test_prefill_chunks_are_not_weighted():
    found = rows(lambda case: 1e-3, phase="prefill", boundary=["none", "c4a", "all"], context="8K")
    assert not any(step.weighted for step in model_steps(found))


def test_speedup_is_over_the_other_model_at_the_same_step():
    steps = model_steps(rows(flash_or_old, boundary=["none", "c4a", "all", "spread"]))
    found = speedup_over(steps, "v3.2")
    assert [(step.context, step.weighted) for step, _ in found] == [
        (8192, True), (8192, False), (1048576, True), (1048576, False),
    ]  # fmt: skip
    assert found[0][1] == pytest.approx(10e-3 / steps[0].seconds)
    assert found[1][1] == pytest.approx(10 / 1.5)
    assert speedup_over(steps, "v4-pro") == []
