"""Padded heads of a provider beside the effective ones."""

from dsv4bench.bench.padding import padding
from dsv4bench.bench.roofline import cost_of
from dsv4bench.providers.eager import EagerProvider
from dsv4bench.providers.vllm import VllmProvider
from dsv4bench.scenario.case import Case
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.schema import Scenario


def case(tp: int) -> Case:
    data = {
        "name": "padding", "model": "v4-pro", "layers": ["c128a"], "tp": tp,
        "workload": {"batch": 4, "context": "8K"},
    }  # fmt: skip
    return expand(Scenario.model_validate(data))[0]


def test_heads_of_a_rank_are_padded_and_their_flops_grow_with_them() -> None:
    found = padding(VllmProvider(), "sparse_attention", case(tp=8))
    effective = cost_of(case(tp=8), "sparse_attention").flops
    assert found == {"padded_heads": 64, "padded_flops": 4 * effective}


def test_nothing_is_reported_where_nothing_is_padded() -> None:
    assert padding(VllmProvider(), "sparse_attention", case(tp=1)) == {}
    assert padding(VllmProvider(), "inverse_rope_quant", case(tp=8)) == {}
    assert padding(EagerProvider(), "sparse_attention", case(tp=8)) == {}
