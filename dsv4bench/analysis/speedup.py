"""Speedups over a scenario's baselines: another provider on the same case, the V3.2 layer at the same step."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from dsv4bench.results.row import Row, Status

_OWN = ("model", "shape", "layer", "stages", "layers", "copies")
"""Keys of a case that differ between a layer and the layer of another model at the same step."""


@dataclass(frozen=True)
class Speedup:
    """How much faster a row is; None where there is nothing to compare with.

    Attributes:
        provider: baseline provider's time over this row's, on the same case.
        model: baseline model's layer time over this row's, for the same step, caches, schedule and provider. V4 and
            V3.2 stages differ, so only whole layers are compared.
    """

    provider: float | None = None
    model: float | None = None


def speedups(rows: Iterable[Row], provider: str | None, model: str | None) -> dict[str, Speedup]:
    """Speedup of every row that has a time, by case id.

    Args:
        rows: of one run.
        provider: baseline provider (its label), or None.
        model: baseline model, or None.
    """
    rows = [row for row in rows if row.status is Status.OK and row.layer]
    timed = {row.case_id: row.layer.median for row in rows if row.layer}
    by_pair = {(row.pair_id, row.case["provider"]): timed[row.case_id] for row in rows}
    by_step = {(_step(row), row.case["model"]): timed[row.case_id] for row in rows if not row.case["stages"]}
    result = {}
    for row in rows:
        own = timed[row.case_id]
        other_provider = by_pair.get((row.pair_id, provider)) if provider else None
        other_model = by_step.get((_step(row), model)) if model and not row.case["stages"] else None
        result[row.case_id] = Speedup(
            other_provider / own if other_provider else None,
            other_model / own if other_model and row.case["model"] != model else None,
        )
    return result


def _step(row: Row) -> str:
    return json.dumps({key: value for key, value in row.case.items() if key not in _OWN}, sort_keys=True)
