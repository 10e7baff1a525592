"""Rows and contracts: numbers if and only if ok, ids that follow every field."""

import pytest
from pydantic import ValidationError

from dsv4bench.results.environment import Gpu
from dsv4bench.results.row import Accuracy, Contract, MemoryFigures, Row, StageRow, Status
from tests.dsv4bench.stored_runs import around, row

CHANGES = {
    "timer": "graph",
    "l2": "cold",
    "flush": "memset",
    "flush_bytes": 1,
    "graph": True,
    "iterations_per_graph": 10,
    "streams": "multi",
    "clock_policy": "locked",
    "statistic": "mean",
    "seed": 1,
    "protocol": 2,
}


def test_an_ok_row_has_a_time_and_only_an_ok_row():
    assert row("a", around(1e-3)).status is Status.OK
    with pytest.raises(ValidationError, match="a row that is ok has a time"):
        row("a")
    for status in set(Status) - {Status.OK}:
        with pytest.raises(ValidationError, match=f"a row that is {status.value} may not carry a time"):
            row("a", around(1e-3), status=status, reason="why")
        with pytest.raises(ValidationError, match=f"a row that is {status.value} says why"):
            row("a", status=status)
        assert row("a", status=status, reason="why").layer is None


def test_what_was_measured_stands_in_rows_that_are_ok_alone_and_predicted_bytes_in_any():
    predicted, held = MemoryFigures(ideal_bytes=1, engine_bytes=2), MemoryFigures(ideal_bytes=1, measured_bytes=3)
    accuracy = Accuracy(worst_error=0.0, tolerance=1.0)
    numbers = {
        "an accuracy": {"accuracy": accuracy},
        "compile seconds": {"compile_seconds": 1.0},
        "an energy": {"energy_joules": 1.0},
        "measured bytes": {"memory": held},
    }
    for what, fields in numbers.items():
        assert row("a", around(1e-3), **fields).status is Status.OK
        with pytest.raises(ValidationError, match=f"a row that is oom may not carry {what}"):
            row("a", status=Status.OOM, reason="why", **fields)
    failed = row("a", status=Status.OOM, reason="why", memory=predicted)
    assert Row.model_validate_json(failed.model_dump_json()) == failed
    stage = StageRow(name="topk", provider="p", accuracy=accuracy)
    with pytest.raises(ValidationError, match="a row that is oom may not carry an accuracy"):
        row("a", status=Status.OOM, reason="why", stages=[stage])


def test_a_memory_row_that_is_ok_has_bytes_and_needs_no_time():
    case = {"scenario_kind": "memory"}
    assert row("a", case=case, engine_bytes=2).layer is None
    with pytest.raises(ValidationError, match="a memory row that is ok has bytes"):
        row("a", case=case)


def test_a_copy_of_a_row_is_held_to_the_same_rules():
    timed = row("a", around(1e-3))
    with pytest.raises(ValidationError, match="a row that is timeout may not carry a time"):
        timed.model_copy(update={"status": Status.TIMEOUT, "reason": "why"})
    with pytest.raises(ValidationError, match="a row that is ok has a time"):
        timed.model_copy(update={"layer": None})
    copy = timed.model_copy(update={"warnings": ["warm"]})
    assert (copy.layer, copy.warnings, timed.warnings) == (timed.layer, ["warm"], [])


def test_every_field_of_a_contract_changes_its_id():
    base = Contract(timer="events", l2="warm")
    assert set(CHANGES) == set(Contract.model_fields)
    ids = {base.model_copy(update={name: value}).contract_id for name, value in CHANGES.items()}
    assert len(ids | {base.contract_id}) == len(CHANGES) + 1
    assert base.contract_id == Contract(timer="events", l2="warm").contract_id


def test_unknown_keys_are_refused():
    with pytest.raises(ValidationError, match="Extra inputs"):
        Contract.model_validate({"timer": "events", "l2": "warm", "colour": "blue"})


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm4-40gb"),
    ],
)
def test_a_cards_name_becomes_a_folder(name, slug):
    assert Gpu(name=name).slug == slug
