"""What stored runs say before statistics: which cases broke, which can't be compared, and the evidence on the rest."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dsv4bench.analysis.evidence import paired_evidence, stored_evidence, timings
from dsv4bench.analysis.memory_verdict import judge_memory
from dsv4bench.analysis.pairing import (
    Pair,
    card_of,
    case_differences,
    contract_differences,
    fingerprint_differences,
    match,
    version_differences,
)
from dsv4bench.analysis.reason import Reason
from dsv4bench.analysis.verdict import Evidence, Outcome, Subject, Verdict
from dsv4bench.results.row import Row, Status, Timing
from dsv4bench.results.run_directory import Run

NOT_RUNNABLE = (Status.UNSUPPORTED, Status.OOM, Status.SKIPPED)
"""Statuses that say a case can't run here, not that something broke."""


@dataclass
class Findings:
    """What can be said of a run before statistics.

    Attributes:
        verdicts: those that no further measurement changes: failures, incomparable cases, memory.
        evidence: measured times, to be settled.
        remarks: reasons to add to whatever verdict a case gets, by case id.
        notes: sentences for the reader.
    """

    verdicts: list[Verdict] = field(default_factory=list)
    evidence: dict[Subject, Evidence] = field(default_factory=dict)
    remarks: dict[str, tuple[Reason, ...]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Past:
    """One earlier measurement of a case.

    Attributes:
        pair: the case then and now.
        machine: what sets its machine apart (empty: nothing).
        card: the card it was measured on, None where that is unknown.
    """

    pair: Pair
    machine: str
    card: str | None

    def timing(self, metric: str) -> Timing | None:
        return dict(timings(self.pair.base)).get(metric)


@dataclass(frozen=True)
class _New:
    """A row of the run under test.

    Attributes:
        row: the row.
        card: the card it was measured on, None where that is unknown.
        interleaved: whether its base was measured in the same rounds.
    """

    row: Row
    card: str | None
    interleaved: bool


def interleaved(base: Sequence[Run], new: Run) -> bool:
    """Whether a run and its base are the two sides of the same rounds."""
    first = base[0].manifest
    return len(base) == 1 and first.run_id == new.manifest.run_id and first.side != new.manifest.side


def examine(base: Sequence[Run], new: Run) -> Findings:
    """Match a run with its base and collect the evidence.

    Args:
        base: the other side of an interleaved run, or the stored runs, oldest first; at least one.
        new: the run under test.
    """
    findings = Findings()
    machines = [(fingerprint_differences(run.manifest, new.manifest), card_of(run.manifest)) for run in base]
    matchings = [match(run.rows, new.rows) for run in base]
    paired, card = interleaved(base, new), card_of(new.manifest)
    versions = version_differences(base[-1].manifest, new.manifest)
    for row in new.rows:
        past = [
            _Past(pair, machine, its_card)
            for (machine, its_card), matching in zip(machines, matchings, strict=True)
            for pair in matching.pairs
            if pair.new is row
        ]
        reshaped = [pair for matching in matchings for pair in matching.reshaped if pair.new is row]
        _examine_row(findings, _New(row, card, paired), past, reshaped)
        renamed = bool(past) and past[-1].pair.renamed
        findings.remarks[row.case_id] = (*[Reason.VERSION_DIFFERS] * bool(versions), *[Reason.RENAMED] * renamed)
        if renamed:
            findings.notes.append(f"{past[-1].pair.base.label} is now called {row.label}")
    labels = {case.case_id: case.label for case in new.manifest.planned}
    for case_id in new.missing:
        subject = Subject(case_id, "time", labels[case_id])
        detail = "planned, but the run ended without it"
        findings.verdicts.append(Verdict(subject, Outcome.FAILED, (Reason.MEASUREMENT_FAILED,), detail=detail))
    for row in matchings[-1].vanished:
        if row.status is Status.OK and row.case_id not in new.missing:
            findings.verdicts.append(_plain(row, Outcome.INCONCLUSIVE, Reason.VANISHED))
    if versions:
        findings.notes.append(f"versions differ: {versions}")
    return findings


def _examine_row(findings: Findings, new: _New, past: Sequence[_Past], reshaped: Sequence[Pair]) -> None:
    """Add what is known about one row of the run."""
    row = new.row
    measured_before = any(item.pair.base.status is Status.OK for item in past)
    if row.status is not Status.OK and (row.status not in NOT_RUNNABLE or measured_before):
        detail = f"{row.status.value}: {row.reason}"
        findings.verdicts.append(_plain(row, Outcome.FAILED, Reason.MEASUREMENT_FAILED, detail))
    elif row.status is not Status.OK:
        findings.notes.append(f"{row.label} is not gated: {row.status.value}, {row.reason}")
    elif not past and reshaped:
        detail = case_differences(reshaped[-1].base, row)
        findings.verdicts.append(_plain(row, Outcome.INCOMPARABLE, Reason.SHAPE_CHANGED, detail))
    elif not measured_before:
        findings.verdicts.append(_without_base(row, past))
    else:
        findings.verdicts += judge_memory(past[-1].pair, same_machine=not past[-1].machine)
        for metric, timing in timings(row):
            result = _time(new, metric, timing, past)
            if isinstance(result, Verdict):
                findings.verdicts.append(result)
            else:
                findings.evidence[Subject(row.case_id, metric, row.label)] = result


def _without_base(row: Row, past: Sequence[_Past]) -> Verdict:
    """The verdict on a row whose base has no number: it broke, or there never was one."""
    broken = [item.pair.base for item in past if item.pair.base.status not in NOT_RUNNABLE]
    if not broken:
        return replace(
            _plain(row, Outcome.INCONCLUSIVE, Reason.NO_BASELINE), new=row.layer.median if row.layer else None
        )
    detail = f"base side {broken[-1].status.value}: {broken[-1].reason}"
    return _plain(row, Outcome.FAILED, Reason.MEASUREMENT_FAILED, detail)


def _time(new: _New, metric: str, timing: Timing, past: Sequence[_Past]) -> Verdict | Evidence:
    """Evidence on one time of a row, or the verdict that there can't be any."""
    row = new.row
    measured = [item for item in past if item.timing(metric) is not None]
    if not measured:
        return _plain(row, Outcome.INCONCLUSIVE, Reason.NO_BASELINE, metric=metric)
    here = [item for item in measured if not item.machine]
    if not here:
        refusal = _plain(row, Outcome.INCOMPARABLE, Reason.FINGERPRINT_DIFFERS, measured[-1].machine, metric)
        there = measured[-1].timing(metric)
        return replace(refusal, base=there.median if there else None, new=timing.median)
    alike = [item for item in here if item.pair.base.contract == row.contract]
    if not alike:
        detail = contract_differences(here[-1].pair.base.contract, row.contract)
        return _plain(row, Outcome.INCOMPARABLE, Reason.CONTRACT_DIFFERS, detail, metric)
    found = [(before, item.card) for item in alike if (before := item.timing(metric)) is not None]
    history, cards = [before for before, _ in found], [card for _, card in found]
    for side, times in (("base", history), ("new", [timing])):
        if any(median <= 0 for item in times for median in _medians(item)):
            detail = f"{side} side: the timer read zero or less"
            return _plain(row, Outcome.FAILED, Reason.MEASUREMENT_FAILED, detail, metric)
    if not new.interleaved:
        return stored_evidence(history, timing, cards, new.card)
    evidence = paired_evidence(history[0], timing)
    if evidence is None:
        return _plain(row, Outcome.FAILED, Reason.MEASUREMENT_FAILED, "fewer than two rounds have both sides", metric)
    return evidence


def _medians(timing: Timing) -> list[float]:
    return [timing.median, *(item.median for item in timing.rounds)]


def _plain(row: Row, outcome: Outcome, reason: Reason, detail: str = "", metric: str = "time") -> Verdict:
    return Verdict(Subject(row.case_id, metric, row.label), outcome, (reason,), detail=detail)
