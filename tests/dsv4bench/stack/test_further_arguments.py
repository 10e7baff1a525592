"""A stage's method may take more of the step's tensors than the stage's own parameters."""

from typing import Any

import torch

from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.base import further_parameters
from dsv4bench.stack.layer import further_arguments, run_stage
from dsv4bench.stack.selection import PLANTED, SELECTED

TOPK = next(stage for stage in STAGES[LayerKind.C4A] if stage.name == "topk")


class Curious:
    """Records what its top-k is called with."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def topk(self, *, logits: Any, candidate_lens: Any, k: int, seq_lens: Any = None, absent: Any = None) -> Any:
        self.seen = {"logits": logits, "candidate_lens": candidate_lens, "k": k, "seq_lens": seq_lens}
        assert absent is None
        return logits


def values() -> dict[str, Any]:
    return {"logits": 1, "candidate_lens": 2, "index_topk": 3, "seq_lens": 4, "query_start": 5}


def test_a_method_gets_the_tensors_that_it_names_and_no_others() -> None:
    provider = Curious()
    assert further_parameters(provider.topk) == ("seq_lens", "absent")
    run_stage(TOPK, provider, values())
    assert provider.seen == {"logits": 1, "candidate_lens": 2, "k": 3, "seq_lens": 4}


def test_a_method_does_without_what_the_step_lacks() -> None:
    provider, some = Curious(), values()
    del some["seq_lens"]
    run_stage(TOPK, provider, some)
    assert provider.seen["seq_lens"] is None


def test_a_planted_selection_stands_in_here_as_well() -> None:
    def method(*, logits: Any, topk_indices: Any = None) -> None: ...

    computed = values() | {SELECTED: 8}
    assert further_arguments(method, TOPK, computed) == {SELECTED: 8}
    assert further_arguments(method, TOPK, computed | {PLANTED: 9}) == {SELECTED: 9}


def test_defaults_that_are_values_are_the_methods_own_business() -> None:
    def method(*, logits: Any, seq_lens: int = 3, block_table: Any = None, **rest: Any) -> None: ...

    assert further_parameters(method) == ("block_table",)
    assert further_parameters(torch.add) == ()
