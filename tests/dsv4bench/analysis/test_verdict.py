import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.analysis.reason import MEANING, Reason
from dsv4bench.analysis.statistics import Estimate
from dsv4bench.analysis.verdict import (
    PRESETS,
    Evidence,
    Limits,
    Outcome,
    Subject,
    Verdict,
    confirm,
    exit_code,
    judge,
    limits_for,
)

SUBJECT = Subject("id", "time", "case")
DEFAULT = PRESETS["default"]


def evidence(effect: float, half_width: float = 0.005, *, base: float = 100e-6, **changes) -> Evidence:
    log = math.log1p(effect)
    fields = {"cycles": log, "count": 10} | changes
    estimate = Estimate(log, half_width, 0.0 if abs(log) > half_width else 0.5, fields.pop("count"))
    return Evidence(estimate, base, base * (1 + effect), rounds=10, **fields)


def verdict_on(item: Evidence, limits: Limits = DEFAULT, adjusted_p: float = 0.0) -> tuple[Outcome, tuple[Reason, ...]]:
    found = judge(SUBJECT, item, limits, adjusted_p)
    return found.outcome, found.reasons


def test_a_clear_slowdown_regresses():
    assert verdict_on(evidence(0.05)) == (Outcome.REGRESSED, (Reason.ABOVE_TOLERANCE,))


def test_a_verdict_from_fewer_than_ten_rounds_says_so_whatever_it_is():
    for effect, outcome in ((0.05, Outcome.REGRESSED), (0.0, Outcome.PASS), (-0.05, Outcome.FASTER)):
        for rounds, stored in ((9, None), (9, 8), (10, None), (10, 8)):
            found = judge(SUBJECT, replace(evidence(effect), rounds=rounds, stored=stored), DEFAULT, 0.0)
            assert found.outcome is outcome
            assert (Reason.FEW_ROUNDS in found.reasons) == (rounds < 10)
    weak = judge(SUBJECT, replace(evidence(0.05), rounds=9), DEFAULT, 0.0)
    assert confirm(weak, evidence(0.0)).reasons == (Reason.NOT_CONFIRMED, Reason.FEW_ROUNDS)


def test_a_clear_speedup_is_faster():
    assert verdict_on(evidence(-0.05)) == (Outcome.FASTER, (Reason.ABOVE_TOLERANCE,))


def test_an_upper_bound_under_the_tolerance_passes_even_if_the_change_is_real():
    assert verdict_on(evidence(0.02)) == (Outcome.PASS, (Reason.WITHIN_TOLERANCE,))


def test_a_wide_interval_is_inconclusive_and_says_that_it_includes_zero():
    outcome, reasons = verdict_on(evidence(0.04, half_width=0.06))
    assert outcome is Outcome.INCONCLUSIVE
    assert reasons == (Reason.INCLUDES_ZERO, Reason.REACHES_TOLERANCE)


def test_a_change_below_the_floor_is_no_regression():
    outcome, reasons = verdict_on(evidence(0.10, base=2e-6))
    assert outcome is Outcome.INCONCLUSIVE
    assert Reason.BELOW_FLOOR in reasons


def test_a_change_that_the_clock_explains_is_no_regression():
    outcome, reasons = verdict_on(evidence(0.05, cycles=-0.001))
    assert outcome is Outcome.INCONCLUSIVE
    assert Reason.CLOCK_EXPLAINS in reasons


def test_without_a_clock_the_change_counts_and_the_verdict_says_so():
    assert verdict_on(evidence(0.05, cycles=None)) == (Outcome.REGRESSED, (Reason.ABOVE_TOLERANCE, Reason.NO_CLOCK))


def test_a_change_that_is_not_significant_among_all_cases_is_no_regression():
    outcome, reasons = verdict_on(evidence(0.05), adjusted_p=0.06)
    assert (outcome, reasons[0]) == (Outcome.INCONCLUSIVE, Reason.NOT_SIGNIFICANT)


def test_seven_stored_runs_are_never_a_pass():
    outcome, reasons = verdict_on(evidence(0.0, stored=7, count=7))
    assert (outcome, reasons) == (Outcome.INCONCLUSIVE, (Reason.INSUFFICIENT_HISTORY,))
    assert verdict_on(evidence(0.0, stored=8, count=8))[0] is Outcome.PASS


@pytest.mark.parametrize(
    ("preset", "noise", "tolerance", "too_noisy"),
    [
        ("default", None, 0.03, False),
        ("default", 0.01, 0.03, False),
        ("default", 0.04, 0.04, False),
        ("default", 0.051, 0.051, True),
        ("strict", 0.02, 0.02, False),
        ("strict", 0.051, 0.051, True),
        ("permissive", 0.06, 0.10, False),
        ("permissive", 0.11, 0.11, True),
    ],
)
def test_the_tolerance_is_the_larger_of_preset_and_noise(preset, noise, tolerance, too_noisy):
    limits = limits_for(PRESETS[preset], noise)
    assert (limits.tolerance, limits.too_noisy) == (tolerance, too_noisy)


@pytest.mark.parametrize(("effect", "half_width"), [(0.0, 0.005), (0.07, 0.005), (0.15, 0.07), (-0.5, 0.005)])
def test_a_case_that_is_too_noisy_is_inconclusive_while_its_interval_reaches_into_the_noise(effect, half_width):
    limits = limits_for(DEFAULT, 0.08)
    assert verdict_on(evidence(effect, half_width), limits) == (Outcome.INCONCLUSIVE, (Reason.TOO_NOISY,))


@pytest.mark.parametrize(("effect", "half_width"), [(1.5, 0.2), (0.15, 0.05)])
def test_a_slowdown_whose_whole_interval_lies_beyond_the_noise_is_called_one(effect, half_width):
    found = verdict_on(evidence(effect, half_width), limits_for(DEFAULT, 0.08))
    assert found == (Outcome.REGRESSED, (Reason.ABOVE_TOLERANCE,))


def test_a_second_measurement_with_half_the_tolerance_confirms():
    candidate = judge(SUBJECT, evidence(0.05), DEFAULT, 0.0)
    confirmed = confirm(candidate, evidence(0.016))
    assert confirmed.outcome is Outcome.REGRESSED
    assert confirmed.reasons[-1] is Reason.CONFIRMED


@pytest.mark.parametrize("second", [0.014, -0.05])
def test_a_second_measurement_without_the_change_takes_the_regression_back(second):
    candidate = judge(SUBJECT, evidence(0.05), DEFAULT, 0.0)
    taken_back = confirm(candidate, evidence(second))
    assert (taken_back.outcome, taken_back.reasons) == (Outcome.INCONCLUSIVE, (Reason.NOT_CONFIRMED,))


@pytest.mark.parametrize(
    ("second", "outcome"), [(0.0, Outcome.PASS), (0.029, Outcome.PASS), (0.031, Outcome.INCONCLUSIVE)]
)
def test_a_speedup_that_is_not_confirmed_passes_unless_it_was_slower_the_second_time(second, outcome):
    assert confirm(judge(SUBJECT, evidence(-0.05), DEFAULT, 0.0), evidence(second)).outcome is outcome


def test_a_regression_that_nothing_can_confirm_stands_and_says_so():
    stands = confirm(judge(SUBJECT, evidence(0.05), DEFAULT, 0.0), None)
    assert (stands.outcome, stands.reasons[-1]) == (Outcome.REGRESSED, Reason.UNCONFIRMED)


@pytest.mark.parametrize(
    ("outcomes", "strict", "code"),
    [
        ("pass faster", False, 0),
        ("pass inconclusive", False, 0),
        ("pass inconclusive", True, 3),
        ("pass incomparable inconclusive", True, 4),
        ("failed incomparable", False, 5),
        ("regressed failed incomparable", False, 1),
        ("regressed regressed regressed", False, 1),
        ("", False, 5),
    ],
)
def test_the_exit_code_is_that_of_the_worst_outcome_and_never_a_count(outcomes, strict, code):
    verdicts = [Verdict(SUBJECT, Outcome(word), ()) for word in outcomes.split()]
    assert exit_code(verdicts, strict=strict) == code


def test_a_run_and_a_baseline_without_a_case_in_common_are_incomparable():
    one_sided = [Verdict(SUBJECT, Outcome.INCONCLUSIVE, (reason,)) for reason in (Reason.VANISHED, Reason.NO_BASELINE)]
    assert exit_code(one_sided, strict=False) == 4
    assert exit_code([*one_sided, Verdict(SUBJECT, Outcome.PASS, ())], strict=False) == 0


def test_every_reason_has_a_meaning():
    assert MEANING.keys() == set(Reason)


@given(st.floats(-0.3, 0.3), st.floats(0, 0.1), st.floats(-0.3, 0.3), st.sampled_from(sorted(PRESETS)))
def test_swapping_the_sides_turns_a_regression_into_a_speedup_and_back(log, half_width, cycles, preset):
    limits = replace(PRESETS[preset], floor=0.0)
    there = Evidence(Estimate(log, half_width, 0.0, 10), 1e-4, 1e-4 * math.exp(log), 10, cycles)
    back = Evidence(Estimate(-log, half_width, 0.0, 10), there.new, there.base, 10, -cycles)
    mirrored = {Outcome.REGRESSED: Outcome.FASTER, Outcome.FASTER: Outcome.REGRESSED}
    first, second = verdict_on(there, limits)[0], verdict_on(back, limits)[0]
    if first in mirrored or second in mirrored:
        assert second is mirrored[first]


@given(st.floats(-0.3, 0.3), st.floats(0, 0.1))
def test_a_wider_preset_never_finds_a_regression_that_a_stricter_one_does_not(log, half_width):
    item = Evidence(Estimate(log, half_width, 0.0, 10), 1e-4, 1e-4 * math.exp(log), 10, log)
    found = [verdict_on(item, PRESETS[name])[0] is Outcome.REGRESSED for name in ("permissive", "default", "strict")]
    assert found == sorted(found)
