"""What the harness itself takes inside a timed window, beside stages of 50 µs and more on a CPU.

Running a stage by name costs 1.3 µs with two arguments and 1.9 µs with ten.
"""

import timeit

import pytest

from dsv4bench.bench.timers.wall import WallTimer
from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.stack.layer import run_layer, run_stage

C4A = STAGES[LayerKind.C4A]
STAGE_SECONDS = 50e-6
PLAIN_SECONDS = 1.1e-6
"""A call of a method by name with ten arguments by name, where the bounds below were set."""


class Idle:
    """Every stage does nothing and returns what it would."""

    name = "idle"

    def __getattr__(self, name):
        outputs = next(stage.outputs for stage in C4A if stage.name == name)
        result = outputs[0] if len(outputs) == 1 else outputs or None
        method = lambda **arguments: result  # noqa: E731
        setattr(self, name, method)
        return method


def values():
    return {tensor: tensor for stage in C4A for tensor in (*stage.inputs.values(), *stage.outputs)}


@pytest.fixture
def slowdown():
    """How much longer such a call takes on this machine, where stages take longer as well; at least 1."""
    stage, provider, tensors = max(C4A, key=lambda stage: len(stage.inputs)), Idle(), values()

    def plain():
        getattr(provider, stage.name)(**{name: tensors[tensor] for name, tensor in stage.inputs.items()})

    return max(min(timeit.repeat(plain, number=500, repeat=20)) / 500 / PLAIN_SECONDS, 1.0)


def test_running_a_stage_by_name_costs_under_five_per_cent_of_a_short_stage(slowdown):
    stage, provider, tensors = max(C4A, key=lambda stage: len(stage.inputs)), Idle(), values()
    once = min(timeit.repeat(lambda: run_stage(stage, provider, tensors), number=500, repeat=20)) / 500
    assert once < 0.05 * STAGE_SECONDS * slowdown


def test_a_timed_layer_of_idle_stages_takes_under_five_per_cent_of_one_of_short_stages(slowdown):
    providers, tensors = dict.fromkeys((stage.name for stage in C4A), Idle()), values()
    samples = WallTimer().time([lambda: run_layer(C4A, providers, tensors)], 5, 200, None)
    assert min(samples.seconds) < 0.05 * STAGE_SECONDS * len(C4A) * slowdown
