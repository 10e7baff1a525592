"""Rows of multi-stream layers say what each stage makes them wait for."""

import pytest

from dsv4bench.bench.exposure import with_exposure
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.schema import Scenario
from tests.dsv4bench.analysis.test_overlap import layer_rows

CASES = expand(
    Scenario.model_validate(
        {
            "name": "t",
            "model": "v4-flash",
            "layers": "c128a",
            "workload": {"context": "8K"},
            "schedule": {"streams": ["serial", "multi"]},
        }
    )
)


def test_a_multi_stream_row_gets_streams_exposed_times_and_its_critical_path():
    _, row = layer_rows({"serial": 12e-6, "multi": 10e-6})
    found = with_exposure(row, CASES[1])
    by_name = {stage.name: stage.extra for stage in found.stages}
    assert by_name["compressor_projection"]["stream"] == "compressor"
    assert by_name["compressor_projection"]["exposed"] == 0
    assert by_name["query_projection"] == {"stream": "default", "exposed": pytest.approx(1e-6)}
    assert found.extra["critical_path_seconds"] == pytest.approx(8e-6)
    assert found.extra["stage_sum_seconds"] == pytest.approx(11e-6)
    assert found.extra["critical_path"][0] == "input_projection"


def test_a_serial_row_stays_as_it_is():
    row, _ = layer_rows({"serial": 12e-6, "multi": 10e-6})
    assert with_exposure(row, CASES[0]) is row
