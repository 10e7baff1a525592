"""A trial runs stages as a step does, checked or not."""

from typing import Any

from dsv4bench.model.shape import LayerKind
from dsv4bench.providers.base import SUPPORTED, Need, Support
from dsv4bench.providers.eager import EagerProvider
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


def test_a_layer_run_without_checks_is_given_what_a_checked_one_is() -> None:
    provider = Planning()
    trial = Trial(provider, Setting(LayerKind.DSA, quick=True))
    inputs = trial.sequences(requests=2, limit=8).step([3, 5])
    trial.layer(dict(inputs))
    trial.run(dict(inputs))
    assert provider.told == [inputs["max_candidates"]] * 2
    assert inputs["max_candidates"] is not None
