"""Whole models on a GPU: captured as one graph, replayed on fresh inputs, with streams, right in every layer."""

from dataclasses import replace

import pytest
import torch

from dsv4bench.bench.check import check_replay, check_run
from dsv4bench.bench.device import find_device
from dsv4bench.bench.model_side import load_casts, make_contestant
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.side import WHOLE
from dsv4bench.model.shape import V4_FLASH, LayerKind
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.schema import Scenario
from dsv4bench.stack.graph import capture
from dsv4bench.stack.model import prepare_model

pytestmark = pytest.mark.gpu

KINDS = (LayerKind.SWA, LayerKind.C4A, LayerKind.C128A, LayerKind.C4A)
SMALL = replace(
    V4_FLASH, hidden_size=512, num_heads=16, o_groups=2, q_lora_rank=256, o_lora_rank=128, index_topk=256, layers=KINDS
)


@pytest.fixture(scope="module", params=["serial", "multi", "multi3"])
def side(request):
    scenario = Scenario.model_validate(
        {
            "name": "t", "kind": "model", "model": "v4-flash", "copies": 1,
            "workload": {"batch": 4, "context": 2048, "boundary": "all"}, "weights": {"precision": "fp8"},
            "schedule": {"streams": request.param, "graph": True},
        }
    )  # fmt: skip
    (case,) = expand(scenario)
    case = replace(case, shape=SMALL, layers=KINDS)
    device = find_device("cuda")
    model = prepare_model(
        SMALL, KINDS, case.copies, case.cache, [case.workload], device=device.torch_name, choice=case.weights
    )
    settings = Settings(scenario.timing, device)
    return make_contestant(case, settings, model, load_casts(case, settings))


def test_a_step_is_right_in_every_layer(side):
    check_run(side, 1)


def test_a_replay_on_fresh_inputs_is_right_in_every_layer(side):
    check_replay(side, 2)


def test_the_whole_step_is_one_graph(side):
    calls = side.calls(side.inputs(3))
    graph = capture(calls[WHOLE])
    graph.replay()
    torch.cuda.synchronize()
    assert set(calls) == {WHOLE, "swa", "c4a", "c128a"}
