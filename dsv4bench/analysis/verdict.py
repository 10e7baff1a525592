"""Verdicts: what may be said about one case, and why.

Every case starts inconclusive and is upgraded by evidence; each decision carries reason codes, so that a verdict can be
explained and a script can act on it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from dsv4bench.analysis.reason import MINIMUM_HISTORY, MINIMUM_ROUNDS, Reason
from dsv4bench.analysis.statistics import CONFIDENCE, Estimate

GATEABLE = 0.05
"""Tolerance above which noise alone makes a case too noisy to gate."""


ONE_SIDED = frozenset({Reason.VANISHED, Reason.NO_BASELINE})
"""Reasons of cases that only one side has."""


class Outcome(StrEnum):
    """What a comparison says."""

    REGRESSED = "regressed"
    FAILED = "failed"
    """The new side has no number: it crashed, timed out or was wrong."""
    INCOMPARABLE = "incomparable"
    INCONCLUSIVE = "inconclusive"
    FASTER = "faster"
    PASS = "pass"


@dataclass(frozen=True)
class Limits:
    """What a change must exceed to count.

    Attributes:
        tolerance: relative change.
        floor: absolute change, seconds.
        too_noisy: whether this machine can't tell such a change from none.
    """

    tolerance: float
    floor: float
    too_noisy: bool = False


PRESETS = {
    "strict": Limits(0.01, 0.1e-6),
    "default": Limits(0.03, 0.5e-6),
    "permissive": Limits(0.10, 2e-6),
}
"""Tolerance and floor by name."""


def limits_for(preset: Limits, noise: float | None) -> Limits:
    """Widen a preset to what a case's own noise allows.

    Args:
        preset: limits asked for.
        noise: half-width of the A/A interval of the case at the gate's number of rounds; None if it was never taken.

    Returns:
        The larger of both as tolerance; too noisy where noise makes that exceed 5 % (or the preset, if it is wider).
    """
    tolerance = max(preset.tolerance, noise or 0.0)
    return replace(preset, tolerance=tolerance, too_noisy=tolerance > max(GATEABLE, preset.tolerance))


@dataclass(frozen=True)
class Evidence:
    """What was measured about one subject.

    Attributes:
        estimate: relative change with its interval.
        base: median of the base side, seconds.
        new: median of the new side, seconds.
        rounds: rounds of the new side.
        cycles: mean of ln(new / base) in SM clock cycles; None where no clock is known.
        stored: how many stored runs the base is; None if both sides were measured in the same rounds.
        cards: how many cards those came from, where the new side was measured on none of them; else None.
    """

    estimate: Estimate
    base: float
    new: float
    rounds: int
    cycles: float | None = None
    stored: int | None = None
    cards: int | None = None

    @property
    def absolute(self) -> float:
        """Absolute change, seconds."""
        return self.base * self.estimate.effect


@dataclass(frozen=True, order=True)
class Subject:
    """What a verdict is about.

    Attributes:
        case_id: id of the case.
        metric: ``time`` (the whole case), ``time.<stage>``, or ``memory.<figure>``.
        label: readable name.
    """

    case_id: str
    metric: str
    label: str


@dataclass(frozen=True)
class Verdict:
    """What may be said about a subject.

    Attributes:
        subject: what it is about.
        outcome: the verdict.
        reasons: codes, the deciding ones first.
        evidence: measured times; None for memory and where nothing could be compared.
        limits: what the change was held against.
        detail: what differs, in words, where codes don't say it.
        base: figure of the base side: seconds or bytes.
        new: figure of the new side.
    """

    subject: Subject
    outcome: Outcome
    reasons: tuple[Reason, ...]
    evidence: Evidence | None = None
    limits: Limits | None = None
    detail: str = ""
    base: float | None = None
    new: float | None = None

    @property
    def effect(self) -> float | None:
        """Relative change, if there is one; none between figures that may not be compared."""
        if self.outcome is Outcome.INCOMPARABLE:
            return None
        if self.evidence is not None:
            return self.evidence.estimate.effect
        if self.base and self.new is not None:
            return self.new / self.base - 1
        return None


def judge(subject: Subject, evidence: Evidence, limits: Limits, adjusted_p: float) -> Verdict:
    """Give a verdict on measured times, before any confirmation.

    Args:
        subject: what was measured.
        evidence: the measurement.
        limits: what a change must exceed.
        adjusted_p: p value of the change, corrected for the number of cases gated.
    """

    def verdict(outcome: Outcome, *reasons: Reason) -> Verdict:
        notes = {
            Reason.OTHER_CARD: evidence.cards is not None,
            Reason.FEW_ROUNDS: evidence.rounds < MINIMUM_ROUNDS,
            Reason.NO_CLOCK: evidence.cycles is None,
        }
        found = (*reasons, *(reason for reason, holds in notes.items() if holds))
        return Verdict(subject, outcome, found, evidence, limits, base=evidence.base, new=evidence.new)

    if (obstacle := why_not_gated(evidence, limits)) is not None:
        return verdict(Outcome.INCONCLUSIVE, obstacle)
    doubts = _doubts(evidence, limits, adjusted_p)
    if not doubts:
        slower = evidence.estimate.log_effect > 0
        return verdict(Outcome.REGRESSED if slower else Outcome.FASTER, Reason.ABOVE_TOLERANCE)
    if evidence.estimate.upper < limits.tolerance:
        return verdict(Outcome.PASS, Reason.WITHIN_TOLERANCE)
    return verdict(Outcome.INCONCLUSIVE, *doubts, Reason.REACHES_TOLERANCE)


def why_not_gated(evidence: Evidence, limits: Limits) -> Reason | None:
    """Why a subject can't be gated whatever it reads; None if it can."""
    if evidence.stored is not None and evidence.stored < MINIMUM_HISTORY:
        return Reason.INSUFFICIENT_HISTORY
    return Reason.TOO_NOISY if limits.too_noisy and not _beyond_noise(evidence, limits) else None


def _beyond_noise(evidence: Evidence, limits: Limits) -> bool:
    """Whether a slowdown's whole interval lies beyond a tolerance that noise has widened: noise is no excuse then."""
    return evidence.estimate.log_effect - evidence.estimate.half_width > math.log1p(limits.tolerance)


def _doubts(evidence: Evidence, limits: Limits, adjusted_p: float) -> tuple[Reason, ...]:
    """Why a change, in either direction, can't be called one."""
    estimate = evidence.estimate
    found = {
        Reason.INCLUDES_ZERO: abs(estimate.log_effect) <= estimate.half_width,
        Reason.SMALL: abs(estimate.log_effect) <= math.log1p(limits.tolerance),
        Reason.BELOW_FLOOR: abs(evidence.absolute) <= limits.floor,
        Reason.CLOCK_EXPLAINS: evidence.cycles is not None and evidence.cycles * estimate.log_effect <= 0,
        Reason.NOT_SIGNIFICANT: adjusted_p > 1 - CONFIDENCE,
    }
    if found[Reason.INCLUDES_ZERO]:
        del found[Reason.NOT_SIGNIFICANT]
    return tuple(reason for reason, holds in found.items() if holds)


def confirm(candidate: Verdict, again: Evidence | None) -> Verdict:
    """Settle a regression or a speed-up by a second measurement in a fresh process.

    Args:
        candidate: a verdict that is REGRESSED or FASTER.
        again: the second measurement; None if none can be made here.

    Returns:
        The verdict, confirmed; or inconclusive if the second measurement lacks the sign or is under half the tolerance.
        A speed-up that is not confirmed passes, unless the second measurement is slower by more than the tolerance.
    """
    if again is None:
        return replace(candidate, reasons=(*candidate.reasons, Reason.UNCONFIRMED))
    assert candidate.evidence is not None
    assert candidate.limits is not None
    sign = math.copysign(1.0, candidate.evidence.estimate.log_effect)
    if sign * again.estimate.log_effect > math.log1p(candidate.limits.tolerance / 2):
        return replace(candidate, reasons=(*candidate.reasons, Reason.CONFIRMED))
    harmless = candidate.outcome is Outcome.FASTER and again.estimate.effect <= candidate.limits.tolerance
    outcome = Outcome.PASS if harmless else Outcome.INCONCLUSIVE
    detail = f"{again.estimate.effect:+.1%} the second time"
    weak = [reason for reason in candidate.reasons if reason is Reason.FEW_ROUNDS]
    return replace(candidate, outcome=outcome, reasons=(Reason.NOT_CONFIRMED, *weak), detail=detail)


def exit_code(verdicts: Iterable[Verdict], *, strict: bool) -> int:
    """Exit code of the gate, never a count.

    A regression outranks everything, so that a broken or incomparable case can't hide it; then a failed measurement
    (5), something incomparable (4), or run and baseline without a case in common, and, if ``strict``, something
    inconclusive (3).
    """
    verdicts = tuple(verdicts)
    outcomes = {verdict.outcome for verdict in verdicts}
    if Outcome.REGRESSED in outcomes:
        return 1
    if Outcome.FAILED in outcomes or not outcomes:
        return 5
    if Outcome.INCOMPARABLE in outcomes or all_one_sided(verdicts):
        return 4
    return 3 if strict and Outcome.INCONCLUSIVE in outcomes else 0


def all_one_sided(verdicts: Iterable[Verdict]) -> bool:
    """Whether every case is on one side alone."""
    return all(not ONE_SIDED.isdisjoint(verdict.reasons) for verdict in verdicts)
