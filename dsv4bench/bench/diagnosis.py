"""What is here, what is missing, and what it would enable: the findings of ``dsv4bench doctor``.

Anything that could take a process down (importing torch, starting CUDA) happens in a worker.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv4bench import __version__
from dsv4bench.bench.device import Device
from dsv4bench.bench.environment import cpu_name, git_state, installed_version
from dsv4bench.bench.execute import Executor
from dsv4bench.bench.messages import Found
from dsv4bench.bench.telemetry import Sensor, open_sensor
from dsv4bench.errors import UserError
from dsv4bench.scenario.sizes import format_bytes

OK, MISSING, WARNING = "ok", "missing", "warning"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    Attributes:
        topic: what was looked at.
        state: ``ok``, ``missing`` or ``warning``.
        value: what was found.
        remedy: what it would enable and how to get it; empty where nothing has to be done.
    """

    topic: str
    state: str
    value: str
    remedy: str = ""


PACKAGES = (
    ("torch", "runs cases: pip install '.[torch]' in a checkout of dsv4bench"),
    ("triton", "the triton provider and spin-calibrated events: comes with torch for Linux"),
    ("vllm", "provider vllm, the engine's own kernels: pip install '.[vllm]' in a checkout of dsv4bench"),
    ("nvtx", "stage names in Nsight: pip install nvtx"),
    ("nvidia-ml-py", "clocks, throttling, energy, co-tenants: pip install nvidia-ml-py"),
    ("transformers", "the independent oracle of the test-suite: pip install transformers"),
)
TOOLS = (
    ("nsys", "timelines by stage: NVIDIA Nsight Systems"),
    ("git", "the commit in a run's environment"),
)


def diagnose(
    device: str = "auto", *, nvml: Any = None, which: Callable[[str], str | None] = shutil.which
) -> list[Finding]:
    """Look at everything once.

    Args:
        device: ``--device`` text.
        nvml: the ``pynvml`` module, for tests.
        which: finds programs on the PATH.
    """
    sensor, reason = open_sensor(nvml=nvml)
    findings = [Finding("dsv4bench", OK, __version__), Finding("python", OK, sys.version.split()[0])]
    findings += [Finding("cpu", OK, cpu_name() or "unknown"), _checkout()]
    findings += [_package(name, remedy) for name, remedy in PACKAGES]
    if sensor is None:
        findings.append(Finding("NVML", MISSING, reason, "clocks, throttling, energy and co-tenants of an NVIDIA GPU"))
    else:
        findings += [Finding("NVML", OK, f"driver {sensor.driver()}"), *_cards(sensor)]
    if installed_version("torch"):
        findings += _device(device)
    findings += [_tool(name, remedy, which(name)) for name, remedy in TOOLS]
    return findings


def _checkout() -> Finding:
    sha, dirty = git_state(Path.cwd())
    if sha is None:
        return Finding("checkout", OK, "none here; runs carry no commit")
    return Finding("checkout", OK, sha[:12] + (f", uncommitted changes {dirty}" if dirty else ""))


def _package(name: str, remedy: str) -> Finding:
    found = installed_version(name)
    return Finding(name, OK, found) if found else Finding(name, MISSING, "not installed", remedy)


def _tool(name: str, remedy: str, path: str | None) -> Finding:
    return Finding(name, OK, path) if path else Finding(name, MISSING, "not on the PATH", remedy)


def _cards(first: Sensor) -> Iterator[Finding]:
    for sensor in first.siblings():
        card, now = sensor.describe(), sensor.read()
        topic = f"GPU {card.index}"
        state = [
            card.name,
            format_bytes(card.memory_bytes) if card.memory_bytes else "",
            f"{now.sm_clock_hz / 1e6:.0f} of {card.sm_clock_max_hz / 1e6:.0f} MHz"
            if now.sm_clock_hz and card.sm_clock_max_hz
            else "",
            f"{now.temperature_c:.0f} °C" if now.temperature_c is not None else "",
            f"{now.power_w:.0f} of {card.power_limit_w:.0f} W" if now.power_w and card.power_limit_w else "",
            "" if card.ecc is None else f"ECC {'on' if card.ecc else 'off'}",
            "MIG on" if card.mig else "",
        ]
        yield Finding(topic, OK, ", ".join(part for part in state if part))
        if now.spoiled_by:
            yield Finding(
                topic, WARNING, f"throttled: {', '.join(now.spoiled_by)}", "rounds are repeated until it ends"
            )
        for process in sensor.processes():
            held = f", {format_bytes(process.memory_bytes)}" if process.memory_bytes else ""
            yield Finding(topic, WARNING, f"in use by {process.name}{held}", "times will scatter; end it before a run")


def _device(text: str) -> Iterator[Finding]:
    """What a worker finds: the device that runs would use, and which timers work there."""
    with tempfile.TemporaryDirectory(prefix="dsv4bench-") as folder:
        log = Path(folder) / "worker.log"
        executor = Executor(log)
        try:
            found = executor.probe(text, survey=True)
        except UserError as error:
            yield Finding("device", WARNING, str(error))
            return
        finally:
            executor.close()
    assert isinstance(found, Found)
    assert found.device is not None
    yield from _found(found.device)


def _found(device: Device) -> Iterator[Finding]:
    if device.type == "cpu":
        yield Finding("device", OK, "cpu", "an NVIDIA GPU would be measured with events, graphs and cold L2")
    else:
        about = f"{device.name}, sm_{device.capability.replace('.', '')}, L2 {format_bytes(device.l2_bytes)}"
        yield Finding("device", OK, f"{device.torch_name}: {about}, CUDA {device.versions['cuda']}")
    for name, unavailable in device.timers.items():
        usable = Finding(f"timer {name}", OK, "usable here")
        yield usable if not unavailable else Finding(f"timer {name}", MISSING, unavailable)
