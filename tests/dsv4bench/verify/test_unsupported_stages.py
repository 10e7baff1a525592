"""A provider that says it can't do something is not thereby wrong."""

from typing import Any

import torch

from dsv4bench.model.shape import LayerKind
from dsv4bench.providers.base import SUPPORTED, Need, Support
from dsv4bench.providers.eager import EagerProvider
from dsv4bench.stack.layer import run_layer
from dsv4bench.verify.rows.attending import stage_owners
from dsv4bench.verify.suite import Status, run_row, select_rows
from dsv4bench.verify.trial import Setting, Trial


class Narrow:
    """A norm that works and a rotation that refuses."""

    name = "narrow"
    qkv_norm = staticmethod(EagerProvider.qkv_norm)

    def supports(self, need: Need) -> Support:
        return SUPPORTED

    def query_norm_rope_insert(self, **arguments: Any) -> torch.Tensor:
        raise NotImplementedError("pages in a slab")


def test_a_refused_stage_is_noted_and_the_reference_goes_on() -> None:
    outcome = run_row(Narrow(), select_rows(["window-edge"])[0], Setting(LayerKind.SWA, quick=True))
    assert outcome.status is Status.PASS
    assert outcome.stages == ("qkv_norm",)
    assert outcome.notes == ("query_norm_rope_insert is unsupported here: pages in a slab",)


def test_a_refused_stage_can_be_run_without_a_check_as_well() -> None:
    trial = Trial(Narrow(), Setting(LayerKind.SWA, quick=True))
    values = trial.sequences(requests=1, limit=4).step([2])
    trial.layer(values)
    again = trial.plain("query_norm_rope_insert", **{
        name: values[name] for name in ("q", "kv", "positions", "cos_sin", "window_cache", "window_slots", "eps")
    })[0]  # fmt: skip
    assert torch.equal(again, values["q_rotated"])


def test_a_whole_layer_takes_a_refused_stage_from_the_eager_provider() -> None:
    trial = Trial(Narrow(), Setting(LayerKind.SWA, quick=True))
    seqs = trial.sequences(requests=1, limit=4)
    trial.layer(seqs.step([2]))
    owners = stage_owners(trial)
    assert owners["qkv_norm"] is trial.provider
    assert isinstance(owners["query_norm_rope_insert"], EagerProvider)
    values = seqs.step([1])
    run_layer(trial.stages, owners, values)
    assert values["y"].isfinite().all()
