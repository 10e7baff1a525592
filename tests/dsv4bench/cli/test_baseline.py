import csv
import io
import json

import pytest
from typer.testing import CliRunner

from dsv4bench.cli.baseline import app, sparkline
from dsv4bench.errors import IncomparableError, MeasurementError, UserError
from dsv4bench.results.row import Status
from tests.dsv4bench.stored_runs import H200, around, row, run, write_directory


@pytest.fixture
def baseline(tmp_path):
    """Invoke ``baseline`` on baselines of this test's own; an error of the user's is raised."""

    def invoke(*words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--root", str(tmp_path / "baselines")])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return invoke


@pytest.fixture
def stored(tmp_path, baseline):
    """Nine runs, of which the last is 2 % slower."""
    for day in range(1, 10):
        value = 1.02e-4 if day == 9 else 1e-4
        path = write_directory(run([row("case", [value] * 3)], f"run{day}", day), tmp_path / f"run{day}")
        baseline("add", str(path))
    return tmp_path / "baselines/h200/decode"


def test_adding_says_how_many_are_missing_before_the_gate_decides(tmp_path, baseline):
    path = write_directory(run([row("case", around(1e-4))]), tmp_path / "run")
    assert "(1 stored; 7 more before the gate decides)" in baseline("add", str(path)).replace("\n", " ")


def test_one_run_of_bytes_alone_is_enough(tmp_path, baseline):
    stored = run([row("case", case={"scenario_kind": "memory"}, engine_bytes=5000)])
    assert "(1 stored)" in baseline("add", str(write_directory(stored, tmp_path / "run"))).replace("\n", " ")


def test_adding_a_file_that_is_no_run_is_refused(tmp_path, baseline):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(IncomparableError, match="not a stored run"):
        baseline("add", str(tmp_path / "run.json"))


def test_a_name_of_several_machines_lists_those_alone(tmp_path, baseline):
    for name, gpu in (("decode", H200), ("decode", None), ("other", None)):
        source = tmp_path / f"{name}-{'h200' if gpu else 'cpu'}"
        write_directory(run([row("case", around(1e-4))], source.name, gpu=gpu, scenario_name=name), source)
        baseline("add", str(source))
    with pytest.raises(UserError, match=r"there are cpu/decode, h200/decode$"):
        baseline("show", "decode")


def test_a_pattern_that_no_stored_case_has_is_exit_code_5(stored, baseline):
    with pytest.raises(MeasurementError, match="--only nothing selects none of the cases that decode stores"):
        baseline("trend", "decode", "--only", "nothing")


def test_list_shows_each_machine_and_scenario(stored, baseline):
    [record] = json.loads(baseline("list", "--format", "json"))
    assert record == {
        "baseline": "h200/decode",
        "runs": 9,
        "cases": 1,
        "oldest": "2026-01-01T00:00:00+00:00",
        "newest": "2026-01-09T00:00:00+00:00",
    }
    assert baseline("list").splitlines()[1].split()[:3] == ["h200/decode", "9", "1"]


def test_list_says_how_many_of_the_runs_that_the_gate_needs_are_there(tmp_path, baseline):
    baseline("add", str(write_directory(run([row("case", around(1e-4))]), tmp_path / "run")))
    assert "h200/decode  1 of 8" in baseline("list")


def test_adding_a_run_that_failed_is_a_failed_measurement(tmp_path, baseline):
    wrong = run([row("case", around(1e-4)), row("wrong", status=Status.INCORRECT, reason="worst error 3")])
    with pytest.raises(MeasurementError, match="wrong is incorrect, worst error 3") as error:
        baseline("add", str(write_directory(wrong, tmp_path / "run")))
    assert error.value.exit_code == 5


def test_without_baselines_the_command_that_makes_one_is_named(baseline):
    with pytest.raises(UserError, match="baseline add RUN"):
        baseline("list")


def test_show_gives_the_interval_of_the_next_run(stored, baseline):
    [record] = json.loads(baseline("show", "h200/decode", "--format", "json"))
    assert record["runs"] == 9
    assert record["geometric mean"] == pytest.approx(1e-4 * 1.02 ** (1 / 9))
    assert 0.015 < record["next run within"] < 0.02
    assert "± 1.62 %" in baseline("show", "decode")


def test_trend_has_a_point_for_each_run(stored, baseline):
    points = list(csv.DictReader(io.StringIO(baseline("trend", "decode", "--format", "csv"))))
    assert [float(point["median"]) for point in points] == [1e-4] * 8 + [1.02e-4]
    table = baseline("trend", "decode")
    assert "▁▁▁▁▁▁▁▁█" in table
    assert "+2.0 %" in table


def test_prune_removes_the_oldest_and_first_says_which(stored, baseline):
    oldest = stored / "20260101T000000Z.json"
    assert f"would remove {oldest}" in baseline("prune", "decode", "--keep", "8", "--dry-run").replace("\n", "")
    assert oldest.exists()
    baseline("prune", "decode", "--keep", "8")
    assert not oldest.exists()
    assert len(list(stored.glob("*.json"))) == 8


def test_prune_never_leaves_too_few_to_decide(stored):
    result = CliRunner().invoke(app, ["prune", "decode", "--keep", "7"])
    assert result.exit_code == 2


def test_a_scenario_that_two_machines_have_needs_its_machine(tmp_path, stored, baseline):
    other = H200.model_copy(update={"name": "NVIDIA H100 80GB HBM3"})
    path = write_directory(run([row("case", around(1e-4))], "other", gpu=other), tmp_path / "other")
    baseline("add", str(path))
    with pytest.raises(UserError, match="several baselines .* h100-80gb-hbm3/decode, h200/decode"):
        baseline("show", "decode")
    assert "case" in baseline("show", "h100-80gb-hbm3/decode")


def test_a_flat_series_draws_flat():
    assert sparkline([1.0, 1.0005, 1.0]) == "▁▁▁"
