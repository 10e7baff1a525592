import pytest
import torch

from dsv4bench.errors import UserError
from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGE_NAMES
from dsv4bench.providers.base import SUPPORTED, Support
from dsv4bench.providers.registry import load_provider
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.verify.suite import ROWS, Status, run_row, select_rows
from dsv4bench.verify.trial import Setting

PAIRS = [(row, kind) for row in ROWS for kind in row.kinds]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("row", "kind"), PAIRS, ids=[f"{row.number}-{row.name}-{kind}" for row, kind in PAIRS])
def test_the_eager_provider_passes_every_row(row, kind):
    """It shares no code with the reference, so both would have to be wrong alike."""
    outcome = run_row(load_provider("eager"), row, Setting(kind, quick=True))
    assert outcome.status is Status.PASS, outcome.reason


@pytest.mark.parametrize("cache", ["fp8+fp4", "bf16+bf16", "fp32+fp32"])
@pytest.mark.parametrize("kind", LayerKind)
@pytest.mark.parametrize("number", [1, 7])
def test_every_other_cache_precision_passes_boundary_lengths_and_empty_rows(kind, cache, number):
    setting = Setting(kind, CachePrecision(*cache.split("+")), quick=True)
    outcome = run_row(load_provider("eager"), ROWS[number - 1], setting)
    assert outcome.status is Status.PASS, outcome.reason


def test_rows_are_numbered_as_in_the_specification():
    assert [row.number for row in ROWS] == list(range(1, 23))
    assert len({row.name for row in ROWS}) == 22
    assert all(row.kinds and set(row.stages) <= set(STAGE_NAMES) for row in ROWS)


def test_rows_are_selected_by_number_name_and_stage():
    assert [row.number for row in select_rows(["7", "pro-topk"])] == [7, 19]
    assert {12, 13, 19} <= {row.number for row in select_rows(["topk"])}
    assert select_rows([]) == ROWS


def test_an_unknown_row_is_refused_with_the_names_that_there_are():
    with pytest.raises(UserError, match="22 exact-scales"):
        select_rows(["no-such-row"])


class OneStage:
    name = "one-stage"

    def supports(self, need):
        return SUPPORTED

    def topk(self, *, logits, candidate_lens, k):
        return load_provider("reference").topk(logits=logits, candidate_lens=candidate_lens, k=k)


def test_a_provider_of_one_stage_is_checked_on_that_stage_alone():
    outcome = run_row(OneStage(), ROWS[0], Setting(LayerKind.C4A, quick=True))
    assert outcome.status is Status.PASS
    assert {check.stage for check in outcome.checks} == {"topk"}


def test_a_row_about_other_stages_is_skipped():
    outcome = run_row(OneStage(), ROWS[5], Setting(LayerKind.C4A, quick=True))
    assert outcome.status is Status.SKIPPED
    assert outcome.reason == "the provider has none of its stages"


def test_a_case_that_the_provider_refuses_is_skipped_with_its_reason():
    class Refusing(OneStage):
        def supports(self, need):
            return Support.no("needs an SM90 card")

    outcome = run_row(Refusing(), ROWS[0], Setting(LayerKind.C4A, quick=True))
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, "needs an SM90 card")


def test_an_exception_is_a_failure_with_its_message():
    class Raising(OneStage):
        def topk(self, **arguments):
            raise RuntimeError("no kernel image is available")

    outcome = run_row(Raising(), ROWS[0], Setting(LayerKind.C4A, quick=True))
    assert outcome.status is Status.FAIL
    assert "RuntimeError: no kernel image is available" in outcome.reason


class OneOutput:
    """Its norm returns one tensor where two are due."""

    name = "one-output"

    def supports(self, need):
        return SUPPORTED

    def qkv_norm(self, *, qkv_latent, q_norm_weight, kv_norm_weight, eps):
        return qkv_latent


class NarrowOutput(OneOutput):
    """Its norm returns two tensors that nothing can go on with."""

    def qkv_norm(self, *, qkv_latent, q_norm_weight, kv_norm_weight, eps):
        return qkv_latent[:, :7], qkv_latent[:, :7]


@pytest.mark.parametrize("number", [14, 15, 16, 20, 21])
def test_a_wrong_number_of_outputs_fails_the_row_wherever_the_stage_runs(number):
    outcome = run_row(OneOutput(), ROWS[number - 1], Setting(LayerKind.C4A, quick=True))
    assert outcome.status is Status.FAIL
    assert "qkv_norm returned 1 output, 2 expected" in outcome.reason


@pytest.mark.parametrize("number", [14, 21])
def test_outputs_of_a_wrong_shape_fail_the_row_and_stop_nothing_else(number):
    outcome = run_row(NarrowOutput(), ROWS[number - 1], Setting(LayerKind.C4A, quick=True))
    assert outcome.status is Status.FAIL
