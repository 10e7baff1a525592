import math

import pytest

from dsv4bench.analysis.evidence import paired_evidence
from dsv4bench.analysis.selftest import applicable, limits_at, machine_noise, noise_at, recommended_tolerance
from dsv4bench.analysis.statistics import half_width
from dsv4bench.analysis.verdict import PRESETS, Subject
from tests.dsv4bench.stored_runs import CONTRACT, H200, around, row, run, shuffled, timing


def noise_of(spread: float):
    a, b = row("case", around(1e-4, spread=spread)), row("case", shuffled(1e-4, spread=spread))
    return machine_noise(run([a]).manifest, [a], [b])


def test_the_noise_is_that_of_the_paired_rounds():
    [case] = noise_of(0.01).cases
    evidence = paired_evidence(timing(around(1e-4, spread=0.01)), timing(shuffled(1e-4, spread=0.01)))
    assert math.log1p(case.half_width) == pytest.approx(evidence.estimate.half_width)
    assert (case.case_id, case.metric, case.rounds) == ("id-case", "time", 10)


def test_drift_is_the_change_from_the_first_round_to_the_last():
    [case] = noise_of(0.01).cases
    assert case.drift == pytest.approx(0.0202, abs=1e-4)


@pytest.mark.parametrize(
    ("width", "tolerance"), [(0.0, 0.01), (0.01, 0.01), (0.0101, 0.015), (0.03, 0.03), (0.05, 0.05), (0.0501, None)]
)
def test_the_recommended_tolerance_is_the_next_half_per_cent_and_none_beyond_five(width, tolerance):
    assert recommended_tolerance(width) == tolerance


def test_the_gate_widens_its_tolerance_to_the_noise_at_its_own_number_of_rounds():
    noise = noise_of(0.08)
    subject = Subject("id-case", "time", "case")
    usable = applicable(noise, run([row("case", around(1e-4))]))
    tolerances = []
    for count in (10, 40):
        evidence = paired_evidence(timing(around(1e-4, count)), timing(around(1e-4, count)))
        tolerances.append(limits_at(PRESETS["strict"], usable, subject, evidence).tolerance)
    assert tolerances == [pytest.approx(half_width(noise.cases[0].deviation, count)) for count in (10, 40)]
    assert tolerances[1] < tolerances[0]


@pytest.mark.parametrize(("difference", "tolerances"), [(0.04, [0.04, 0.04]), (0.01, [0.03, 0.03])])
def test_processes_that_differ_lastingly_widen_the_tolerance_at_any_number_of_rounds(difference, tolerances):
    a, b = row("case", around(1e-4)), row("case", shuffled(1e-4 * (1 + difference)))
    noise = applicable(machine_noise(run([a]).manifest, [a], [b]), run([a]))
    subject, found = Subject("id-case", "time", "case"), []
    for count in (10, 80):
        evidence = paired_evidence(timing(around(1e-4, count)), timing(around(1e-4, count)))
        found.append(limits_at(PRESETS["default"], noise, subject, evidence).tolerance)
    assert found == pytest.approx(tolerances, rel=1e-3)


def test_a_difference_within_the_scatter_counts_as_scatter():
    [case] = noise_of(0.08).cases
    scattered = case.model_copy(update={"effect": case.half_width / 2})
    assert noise_at(scattered, 80) == half_width(case.deviation, 80) < case.half_width / 2


def test_noise_of_another_card_or_contract_says_nothing():
    noise = noise_of(0.01)
    other = H200.model_copy(update={"sm_count": 78})
    cold = CONTRACT.model_copy(update={"l2": "cold"})
    assert applicable(noise, run([row("case", around(1e-4))]))
    assert not applicable(noise, run([row("case", around(1e-4))], gpu=other))
    assert not applicable(noise, run([row("case", around(1e-4), contract=cold)]))
