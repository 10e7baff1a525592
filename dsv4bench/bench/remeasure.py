"""Measuring cases of an earlier run once more, in a fresh process: what a change needs before it is believed."""

import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

import yaml

from dsv4bench.bench.environment import cpu_name
from dsv4bench.errors import MeasurementError
from dsv4bench.results.manifest import Manifest
from dsv4bench.results.run_directory import Run, read_run


def why_not_here(manifest: Manifest) -> str:
    """Why the device of a run can't be measured on from here; empty if it can."""
    environment = manifest.environment
    if manifest.device == "cpu":
        return "" if cpu_name() == environment.cpu else f"the run was made on another processor, {environment.cpu}"
    name = environment.gpu.name if environment.gpu else manifest.device
    return "" if name in _gpu_names() else f"no {name} in this machine"


def remeasure(manifest: Manifest, case_ids: Collection[str]) -> Run:
    """Run cases of an earlier run again with `dsv4bench run`, in a process of its own.

    Args:
        manifest: of the earlier run: its scenario as resolved, and its device.
        case_ids: which cases.

    Raises:
        MeasurementError: the run didn't come about.
    """
    with tempfile.TemporaryDirectory(prefix="dsv4bench-") as folder:
        scenario = Path(folder) / "scenario.yaml"
        timing = manifest.scenario.get("timing", {}) | {"gaps": False}
        scenario.write_text(yaml.safe_dump(manifest.scenario | {"timing": timing}), encoding="utf-8")
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "dsv4bench", "run", str(scenario), "--device", manifest.device]
        command += ["--out", str(out), *(word for case_id in sorted(case_ids) for word in ("--only", case_id))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise MeasurementError(f"measuring again ended with exit code {done.returncode}: {last}")
        return read_run(out)


def _gpu_names() -> list[str]:
    """Names of the GPUs here by NVML; none where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        count = pynvml.nvmlDeviceGetCount()
        return [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
    finally:
        pynvml.nvmlShutdown()
