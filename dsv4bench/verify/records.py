"""Outcomes as flat records: what tables, JSON, CSV and Markdown show."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dsv4bench.verify.suite import Outcome

FIGURES = ("snr_db", "cosine", "lse_error", "selection_recall", "recall", "lse_error_fp32")
"""Accuracy figures. The last two compare with fp32 caches, the others with the reference over the same caches."""


def outcome_record(outcome: Outcome) -> dict[str, Any]:
    """One outcome in full; an infinite error is None, and the reason says what is wrong."""
    worst = outcome.worst
    return {
        "row": outcome.row.number,
        "case": outcome.row.name,
        "layer": outcome.setting.kind.value,
        "cache": outcome.setting.precision.label,
        "status": outcome.status.value,
        "stages": ", ".join(outcome.stages),
        "tensor": worst.what if worst else None,
        "worst_error": worst.error if worst and math.isfinite(worst.error) else None,
        "tolerance": worst.tolerance if worst else None,
        "where": worst.where if worst else None,
        "reason": outcome.reason,
        "notes": "; ".join(outcome.notes),
        "reported": outcome.row.reported,
        "seconds": round(outcome.seconds, 3),
    }


def outcome_line(outcome: Outcome) -> dict[str, str]:
    """One outcome as a row of a table for people."""
    worst = outcome.worst
    error, where = "", outcome.reason or "; ".join(outcome.notes)
    if worst is not None and worst.tolerance:
        error = f"{worst.error:.2g} of {worst.tolerance:.2g}"
        where = where or f"{worst.what}, {worst.where}"
    elif worst is not None:
        error = "exact" if worst.ok else "wrong"
    stages = outcome.stages if len(outcome.stages) <= 2 else (f"{len(outcome.stages)} stages",)
    return {
        "row": str(outcome.row.number),
        "case": outcome.row.name,
        "layer": outcome.setting.kind.value,
        "cache": outcome.setting.precision.label,
        "stages": ", ".join(stages),
        "status": outcome.status.value,
        "worst error": error,
        "where": where,
    }


def accuracy_records(
    outcomes: Iterable[Outcome], against_fp32: Mapping[tuple[str, str], Mapping[str, Mapping[str, float]]]
) -> list[dict[str, Any]]:
    """Accuracy figures by layer, cache precision and stage: the worst of all checks; stages with no more than a cosine
    are left out.

    Args:
        outcomes: what was checked.
        against_fp32: (layer, cache label) → stage → figures, of ``accuracy.format_accuracy``.
    """
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for outcome in outcomes:
        for check in outcome.checks:
            key = (outcome.setting.kind.value, outcome.setting.precision.label, check.stage)
            for name, value in check.numbers.items():
                figures = found.setdefault(key, {})
                pick = max if name.endswith("error") else min
                figures[name] = pick(figures.get(name, value), value)
    for (layer, cache), stages in against_fp32.items():
        for stage, numbers in stages.items():
            # noise of the format itself, where no check of this provider measured it
            found[layer, cache, stage] = dict(numbers) | found.get((layer, cache, stage), {})
    return [
        {"layer": layer, "cache": cache, "stage": stage} | {name: figures.get(name) for name in FIGURES}
        for (layer, cache, stage), figures in sorted(found.items())
        if figures.keys() - {"cosine"}
    ]
