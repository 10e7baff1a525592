"""The card's state around a round, from NVML, matched by UUID; absent where NVML is.

``CUDA_VISIBLE_DEVICES`` renumbers devices for CUDA and not for NVML, so an index would name another card.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from dsv4bench.results.environment import Gpu, GpuProcess

THROTTLE_BITS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
    0x100: "display_clock_setting",
}
"""NVML's clock event reasons (nvml.h, nvmlClocksEventReason*)."""
SPOILING = frozenset({"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"})
"""Reasons that spoil a round. The power cap is not among them: heavy matrix products always run at it."""


@dataclass(frozen=True)
class Telemetry:
    """One reading; what the card does not tell is ``None``.

    Attributes:
        time: seconds since the epoch.
        sm_clock_hz: SM clock.
        memory_clock_hz: memory clock.
        temperature_c: core temperature, °C.
        power_w: board power, W.
        energy_j: energy since the driver was loaded, J.
        throttle: why clocks are lower than they could be.
    """

    time: float
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    throttle: tuple[str, ...] = ()

    @property
    def spoiled_by(self) -> tuple[str, ...]:
        """The reasons that make a round not count."""
        return tuple(reason for reason in self.throttle if reason in SPOILING)

    def as_record(self) -> dict[str, Any]:
        """As a line of ``telemetry.jsonl``."""
        return asdict(self) | {"throttle": list(self.throttle)}


class Sensor:
    """One card through NVML. Every question may go unanswered; none raises."""

    def __init__(self, nvml: Any, handle: Any, clock: Callable[[], float] = time.time) -> None:
        self._nvml, self._handle, self._clock = nvml, handle, clock

    def read(self) -> Telemetry:
        """Take a reading, about a millisecond."""
        nvml = self._nvml
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons") or 0
        return Telemetry(
            self._clock(),
            sm_clock_hz=_scaled(self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM), 1e6),
            memory_clock_hz=_scaled(self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM), 1e6),
            temperature_c=_scaled(self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU), 1.0),
            power_w=_scaled(self._ask("nvmlDeviceGetPowerUsage"), 1e-3),
            energy_j=self.energy(),
            throttle=tuple(name for bit, name in THROTTLE_BITS.items() if reasons & bit),
        )

    def energy(self) -> float | None:
        """Joules since the driver was loaded; the counter moves about every 20 to 100 ms."""
        return _scaled(self._ask("nvmlDeviceGetTotalEnergyConsumption"), 1e-3)

    def siblings(self) -> "list[Sensor]":
        """Every card of the machine, this one included."""
        count = self._nvml.nvmlDeviceGetCount()
        return [Sensor(self._nvml, self._nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]

    def driver(self) -> str | None:
        """Version of the driver."""
        try:
            return _text(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError:
            return None

    def describe(self) -> Gpu:
        """The card's standing properties and its present state."""
        nvml, now = self._nvml, self.read()
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        ecc = self._ask("nvmlDeviceGetEccMode")
        mig = self._ask("nvmlDeviceGetMigMode")
        capability = self._ask("nvmlDeviceGetCudaComputeCapability")
        return Gpu(
            name=_text(self._ask("nvmlDeviceGetName")) or "unknown",
            uuid=_text(self._ask("nvmlDeviceGetUUID")),
            index=self._ask("nvmlDeviceGetIndex"),
            memory_bytes=memory.total if memory else None,
            compute_capability=".".join(map(str, capability)) if capability else None,
            vbios=_text(self._ask("nvmlDeviceGetVbiosVersion")),
            ecc=bool(ecc[0]) if ecc else None,
            mig=bool(mig[0]) if mig else None,
            power_limit_w=_scaled(self._ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            sm_clock_max_hz=_scaled(self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM), 1e6),
            memory_clock_max_hz=_scaled(self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM), 1e6),
            sm_clock_hz=now.sm_clock_hz,
            memory_clock_hz=now.memory_clock_hz,
            temperature_c=now.temperature_c,
        )

    def processes(self) -> list[GpuProcess]:
        """Processes that hold memory on the card."""
        found = self._ask("nvmlDeviceGetComputeRunningProcesses") or []
        return [GpuProcess(name=self._process_name(one.pid), memory_bytes=one.usedGpuMemory) for one in found]

    def _process_name(self, pid: int) -> str:
        try:
            name = _text(self._nvml.nvmlSystemGetProcessName(pid))
        except self._nvml.NVMLError:
            name = None
        return name.split(" ")[0].rsplit("/", 1)[-1] if name else "unknown"

    def _ask(self, question: str, *arguments: Any) -> Any:
        function = getattr(self._nvml, question, None)
        if function is None:
            return None
        try:
            return function(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


def open_sensor(uuid: str = "", nvml: Any = None) -> tuple[Sensor | None, str]:
    """The sensor of a card and, where there is none, why.

    Args:
        uuid: ``GPU-…`` of the card; empty for the only or first one.
        nvml: the ``pynvml`` module; imported if not given.
    """
    if nvml is None:
        try:
            nvml = import_module("pynvml")
        except ImportError:
            return None, "the package nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else nvml.nvmlDeviceGetHandleByIndex(0)
    except nvml.NVMLError as error:
        return None, f"NVML: {error}"
    return Sensor(nvml, handle), ""


def all_tenants(nvml: Any = None) -> dict[str, list[GpuProcess]]:
    """Processes on every card, by UUID; taken before a run uses one, so that none of them is its own."""
    first, _ = open_sensor(nvml=nvml)
    return {sensor.describe().uuid or "": sensor.processes() for sensor in (first.siblings() if first else ())}


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else float(value) * factor


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
