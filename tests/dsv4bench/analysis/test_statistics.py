import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.analysis.statistics import Estimate, drift, half_width, holm, paired_t, prediction, t_quantile

logs = st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=30)


def test_the_paired_interval_is_students_t_of_the_log_ratios():
    """By hand: deviation 0.0216, t of 3 degrees 3.182."""
    estimate = paired_t([0.01, 0.02, 0.03, 0.06])
    assert estimate.log_effect == pytest.approx(0.03)
    assert estimate.half_width == pytest.approx(3.182446 * 0.02160247 / 2, rel=1e-6)
    assert estimate.p_value == pytest.approx(0.0691, abs=1e-4)
    assert estimate.effect == pytest.approx(math.expm1(0.03))


def test_the_paired_interval_agrees_with_scipy():
    from scipy.stats import ttest_1samp

    values = [0.011, -0.02, 0.034, 0.002, 0.017]
    result = ttest_1samp(values, 0.0)
    low, high = result.confidence_interval(0.95)
    estimate = paired_t(values)
    assert estimate.p_value == pytest.approx(result.pvalue)
    assert (estimate.log_effect - estimate.half_width, estimate.log_effect + estimate.half_width) == pytest.approx(
        (low, high)
    )


@given(logs)
def test_swapping_the_sides_mirrors_the_interval(values):
    there, back = paired_t(values), paired_t([-value for value in values])
    assert there.log_effect == pytest.approx(-back.log_effect)
    assert there.half_width == pytest.approx(back.half_width)
    assert there.p_value == pytest.approx(back.p_value)


def test_a_single_round_bounds_nothing():
    assert paired_t([0.2]) == Estimate(0.2, math.inf, 1.0, 1)
    assert (paired_t([0.2]).lower, paired_t([0.2]).upper) == (-1.0, math.inf)


def test_no_rounds_are_an_error():
    with pytest.raises(ValueError, match="no values"):
        paired_t([])


def test_rounds_without_scatter_are_certain():
    assert paired_t([0.0, 0.0, 0.0]) == Estimate(0.0, 0.0, 1.0, 3)
    assert paired_t([0.25, 0.25, 0.25]) == Estimate(0.25, 0.0, 0.0, 3)


def test_the_prediction_interval_is_wider_than_that_of_the_mean():
    history = [0.0, 0.01, -0.01, 0.02, -0.02, 0.0, 0.01, -0.01]
    predicted, mean = prediction(history, 0.05), paired_t(history)
    assert predicted.half_width == pytest.approx(mean.half_width * math.sqrt(len(history) + 1))
    assert predicted.log_effect == pytest.approx(0.05)


def test_holm_multiplies_by_what_is_left_and_never_falls():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})


@given(st.dictionaries(st.text(), st.floats(0, 1), max_size=10))
def test_holm_never_makes_a_case_more_significant(p_values):
    adjusted = holm(p_values)
    assert adjusted.keys() == p_values.keys()
    assert all(p_values[key] <= adjusted[key] <= 1 for key in p_values)


def test_half_width_shrinks_with_rounds_and_one_round_has_none():
    assert half_width(0.02, 10) == pytest.approx(math.expm1(t_quantile(9) * 0.02 / math.sqrt(10)))
    assert half_width(0.02, 40) < half_width(0.02, 10)
    assert half_width(0.02, 1) == math.inf


def test_drift_is_the_change_along_the_line():
    assert drift([1.0, 1.01, 1.01**2, 1.01**3]) == pytest.approx(1.01**3 - 1)
    assert drift([1.0, 2.0, 1.0]) == pytest.approx(0.0)
    assert drift([5.0]) == 0.0
