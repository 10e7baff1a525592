"""Launch gaps on a GPU: known pauses are found where they are, and a graph closes those that an eager layer leaves."""

import time
from types import SimpleNamespace

import pytest
import torch

from dsv4bench.bench.gaps import trace
from dsv4bench.bench.session import Request, start_run
from dsv4bench.bench.side import WHOLE
from dsv4bench.bench.spin import spin
from dsv4bench.results.row import Status
from dsv4bench.scenario.expand import expand
from dsv4bench.stack.side_streams import side_stream
from tests.dsv4bench.bench.small import small_scenario

pytestmark = pytest.mark.gpu

SPIN = 100_000
"""Nanoseconds that a kernel takes."""
PAUSE = 1e-3
"""Seconds that the host lets pass between two launches."""


class Known:
    """A side whose layer is a kernel, a pause of the host, and two kernels on two streams."""

    def __init__(self, graph):
        self.contract = SimpleNamespace(graph=graph)

    def inputs(self, seed):
        return {}

    def calls(self, values):
        def call():
            current, other = torch.cuda.current_stream(), side_stream(torch.cuda.current_device(), "aux0")
            spin(SPIN)
            time.sleep(PAUSE)
            other.wait_stream(current)
            with torch.cuda.stream(other):
                spin(SPIN)
            spin(SPIN)
            current.wait_stream(other)

        call()  # compiled here
        return {WHOLE: call}


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_a_pause_of_the_host_is_the_largest_gap_of_an_eager_layer_and_none_of_a_graph(graph):
    found = trace(Known(graph), 0)
    print(found)
    assert found.launches == 3
    assert 2 * SPIN * 1e-9 <= found.busy < 3.2 * SPIN * 1e-9
    assert sum(found.streams) == pytest.approx(3 * SPIN * 1e-9, rel=0.1)
    assert found.busy + found.idle == pytest.approx(found.span)
    assert found.after == "spin_kernel"
    if graph:
        assert found.idle < 0.1 * found.span
    else:
        assert len(found.streams) == 2
        assert 0.9 * (PAUSE - SPIN * 1e-9) < found.largest < 2 * PAUSE


def test_every_layer_of_a_run_knows_its_gaps_and_no_round_ran_behind_the_profiler(tmp_path):
    scenario = small_scenario(
        tmp_path,
        layers="c4a",
        workload={"context": 1024, "batch": 4},
        schedule={"streams": ["serial", "multi"], "graph": [False, True]},
        timing={"rounds": 2, "iterations": 5, "warmup": 1},
    )
    heard = []
    run = start_run(Request(scenario, expand(scenario), "cuda"), tmp_path / "run", heard.append)
    assert [row.status for row in run.rows] == [Status.OK] * 4
    idle = {}
    for row in run.rows:
        gaps = row.layer.gaps
        print(f"{row.label}: {gaps}, host {row.layer.host}, median {row.layer.median}")
        assert gaps is not None, row.extra
        assert gaps.launches == row.layer.launches
        assert gaps.busy < 1.5 * row.layer.median
        idle[row.case["streams"], row.case["graph"]] = gaps.idle / gaps.span
    assert all(idle[streams, True] < idle[streams, False] for streams, _ in idle)
    assert run.manifest.spent["launch gaps"] < 5
    print(run.manifest.spent)
    doing = [event.doing for event in heard if hasattr(event, "doing")]
    assert "tracing launch gaps" not in doing[: -len(run.rows)]
