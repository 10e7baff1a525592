import math

import pytest

from dsv4bench.report.quantity import change, interval, seconds, share, signed_seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.234e-5, "12.34 µs"),
        (1e-6, "1.000 µs"),
        (9.87654e-4, "987.7 µs"),
        (0.0123, "12.30 ms"),
        (2.0, "2.000 s"),
        (5e-8, "50.00 ns"),
        (0.0, "0.000 ns"),
        (1234.5, "1234 s"),
        (math.inf, "–"),
    ],
)
def test_times_have_four_significant_digits_and_a_fitting_unit(value, text):
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.049, "+4.9 %"), (-0.25, "-25.0 %"), (0.0012, "+0.12 %"), (-1e-9, "0.00 %"), (None, "–")]
)
def test_changes_carry_their_sign(value, text):
    assert change(value) == text


def test_an_interval_without_bounds_is_a_dash():
    assert interval(-0.001, 0.004) == "-0.10 … +0.40 %"
    assert interval(-1.0, math.inf) == "–"


def test_fractions_are_per_cent():
    assert (share(0.03), share(0.0025)) == ("3 %", "0.25 %")


@pytest.mark.parametrize(
    ("value", "text"), [(1.695492e-3, "+1.695 ms"), (-0.8234e-6, "-823.4 ns"), (5e-6, "+5.000 µs"), (0.0, "+0.000 ns")]
)
def test_differences_of_times_scale_and_carry_their_sign(value, text):
    assert signed_seconds(value) == text
