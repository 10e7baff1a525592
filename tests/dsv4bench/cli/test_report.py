"""A stored run as text, from files alone."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dsv4bench.cli.output import Format, print_run
from dsv4bench.cli.report import report
from dsv4bench.errors import UserError
from dsv4bench.results.row import Status
from dsv4bench.results.run_directory import Run
from tests.dsv4bench.stored_runs import row, run, write_directory

BASELINES = Path(__file__).parents[3] / "reports" / "baselines" / "h200"


def stored(scenario: str) -> str:
    """The newest stored run of a scenario."""
    return str(max((BASELINES / scenario).glob("*.json")))


def output(*words: str) -> str:
    app = typer.Typer()
    app.command()(report)
    result = CliRunner().invoke(app, list(words))
    if result.exception:
        raise result.exception
    return result.stdout


def test_a_stored_run_is_printed_as_it_was_when_it_ended() -> None:
    lines = output(stored("quickstart")).splitlines()
    assert lines[0].split()[:3] == ["case", "provider", "median"]
    rows = json.loads(Path(stored("quickstart")).read_text())["rows"]
    assert sum(line.startswith("v") and line.split()[-1] == "ok" for line in lines) >= len(rows)


def test_stages_are_printed_on_demand() -> None:
    assert "  sparse_attention" not in output(stored("quickstart"))
    assert "  sparse_attention" in output(stored("quickstart"), "--stages")


def test_stages_of_a_run_that_timed_none_are_refused(tmp_path: Path) -> None:
    unsupported = write_directory(run([row("one", status=Status.UNSUPPORTED, reason="no GPU")]), tmp_path / "run")
    with pytest.raises(UserError, match="run has no stage with a time; none of its cases was timed"):
        output(str(unsupported), "--stages")
    bytes_alone = run(
        [row("one", engine_bytes=5, case={"scenario_kind": "memory"})], scenario={"name": "kv", "kind": "memory"}
    )
    with pytest.raises(UserError, match="kv has no stage with a time; kind: memory times nothing"):
        output(str(write_directory(bytes_alone, tmp_path / "kv")), "--stages")


def test_losses_are_the_stages_that_take_longest_beyond_their_floor() -> None:
    found = json.loads(output(stored("fusions"), "--losses", "5", "--provider", "triton", "--format", "json"))
    assert len(found) == 5
    assert {record["provider"] for record in found} == {"triton"}
    lost = [record["lost"] for record in found]
    assert lost == sorted(lost, reverse=True)
    best = found[0]
    assert best["lost"] == pytest.approx(best["time"] - best["floor"])
    rows = json.loads(Path(stored("fusions")).read_text())["rows"]
    every = [
        stage["timing"]["median"] - stage["floor"]
        for row in rows
        for stage in row.get("stages", [])
        if stage["provider"] == "triton" and stage.get("timing") and stage.get("floor")
    ]
    assert best["lost"] == max(every)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--provider", "triton"], "--provider is read with --losses only"),
        (["--losses", "3", "--stages"], "--losses does not read --stages"),
        (["--losses", "3", "--provider", "mine"], "no such provider in .*; it has .*triton"),
    ],
)
def test_flags_that_say_nothing_together_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        output(stored("fusions"), *words)


def test_a_run_in_which_every_case_is_unsupported_says_why_and_has_no_table_of_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest_of = run([row("one", [1.0])]).manifest
    reasons = ("a CUDA graph needs a GPU", "a CUDA graph needs a GPU", "no such kernel")
    case = {"model": "v4-flash", "layer": "c4a", "provider": "triton", "stages": []}
    rows = tuple(
        row(f"case-{n}", status=Status.UNSUPPORTED, reason=reason, case=case) for n, reason in enumerate(reasons)
    )
    print_run(Run(tmp_path, manifest_of, rows), Format.TABLE, stages=True)
    shown = capsys.readouterr()
    assert "nothing was measured: 2 of 3 cases are unsupported: a CUDA graph needs a GPU\n" in shown.err
    assert "case / stage" not in shown.out
