"""The gate's procedure: judge, double the rounds of what is open, confirm what changed.

Measuring more is the caller's business, asked for through callbacks, so that the procedure is the same with a GPU,
from files alone and in a simulation.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from dsv4bench.analysis.reason import Reason
from dsv4bench.analysis.statistics import holm
from dsv4bench.analysis.verdict import (
    Evidence,
    Limits,
    Outcome,
    Subject,
    Verdict,
    confirm,
    exit_code,
    judge,
    why_not_gated,
)
from dsv4bench.results.run_directory import Run

DOUBLINGS = 3
"""How often the rounds of an inconclusive case are doubled at most."""

Evidences = Mapping[Subject, Evidence]
LimitsOf = Callable[[Subject, Evidence], Limits]
"""Limits of a subject, given how many rounds were measured."""
More = Callable[[Collection[Subject]], Evidences]
"""Double the rounds of subjects; what is returned covers old and new rounds, and what else was measured with them."""
Again = Callable[[Collection[Subject]], Evidences]
"""Measure subjects once more, in a fresh process."""


@dataclass(frozen=True)
class GateReport:
    """The gate's result: what every exporter takes.

    Attributes:
        run: the run under test.
        base: what it was held against.
        preset: name of the preset.
        strict: whether an inconclusive case fails the gate.
        verdicts: the verdicts, worst first.
        notes: sentences for the reader.
    """

    run: Run
    base: tuple[Run, ...]
    preset: str
    strict: bool
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 pass, 1 regression, 3 inconclusive and strict, 4 incomparable, 5 measurement failed."""
        return exit_code(self.verdicts, strict=self.strict)

    def count(self, outcome: Outcome) -> int:
        """How many verdicts are of a kind."""
        return sum(verdict.outcome is outcome for verdict in self.verdicts)


def by_severity(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Verdicts sorted worst first, within an outcome the largest slowdown first."""
    order = list(Outcome)
    return tuple(sorted(verdicts, key=lambda item: (order.index(item.outcome), -(item.effect or 0.0), item.subject)))


def settle(
    evidence: Evidences, limits_of: LimitsOf, more: More | None = None, again: Again | None = None
) -> list[Verdict]:
    """Give every subject its verdict.

    Args:
        evidence: what was measured.
        limits_of: what a change must exceed.
        more: doubles the rounds of open subjects, those that are too noisy to gate included where more rounds can
            make them quiet enough; None where nothing can be measured.
        again: confirms changes; None where nothing can be measured: they then stand as ``unconfirmed``.

    Returns:
        Verdicts in the order of ``evidence``.
    """
    current = dict(evidence)
    verdicts = judge_all(current, limits_of)
    for left in range(DOUBLINGS if more else 0, 0, -1):
        open_subjects = [
            subject for subject, item in verdicts.items() if _more_rounds_help(item, current[subject], limits_of, left)
        ]
        if not open_subjects or more is None:
            break
        current.update(more(open_subjects))
        verdicts = judge_all(current, limits_of)
    changed = [item.subject for item in verdicts.values() if item.outcome in (Outcome.REGRESSED, Outcome.FASTER)]
    second = again(changed) if again and changed else {}
    for subject in changed:
        verdicts[subject] = confirm(verdicts[subject], second.get(subject))
    return list(verdicts.values())


def judge_all(evidence: Evidences, limits_of: LimitsOf) -> dict[Subject, Verdict]:
    """Judge every subject, with Holm's correction over those that are gated."""
    limits = {subject: limits_of(subject, item) for subject, item in evidence.items()}
    gated = [subject for subject, item in evidence.items() if why_not_gated(item, limits[subject]) is None]
    adjusted = holm({subject: evidence[subject].estimate.p_value for subject in gated})
    return {
        subject: judge(subject, item, limits[subject], adjusted.get(subject, 1.0)) for subject, item in evidence.items()
    }


def with_remarks(verdict: Verdict, remarks: Mapping[str, tuple[Reason, ...]]) -> Verdict:
    """Add what was remarked about a case to a verdict on its times."""
    return replace(verdict, reasons=(*verdict.reasons, *remarks.get(verdict.subject.case_id, ())))


def _more_rounds_help(verdict: Verdict, evidence: Evidence, limits_of: LimitsOf, left: int) -> bool:
    """Whether a subject is open that ``left`` doublings may settle: noise too large now may average out by then."""
    if Reason.TOO_NOISY in verdict.reasons:
        return not limits_of(verdict.subject, replace(evidence, rounds=evidence.rounds * 2**left)).too_noisy
    return verdict.outcome is Outcome.INCONCLUSIVE and Reason.REACHES_TOLERANCE in verdict.reasons
