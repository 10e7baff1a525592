"""The card's state from NVML, with a fake NVML: matched by UUID, absent without complaint."""

# ruff: noqa: N802  NVML's own names
from types import SimpleNamespace

import pytest

from dsv4bench.bench.telemetry import all_tenants, open_sensor


class NVMLError(Exception):
    pass


class FakeNvml:
    """Two cards; whatever is in ``silent`` raises as an unsupported query does."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, silent=(), reasons=0, driver=True):
        self.silent, self.reasons, self.driver = silent, reasons, driver

    def nvmlInit(self):
        if not self.driver:
            raise NVMLError("Driver Not Loaded")

    def nvmlSystemGetDriverVersion(self):
        return "580.1"

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid not in ("GPU-0", "GPU-1"):
            raise NVMLError("Not Found")
        return int(uuid[-1])

    def nvmlSystemGetProcessName(self, pid):
        return f"/usr/bin/python{pid} --secret"

    def __getattr__(self, name):
        answers = {
            "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: self.reasons,
            "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1980, 2: 3201}[kind],
            "nvmlDeviceGetMaxClockInfo": lambda handle, kind: {1: 1980, 2: 3201}[kind],
            "nvmlDeviceGetTemperature": lambda handle, kind: 45,
            "nvmlDeviceGetPowerUsage": lambda handle: 120_500,
            "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 5_000,
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=150 * 10**9),
            "nvmlDeviceGetEccMode": lambda handle: [1, 1],
            "nvmlDeviceGetMigMode": lambda handle: [0, 0],
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
            "nvmlDeviceGetName": lambda handle: b"NVIDIA H200",
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetIndex": lambda handle: handle,
            "nvmlDeviceGetVbiosVersion": lambda handle: "96.00",
            "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: (
                [SimpleNamespace(pid=7, usedGpuMemory=2**30)] * handle
            ),
        }
        if name not in answers:
            raise AttributeError(name)

        def ask(*arguments):
            if name in self.silent:
                raise NVMLError("Not Supported")
            return answers[name](*arguments)

        return ask


def test_a_reading_is_in_si_units():
    sensor, _ = open_sensor("GPU-1", FakeNvml())
    reading = sensor.read()
    assert (reading.sm_clock_hz, reading.memory_clock_hz) == (1.98e9, 3.201e9)
    assert (reading.temperature_c, reading.power_w, reading.energy_j) == (45.0, 120.5, 5.0)
    assert reading.throttle == ()


def test_the_card_is_found_by_its_uuid_and_not_by_an_index_that_cuda_renumbers():
    sensor, _ = open_sensor("GPU-1", FakeNvml())
    assert sensor.describe().uuid == "GPU-1"
    assert open_sensor("GPU-9", FakeNvml()) == (None, "NVML: Not Found")


@pytest.mark.parametrize(
    ("bits", "reasons", "spoiling"),
    [
        (0x0, (), ()),
        (0x1, ("gpu_idle",), ()),
        (0x4, ("sw_power_cap",), ()),
        (0x8 | 0x40, ("hw_slowdown", "hw_thermal_slowdown"), ("hw_slowdown", "hw_thermal_slowdown")),
        (0x20 | 0x1, ("gpu_idle", "sw_thermal_slowdown"), ("sw_thermal_slowdown",)),
        (0x80, ("hw_power_brake",), ("hw_power_brake",)),
    ],
)
def test_throttle_bits_become_names_and_heat_and_brakes_spoil_a_round(bits, reasons, spoiling):
    sensor, _ = open_sensor("GPU-0", FakeNvml(reasons=bits))
    reading = sensor.read()
    assert (reading.throttle, reading.spoiled_by) == (reasons, spoiling)


def test_what_the_card_does_not_tell_is_none():
    silent = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetEccMode", "nvmlDeviceGetTotalEnergyConsumption")
    sensor, _ = open_sensor("GPU-0", FakeNvml(silent))
    assert sensor.read().power_w is None
    assert sensor.energy() is None
    assert sensor.describe().ecc is None
    assert sensor.describe().mig is False


def test_without_a_driver_there_is_no_sensor_and_a_reason():
    assert open_sensor(nvml=FakeNvml(driver=False)) == (None, "NVML: Driver Not Loaded")
    assert all_tenants(FakeNvml(driver=False)) == {}


def test_co_tenants_are_named_without_path_and_arguments():
    (process,) = all_tenants(FakeNvml())["GPU-1"]
    assert (process.name, process.memory_bytes) == ("python7", 2**30)
    assert all_tenants(FakeNvml())["GPU-0"] == []
