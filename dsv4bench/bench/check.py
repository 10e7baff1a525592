"""Correctness around a timing: before it, after it, and after a replay of a graph on fresh inputs."""

from typing import Any

from dsv4bench.bench.failure import IncorrectError
from dsv4bench.bench.side import Contestant
from dsv4bench.results.row import Accuracy
from dsv4bench.verify.stage_check import check_stages


def check_run(side: Contestant, seed: int) -> dict[str, Accuracy]:
    """Run on fresh inputs and compare every timed stage with the reference on the same inputs.

    Raises:
        IncorrectError: an output or a cache entry beyond its tolerance.
    """
    return check_values(side, side.inputs(seed))


def check_replay(side: Contestant, seed: int) -> dict[str, Accuracy]:
    """Capture on one input, replay on another one, and compare: finds what was baked in at capture.

    Raises:
        IncorrectError: an output or a cache entry beyond its tolerance.
    """
    return check_values(side, side.replay(seed))


def check_values(side: Contestant, values: Any) -> dict[str, Accuracy]:
    """Compare the timed stages' outputs, which lie in ``values`` beside their inputs, with the reference.

    Returns:
        accuracy by stage name.

    Raises:
        IncorrectError: an output or a cache entry beyond its tolerance.
    """
    found: dict[str, Accuracy] = {}
    for stages, of_stages in side.parts(values):
        checks = check_stages(stages, of_stages)
        for check in checks.values():
            if not check.ok:
                raise IncorrectError(check.sentence)
        found = worse(found, {name: check.accuracy for name, check in checks.items()})
    return found


def worse(a: dict[str, Accuracy], b: dict[str, Accuracy]) -> dict[str, Accuracy]:
    """By stage, the accuracy that lies closer to its tolerance."""
    return {**a, **{name: max(a.get(name, new), new, key=share_of_tolerance) for name, new in b.items()}}


def share_of_tolerance(accuracy: Accuracy) -> float:
    """Error as a share of what is allowed; the error itself where nothing is allowed."""
    return accuracy.worst_error / accuracy.tolerance if accuracy.tolerance else accuracy.worst_error
