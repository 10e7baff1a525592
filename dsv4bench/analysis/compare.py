"""Several runs side by side: one base, any number of others, judged by the gate's rules with what the files hold."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsv4bench.analysis.evidence import timings
from dsv4bench.analysis.examine import examine
from dsv4bench.analysis.gate import by_severity, settle, with_remarks
from dsv4bench.analysis.pairing import match
from dsv4bench.analysis.reason import Reason
from dsv4bench.analysis.verdict import Limits, Outcome, Verdict
from dsv4bench.errors import IncomparableError
from dsv4bench.results.run_directory import Run

REFUSED = (Reason.CONTRACT_DIFFERS, Reason.SHAPE_CHANGED)
"""Reasons that make a comparison an error; other hardware is shown, never judged."""


@dataclass(frozen=True)
class Comparison:
    """One subject over all runs.

    Attributes:
        name: label of the case, on the base side if it has one.
        metric: what was measured.
        base: figure of the base run: seconds or bytes.
        verdicts: one for each other run; None where it has no such case.
    """

    name: str
    metric: str
    base: float | None
    verdicts: tuple[Verdict | None, ...]

    @property
    def worst(self) -> Verdict:
        """The most severe verdict."""
        return by_severity(verdict for verdict in self.verdicts if verdict is not None)[0]


def judged(base: Sequence[Run], new: Run, limits: Limits) -> tuple[list[Verdict], list[str]]:
    """Verdicts and notes on a run from files alone: nothing doubled, nothing confirmed."""
    findings = examine(base, new)
    settled = [with_remarks(verdict, findings.remarks) for verdict in settle(findings.evidence, lambda *_: limits)]
    return [*findings.verdicts, *settled], findings.notes


def compare(base: Run, others: Sequence[Run], limits: Limits) -> tuple[list[Comparison], list[str]]:
    """Compare runs with a base, worst case first.

    Returns:
        Comparisons, and notes for the reader.

    Raises:
        IncomparableError: no case in common.
    """
    notes: list[str] = []
    columns = []
    for other in others:
        if not match(base.rows, other.rows).pairs:
            raise IncomparableError(f"{base.path} and {other.path} have no case in common")
        verdicts, found = judged([base], other, limits)
        equal = sum(Reason.MEMORY_EQUAL in verdict.reasons for verdict in verdicts)
        found = [*found, *([f"memory figures unchanged: {equal}"] if equal else [])]
        notes += [f"{other.path}: {note}" for note in found]
        columns.append((other, verdicts))
    return tabulate(base, columns), list(dict.fromkeys(notes))


def tabulate(base: Run, columns: Sequence[tuple[Run, Sequence[Verdict]]]) -> list[Comparison]:
    """Verdicts of several runs on one base as a line per case, worst first; equal bytes are left out."""
    table: dict[tuple[str, str], list[Verdict | None]] = {}
    for number, (other, verdicts) in enumerate(columns):
        base_ids = {pair.new.case_id: pair.base.case_id for pair in match(base.rows, other.rows).pairs}
        for verdict in verdicts:
            if Reason.MEMORY_EQUAL not in verdict.reasons:
                case_id = verdict.subject.case_id
                key = (base_ids.get(case_id, case_id), verdict.subject.metric)
                table.setdefault(key, [None] * len(columns))[number] = verdict
    labels = {row.case_id: row.label for row in base.rows}
    times = {(row.case_id, metric): timing.median for row in base.rows for metric, timing in timings(row)}
    comparisons = [_comparison(labels.get(key[0]), key[1], times.get(key), cells) for key, cells in table.items()]
    order = {id(verdict): rank for rank, verdict in enumerate(by_severity(item.worst for item in comparisons))}
    return sorted(comparisons, key=lambda item: order[id(item.worst)])


def refused(comparisons: Sequence[Comparison]) -> bool:
    """Whether any case may not be compared because its numbers mean something else."""
    return any(
        verdict is not None and verdict.outcome is Outcome.INCOMPARABLE and verdict.reasons[0] in REFUSED
        for item in comparisons
        for verdict in item.verdicts
    )


def _comparison(label: str | None, metric: str, time: float | None, cells: Sequence[Verdict | None]) -> Comparison:
    """A line of the table; ``time`` is what the base measured, which a verdict on a failure doesn't hold."""
    first = next(verdict for verdict in cells if verdict is not None)
    base = next((verdict.base for verdict in cells if verdict is not None and verdict.base is not None), None)
    return Comparison(label or first.subject.label, metric, time if base is None else base, tuple(cells))
