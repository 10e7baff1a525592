"""Reading the machine: what a run stores so that a number can be explained later."""

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dsv4bench import __version__
from dsv4bench.bench.device import Device
from dsv4bench.bench.telemetry import Sensor
from dsv4bench.results.baseline import ROOT
from dsv4bench.results.environment import Environment, Gpu, GpuProcess

PREFIXES = ("VLLM_", "TRITON_", "CUDA_", "NCCL_", "DSV4BENCH_")
ARCHIVAL = ".git_archival.txt"
"""Holds the commit in the tree of a ``git archive`` (gitattributes: export-subst)."""
SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
RESULTS = ROOT.parent
"""Where results go by default, below the working directory; none of it is code."""
READ_WHOLE = 2**20
"""Bytes up to which an untracked file counts by its contents; a larger one counts by its size."""


def describe_environment(
    device: Device, sensor: Sensor | None, tenants: Mapping[str, list[GpuProcess]], output: Path | None = None
) -> Environment:
    """Everything known about the machine a device sits in.

    Args:
        device: as a worker found it.
        sensor: of the card, if NVML answers.
        tenants: processes by UUID of the card, from before this run used it.
        output: folder that the run is written to; what lies in it is no uncommitted change.
    """
    sha, dirty = git_state(Path.cwd(), output)
    return Environment(
        release=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu_name(),
        cpu_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        torch=device.versions.get("torch"),
        triton=device.versions.get("triton"),
        vllm=installed_version("vllm"),
        cuda=device.versions.get("cuda"),
        driver=sensor.driver() if sensor and device.type == "cuda" else None,
        gpu=describe_gpu(device, sensor),
        git_sha=sha,
        git_dirty=dirty,
        variables=safe_variables(os.environ, Path.cwd()),
        processes=tenants.get(device.uuid, []),
    )


def describe_gpu(device: Device, sensor: Sensor | None) -> Gpu | None:
    """The card by CUDA's account, completed by NVML's."""
    if device.type != "cuda":
        return None
    known = sensor.describe() if sensor else Gpu(name=device.name)
    return known.model_copy(
        update={
            "name": device.name,
            "sm_count": device.sm_count,
            "l2_bytes": device.l2_bytes or None,
            "compute_capability": device.capability,
            "memory_bytes": device.memory_bytes,
            "uuid": device.uuid or known.uuid,
        }
    )


def safe_variables(variables: Mapping[str, str], working_directory: Path) -> dict[str, str]:
    """The variables that change how kernels run; none that looks like a secret, paths relative to where we are."""
    here = str(working_directory)
    return {
        name: value.replace(here + os.sep, "").replace(here, ".")
        for name, value in sorted(variables.items())
        if name.startswith(PREFIXES) and not any(word in name.upper() for word in SECRETS)
    }


def git_state(folder: Path, output: Path | None = None) -> tuple[str | None, str | None]:
    """Commit of the checkout that a folder lies in and a digest of what is uncommitted; (None, None) outside one.

    Files that git neither tracks nor ignores are uncommitted as well, a new kernel among them, unless they are results:
    below ``reports`` or ``output``. The tree of a ``git archive``, as is taken to hosts without git, says its commit in
    a file.
    """
    if archived := _archived(folder):
        return archived, None
    sha, top = _git(folder, "rev-parse", "HEAD"), _git(folder, "rev-parse", "--show-toplevel")
    if sha is None or top is None:
        return None, None
    repository = Path(top.rstrip("\n"))
    difference = _git(repository, "diff", "HEAD") or ""
    untracked = _untracked(repository, [path.resolve() for path in (folder / RESULTS, output) if path])
    if not difference and not untracked:
        return sha.strip(), None
    digest = hashlib.sha256(difference.encode(errors="surrogateescape"))
    for path in untracked:
        digest.update(_contents(path, repository))
    return sha.strip(), digest.hexdigest()[:12]


def _untracked(repository: Path, results: list[Path]) -> list[Path]:
    """Files that git neither tracks nor ignores, without those in folders of results."""
    names = _git(repository, "ls-files", "--others", "--exclude-standard", "-z") or ""
    paths = [repository / name for name in sorted(names.split("\0")) if name]
    return [path for path in paths if not any(path.resolve().is_relative_to(folder) for folder in results)]


def _contents(path: Path, repository: Path) -> bytes:
    """What an untracked file counts by: its name with its contents or, of a large one, its size."""
    name = os.fsencode(f"{path.relative_to(repository)}\0")
    try:
        size = path.stat().st_size
        return name + (path.read_bytes() if path.is_file() and size <= READ_WHOLE else str(size).encode())
    except OSError:  # gone meanwhile, a link to nowhere, not ours to read
        return name


def installed_version(package: str) -> str | None:
    """Version of a package without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu_name() -> str | None:
    """Model name of the processor."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def _archived(folder: Path) -> str | None:
    """What ``git archive`` put into the file for it; a checkout has the placeholder there."""
    try:
        sha = (folder / ARCHIVAL).read_text(encoding="utf-8").removeprefix("node:").strip()
    except OSError:
        return None
    return sha if sha and "$" not in sha else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            errors="surrogateescape",  # names and contents that are no UTF-8
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
