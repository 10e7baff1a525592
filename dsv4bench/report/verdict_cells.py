"""The cells that every table of verdicts shares, as text."""

import math
from collections.abc import Iterable, Sequence

from dsv4bench.analysis.reason import MEANING, Reason
from dsv4bench.analysis.verdict import Outcome, Subject, Verdict
from dsv4bench.report.quantity import change, interval, seconds, share, signed_seconds
from dsv4bench.scenario.sizes import format_bytes

MARK = {
    Outcome.REGRESSED: "❌",
    Outcome.FAILED: "💥",
    Outcome.INCOMPARABLE: "⛔",
    Outcome.INCONCLUSIVE: "❔",
    Outcome.FASTER: "🚀",
    Outcome.PASS: "✅",
}
"""A sign for each outcome, in Markdown."""

REMARKS = (Reason.NO_CLOCK, Reason.VERSION_DIFFERS, Reason.RENAMED)
"""Reasons that decide nothing and stand in no table's cell."""


def notable(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Verdicts worth a line in a table: equal bytes are only counted."""
    return [verdict for verdict in verdicts if Reason.MEMORY_EQUAL not in verdict.reasons]


def equal_bytes(verdicts: Iterable[Verdict]) -> str:
    """How many memory figures are equal, in words; empty if there are none."""
    count = sum(Reason.MEMORY_EQUAL in verdict.reasons for verdict in verdicts)
    return f"memory figures unchanged: {count}" if count else ""


def figure(subject: Subject, value: float | None) -> str:
    """A time or a number of bytes, by what the subject measures."""
    if value is None:
        return "–"
    return format_bytes(value) if subject.metric.startswith("memory") else seconds(value)


def name(subject: Subject) -> str:
    """The case, with what was measured unless that is its whole time."""
    return subject.label if subject.metric == "time" else f"{subject.label} [{subject.metric}]"


def speedup(verdict: Verdict) -> str:
    """Base over new, for times that may be compared: ``1.04×``."""
    timed = verdict.subject.metric.startswith("time") and verdict.outcome is not Outcome.INCOMPARABLE
    return f"{verdict.base / verdict.new:.2f}×" if timed and verdict.base and verdict.new else "–"


def interval_of(verdict: Verdict) -> str:
    """The 95 % interval of the change."""
    if verdict.evidence is None:
        return "–"
    return interval(verdict.evidence.estimate.lower, verdict.evidence.estimate.upper)


def why(verdict: Verdict) -> str:
    """The deciding reason codes, and what differs."""
    codes = ", ".join(reason.value for reason in verdict.reasons if reason not in REMARKS)
    return f"{codes}: {verdict.detail}" if verdict.detail else codes


def shared_why(verdicts: Sequence[Verdict]) -> str:
    """The reason that several verdicts have in common, to be said once; empty where they differ."""
    reasons = {why(verdict) for verdict in verdicts}
    return f"all {len(verdicts)}: {reasons.pop()}" if len(verdicts) > 1 and len(reasons) == 1 else ""


def decided(verdicts: Iterable[Verdict], quote: str = "") -> list[tuple[str, list[str]]]:
    """What was decided, and why in sentences; what can't be compared for the same reason stands together.

    Args:
        verdicts: in the order to be shown.
        quote: stands around names.
    """
    groups: dict[object, list[Verdict]] = {}
    for verdict in verdicts:
        alike = tuple(explanation(verdict)) if verdict.outcome is Outcome.INCOMPARABLE else verdict.subject
        groups.setdefault(alike, []).append(verdict)
    found = []
    for one, *others in groups.values():
        what = f"{1 + len(others)} are" if others else f"{quote}{name(one.subject)}{quote} is"
        found.append((f"{what} {one.outcome.value}", explanation(one)))
    return found


def explanation(verdict: Verdict) -> list[str]:
    """The whole decision in sentences, numbers put in."""
    lines = []
    if (evidence := verdict.evidence) is not None and (limits := verdict.limits) is not None:
        estimate = evidence.estimate
        what = f"{estimate.count} interleaved rounds" if evidence.stored is None else f"{evidence.stored} stored runs"
        if evidence.cards is not None:
            what += f" of {evidence.cards} other card{'s' if evidence.cards != 1 else ''}"
        lines.append(
            f"{seconds(evidence.base)} → {seconds(evidence.new)}: {change(estimate.effect)}, "
            f"95 % interval {interval_of(verdict)} over {what}, p = {estimate.p_value:.2g}"
        )
        lines.append(
            f"absolute change {signed_seconds(evidence.absolute)}; tolerance {share(limits.tolerance)}, "
            f"floor {seconds(limits.floor)}"
        )
        if evidence.cycles is not None:
            lines.append(f"in clock cycles: {change(math.expm1(evidence.cycles))}")
    elif verdict.effect is not None:
        lines.append(f"{figure(verdict.subject, verdict.base)} → {figure(verdict.subject, verdict.new)}")
    lines += [f"{reason.value}: {MEANING[reason]}" for reason in verdict.reasons]
    return [*lines, verdict.detail] if verdict.detail else lines
