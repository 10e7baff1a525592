"""The gate's result where GitHub Actions shows it: the step summary, and annotations as workflow commands."""

from pathlib import Path

from dsv4bench.analysis.gate import GateReport
from dsv4bench.analysis.verdict import Outcome, Verdict
from dsv4bench.report.verdict_cells import name, why

SUMMARY_LIMIT = 1024 * 1024
"""Bytes that GitHub accepts as one step's summary."""

LEVEL = {
    Outcome.REGRESSED: "error",
    Outcome.FAILED: "error",
    Outcome.INCOMPARABLE: "error",
    Outcome.INCONCLUSIVE: "warning",
    Outcome.FASTER: "notice",
}
"""Annotation level of each outcome that gets one."""


def append_step_summary(text: str, path: Path) -> None:
    """Add Markdown to the file that ``GITHUB_STEP_SUMMARY`` names, cut to what GitHub takes."""
    encoded = text.encode()
    if len(encoded) > SUMMARY_LIMIT:
        text = encoded[: SUMMARY_LIMIT - 64].decode(errors="ignore") + "\n\n… cut; see the artefact\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def annotations(report: GateReport) -> list[str]:
    """Workflow commands, one an outcome that isn't a pass, for the step's standard output."""
    return [_annotation(verdict) for verdict in report.verdicts if verdict.outcome in LEVEL]


def _annotation(verdict: Verdict) -> str:
    change = f"{verdict.effect:+.1%}, " if verdict.effect is not None else ""
    title = f"{verdict.outcome.value}: {name(verdict.subject)}"
    return workflow_command(LEVEL[verdict.outcome], title, change + why(verdict))


def workflow_command(level: str, title: str, message: str) -> str:
    """An annotation: ``::error title=…::…``, escaped."""
    return f"::{level} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    """Escape the message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a property of a workflow command."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
