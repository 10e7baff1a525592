"""Rows and contracts: numbers if and only if ok, ids that follow every field."""

import pytest
from pydantic import ValidationError

from dsv4bench.results.environment import Gpu
from dsv4bench.results.row import Contract, Status
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
