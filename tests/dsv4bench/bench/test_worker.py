"""Worker processes: forked from a server that has torch imported, or programs of their own under a profiler."""

from pathlib import Path

import pytest

from dsv4bench.bench.session import Request, start_run
from dsv4bench.bench.worker import INJECTIONS, start_method
from dsv4bench.results.row import Status
from dsv4bench.scenario.expand import expand
from tests.dsv4bench.bench.small import small_scenario

TALKING = f"{Path(__file__).with_name('failing_providers.py')}:Talking"


@pytest.mark.parametrize("variable", INJECTIONS)
def test_under_a_profiler_a_worker_is_a_program_of_its_own(variable):
    assert start_method({}) == "forkserver"
    assert start_method({variable: "1"}) == "spawn"


def test_a_worker_has_the_environment_of_its_own_start(tmp_path, monkeypatch):
    scenario = small_scenario(tmp_path, providers=TALKING)
    for words in ("first", "second"):  # the second is forked from a server that was started in the first's
        monkeypatch.setenv("DSV4BENCH_WORDS", words)
        run = start_run(Request(scenario, expand(scenario), "cpu"), tmp_path / words, lambda event: None)
        assert [(row.status, row.reason.endswith(words)) for row in run.rows] == [(Status.UNSUPPORTED, True)]
