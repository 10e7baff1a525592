import math

import pytest

from dsv4bench.analysis.history import series
from dsv4bench.analysis.statistics import prediction
from tests.dsv4bench.stored_runs import H200, row, run

MEDIANS = [1.00e-4, 1.01e-4, 0.99e-4, 1.02e-4]


def stored(values=MEDIANS):
    return [run([row("case", [value] * 3)], f"run{day}", day) for day, value in enumerate(values, 1)]


def test_a_series_holds_the_medians_oldest_first():
    [found] = series(stored())
    assert found.medians == pytest.approx(MEDIANS)
    assert found.change == pytest.approx(0.02)
    assert not found.enough


def test_eight_runs_are_enough():
    assert series(stored([1e-4] * 8))[0].enough


def test_runs_on_other_hardware_are_left_out_and_counted():
    runs = [run([row("case", [9e-4])], "other", 1, gpu=H200.model_copy(update={"ecc": False})), *stored()]
    [found] = series(runs)
    assert found.excluded == 1
    assert len(found.medians) == 4


def test_the_spread_is_the_prediction_interval_of_the_gate():
    [found] = series(stored())
    logs = [math.log(value) for value in MEDIANS]
    assert math.log1p(found.prediction_half_width) == pytest.approx(prediction(logs, 0.0).half_width)
