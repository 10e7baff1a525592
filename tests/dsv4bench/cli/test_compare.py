import csv
import io
import json

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from dsv4bench.cli.compare import compare
from dsv4bench.errors import IncomparableError, UserError
from dsv4bench.report.compare_text import compare_markdown, compare_table
from dsv4bench.results.row import Status
from tests.dsv4bench.stored_runs import (
    CONTRACT,
    H200,
    around,
    base_run,
    row,
    run,
    shuffled,
    write_directory,
    write_file,
)


@pytest.fixture
def runs(tmp_path):
    """Two sides of the same rounds and a run measured apart, as a file."""
    a = base_run([row("slower", around(1e-4), engine_bytes=1), row("same", around(2e-4))])
    b = run([row("slower", shuffled(1.1e-4), engine_bytes=1), row("same", shuffled(2e-4))])
    c = run([row("slower", around(0.5e-4)), row("same", around(2e-4))], "apart", 2)
    return [
        str(path)
        for path in (
            write_directory(a, tmp_path / "before"),
            write_directory(b, tmp_path / "after"),
            write_file(c, tmp_path / "apart.json"),
        )
    ]


def output(*words: str) -> str:
    app = typer.Typer()
    app.command()(compare)
    result = CliRunner().invoke(app, list(words))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_has_the_worst_case_first(runs):
    lines = output(*runs[:2]).splitlines()
    assert lines[0].split()[:4] == ["case", "before", "after", "change"]
    assert lines[1].split()[0] == "slower"
    assert "+10.0 %" in lines[1]
    assert "regressed: above_tolerance, unconfirmed" in lines[1]
    assert "pass: within_tolerance" in lines[2]


def test_a_third_run_adds_columns(runs):
    header = output(*runs).splitlines()[0]
    assert [word for word in header.split() if word in ("before", "after", "apart")] == ["before", "after", "apart"]


def test_markdown_reads_as_before_after_speedup(runs):
    text = output(*runs[:2], "--format", "md")
    assert text.startswith("| Case | before | after | Change | 95 % interval | Speedup | Verdict |\n")
    assert "| `slower` | 100.0 µs | 110.0 µs | +10.0 % |" in text
    assert "memory figures unchanged: 2" in text


def test_csv_has_a_line_per_case_and_run_in_si_units(runs):
    lines = list(csv.DictReader(io.StringIO(output(*runs, "--format", "csv"))))
    slower = [line for line in lines if line["case"] == "slower" and line["metric"] == "time"]
    assert [(line["run"], float(line["new"])) for line in slower] == [
        ("after", pytest.approx(1.1e-4)),
        ("apart", pytest.approx(0.5e-4)),
    ]
    paired, apart = slower
    assert 0 < float(paired["lower"]) < 0.1 < float(paired["upper"])
    assert (apart["lower"], apart["upper"]) == ("", "")  # one run says nothing about the next


def test_json_carries_every_verdict(runs):
    record = json.loads(output(*runs, "--format", "json"))
    assert (record["base"], record["runs"]) == ("before", ["after", "apart"])
    first = record["cases"][0]
    assert [verdict["outcome"] for verdict in first["verdicts"]] == ["regressed", "inconclusive"]


def test_one_run_is_not_enough(runs):
    with pytest.raises(UserError, match="at least two runs"):
        output(runs[0])


def test_unlike_contracts_are_an_error_after_the_table(tmp_path, runs):
    cold = row("slower", around(1e-4), contract=CONTRACT.model_copy(update={"l2": "cold"}))
    other = write_directory(run([cold], "cold", 3), tmp_path / "cold")
    with pytest.raises(IncomparableError, match="unlike contracts"):
        output(runs[0], str(other))


def test_a_run_of_another_provider_is_named_and_the_base_keeps_its_time_beside_a_failure(tmp_path):
    a = run([row("v4/decode/eager", around(1e-4), pair_id="x")], "a")
    b = run([row("v4/decode/mine", status=Status.RUNTIME_ERROR, reason="boom", pair_id="x")], "b")
    paths = [str(write_directory(side, tmp_path / name)) for name, side in (("a", a), ("b", b))]
    [_, line] = output(*paths).splitlines()
    assert line.startswith("v4/decode/eager → mine ")
    assert "100.0 µs" in line
    assert "failed: measurement_failed: runtime_error: boom" in line


def test_a_terminal_of_80_columns_shows_case_figures_and_reasons_whole(runs, monkeypatch):
    monkeypatch.setattr("dsv4bench.cli.compare.output_console", lambda: Console(width=80))
    text = output(*runs)
    assert max(map(len, text.splitlines())) <= 80
    for whole in ("slower", "100.0 µs → 110.0 µs, +10.0 %", "above_tolerance, unconfirmed", "insufficient_history"):
        assert whole in text


@pytest.mark.parametrize("format", ["table", "md"])
def test_another_gpu_is_shown_without_a_change_and_named_once(tmp_path, format):
    sides = {"h100": H200.model_copy(update={"name": "NVIDIA H100"}), "h200": H200}
    paths = [
        str(write_directory(run([row("a", around(1e-6)), row("b", around(1e-4))], name, gpu=gpu), tmp_path / name))
        for name, gpu in sides.items()
    ]
    text = output(*paths, "--format", format).partition("<details>")[0]
    assert text.count("fingerprint_differs: GPU: NVIDIA H100 → NVIDIA H200") == 1
    assert text.count("incomparable") == 2
    assert "0.00 %" not in text
    assert "×" not in text


def test_runs_of_which_nothing_is_left_to_compare_are_an_empty_table():
    names = ("a", "b", "c")
    for width in (80, 240):
        assert compare_table(names, [], width).renderables[0].row_count == 0
    assert compare_markdown([run([])] * 3, names, [], []).startswith("| Case | a | b |")
