"""The report of ``memory --from-log``: reported beside predicted."""

from dataclasses import asdict
from typing import Any

from dsv4bench.memory.reported import Comparison, Finding
from dsv4bench.report.sections import Section


def log_sections(comparison: Comparison) -> list[Section]:
    """One section."""
    rows = tuple(
        (f.name, _number(f.reported, f.digits), _range(f), "agrees" if f.agrees else f"{100 * f.difference:+.2f} %")
        for f in comparison.findings
    )
    raw = tuple((f.name, f.reported, f.low, f.high, f.agrees) for f in comparison.findings)
    columns = ("figure", "reported", "predicted", "verdict")
    raw_columns = ("figure", "reported", "predicted_low", "predicted_high", "agrees")
    return [Section(comparison.title, columns, rows, raw_columns, raw, lines=comparison.lines)]


def log_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as one JSON object."""
    findings = [asdict(finding) | {"agrees": finding.agrees} for finding in comparison.findings]
    return {"configuration": comparison.title, "findings": findings, "notes": list(comparison.lines)}


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"


def _range(finding: Finding) -> str:
    low, high = _number(finding.low, finding.digits), _number(finding.high, finding.digits)
    return low if low == high else f"{low} … {high}"
