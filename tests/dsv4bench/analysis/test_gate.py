from collections.abc import Collection

from dsv4bench.analysis.evidence import paired_evidence
from dsv4bench.analysis.gate import DOUBLINGS, by_severity, judge_all, settle
from dsv4bench.analysis.reason import Reason
from dsv4bench.analysis.statistics import half_width
from dsv4bench.analysis.verdict import PRESETS, Evidence, Limits, Outcome, Subject, Verdict, limits_for
from tests.dsv4bench.stored_runs import around, shuffled, timing

SCATTERED = [0.0, 0.02, 0.04, 0.06, 0.08, 0.10, 0.12, 0.02, 0.0, 0.05]
"""Changes of rounds around +5 %."""
CLEAR, NOISY = Subject("1", "time", "clear"), Subject("2", "time", "noisy")


def measured(change: float, spread: float = 0.002, count: int = 10) -> Evidence:
    evidence = paired_evidence(
        timing(around(1e-4, count, spread)), timing(shuffled(1e-4 * (1 + change), count, spread))
    )
    assert evidence is not None
    return evidence


def default_limits(*_):
    return PRESETS["default"]


def test_only_open_cases_are_doubled_and_only_until_they_are_settled():
    asked: list[set[str]] = []

    def more(subjects: Collection[Subject]) -> dict[Subject, Evidence]:
        asked.append({subject.label for subject in subjects})
        return {subject: measured(0.0, 0.2 if len(asked) == 1 else 0.01, 20) for subject in subjects}

    verdicts = settle({CLEAR: measured(0.0), NOISY: measured(0.0, 0.2)}, default_limits, more)
    assert asked == [{"noisy"}, {"noisy"}]
    assert [verdict.outcome for verdict in verdicts] == [Outcome.PASS, Outcome.PASS]


def test_rounds_are_doubled_at_most_three_times():
    calls = []

    def more(subjects: Collection[Subject]) -> dict[Subject, Evidence]:
        calls.append(subjects)
        return {subject: measured(0.0, 0.2) for subject in subjects}

    [verdict] = settle({NOISY: measured(0.0, 0.2)}, default_limits, more)
    assert len(calls) == DOUBLINGS == 3
    assert verdict.outcome is Outcome.INCONCLUSIVE


def noise_of(deviation: float):
    """Limits where the self-test found rounds to differ by this much."""
    return lambda _, item: limits_for(PRESETS["default"], half_width(deviation, item.rounds))


def test_a_case_too_noisy_at_its_rounds_is_doubled_until_the_noise_averages_out():
    counts = [10]

    def more(_: Collection[Subject]) -> dict[Subject, Evidence]:
        counts.append(2 * counts[-1])
        return {NOISY: measured(0.0, 0.02, counts[-1])}

    [verdict] = settle({NOISY: measured(0.0, 0.02)}, noise_of(0.08), more)
    assert half_width(0.08, 10) > 0.05 > half_width(0.08, 20)
    assert (counts, verdict.outcome) == ([10, 20], Outcome.PASS)


def test_a_case_that_no_number_of_rounds_makes_quiet_is_not_doubled():
    def more(_: Collection[Subject]) -> dict[Subject, Evidence]:
        raise AssertionError("measured for nothing")

    assert half_width(0.5, 80) > 0.05
    [verdict] = settle({NOISY: measured(0.0)}, noise_of(0.5), more)
    assert (verdict.outcome, verdict.reasons[0]) == (Outcome.INCONCLUSIVE, Reason.TOO_NOISY)


def test_changes_in_both_directions_are_measured_again_and_nothing_else_is():
    faster = Subject("3", "time", "faster")
    asked: list[Subject] = []

    def again(subjects: Collection[Subject]) -> dict[Subject, Evidence]:
        asked.extend(subjects)
        return {CLEAR: measured(0.05), faster: measured(-0.05)}

    evidence = {CLEAR: measured(0.05), NOISY: measured(0.0), faster: measured(-0.05)}
    verdicts = settle(evidence, default_limits, again=again)
    assert asked == [CLEAR, faster]
    assert [verdict.outcome for verdict in verdicts] == [Outcome.REGRESSED, Outcome.PASS, Outcome.FASTER]
    assert all(Reason.CONFIRMED in verdicts[index].reasons for index in (0, 2))


def test_a_case_missing_from_the_second_measurement_stays_unconfirmed():
    [verdict] = settle({CLEAR: measured(0.05)}, default_limits, again=lambda _: {})
    assert (verdict.outcome, verdict.reasons[-1]) == (Outcome.REGRESSED, Reason.UNCONFIRMED)


def test_the_worst_comes_first_and_within_an_outcome_the_largest_slowdown():
    def of(outcome: Outcome, base: float, new: float) -> Verdict:
        return Verdict(Subject(f"{base}{new}", "memory.engine", ""), outcome, (), base=base, new=new)

    verdicts = [
        of(Outcome.PASS, 10, 11),
        of(Outcome.REGRESSED, 10, 12),
        of(Outcome.FAILED, 10, 10),
        of(Outcome.REGRESSED, 10, 15),
    ]
    assert [verdict.new for verdict in by_severity(verdicts)] == [15, 12, 10, 11]


def test_only_gated_cases_weaken_the_evidence_of_the_others():
    """p = 0.004 stays significant beside 19 cases that are too noisy to gate, not beside 19 that are gated."""
    edge = paired_evidence(timing([1e-4] * 10), timing([1e-4 * (1 + change) for change in SCATTERED]))
    assert 0.05 / 20 < edge.estimate.p_value < 0.005
    others = {Subject(str(number), "time", ""): measured(0.0) for number in range(10, 29)}

    def noisy(subject: Subject, _: Evidence) -> Limits:
        return PRESETS["default"] if subject == CLEAR else Limits(0.2, 0.0, too_noisy=True)

    assert judge_all({CLEAR: edge, **others}, noisy)[CLEAR].outcome is Outcome.REGRESSED
    doubted = judge_all({CLEAR: edge, **others}, default_limits)[CLEAR]
    assert (doubted.outcome, doubted.reasons[0]) == (Outcome.INCONCLUSIVE, Reason.NOT_SIGNIFICANT)
