"""A small kernel repository gated for real on a CPU: revisions, worktrees, workers, files, the action's own scripts."""

import json
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dsv4bench.analysis.reason import MEANING
from dsv4bench.results.baseline import store
from dsv4bench.results.run_directory import read_run

ROOT = Path(__file__).parents[3]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
WORKFLOW = ROOT / "docs/examples/gate-workflow.yml"

CONFIG = {
    "model_type": "deepseek_v4", "hidden_size": 256, "num_hidden_layers": 1, "num_nextn_predict_layers": 0,
    "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 512,
    "o_lora_rank": 128, "o_groups": 1, "sliding_window": 128, "compress_ratios": [4], "index_n_heads": 64,
    "index_head_dim": 128, "index_topk": 512, "max_position_embeddings": 65536, "rms_norm_eps": 1e-6,
    "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {
        "type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096,
    },
}  # fmt: skip
PROVIDER = """
import time

from dsv4bench.providers.base import SUPPORTED
import torch


class Mine:
    name = "mine"

    def supports(self, need):
        return SUPPORTED

    def qkv_norm(self, *, qkv_latent, q_norm_weight, kv_norm_weight, eps):
        until = time.perf_counter() + REPEATS * 50e-6  # on a CPU: whatever else runs there, and at whatever clock
        rank = q_norm_weight.shape[0]
        q, kv = qkv_latent[:, :rank], qkv_latent[:, rank : rank + 512]
        if q.is_cuda:
            torch.cuda._sleep(20_000 * REPEATS)  # clock cycles
        result = norm(q, q_norm_weight, eps), norm(kv, kv_norm_weight, eps)
        while not q.is_cuda and time.perf_counter() < until:
            pass
        return result


def norm(x, weight, eps):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)
"""
SCENARIO = """
name: mine
kind: stage
model: [bench/config.json]
layers: [c4a]
stages: [qkv_norm]
workload: {phase: decode, batch: [16], context: [1K]}
providers: ["bench/provider.py:Mine"]
timing: {rounds: 10, iterations: 40, warmup: 3}
"""


class Repository:
    """A kernel repository: what it takes on disk, and the commands run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *words], cwd=self.folder, check=True, capture_output=True)

    def commit(self, name: str, repeats: int, hidden: int = 256) -> None:
        """Commit and tag a version whose norm takes ``repeats`` times as long."""
        bench = self.folder / "bench"
        bench.mkdir(exist_ok=True)
        (bench / "provider.py").write_text(f"# {name}\n{PROVIDER.replace('REPEATS', str(repeats))}")
        (bench / "config.json").write_text(json.dumps(CONFIG | {"hidden_size": hidden}))
        (bench / "gate.yaml").write_text(SCENARIO)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", name)
        self.git("tag", name)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        elsewhere = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels"), *elsewhere]),
            "OMP_NUM_THREADS": "1",  # threads that wait for each other would measure the neighbours
        }
        return subprocess.run(
            command, cwd=self.folder, env=environment | variables, capture_output=True, text=True, check=False
        )

    def dsv4bench(self, *words: object) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "dsv4bench", *map(str, words))


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Repository:
    folder = tmp_path_factory.mktemp("repository")
    repository = Repository(folder)
    repository.commit("base", 10)
    repository.commit("neutral", 10)
    repository.commit("slower", 13)
    return repository


def act(repository: Repository, temp: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the action's steps as GitHub would, those that need its servers and pip aside."""
    given = {name: str(spec.get("default", "")) for name, spec in ACTION["inputs"].items()} | inputs
    given |= {"python": sys.executable, "device": "cpu"}
    files = {"GITHUB_OUTPUT": str(temp / "output"), "GITHUB_STEP_SUMMARY": str(temp / "summary")}
    for step in ACTION["runs"]["steps"]:
        if step["name"] in ("Measure", "Gate", "Verdict"):
            outputs = dict(line.split("=", 1) for line in _lines(temp / "output"))
            known = {f"inputs.{name}": value for name, value in given.items()} | {"runner.temp": str(temp)}
            known |= {f"steps.gate.outputs.{name}": value for name, value in outputs.items()}
            environment = {name: _filled(text, known) for name, text in step["env"].items()}
            done = repository.run("bash", "-e", "-o", "pipefail", "-c", step["run"], **files, **environment)
            if done.returncode:
                break
    return done


def _filled(text: str, known: dict[str, str]) -> str:
    """A value of the action with its ``${{ }}`` filled in."""
    return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: known[found[1]], text)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.slow
def test_a_commit_that_slows_a_kernel_by_thirty_per_cent_fails_the_action(repository, tmp_path):
    done = act(repository, tmp_path, scenario="bench/gate.yaml", base="base", head="slower")
    assert done.returncode == 1, done.stdout + done.stderr
    record = json.loads((tmp_path / "dsv4bench/gate.json").read_text())
    [timed] = [item for item in record["verdicts"] if item["metric"] == "time"]
    assert {"above_tolerance", "confirmed"} <= set(timed["reasons"])
    assert 0.2 < timed["effect"] < 0.4
    assert "mine: regression" in (tmp_path / "summary").read_text()
    assert "<failure" in (tmp_path / "dsv4bench/gate.xml").read_text()


@pytest.fixture(scope="module")
def neutral(repository, tmp_path_factory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """The action's end, and its files, on a commit that changes a comment."""
    temp = tmp_path_factory.mktemp("neutral")
    done = act(repository, temp, scenario="bench/gate.yaml", base="base", head="neutral", preset="permissive")
    return done, temp / "dsv4bench"


@pytest.mark.xdist_group("neutral commit")
@pytest.mark.slow
def test_a_neutral_commit_passes_the_action(neutral):
    done, files = neutral
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((files / "gate.json").read_text())["exit_code"] == 0


@pytest.mark.xdist_group("neutral commit")
@pytest.mark.slow
def test_a_commit_that_changes_the_shape_is_not_comparable_with_what_is_stored(repository, neutral, tmp_path):
    baselines = tmp_path / "baselines"
    assert repository.dsv4bench("baseline", "add", neutral[1] / "run/b", "--root", baselines).returncode == 0
    repository.commit("wider", 10, hidden=512)
    measured = repository.dsv4bench("run", "bench/gate.yaml", "--device", "cpu", "--out", tmp_path / "wider")
    repository.git("checkout", "-q", "neutral")
    assert measured.returncode == 0, measured.stderr
    gate = repository.dsv4bench("gate", tmp_path / "wider", "--baseline", baselines)
    assert gate.returncode == 4, gate.stdout + gate.stderr
    assert "shape_changed: shape: " in gate.stdout


@pytest.mark.xdist_group("neutral commit")
@pytest.mark.slow
def test_a_change_against_stored_runs_is_measured_again_if_the_device_is_here(repository, neutral, tmp_path):
    run = read_run(neutral[1] / "run/b")
    [row] = run.rows
    for day in range(1, 9):  # a past in which the kernel took half the time
        changes = {"run_id": f"run{day}", "started": f"2026-01-{day:02d}T00:00:00+00:00"}
        layer = row.layer.model_copy(update={"median": row.layer.median / 2 * (1 + day / 1000)})
        past = replace(
            run, manifest=run.manifest.model_copy(update=changes), rows=(row.model_copy(update={"layer": layer}),)
        )
        store(past, tmp_path / "baselines")
    gate = repository.dsv4bench("gate", run.path, "--baseline", tmp_path / "baselines")
    assert (gate.returncode, "above_tolerance, confirmed" in gate.stdout) == (1, True), gate.stdout + gate.stderr


@pytest.mark.slow
def test_a_self_test_is_stored_where_the_gate_finds_it(repository, tmp_path):
    store = tmp_path / "selftest.json"
    done = repository.dsv4bench(
        "selftest", "bench/gate.yaml", "--device", "cpu", "--out", tmp_path / "run", "--store", store
    )
    assert done.returncode == 0, done.stderr
    assert "this machine" in done.stderr
    [case] = json.loads(store.read_text())["cases"]
    assert 0 < case["deviation"] < 1
    gate = repository.dsv4bench("gate", tmp_path / "run", "--selftest", store)
    assert gate.returncode in (0, 1), gate.stderr  # one interval of 95 % in forty lies above zero by chance
    assert "self-test" not in gate.stderr


@pytest.mark.gpu
@pytest.mark.parametrize(("repeats", "code"), [(105, 1), (100, 0)])
def test_five_per_cent_is_caught_on_a_gpu_and_identical_code_passes(repository, tmp_path, repeats, code):
    repository.commit(f"gpu-base-{repeats}", 100)
    repository.commit(f"gpu-{repeats}", repeats)
    sides = ("--a", f"git:gpu-base-{repeats}", "--b", f"git:gpu-{repeats}")
    done = repository.dsv4bench("ab", "bench/gate.yaml", *sides, "--device", "cuda", "--out", tmp_path / "ab")
    assert done.returncode == 0, done.stderr
    gate = repository.dsv4bench("gate", tmp_path / "ab", "--strict", "--explain")
    assert gate.returncode == code, gate.stdout + gate.stderr


@pytest.mark.parametrize(
    ("side", "message"),
    [
        ("git:nope", "no revision 'nope'"),
        ("main", "'main' is no side; expected provider=NAME"),
        ("provider=nope", "unknown provider 'nope'"),
    ],
)
def test_a_side_that_does_not_exist_is_named(repository, side, message):
    done = repository.dsv4bench("ab", "bench/gate.yaml", "--a", "here", "--b", side)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr


def test_a_self_test_that_cannot_be_read_is_said_before_anything_is_measured(repository, tmp_path):
    sides = ("--a", "here", "--b", "here", "--out", tmp_path / "ab")
    done = repository.dsv4bench("ab", "bench/gate.yaml", *sides, "--selftest", tmp_path / "none.json")
    assert (done.returncode, "no self-test at" in done.stderr) == (4, True), done.stderr
    assert not (tmp_path / "ab").exists()


def test_sides_that_nothing_runs_on_are_exit_code_5_with_the_reason(repository):
    sides = ("--a", "here", "--b", "here", "--device", "cpu")
    done = repository.dsv4bench("ab", "bench/gate.yaml", *sides, "--set", "schedule={streams: [multi]}")
    assert done.returncode == 5, done.stderr
    assert "error: nothing was measured; unsupported: schedule multi is of whole layers" in done.stderr


def test_a_build_that_fails_ends_the_action_with_its_code(repository, tmp_path):
    done = act(
        repository, tmp_path, scenario="bench/gate.yaml", base="base", head="neutral", build="echo no nvcc >&2; false"
    )
    assert (done.returncode, "no nvcc" in done.stderr) == (5, True), done.stderr


@pytest.mark.parametrize("installed", [False, True])
def test_the_packages_of_a_repository_are_measured_though_python_does_not_look_here(repository, tmp_path, installed):
    """As the console script starts: the working directory is not on the import path; a copy may be installed."""
    mine = """
        import beside
        from bench.provider import Mine as Base

        class Mine(Base):
            def supports(self, need):
                assert beside.WHICH == "here"
                return super().supports(need)
    """
    (repository.folder / "mine.py").write_text(textwrap.dedent(mine))
    (repository.folder / "beside.py").write_text("WHICH = 'here'\n")
    if installed:
        (tmp_path / "beside.py").write_text("WHICH = 'installed'\n")
    code = "import sys; from dsv4bench.cli.main import main; sys.argv[0] = 'dsv4bench'; main()"
    paths = os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "kernels")))
    words = ("run", "bench/gate.yaml", "--device", "cpu", "--provider", "mine.py:Mine", "--out", tmp_path / "run")
    few = ("--set", "timing={rounds: 1, iterations: 1}")
    done = repository.run(sys.executable, "-P", "-c", code, *map(str, words), *few, PYTHONPATH=paths)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_of_the_docs_gives_the_action_what_it_takes():
    workflow = yaml.safe_load(WORKFLOW.read_text())
    [step] = [step for step in workflow["jobs"]["gate"]["steps"] if "dsv4bench" in step["uses"]]
    assert set(step["with"]) <= set(ACTION["inputs"])
    required = {name for name, spec in ACTION["inputs"].items() if spec.get("required")}
    assert required <= set(step["with"])


def test_the_page_shows_the_workflow_as_it_is():
    assert WORKFLOW.read_text() in (ROOT / "docs/gate.md").read_text()


def test_the_page_lists_every_reason_code():
    page = (ROOT / "docs/gate.md").read_text()
    assert not [reason for reason, text in MEANING.items() if f"| `{reason.value}` | {text} |" not in page]


def test_the_action_keeps_verdicts_against_stored_runs_where_its_next_run_reads_them():
    steps = {step["name"]: step for step in ACTION["runs"]["steps"]}
    restore, save = steps["Earlier verdicts"], steps["Keep verdicts"]
    order = [name for name in steps if name in ("Measure", "Earlier verdicts", "Gate", "Keep verdicts")]
    assert order == ["Measure", "Earlier verdicts", "Gate", "Keep verdicts"], "Measure empties the folder"
    assert restore["with"]["path"] == save["with"]["path"] == steps["Gate"]["env"]["OUT"] + "/gate.json"
    assert restore["with"]["key"] == save["with"]["key"]
    assert save["with"]["key"].startswith(restore["with"]["restore-keys"])


def test_no_input_reaches_a_shell_except_through_the_environment():
    """``${{ }}`` in a script would let the title of a branch run commands."""
    assert not [step["name"] for step in ACTION["runs"]["steps"] if "${{" in step.get("run", "")]
