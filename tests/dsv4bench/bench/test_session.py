"""Runs with real worker processes: kills, hangs and Ctrl-C cost at most a case and leave a run that can be finished."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from dsv4bench.bench.device import Device, find_device
from dsv4bench.bench.environment import git_state
from dsv4bench.bench.execute import Executor
from dsv4bench.bench.messages import Done, Found, Measured, Traced, Working
from dsv4bench.bench.session import (
    OUTSIDE,
    Request,
    complete_row,
    exit_code,
    make_manifest,
    resume_run,
    start_run,
    with_gaps,
)
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.worker import START_TIMEOUT, Worker
from dsv4bench.errors import IncomparableError, MeasurementError, UserError
from dsv4bench.results.environment import Environment, GpuProcess
from dsv4bench.results.row import Gaps, Row, StageRow, Status, Timing
from dsv4bench.results.run_directory import CASES, MANIFEST, SAMPLES, read_run
from dsv4bench.scenario.expand import expand
from tests.dsv4bench.bench.small import small_scenario
from tests.dsv4bench.stored_runs import row

ROOT = Path(__file__).parents[3]
FAILING = Path(__file__).with_name("failing_providers.py")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'kernels'}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # the checkout that these tests run from may change meanwhile
    monkeypatch.setattr("dsv4bench.bench.environment.git_state", lambda folder, output: ("c0ffee", None))


def request_of(scenario, **changes):
    return Request(
        scenario, changes.pop("cases", expand(scenario)), "cpu", ["run"], ["dsv4bench", "run", "small"], **changes
    )


@pytest.mark.parametrize(
    ("device", "timing", "graph", "words"),
    [("cpu", {"timer": "events"}, False, "needs a GPU"), ("cuda:1", {"timer": "wall"}, True, "calls on the CPU")],
)
def test_a_timing_that_the_device_named_lacks_is_refused_before_a_worker_starts(
    tmp_path, monkeypatch, device, timing, graph, words
):
    monkeypatch.setattr("dsv4bench.bench.session.Executor", None)  # calling it would be an error of another kind
    scenario = small_scenario(tmp_path, timing=timing, schedule={"graph": graph})
    with pytest.raises(UserError, match=words):
        start_run(Request(scenario, expand(scenario), device), tmp_path / "run", lambda event: None)
    assert not (tmp_path / "run").exists()


def test_rows_of_cases_that_the_device_cannot_run_need_no_worker(tmp_path, monkeypatch):
    class Probed(Executor):
        def probe(self, device, **_):
            return Found(Device("cpu"))

    monkeypatch.setattr("dsv4bench.bench.session.Executor", partial(Probed, make_worker=None))  # none can be started
    scenario = small_scenario(tmp_path, schedule={"graph": True})
    run = start_run(request_of(scenario), tmp_path / "run", lambda event: None)
    assert {(row.status, row.reason) for row in run.rows} == {(Status.UNSUPPORTED, "a CUDA graph needs a GPU")}


def test_what_a_worker_found_is_read_without_torch():
    found = pickle.dumps(Found(find_device("cpu")))
    code = "import pickle, sys; pickle.load(sys.stdin.buffer); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], input=found, check=False).returncode == 0


def test_without_torch_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("dsv4bench.bench.session.find_spec", lambda name: None)
    with pytest.raises(UserError, match="timing needs torch"):
        start_run(request_of(small_scenario(tmp_path)), tmp_path / "run", lambda event: None)
    assert not (tmp_path / "run").exists()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_run_is_journalled_with_everything_that_explains_it(tmp_path):
    scenario = small_scenario(tmp_path, providers=["eager", "reference"], baseline={"provider": "eager"})
    heard = []
    run = start_run(request_of(scenario), tmp_path / "run", heard.append)
    assert [row.status for row in run.rows] == [Status.OK, Status.OK]
    assert exit_code(run.rows) == 0
    row, manifest = run.rows[0], run.manifest
    assert row.contract.timer == "wall"
    assert row.memory.ideal_bytes == 128 * 584
    assert row.memory.engine_bytes >= row.memory.ideal_bytes
    assert row.memory.measured_bytes >= row.memory.engine_bytes, "a block takes its whole row of the slab"
    assert row.repro == f"dsv4bench run small --only {row.case_id}"
    assert all(stage.bytes > 0 for stage in row.stages)
    assert 0 < row.extra["timer_share"] < 0.05
    assert manifest.finished
    assert not manifest.interrupted
    assert manifest.environment.torch
    assert manifest.timer_floor["wall"] < 1e-5
    assert {"timing", "inputs", "checks", "weights and caches"} <= manifest.spent.keys()
    assert len(manifest.planned) == 2
    assert {json.loads(line)["round"] for line in (run.path / SAMPLES).read_text().splitlines()} == {0, 1}
    assert {event.doing for event in heard if isinstance(event, Working)} >= {"preparing", "round 1 of 2", "finishing"}


def test_killed_crashed_and_hanging_workers_cost_their_case_alone(tmp_path, monkeypatch):
    child = tmp_path / "child"

    class Impatient(Worker):
        """Waits no longer once it is known that the provider hangs, however slow this machine is."""

        def receive(self, timeout):
            while not self.connection.poll(0.05):
                if child.exists() and is_running(int(child.read_text())):
                    return super().receive(0)
            return super().receive(timeout)

    monkeypatch.setattr("dsv4bench.bench.session.Executor", partial(Executor, make_worker=Impatient))
    monkeypatch.setenv("HANGING_CHILD", str(child))
    bad = [f"{FAILING}:{name}" for name in ("Killed", "Segfault", "Hangs")]
    scenario = small_scenario(
        tmp_path,
        providers=["eager", *bad, "reference"],
    )
    run = start_run(request_of(scenario), tmp_path / "run", lambda event: None)
    rows = {row.case["provider"].rsplit(":")[-1]: row for row in run.rows}
    assert rows["eager"].status is rows["reference"].status is Status.OK
    assert rows["Killed"].status is rows["Segfault"].status is Status.RUNTIME_ERROR
    assert rows["Killed"].reason.startswith("the worker process was killed by SIGKILL")
    assert rows["Segfault"].reason.startswith("the worker process was killed by SIGSEGV")
    assert rows["Hangs"].status is Status.TIMEOUT
    assert rows["Hangs"].reason == "no result within 600 s (timing.timeout), preparing"
    assert not is_running(int(child.read_text())), "the whole process group is killed"
    log = (run.path / "worker.log").read_text()
    assert "hanging now" in log, "what providers print goes to the log"
    assert "Segmentation fault" in log
    assert exit_code(run.rows) == 5


def test_a_worker_killed_from_outside_costs_one_case_and_resume_finishes_a_cut_journal(tmp_path, monkeypatch):
    monkeypatch.setenv("DSV4BENCH_WAIT", "1")
    scenario = small_scenario(
        tmp_path, providers=f"{FAILING}:WaitsLater", workload={"context": 256, "batch": [1, 2, 3]}
    )
    victim = {}

    def kill_once(event):
        if isinstance(event, Working) and event.doing == "round 2 of 2" and not victim:
            monkeypatch.delenv("DSV4BENCH_WAIT")  # which the next worker gets to see
            for process in __import__("multiprocessing").active_children():
                victim[process.pid] = event.case_id
                os.kill(process.pid, signal.SIGKILL)

    path = tmp_path / "run"
    run = start_run(request_of(scenario), path, kill_once)
    (lost,) = victim.values()
    assert {row.case_id: row.status for row in run.rows}[lost] is Status.RUNTIME_ERROR
    assert [row.status for row in run.rows].count(Status.OK) == 2

    kept = (path / CASES).read_text().splitlines(keepends=True)
    (path / CASES).write_text(kept[0] + kept[1][:50])  # as a kill in the middle of a write leaves it
    again = resume_run(path, lambda event: None)
    assert again.missing == ()
    assert [row.status for row in again.rows][1:] == [Status.OK, Status.OK]
    assert again.rows[1].repro == f"dsv4bench run small --only {again.rows[1].case_id}"
    assert (path / CASES).read_text().startswith(kept[0])
    assert resume_run(path, lambda event: None).rows == again.rows


def test_a_run_that_is_killed_keeps_in_its_books_what_it_spent_on_the_cases_it_finished(tmp_path):
    scenario = small_scenario(tmp_path, workload={"context": 256, "batch": [1, 2]})
    path, left = tmp_path / "run", []

    def look(event):
        if isinstance(event, Done) and not left:  # what kill -9 would leave now
            left.extend((path / name).read_text() for name in (MANIFEST, CASES))

    start_run(request_of(scenario), path, look)
    for name, text in zip((MANIFEST, CASES), left, strict=True):
        (path / name).write_text(text)
    killed = read_run(path)
    assert (killed.manifest.finished, len(killed.missing)) == (None, 1)
    assert {"timing", OUTSIDE} <= killed.manifest.spent.keys()
    spent = resume_run(path, lambda event: None).manifest.spent
    assert all(spent[purpose] > seconds > 0 for purpose, seconds in killed.manifest.spent.items())


def test_ctrl_c_leaves_a_valid_run_and_exit_code_130(tmp_path):
    scenario = small_scenario(
        tmp_path, workload={"context": 256, "batch": [1, 2]}, timing={"rounds": 1000, "iterations": 9}
    )
    file, path = tmp_path / "small.yaml", tmp_path / "run"
    file.write_text(scenario.model_dump_json(exclude_none=True))
    command = [sys.executable, "-m", "dsv4bench", "run", str(file), "--device", "cpu", "--out", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + START_TIMEOUT
    while not (path / CASES).exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
    time.sleep(0.1)  # the file comes a moment before the first case
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert "Traceback" not in err + out
    assert f"continue with: dsv4bench run --resume {path}" in err
    run = read_run(path)
    assert run.manifest.interrupted
    assert len(run.missing) == 2


def test_what_cannot_be_run_is_refused_before_anything_is_written(tmp_path):
    cold = small_scenario(tmp_path, timing={"l2": "cold"})
    path = tmp_path / "run"
    with pytest.raises(UserError, match="timing.l2 cold"):
        start_run(request_of(cold), path, lambda event: None)
    assert not path.exists()
    with pytest.raises(MeasurementError, match="no case selected"):
        start_run(request_of(cold, cases=[]), path, lambda event: None)
    path.mkdir()
    (path / MANIFEST).write_text("{}")
    with pytest.raises(UserError, match="already holds a run"):
        start_run(request_of(cold), path, lambda event: None)


def test_a_row_knows_its_gaps_or_why_it_has_none():
    gaps = Gaps(launches=2, span=3e-6, busy=2e-6, idle=1e-6, largest=1e-6, after="k", streams=[2e-6])
    plain = row("a", [1e-3])
    found = with_gaps(plain, Traced("id-a", gaps))
    assert Row.model_validate_json(found.model_dump_json()).layer.gaps == gaps
    assert (found.layer.median, plain.layer.gaps) == (plain.layer.median, None)
    assert with_gaps(plain, Traced("id-a", None, "no permission")).extra == {"no_gaps": "no permission"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environment": {"cpu": "another"}}, "was begun with processor another \\(here .*\\); start a new run$"),
        ({"environment": {"git_sha": "0ld"}}, "was begun with commit 0ld \\(here c0ffee\\); start a new run$"),
        (
            {"environment": {"git_dirty": "0ld"}},
            "was begun with uncommitted changes 0ld \\(here none\\); start a new run$",
        ),
        ({"environment": {"release": "0ld"}}, "was begun with dsv4bench 0ld \\(here .*\\); start a new run$"),
        *(
            ({"environment": {name: "0ld"}}, f"was begun with {name} 0ld \\(here .*\\); start a new run$")
            for name in ("python", "torch", "triton", "vllm", "cuda", "driver")
        ),
        (
            {"environment": {"triton": "0ld", "python": "2.7"}},
            "was begun with python 2.7 \\(here 3.*\\), triton 0ld \\(here none\\); start a new run$",
        ),
        ({"side": "a"}, "is a side of an A/B run, and those are measured together; start `ab` anew"),
    ],
)
def test_a_run_of_another_machine_or_code_or_a_side_is_not_resumed(tmp_path, change, message):
    scenario = small_scenario(tmp_path, kind="memory")
    path = tmp_path / "run"
    start_run(request_of(scenario), path, lambda event: None)
    (path / CASES).write_text("")
    record = json.loads((path / MANIFEST).read_text())
    environment = record["environment"] | change.get("environment", {})
    (path / MANIFEST).write_text(json.dumps(record | change | {"environment": environment}))
    with pytest.raises(UserError, match=message):
        resume_run(path, lambda event: None)


def test_a_run_that_is_not_there_is_not_resumed(tmp_path):
    with pytest.raises(IncomparableError, match="no run at"):
        resume_run(tmp_path / "nowhere", lambda event: None)


def test_a_run_in_its_own_repository_is_no_uncommitted_change_and_goes_on_where_nothing_else_is(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    monkeypatch.setattr("dsv4bench.bench.environment.git_state", git_state)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    scenario = small_scenario(tmp_path, kind="memory")
    git("init")
    git("add", ".")
    git("commit", "-m", "a")
    run = start_run(request_of(scenario), Path("out"), lambda event: None)
    assert (run.manifest.environment.git_sha, run.manifest.environment.git_dirty) == (git_state(tmp_path)[0], None)
    (tmp_path / "out" / CASES).write_text("")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert not resume_run(Path("out"), lambda event: None).missing
    (tmp_path / "out" / CASES).write_text("")
    (tmp_path / "kernel.py").write_text("new")
    with pytest.raises(UserError, match="out was begun with uncommitted changes none \\(here [0-9a-f]{12}\\)"):
        resume_run(Path("out"), lambda event: None)


@pytest.mark.parametrize(("begun", "resumed"), [(True, False), (False, True), (False, False)])
def test_the_command_that_repeats_a_row_is_checked_or_not_as_the_row_was(tmp_path, begun, resumed):
    scenario = small_scenario(tmp_path, kind="memory", layers=["swa", "c4a"])
    path = tmp_path / "run"
    first, second = start_run(request_of(scenario, check=begun), path, lambda event: None).rows
    words = {True: "dsv4bench run small", False: "dsv4bench run small --no-check"}
    assert first.repro == f"{words[begun]} --only {first.case_id}"
    lines = (path / CASES).read_text().splitlines(keepends=True)
    (path / CASES).write_text(lines[0])
    kept, added = resume_run(path, lambda event: None, check=resumed).rows
    assert kept == first
    assert added.repro == f"{words[resumed]} --only {second.case_id}"
    assert read_run(path).manifest.repro == words[begun].split()


@pytest.mark.parametrize("status", [Status.OOM, Status.TIMEOUT])
def test_a_case_without_numbers_keeps_the_bytes_predicted_for_it_and_no_measured_ones(tmp_path, status):
    scenario = small_scenario(tmp_path)
    (case,) = expand(scenario)
    settings = Settings(scenario.timing, Device("cpu"))
    environment = Environment(release="0", python="3", platform="Linux")
    manifest = make_manifest(request_of(scenario), "run", Found(Device("cpu")), environment)
    failed = complete_row(Measured(settings.failed(case, status, "why"), kv_bytes=7), case, settings, manifest, ["x"])
    assert failed.memory.ideal_bytes == 128 * 584
    assert failed.memory.measured_bytes is None
    timing = Timing(median=1e-3, min=1e-3, mad=0.0)
    stages = [StageRow(name=name, provider="eager", timing=timing) for name in case.stage_names]
    ok = settings.measured(case, layer=timing, stages=stages)
    assert complete_row(Measured(ok, kv_bytes=7), case, settings, manifest, ["x"]).memory.measured_bytes == 7


def test_a_memory_scenario_needs_no_worker(tmp_path):
    scenario = small_scenario(tmp_path, kind="memory", layers=["swa", "c4a", "c128a"], workload={"context": "1M"})
    run = start_run(request_of(scenario), tmp_path / "run", lambda event: None)
    assert [row.status for row in run.rows] == [Status.OK] * 3
    assert [row.memory.ideal_bytes for row in run.rows] == [74_752, 187_769_856 - 716, 4_858_880 - 584]
    assert exit_code(run.rows) == 0


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (["ok"], 0),
        (["ok", "unsupported", "oom", "skipped"], 0),
        (["unsupported", "oom"], 5),
        (["ok", "timeout"], 5),
        (["ok", "incorrect"], 5),
        (["ok", "invalid_rate"], 5),
        (["ok", "invalid_thermal"], 5),
        (["ok", "compile_error"], 5),
        ([], 5),
    ],
)
def test_exit_codes_of_run(statuses, code):
    from types import SimpleNamespace

    assert exit_code([SimpleNamespace(status=Status(status)) for status in statuses]) == code


def test_another_process_on_the_card_is_a_warning_of_the_run(tmp_path):
    scenario = small_scenario(tmp_path)
    environment = Environment(
        release="0", python="3", platform="Linux", processes=[GpuProcess(name="trainer", memory_bytes=3 * 2**30)]
    )
    manifest = make_manifest(request_of(scenario), "run", Found(Device("cuda", name="H200")), environment)
    assert manifest.warnings == ["another process is on the GPU: trainer, 3072 MiB"]
    assert manifest.environment.processes[0].name == "trainer"
