"""A gate that ended without verdicts, in every form a report has: CI shows these files, and then most of all."""

import json
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from dsv4bench.analysis.verdict import Outcome
from dsv4bench.errors import IncomparableError, MeasurementError
from dsv4bench.report.github import workflow_command
from dsv4bench.report.verdict_json import FORMAT
from dsv4bench.report.verdict_markdown import HEADLINE


@dataclass(frozen=True)
class Refusal:
    """Why nothing was judged.

    Attributes:
        error: an unreadable or missing file, nothing to compare with, or no case to gate.
        preset: name of the preset.
        strict: whether an inconclusive case would have failed the gate.
    """

    error: IncomparableError | MeasurementError
    preset: str
    strict: bool

    @property
    def outcome(self) -> Outcome:
        """What the gate as a whole is, in place of its cases."""
        return Outcome.INCOMPARABLE if isinstance(self.error, IncomparableError) else Outcome.FAILED


def refusal_markdown(refusal: Refusal) -> str:
    """For a comment or the step summary."""
    return f"### ❌ dsv4bench gate: {HEADLINE[refusal.error.exit_code]}\n\nNothing was judged: {refusal.error}\n"


def refusal_json(refusal: Refusal) -> str:
    """For a script: the keys of a report, none of whose cases has a verdict."""
    record: dict[str, Any] = {
        "format": FORMAT,
        "run_id": None,
        "scenario": None,
        "baseline": [],
        "preset": refusal.preset,
        "strict": refusal.strict,
        "exit_code": refusal.error.exit_code,
        "outcome": refusal.outcome.value,
        "reason": str(refusal.error),
        "verdicts": [],
        "notes": [],
    }
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


def refusal_junit(refusal: Refusal) -> str:
    """One test case, ``gate``, that ended with an error."""
    root = ElementTree.Element("testsuites", name="dsv4bench gate")
    counts = {"tests": "1", "failures": "0", "errors": "1", "skipped": "0", "time": "0"}
    suite = ElementTree.SubElement(root, "testsuite", {"name": "dsv4bench", **counts})
    case = ElementTree.SubElement(suite, "testcase", name="gate", classname="dsv4bench", time="0")
    ElementTree.SubElement(case, "error", message=str(refusal.error), type=refusal.outcome.value)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def refusal_annotation(refusal: Refusal) -> str:
    """A workflow command for the step's standard output."""
    return workflow_command("error", f"gate: {refusal.outcome.value}", str(refusal.error))
