"""A trial runs stages as a step does, checked or not."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dsv4bench.model.shape import LayerKind
from dsv4bench.providers.base import SUPPORTED, Need, Support
from dsv4bench.providers.eager import EagerProvider
from dsv4bench.verify.suite import Status, row_numbered, run_row
from dsv4bench.verify.trial import Setting, Trial


class Planning:
    """Attention that plans by a tensor of the step beside its stage's own."""

    name = "planning"

    def __init__(self) -> None:
        self.told: list[object] = []

    def supports(self, need: Need) -> Support:
        return SUPPORTED

    def sparse_attention(self, *, max_candidates: int | None = None, **arguments: Any) -> Any:
        self.told.append(max_candidates)
        return EagerProvider.sparse_attention(**arguments)


class Selecting:
    """A top-k that is right but for what ``change`` does to its logits or its result."""

    name = "selecting"

    def __init__(self, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        self.change = change

    def supports(self, need: Need) -> Support:
        return SUPPORTED

    def topk(self, *, logits: torch.Tensor, candidate_lens: torch.Tensor, k: int) -> torch.Tensor:
        return self.change(logits, EagerProvider.topk(logits=logits, candidate_lens=candidate_lens, k=k))


def _cleared(logits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    logits.zero_()
    return chosen


def _exit(logits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    sys.exit(0)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda logits, chosen: chosen, ""),
        (lambda logits, chosen: chosen.long(), "topk: output: returned int64 [6, 512], expected int32 [6, 512]"),
        (lambda logits, chosen: chosen[:, 1:], "topk: output: returned int32 [6, 511], expected int32 [6, 512]"),
        (_cleared, "topk: inputs: the stage has overwritten its input logits; inputs are only read"),
        (_exit, "topk: call: SystemExit: 0"),
    ],
)
def test_a_result_of_another_form_an_overwritten_input_and_an_exit_are_failures(
    change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], wrong: str
) -> None:
    outcome = run_row(Selecting(change), row_numbered(12), Setting(LayerKind.C4A, quick=True))
    assert (outcome.status, outcome.reason) == ((Status.FAIL, wrong) if wrong else (Status.PASS, ""))


def test_a_layer_run_without_checks_is_given_what_a_checked_one_is() -> None:
    provider = Planning()
    trial = Trial(provider, Setting(LayerKind.DSA, quick=True))
    inputs = trial.sequences(requests=2, limit=8).step([3, 5])
    trial.layer(dict(inputs))
    trial.run(dict(inputs))
    assert provider.told == [inputs["max_candidates"]] * 2
    assert inputs["max_candidates"] is not None
