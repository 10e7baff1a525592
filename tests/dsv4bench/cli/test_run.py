"""``dsv4bench run`` as a user meets it."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from shutil import copytree

import pytest

from dsv4bench.cli.run import _resumable
from dsv4bench.results.run_directory import read_run
from tests.dsv4bench.bench.small import small_config

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.xdist_group("run")


def cli(*arguments, cwd=None):
    paths = f"{ROOT}{os.pathsep}{ROOT / 'kernels'}"
    environment = os.environ | {"PYTHONPATH": paths, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dsv4bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, timeout=500)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    small_config(folder)
    (folder / "mine.yaml").write_text(
        "name: mine\nmodel: small.json\nlayers: [swa, c128a]\nworkload: {context: 256, batch: [1, 2]}\n"
        "providers: [eager, reference]\nbaseline: {provider: eager}\n"
        "timing: {rounds: 2, iterations: 1, warmup: 0}\n"
    )
    return folder


@pytest.fixture(scope="module")
def done(folder):
    return cli("run", "mine.yaml", "--only", "swa/decode-b1", "--device", "cpu", "--out", "out", "--stages", cwd=folder)


def test_a_run_prints_the_baseline_first_with_speedups_and_memory(done):
    assert done.returncode == 0, done.stderr
    head, first, second, *_ = done.stdout.splitlines()
    assert head.split() == ["case", "provider", "median", "±", "MAD", "vs", "eager", "KV", "memory", "status"]
    assert "eager" in first
    assert "1.00×" in first
    assert first.rstrip().endswith("ok")
    assert "reference" in second
    assert "73.00 KiB" in second


def test_stages_are_printed_when_asked_for(done):
    assert "  sparse_attention" in done.stdout


def test_the_end_says_how_the_time_was_spent_and_where_the_run_is(done):
    assert "s of wall time: " in done.stderr
    assert "timing " in done.stderr
    assert "reading the timer: at most 0." in done.stderr
    assert done.stderr.rstrip().endswith("run: out")


def test_only_the_first_warnings_of_rows_are_printed(done, folder, tmp_path):
    del done
    copied = tmp_path / "run"
    copytree(folder / "out", copied)
    rows = [json.loads(line) for line in (copied / "cases.jsonl").read_text().splitlines()]
    for row in rows:
        row["warnings"] = [f"number {number}" for number in range(4)]
    (copied / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    again = cli("run", "--resume", str(copied), cwd=folder)
    assert [line.rsplit(": ", 1)[1] for line in again.stderr.splitlines() if "number" in line] == [
        *(f"number {number}" for number in range(4)),
        "number 0",
    ]
    assert "warning: 3 more of rows; --format json has them all" in again.stderr


def test_every_row_carries_the_command_that_reproduces_it(done, folder):
    run = read_run(folder / "out")
    for row in run.rows:
        assert row.repro == f"dsv4bench run mine.yaml --device cpu --only {row.case_id}"
    again = cli(*run.rows[0].repro.split()[1:], "--dry-run", "--format", "json", cwd=folder)
    assert [case["id"] for case in json.loads(again.stdout)] == [run.rows[0].case_id]


def test_the_command_of_an_unchecked_row_leaves_the_check_out_as_well(folder):
    (folder / "bytes.yaml").write_text("name: bytes\nkind: memory\nmodel: small.json\nworkload: {context: 256}\n")
    ran = cli("run", "bytes.yaml", "--no-check", "--out", "bytes", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    run = read_run(folder / "bytes")
    assert run.rows[0].repro == f"dsv4bench run bytes.yaml --no-check --only {run.rows[0].case_id}"
    again = cli(*run.rows[0].repro.split()[1:], "--dry-run", cwd=folder)
    assert again.returncode == 0, again.stderr


def test_a_finished_run_is_resumed_to_itself(done, folder):
    again = cli("run", "--resume", "out", "--format", "json", cwd=folder)
    assert again.returncode == 0, again.stderr
    printed = json.loads(again.stdout)
    assert [row["case_id"] for row in printed["rows"]] == [row.case_id for row in read_run(folder / "out").rows]
    assert printed["rows"][0]["speedup"] == {"provider": 1.0, "model": None}
    assert printed["manifest"]["scenario_name"] == "mine"


@pytest.mark.parametrize(("form", "start"), [("csv", "case_id,label,model,layer"), ("md", "| case | provider |")])
def test_results_come_in_other_formats(done, folder, form, start):
    printed = cli("run", "--resume", "out", "--format", form, cwd=folder).stdout
    assert printed.startswith(start)
    assert len(printed.splitlines()) == (3 if form == "csv" else 4)
    if form == "csv":
        first = next(csv.DictReader(io.StringIO(printed)))
        assert float(first["median_s"]) > 0
        assert first["ideal_bytes"] == str(128 * 584)


def test_a_dry_run_lists_the_cases_with_resolved_sizes(folder):
    listed = json.loads(cli("run", "mine.yaml", "--dry-run", "--format", "json", cwd=folder).stdout)
    assert len(listed) == 2 * 2 * 2
    assert {case["context"] for case in listed} == {256}
    assert not (folder / "reports").exists()


def test_floors_of_a_card_one_does_not_own(folder):
    printed = cli("run", "quickstart", "--dry-run", "--gpu", "b200", "--only", "c4a", "--format", "csv", cwd=folder)
    rows = list(csv.DictReader(io.StringIO(printed.stdout)))
    assert len(rows) == 4 * 21
    assert "datasheet B200" in printed.stderr
    other = cli("run", "quickstart", "--dry-run", "--gpu", "h100", "--only", "c4a", "--format", "csv", cwd=folder)
    pairs = zip(rows, csv.DictReader(io.StringIO(other.stdout)), strict=True)
    assert any(float(row["floor"]) > 0 for row in rows)
    assert all(float(b200["floor"]) <= float(h100["floor"]) for b200, h100 in pairs)


def test_providers_on_the_command_line_replace_those_of_the_scenario(folder):
    arguments = ["--provider", "eager,topk=reference", "--dry-run", "--format", "json"]
    listed = json.loads(cli("run", "mine.yaml", *arguments, cwd=folder).stdout)
    assert {case["label"].rsplit("/")[-1] for case in listed} == {"eager,topk=reference"}


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run"], 2, "which scenario?"),
        (["run", "nowhere.yaml"], 2, "no scenario 'nowhere.yaml'"),
        (["run", "mine.yaml", "--only", "dsa"], 5, "--only dsa selects none of the 8 cases; --dry-run lists them"),
        (
            ["run", "mine.yaml", "--provider", "egaer"],
            2,
            "unknown provider 'egaer': did you mean eager? known are eager",
        ),
        (["run", "mine.yaml", "--provider", "no/such.py:Thing"], 2, "no such provider file: no/such.py"),
        (["run", "mine.yaml", "--provider", "eager,topk"], 2, "expected NAME or NAME,STAGE=NAME"),
        (
            ["run", "mine.yaml", "--provider", "eager,tokp=eager"],
            2,
            "error: --provider eager,tokp=eager: unknown stage",
        ),
        (["run", "mine.yaml", "--provider", "eager,tokp=eager"], 2, "; did you mean 'topk'?"),
        (["run", "mine.yaml", "--provider", "eager,topk=egaer"], 2, ": did you mean eager? known are"),
        (["run", "mine.yaml", "--device", "gpu"], 2, "--device gpu: expected auto, cpu, cuda or cuda:N"),
        (["run", "mine.yaml", "--gpu", "b200"], 2, "--gpu is read with --dry-run only"),
        (["run", "mine.yaml", "--dry-run", "--gpu", "b2000"], 2, "unknown GPU 'b2000'"),
        (["run", "--resume", "nowhere"], 4, "no run at nowhere"),
        (["run", "mine.yaml", "--resume", "out"], 2, "--resume does not read SCENARIO"),
        (["run", "mine.yaml", "--device", "tpu", "--dry-run"], 2, "--device tpu: expected auto, cpu, cuda or cuda:N"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_one_sentence_and_its_exit_code(folder, arguments, code, message):
    wrong = cli(*arguments, cwd=folder)
    assert wrong.returncode == code, wrong.stderr
    assert message in wrong.stderr
    assert wrong.stderr.startswith("error: ")
    assert wrong.stdout == ""


def test_a_gpu_that_is_not_here_is_said_in_one_sentence(folder):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    wrong = cli("run", "mine.yaml", "--device", "cuda", "--out", "never", cwd=folder)
    assert wrong.returncode == 2
    assert "--device cuda: torch sees no GPU here" in wrong.stderr
    assert not (folder / "never").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, None)])
def test_a_signal_that_is_dropped_ends_the_run_with_the_next_event(tmp_path, capsys, number, code):
    (tmp_path / "manifest.json").touch()
    before = signal.getsignal(number)

    def run():
        with _resumable(tmp_path, lambda event: None) as listen:
            with suppress(BaseException):  # as Python does within a destructor
                os.kill(os.getpid(), number)
            listen(None)

    with pytest.raises((SystemExit, KeyboardInterrupt)) as caught:
        run()
    assert getattr(caught.value, "code", None) == code
    assert capsys.readouterr().err == f"continue with: dsv4bench run --resume {tmp_path}\n"
    assert signal.getsignal(number) is before
