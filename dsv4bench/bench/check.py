"""Correctness around a timing: before it, after it, and after a replay of a graph on fresh inputs."""

from dsv4bench.bench.failure import IncorrectError
from dsv4bench.bench.side import Side
from dsv4bench.results.row import Accuracy
from dsv4bench.stack.graph import capture_layer
from dsv4bench.stack.inputs import Values
from dsv4bench.verify.stage_check import check_stages


def check_run(side: Side, seed: int) -> dict[str, Accuracy]:
    """Run on fresh inputs and compare every timed stage with the reference on the same inputs.

    Returns:
        accuracy by stage name.

    Raises:
        IncorrectError: an output or a cache entry beyond its tolerance.
    """
    return check_values(side, side.inputs(seed))


def check_replay(side: Side, seed: int) -> dict[str, Accuracy]:
    """Capture on one input, replay on another one, and compare: finds what was baked in at capture.

    Raises:
        IncorrectError: an output or a cache entry beyond its tolerance.
    """
    produced = {name for stage in side.timed for name in stage.outputs}
    buffers = {name: value for name, value in side.inputs(seed).items() if name not in produced}
    return check_values(side, capture_layer(side.run, buffers).replay(side.inputs(seed + 1)))


def check_values(side: Side, values: Values) -> dict[str, Accuracy]:
    """Compare the timed stages' outputs, which lie in ``values`` beside their inputs.

    Raises:
        IncorrectError: an output or a cache entry beyond its tolerance.
    """
    checks = check_stages(side.timed, values)
    for check in checks.values():
        if not check.ok:
            raise IncorrectError(check.sentence)
    return {name: check.accuracy for name, check in checks.items()}


def worse(a: dict[str, Accuracy], b: dict[str, Accuracy]) -> dict[str, Accuracy]:
    """By stage, the accuracy that lies closer to its tolerance."""
    return {**a, **{name: max(a.get(name, new), new, key=share_of_tolerance) for name, new in b.items()}}


def share_of_tolerance(accuracy: Accuracy) -> float:
    """Error as a share of what is allowed; the error itself where nothing is allowed."""
    return accuracy.worst_error / accuracy.tolerance if accuracy.tolerance else accuracy.worst_error
