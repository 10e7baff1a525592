"""NVTX ranges: nested case, layer, stage for a tool that listens, and next to nothing when none does."""

import timeit

import pytest

from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.registry import load_provider
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.scenario.workload import Workload
from dsv4bench.stack import scopes
from dsv4bench.stack.layer import prepare, run_layer


class Domain:
    """Records what a tool would see."""

    def __init__(self):
        self.seen, self.depth = [], 0

    def get_event_attributes(self, message):
        return message

    def push_range(self, attributes):
        self.seen.append((self.depth, attributes))
        self.depth += 1

    def pop_range(self):
        self.depth -= 1


@pytest.fixture
def listening(monkeypatch):
    domain = Domain()
    monkeypatch.setattr(scopes, "_domain", lambda: domain)
    scopes._attributes.cache_clear()
    yield domain
    scopes._attributes.cache_clear()


def test_no_tool_listens_here():
    assert scopes.scope("a") is scopes.scope("b")


def test_a_range_costs_under_a_microsecond_when_no_tool_listens():
    def once():
        with scopes.scope("topk"):
            pass

    assert min(timeit.repeat(once, number=2000, repeat=20)) / 2000 < 1e-6


def test_every_stage_has_a_range_inside_its_layers(listening, small_shape):
    workload = Workload("decode", 1, 256, 1, "spread")
    layer = prepare(small_shape(LayerKind.SWA), LayerKind.SWA, CachePrecision(), [workload])
    stages = STAGES[LayerKind.SWA]
    reference = load_provider("reference")
    with scopes.scope("case"), scopes.scope("swa"):
        run_layer(stages, {stage.name: reference for stage in stages}, layer.draw(workload, 0))
    assert listening.seen == [(0, "case"), (1, "swa"), *((2, stage.name) for stage in stages)]
    assert listening.depth == 0


def test_a_range_ends_when_a_stage_fails(listening):
    with pytest.raises(ValueError, match="x"), scopes.scope("case"):
        raise ValueError("x")
    assert listening.depth == 0
