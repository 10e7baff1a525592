from dataclasses import replace

import pytest

from dsv4bench.errors import UserError
from dsv4bench.memory.budget import Given, attention_workspaces, given_budget, gpu_budget
from dsv4bench.memory.deployment import Deployment
from dsv4bench.memory.workspaces import computed_workspaces, prefill_gather_bytes
from dsv4bench.model.gpus import GPUS
from dsv4bench.model.shape import V3_2, V4_FLASH, V4_PRO, LayerKind

GIB = 2**30
PLAN = Deployment(V4_PRO, tp=8)


def test_what_is_given_and_computed_is_taken_off_and_the_rest_is_said_to_be_missing() -> None:
    workspaces = attention_workspaces(PLAN, 512 * 2**20)
    budget = gpu_budget(PLAN, GPUS["H200"], 8, 0.9, Given(weights=100 * GIB), workspaces)
    taken = 100 * GIB + sum(line.bytes or 0 for line in workspaces)
    assert budget.available_bytes == int(GPUS["H200"].memory_bytes * 0.9) - taken
    lines = {line.name: (line.bytes, line.how) for line in budget.lines}
    assert lines["weights"] == (100 * GIB, "as given")
    assert lines["activations"] == (None, "give --activations")
    assert lines["CUDA graphs"] == (None, "give --cuda-graphs")


def test_logits_are_chunked_to_their_budget_and_the_whole_is_shown() -> None:
    whole, chunked = (attention_workspaces(PLAN, budget)[0] for budget in (None, 2**29))
    assert whole.bytes == 8192 * 262_144 * 4
    assert chunked.bytes == 2**29
    assert "8,192 rows · 262,144 candidates · 4 B = 8,589,934,592 B" in chunked.how


def test_a_small_logits_workspace_is_not_rounded_up_to_the_budget() -> None:
    plan = Deployment(V4_FLASH, max_model_len=4096, max_num_batched_tokens=256)
    assert attention_workspaces(plan, 2**29)[0].bytes == 256 * 1024 * 4


def test_v32_scores_every_token_and_gathers_nothing() -> None:
    lines = computed_workspaces(Deployment(V3_2, max_model_len=1000, max_num_batched_tokens=10))
    assert [(line.name, line.bytes) for line in lines] == [("indexer logits", 10 * 1024 * 4)]


def test_a_model_without_an_indexer_has_no_logits() -> None:
    plan = Deployment(replace(V4_FLASH, layers=(LayerKind.SWA, LayerKind.C128A)))
    assert [line.name for line in computed_workspaces(plan)] == ["prefill gather"]


def test_the_gather_workspace_holds_four_requests_of_entries_and_window() -> None:
    assert prefill_gather_bytes(V4_FLASH, 65536, 8192) == 4 * (16384 + 127 + 8192) * 1024


def test_a_budget_that_does_not_reach_says_by_how_much_and_what_takes_it() -> None:
    workspaces = attention_workspaces(PLAN, 2**29)[:1]
    with pytest.raises(UserError) as error:
        gpu_budget(PLAN, GPUS["H20"], 8, 0.9, Given(weights=110 * GIB), workspaces)
    assert str(error.value) == (
        "nothing is left for the cache: 85.50 GiB of each H20 are usable, 25.00 GiB short of what comes before it "
        "(weights 110.00 GiB, indexer logits 512.00 MiB)"
    )


def test_nothing_is_taken_off_memory_that_the_engine_logged() -> None:
    budget = given_budget(10 * GIB, PLAN, attention_workspaces(PLAN, None))
    assert budget.available_bytes == 10 * GIB
    assert budget.count == 8


@pytest.mark.parametrize(
    ("count", "utilization", "weights", "message"),
    [
        (4, 0.9, 0, r"--gpu: 4 GPUs, but tp 8 · dp 1 · pp 1 = 8; make them equal"),
        (8, 0.0, 0, "--utilization must be above 0 and at most 1, got 0.0"),
        (8, 1.5, 0, "--utilization must be above 0 and at most 1, got 1.5"),
        (8, 0.9, 200 * GIB, "nothing is left for the cache"),
    ],
)
def test_what_does_not_fit_is_an_error(count: int, utilization: float, weights: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        gpu_budget(PLAN, GPUS["H200"], count, utilization, Given(weights=weights), ())
