"""From measured steps of a model to its attention time per output token.

A request completes a c4a entry in every fourth step and a c128a entry in every 128th, and those steps cost more.
Measured are three kinds of step (``boundary: [none, c4a, all]``); of 128 steps in a row 96, 31 and 1 are of each kind.
V3.2 has no such boundaries: its steps of all kinds cost the same.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from dsv4bench.results.row import Row, Status

STEPS = {"none": 96, "c4a": 31, "all": 1}
"""How many of 128 consecutive decode steps complete no entry, c4a entries alone, and entries of both kinds."""
_MODEL = ("model", "shape", "layers", "copies", "layer")


@dataclass(frozen=True)
class ModelStep:
    """The attention of all layers in one step, seconds.

    Attributes:
        case: as stored, of one of the rows it comes from.
        seconds: weighted over the kinds of step where they were measured.
        weighted: whether it is.
        ideal_bytes: KV bytes of all layers and requests.
        key: what steps of different models have in common when they are compared.
    """

    case: dict[str, object]
    seconds: float
    weighted: bool
    ideal_bytes: int | None
    key: str

    @property
    def model(self) -> str:
        """Its name."""
        return str(self.case["model"])

    @property
    def context(self) -> int:
        """Sequence length after the step."""
        return int(str(self.case["context"]))


def model_steps(rows: Iterable[Row]) -> list[ModelStep]:
    """The steps of a ``kind: model`` run, weighted where all three kinds of boundary step were measured.

    Steps of V4 with only some of the kinds are left as they are, each by itself.
    """
    groups: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row.status is Status.OK and row.layer and row.case["layer"] == "model":
            groups.setdefault(_key(row, ("boundary",)), {})[row.case["boundary"]] = row
    found = []
    for by_boundary in groups.values():
        decode = all(row.case["phase"] == "decode" for row in by_boundary.values())
        if decode and set(STEPS) <= set(by_boundary):
            found.append(_step(by_boundary["all"], _weighted(by_boundary), weighted=True))
            rest = [row for boundary, row in by_boundary.items() if boundary not in STEPS]
        else:
            rest = list(by_boundary.values())
        found += [_step(row, row.layer.median, weighted=False) for row in rest if row.layer]
    return found


def speedup_over(steps: Iterable[ModelStep], baseline: str) -> list[tuple[ModelStep, float]]:
    """Each step of another model with how much faster it is than the baseline model's at the same batch and context."""
    steps = list(steps)
    base = {(step.key, step.weighted): step.seconds for step in steps if step.model == baseline}
    return [
        (step, base[(step.key, step.weighted)] / step.seconds)
        for step in steps
        if step.model != baseline and (step.key, step.weighted) in base
    ]


def _weighted(by_boundary: dict[str, Row]) -> float:
    total = 0.0
    for boundary, count in STEPS.items():
        layer = by_boundary[boundary].layer
        assert layer is not None
        total += count * layer.median
    return total / sum(STEPS.values())


def _step(row: Row, seconds: float, *, weighted: bool) -> ModelStep:
    apart = ("boundary", *_MODEL) if weighted else _MODEL
    ideal = row.memory.ideal_bytes if row.memory else None
    return ModelStep(row.case, seconds, weighted, ideal, _key(row, apart))


def _key(row: Row, apart: tuple[str, ...]) -> str:
    return json.dumps({name: value for name, value in row.case.items() if name not in apart}, sort_keys=True)
