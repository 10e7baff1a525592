"""The gate by real invocations: every exit code, every refusal, every option, from files alone."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dsv4bench.results.baseline import store
from dsv4bench.results.row import SCHEMA_VERSION, Status
from dsv4bench.results.run_directory import Run
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.loader import load_scenario
from tests.dsv4bench.stored_runs import CONTRACT, H200, around, edit_json, row, run, shuffled, write_directory

ROOT = Path(__file__).parents[3]


def gate(*words: object, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}", **variables}
    command = [sys.executable, "-m", "dsv4bench", "gate", *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=60)


def sides(folder: Path, a: Run, b: Run) -> Path:
    """Both sides of interleaved rounds, as ``ab`` writes them."""
    write_directory(replace(a, manifest=a.manifest.model_copy(update={"side": "a"})), folder / "ab/a")
    write_directory(b, folder / "ab/b")
    return folder / "ab"


def ab_of(folder: Path, base: float, new: float, spread: float = 0.002) -> Path:
    return sides(
        folder, run([row("case", around(base, spread=spread))]), run([row("case", shuffled(new, spread=spread))])
    )


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence on stderr."""
    [line] = done.stderr.splitlines()
    assert "Traceback" not in done.stderr
    return line


# Exit codes ----


def test_identical_code_exits_0(tmp_path):
    done = gate(ab_of(tmp_path, 1e-4, 1e-4), cwd=tmp_path)
    assert (done.returncode, "pass" in done.stdout) == (0, True)


def test_a_regression_exits_1_however_many_there_are(tmp_path):
    names = "abcde"
    ab = sides(
        tmp_path,
        run([row(name, around(1e-4)) for name in names]),
        run([row(name, shuffled(1.05e-4)) for name in names]),
    )
    done = gate(ab, cwd=tmp_path)
    assert (done.returncode, done.stdout.count("regressed")) == (1, 5)


def test_wrong_usage_exits_2(tmp_path):
    assert gate(ab_of(tmp_path, 1e-4, 1e-4), "--preset", "lenient", cwd=tmp_path).returncode == 2


def test_an_inconclusive_case_exits_3_only_if_strict(tmp_path):
    ab = ab_of(tmp_path, 1e-4, 1e-4, spread=0.2)
    assert gate(ab, cwd=tmp_path).returncode == 0
    assert gate(ab, "--strict", cwd=tmp_path).returncode == 3


def test_unlike_contracts_exit_4_and_name_the_difference(tmp_path):
    cold = CONTRACT.model_copy(update={"l2": "cold", "flush": "read_sweep"})
    ab = sides(tmp_path, run([row("case", around(1e-4))]), run([row("case", around(1e-4), contract=cold)]))
    done = gate(ab, cwd=tmp_path)
    assert done.returncode == 4
    assert "contract_differs: l2: warm → cold, flush: none → read_sweep" in done.stdout


def test_another_gpu_exits_4_and_names_both(tmp_path):
    other = H200.model_copy(update={"name": "NVIDIA H100 80GB HBM3"})
    ab = sides(tmp_path, run([row("case", around(1e-4))], gpu=other), run([row("case", around(1e-4))]))
    done = gate(ab, cwd=tmp_path)
    assert done.returncode == 4
    assert "fingerprint_differs: GPU: NVIDIA H100 80GB HBM3 → NVIDIA H200" in done.stdout


def test_a_changed_shape_exits_4_and_names_the_change(tmp_path):
    before = row("case", around(1e-4), case_id="x", pair_id="x", case={"batch": 1})
    after = row("case", around(1e-4), case_id="y", pair_id="y", case={"batch": 2})
    done = gate(sides(tmp_path, run([before]), run([after])), cwd=tmp_path)
    assert done.returncode == 4
    assert "shape_changed: batch: 1 → 2" in done.stdout


def test_a_crash_exits_5_and_says_what_happened(tmp_path):
    broken = row("case", status=Status.RUNTIME_ERROR, reason="illegal memory access")
    done = gate(sides(tmp_path, run([row("case", around(1e-4))]), run([broken])), cwd=tmp_path)
    assert done.returncode == 5
    assert "runtime_error: illegal memory access" in done.stdout


def test_an_empty_selection_exits_5(tmp_path):
    done = gate(ab_of(tmp_path, 1e-4, 1e-4), "--only", "prefill", cwd=tmp_path)
    assert done.returncode == 5
    assert "no case to gate" in refusal(done)


def test_an_empty_run_exits_5(tmp_path):
    assert gate(sides(tmp_path, run([]), run([])), cwd=tmp_path).returncode == 5


# Files that can't be read ----


def test_a_missing_run_exits_4(tmp_path):
    done = gate(tmp_path / "nowhere", cwd=tmp_path)
    assert done.returncode == 4
    assert "nowhere" in refusal(done)


def test_a_missing_baseline_exits_4_and_names_the_command_that_makes_one(tmp_path):
    path = write_directory(run([row("case", around(1e-4))]), tmp_path / "run")
    done = gate(path, cwd=tmp_path)
    assert done.returncode == 4
    assert "dsv4bench baseline add" in refusal(done)


def test_a_baseline_that_does_not_exist_exits_4_and_is_said_not_to(tmp_path):
    path = write_directory(run([row("case", around(1e-4))]), tmp_path / "run")
    done = gate(path, "--baseline", tmp_path / "nope", cwd=tmp_path)
    assert done.returncode == 4
    assert refusal(done) == f"error: --baseline {tmp_path / 'nope'} does not exist"


def test_a_baseline_of_another_scenario_exits_4_in_one_line(tmp_path):
    path = write_directory(run([row(name, around(1e-4)) for name in "ab"], "mine", gpu=None), tmp_path / "run")
    other = run([row(name, around(1e-4)) for name in "cd"], "other", scenario_name="quickstart")
    base = write_directory(other, tmp_path / "other")
    done = gate(path, "--baseline", base, "--md", tmp_path / "gate.md", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, "")
    sentence = "the baseline is of scenario quickstart on h200, this run of decode on cpu: no case in common"
    assert refusal(done) == f"error: {sentence}"
    assert sentence in (tmp_path / "gate.md").read_text()


def test_a_truncated_file_exits_4_with_its_line(tmp_path):
    ab = ab_of(tmp_path, 1e-4, 1e-4)
    cases = ab / "b/cases.jsonl"
    cases.write_text(cases.read_text()[:200])
    done = gate(ab, cwd=tmp_path)
    assert done.returncode == 4
    assert "cases.jsonl:1" in refusal(done)


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
def test_a_number_that_is_none_exits_4_with_its_place(tmp_path, number):
    ab = ab_of(tmp_path, 1e-4, 1e-4)
    cases = ab / "b/cases.jsonl"
    record = json.loads(cases.read_text())
    record["layer"]["median"] = float(number.lower())
    cases.write_text(json.dumps(record) + "\n")
    done = gate(ab, cwd=tmp_path)
    assert done.returncode == 4
    assert "layer.median" in refusal(done)


def test_a_future_schema_exits_4_and_says_so(tmp_path):
    ab = ab_of(tmp_path, 1e-4, 1e-4)
    edit_json(ab / "b/manifest.json", schema_version=SCHEMA_VERSION + 1)
    done = gate(ab, cwd=tmp_path)
    assert done.returncode == 4
    assert f"schema version {SCHEMA_VERSION + 1}" in refusal(done)


# Stored baselines ----


def history(folder: Path, count: int, value: float = 1e-4) -> Path:
    for day in range(1, count + 1):
        store(run([row("case", [value * (1 + 0.001 * (day % 3 - 1))] * 10)], f"run{day}", day), folder / "baselines")
    return folder / "baselines"


@pytest.mark.parametrize(
    ("runs", "value", "strict_code", "word"),
    [
        (8, 1e-4, 0, "pass"),
        (8, 1.05e-4, 1, "regressed"),
        (8, 0.9e-4, 0, "faster"),
        (7, 1e-4, 3, "insufficient_history"),
        (1, 1.05e-4, 3, "insufficient_history"),
    ],
)
def test_eight_stored_runs_decide_and_fewer_never_pass(tmp_path, runs, value, strict_code, word):
    new = write_directory(run([row("case", around(value))], "new", 20), tmp_path / "run")
    done = gate(new, "--baseline", history(tmp_path, runs), "--strict", cwd=tmp_path)
    assert (done.returncode, word in done.stdout) == (strict_code, True), done.stdout + done.stderr


def test_baselines_in_their_usual_place_are_found_without_being_named(tmp_path):
    new = write_directory(run([row("case", around(1e-4))], "new", 20), tmp_path / "run")
    history(tmp_path, 8).rename(tmp_path / "moved")
    (tmp_path / "reports").mkdir()
    (tmp_path / "moved").rename(tmp_path / "reports/baselines")
    assert gate(new, "--strict", cwd=tmp_path).returncode == 0


def test_a_change_on_a_card_that_is_not_here_stays_unconfirmed(tmp_path):
    absent = H200.model_copy(update={"name": "NVIDIA Imaginary 1"})
    for day in range(1, 9):
        store(run([row("case", [1e-4 + day * 1e-8] * 10)], f"run{day}", day, gpu=absent), tmp_path / "baselines")
    new = write_directory(run([row("case", around(2e-4))], "new", 20, gpu=absent), tmp_path / "run")
    done = gate(new, "--baseline", tmp_path / "baselines", cwd=tmp_path)
    assert (done.returncode, "unconfirmed" in done.stdout) == (1, True)
    assert "no NVIDIA Imaginary 1 in this machine" in done.stderr


@pytest.mark.parametrize(("second", "code", "word"), [(1.04e-4, 1, "confirmed"), (1e-4, 0, "not_confirmed")])
def test_a_stored_second_run_confirms_or_takes_back(tmp_path, second, code, word):
    new = write_directory(run([row("case", around(1.05e-4))], "new", 20), tmp_path / "run")
    again = write_directory(run([row("case", around(second))], "again", 21), tmp_path / "again")
    done = gate(new, "--baseline", history(tmp_path, 8), "--confirmation", again, cwd=tmp_path)
    assert (done.returncode, word in done.stdout) == (code, True)


def test_a_run_does_not_confirm_itself(tmp_path):
    new = write_directory(run([row("case", around(1.05e-4))], "new", 20), tmp_path / "run")
    done = gate(new, "--baseline", history(tmp_path, 8), "--confirmation", new, cwd=tmp_path)
    assert done.returncode == 2
    assert "is the run itself" in done.stderr


def test_a_confirmation_that_is_missing_or_not_wanted_is_refused(tmp_path):
    ab = ab_of(tmp_path, 1e-4, 1.05e-4)
    done = gate(ab, "--confirmation", tmp_path / "nowhere", cwd=tmp_path)
    assert (done.returncode, "nowhere" in refusal(done)) == (4, True)
    done = gate(ab, "--confirmation", ab, "--no-confirm", cwd=tmp_path)
    assert (done.returncode, "contradict each other" in refusal(done)) == (2, True)


def test_too_little_history_says_that_no_time_was_judged(tmp_path):
    new = write_directory(run([row("case", around(1.5e-4), engine_bytes=5000)], "new", 20), tmp_path / "run")
    done = gate(new, "--baseline", history(tmp_path, 1), cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1].startswith("no time judged: 1 inconclusive. Held against 1 stored run")


def test_what_was_not_judged_beside_what_passed_is_in_the_last_line(tmp_path):
    a, b = ([row("quiet", order(1e-4)), row("rough", order(2e-4, spread=0.3))] for order in (around, shuffled))
    done = gate(sides(tmp_path, run(a), run(b)), cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1].startswith("no regression, 1 of 2 times inconclusive. Both sides")


# Exporters ----


def test_a_report_that_can_not_be_written_is_one_sentence_that_names_it(tmp_path):
    same = run([row("case", around(1e-4))])
    done = gate(sides(tmp_path, same, same), "--md", str(tmp_path), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"error: {tmp_path}: Is a directory\n")


def test_every_report_is_written_in_one_go_and_folders_are_made(tmp_path):
    files = {kind: tmp_path / "out" / f"gate.{kind}" for kind in ("xml", "md", "json")}
    summary = tmp_path / "summary"
    done = gate(
        ab_of(tmp_path, 1e-4, 1.05e-4),
        *("--junit", files["xml"], "--md", files["md"], "--json", files["json"], "--github", "--explain"),
        cwd=tmp_path,
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert done.returncode == 1
    assert "<testsuites" in files["xml"].read_text()
    assert files["md"].read_text() == summary.read_text()
    assert json.loads(files["json"].read_text())["exit_code"] == 1
    assert "::error title=regressed%3A case::+5.0%25" in done.stdout
    assert "absolute change +5.000 µs; tolerance 3 %, floor 500.0 ns" in done.stdout


@pytest.mark.parametrize("trouble", ["no baseline", "truncated", "the run itself", "no case"])
def test_every_report_says_why_nothing_could_be_judged(tmp_path, trouble):
    path = write_directory(run([row("case", around(1e-4))]), tmp_path / "run")
    base = write_directory(run([row("case", around(1e-4))], "base", 2), tmp_path / "base")
    if trouble == "truncated":
        (base / "cases.jsonl").write_text("{")
    words = {
        "no baseline": (),
        "truncated": ("--baseline", base),
        "the run itself": ("--baseline", path),
        "no case": ("--baseline", base, "--only", "prefill"),
    }[trouble]
    files = {kind: tmp_path / "out" / f"gate.{kind}" for kind in ("xml", "md", "json")}
    summary = tmp_path / "summary"
    done = gate(
        *(path, *words, "--junit", files["xml"], "--md", files["md"], "--json", files["json"], "--github"),
        cwd=tmp_path,
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert done.returncode == (5 if trouble == "no case" else 4)
    sentence = refusal(done).removeprefix("error: ")
    assert json.loads(files["json"].read_text())["reason"] == sentence
    assert sentence in files["md"].read_text()
    assert files["md"].read_text() == summary.read_text()
    [error] = ElementTree.parse(files["xml"]).getroot().iter("error")
    assert error.get("message") == sentence
    assert done.stdout.startswith("::error title=gate%3A ")


def test_a_case_that_is_faster_twice_asks_for_a_new_baseline(tmp_path):
    report = tmp_path / "gate.json"
    baselines = history(tmp_path, 8)
    for name, day in (("first", 20), ("second", 21)):
        new = write_directory(run([row("case", around(0.9e-4))], name, day), tmp_path / name)
        done = gate(new, "--baseline", baselines, "--json", report, cwd=tmp_path)
        assert ("faster twice" in done.stderr) == (name == "second")


def test_a_case_that_is_faster_than_the_base_measured_beside_it_asks_for_no_baseline(tmp_path):
    report = tmp_path / "gate.json"
    for name in ("first", "second"):
        a, b = run([row("case", around(1e-4))], name), run([row("case", shuffled(0.9e-4))], name)
        done = gate(sides(tmp_path / name, a, b), "--json", report, cwd=tmp_path)
        assert json.loads(report.read_text())["verdicts"][0]["outcome"] == "faster"
        assert "faster twice" not in done.stderr


def test_bytes_are_gated_without_any_time_and_one_more_is_a_regression(tmp_path):
    def memory(engine: int):
        return run([row("case", case={"scenario_kind": "memory"}, engine_bytes=engine)])

    same = gate(sides(tmp_path / "same", memory(5000), memory(5000)), "--strict", cwd=tmp_path)
    assert (same.returncode, "self-test" in same.stderr) == (0, False), "bytes have no noise"
    done = gate(sides(tmp_path / "more", memory(5000), memory(5001)), cwd=tmp_path)
    assert (done.returncode, "memory_grew: 5,000 → 5,001 bytes" in done.stdout) == (1, True)


def test_the_presets_differ_in_what_they_let_pass(tmp_path):
    ab = ab_of(tmp_path, 1e-4, 1.02e-4)
    codes = {name: gate(ab, "--preset", name, cwd=tmp_path).returncode for name in ("strict", "default", "permissive")}
    assert codes == {"strict": 1, "default": 0, "permissive": 0}


def test_it_runs_without_torch(tmp_path):
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked/torch.py").write_text("raise ImportError('torch is blocked')")
    paths = os.pathsep.join(map(str, (tmp_path / "blocked", ROOT, ROOT / "kernels")))
    assert gate(ab_of(tmp_path, 1e-4, 1.05e-4), cwd=tmp_path, PYTHONPATH=paths).returncode == 1


@pytest.mark.parametrize("name", ["gate_decode", "gate_fusions", "gate_attention"])
def test_the_scenarios_that_ship_for_the_gate_have_few_cases_with_names_of_their_own(name):
    cases = expand(load_scenario(name))
    assert 0 < len(cases) <= 24
    assert len({case.label for case in cases}) == len(cases)
