"""The gate's result for scripts: SI units, stable reason codes."""

import json
import math
from pathlib import Path
from typing import Any

from dsv4bench.analysis.gate import GateReport
from dsv4bench.analysis.verdict import Outcome, Verdict

FORMAT = 1
"""Version of this JSON; raised when a reader would misread it."""


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    """A verdict as plain data."""
    record: dict[str, Any] = {
        "case_id": verdict.subject.case_id,
        "metric": verdict.subject.metric,
        "label": verdict.subject.label,
        "outcome": verdict.outcome.value,
        "reasons": [reason.value for reason in verdict.reasons],
        "detail": verdict.detail,
        "base": verdict.base,
        "new": verdict.new,
        "effect": verdict.effect,
    }
    if verdict.evidence is not None:
        estimate = verdict.evidence.estimate
        bounded = math.isfinite(estimate.half_width)
        record |= {
            "lower": estimate.lower if bounded else None,
            "upper": estimate.upper if bounded else None,
            "p_value": estimate.p_value,
            "observations": estimate.count,
            "against": "interleaved rounds" if verdict.evidence.stored is None else "stored runs",
        }
    if verdict.limits is not None:
        record |= {"tolerance": verdict.limits.tolerance, "floor": verdict.limits.floor}
    return record


def gate_json(report: GateReport) -> str:
    """The report as a JSON document."""
    record = {
        "format": FORMAT,
        "run_id": report.run.manifest.run_id,
        "scenario": report.run.manifest.scenario_name,
        "baseline": [run.manifest.run_id for run in report.base],
        "preset": report.preset,
        "strict": report.strict,
        "exit_code": report.exit_code,
        "verdicts": [verdict_record(verdict) for verdict in report.verdicts],
        "notes": list(report.notes),
    }
    return json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def faster_before(path: Path, run_id: str) -> set[str]:
    """Ids of cases that an earlier report of another run, kept at ``path``, found faster; empty if there is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["format"] != FORMAT or record["run_id"] == run_id:
            return set()
        return {item["case_id"] for item in record["verdicts"] if item["outcome"] == Outcome.FASTER.value}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
