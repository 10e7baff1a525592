"""The environment: complete enough to explain a number, without paths or secrets."""

import subprocess
from functools import partial
from pathlib import Path

from dsv4bench.bench.device import Device
from dsv4bench.bench.environment import READ_WHOLE, describe_environment, git_state, safe_variables

IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")


def test_secrets_are_dropped_and_paths_are_relative():
    variables = {
        "TRITON_CACHE_DIR": "/home/me/work/cache",
        "CUDA_HOME": "/home/me/work",
        "VLLM_API_KEY": "x",
        "NCCL_AUTH_TOKEN": "x",
        "VLLM_password": "x",
        "TRITON_SECRET": "x",
        "HOME": "/home/me",
    }
    assert safe_variables(variables, Path("/home/me/work")) == {"CUDA_HOME": ".", "TRITON_CACHE_DIR": "cache"}


def run_git(folder, *arguments):
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


def test_a_checkout_is_named_by_commit_and_by_what_is_uncommitted(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))  # of a repository that pytest may work in
    assert git_state(tmp_path) == (None, None)

    git = partial(run_git, tmp_path)
    git("init")
    (tmp_path / "a.py").write_text("1")
    git("add", "a.py")
    git(*IDENTITY, "commit", "-m", "a")
    sha, dirty = git_state(tmp_path)
    assert len(sha) == 40
    assert dirty is None
    (tmp_path / "a.py").write_text("2")
    _, first = git_state(tmp_path)
    (tmp_path / "a.py").write_text("3")
    _, second = git_state(tmp_path)
    assert None not in (first, second)
    assert first != second


def test_files_that_git_neither_tracks_nor_ignores_are_uncommitted_unless_they_are_results(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    git = partial(run_git, tmp_path)
    git("init")
    (tmp_path / ".gitignore").write_text("*.pyc\n")
    git("add", ".gitignore")
    git(*IDENTITY, "commit", "-m", "a")
    below = tmp_path / "package"
    below.mkdir()
    (below / "cached.pyc").write_text("ignored")
    for folder in ("out", "reports/baselines/h200", "package/reports/runs"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "manifest.json").write_text("{}")
    (tmp_path / "package/reports/runs/manifest.json").unlink()

    def dirty(folder=tmp_path):
        return git_state(folder, tmp_path / "out")[1]

    assert dirty() is None
    assert git_state(tmp_path)[1] is not None, "a folder that is not the run's own counts"
    monkeypatch.chdir(tmp_path)
    assert git_state(tmp_path, Path("out"))[1] is None
    (below / "kernel.py").write_text("1")
    first = dirty()
    (below / "kernel.py").write_text("2")
    second = dirty()
    (below / "kernel.py").rename(below / "other.py")
    third = dirty()
    assert None not in (first, second, third)
    assert len({first, second, third}) == 3
    assert dirty(below) is not None, "seen from a folder below the top as well"
    (below / "other.py").unlink()
    assert dirty() is None
    (below / "nowhere").symlink_to("gone")
    (below / "large").write_bytes(b"0" * (READ_WHOLE + 1))
    large = dirty()
    (below / "large").write_bytes(b"1" * (READ_WHOLE + 2))
    assert dirty() not in (None, large)


def test_an_archive_of_a_commit_says_which_it_is(tmp_path):
    def git(*arguments, **more):
        return subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True, **more).stdout

    git("init")
    root = Path(__file__).parents[3]
    for name in (".git_archival.txt", ".gitattributes"):
        (tmp_path / name).write_text((root / name).read_text())
    git("add", ".")
    git(*IDENTITY, "commit", "-m", "a")
    sha = git("rev-parse", "HEAD", text=True).strip()
    assert git_state(tmp_path)[0] == sha  # the placeholder is not taken for a commit
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "xf", "-", "-C", str(unpacked)], input=git("archive", "HEAD"), check=True)
    assert git_state(unpacked) == (sha, None)


def test_without_a_gpu_the_rest_is_still_known():
    found = describe_environment(Device("cpu", versions={"torch": "2.13.0"}), None, {})
    assert found.torch == "2.13.0"
    assert found.gpu is None
    assert found.driver is None
    assert found.python
    assert found.platform


def test_cuda_describes_the_card_where_nvml_is_absent():
    device = Device("cuda", name="AMD Instinct MI300X", l2_bytes=0, sm_count=304, memory_bytes=1, capability="9.4")
    gpu = describe_environment(device, None, {}).gpu
    assert (gpu.name, gpu.sm_count, gpu.l2_bytes, gpu.vbios) == ("AMD Instinct MI300X", 304, None, None)
