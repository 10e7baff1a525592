"""``dsv4bench doctor``: what is here, what is missing and what it would enable."""

import json
from types import SimpleNamespace

from dsv4bench.bench import diagnosis
from dsv4bench.bench.device import Device
from dsv4bench.bench.diagnosis import Finding, diagnose
from tests.dsv4bench.bench.test_telemetry import FakeNvml
from tests.dsv4bench.cli.test_run import cli


def by_topic(findings):
    found = {}
    for finding in findings:
        found.setdefault(finding.topic, []).append(finding)
    return found


def test_this_machine_is_described_as_json():
    done = cli("doctor", "--device", "cpu", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = by_topic(Finding(**record) for record in json.loads(done.stdout))
    assert found["torch"][0].state == "ok"
    assert found["timer wall"][0].state == "ok"
    assert found["device"][0].value == "cpu"
    for missing in (finding for findings in found.values() for finding in findings if finding.state == "missing"):
        assert missing.remedy or missing.value


def test_a_card_in_use_or_hot_is_a_warning(monkeypatch):
    monkeypatch.setattr(diagnosis, "_device", lambda text: iter(()))
    found = by_topic(diagnose(nvml=FakeNvml(reasons=0x8), which=lambda name: f"/bin/{name}"))
    assert found["NVML"][0].value == "driver 580.1"
    assert "NVIDIA H200, 139.70 GiB, 1980 of 1980 MHz, 45 °C, 120 of 700 W, ECC on" in found["GPU 0"][0].value
    assert [finding.state for finding in found["GPU 1"]] == ["ok", "warning", "warning"]
    assert found["GPU 1"][1].value == "throttled: hw_slowdown"
    assert found["GPU 1"][2].value == "in use by python7, 1.00 GiB"
    assert found["nsys"][0].value == "/bin/nsys"


def test_what_is_missing_says_what_it_would_enable(monkeypatch):
    monkeypatch.setattr(diagnosis, "_device", lambda text: iter(()))
    monkeypatch.setattr(diagnosis, "installed_version", lambda name: None)
    found = by_topic(diagnose(nvml=FakeNvml(driver=False), which=lambda name: None))
    assert found["NVML"][0] == Finding(
        "NVML", "missing", "NVML: Driver Not Loaded", "clocks, throttling, energy and co-tenants of an NVIDIA GPU"
    )
    for topic in ("torch", "vllm", "nsys"):
        assert found[topic][0].state == "missing"
        assert found[topic][0].remedy


def test_timers_of_a_card_are_listed_with_the_reason_that_one_is_not_usable(monkeypatch):
    device = Device(
        "cuda",
        name="NVIDIA H200",
        l2_bytes=60 * 2**20,
        capability="9.0",
        versions={"cuda": "13.0"},
        timers={"events": "", "cupti": "another CUPTI client seems attached"},
    )

    class Executor(SimpleNamespace):
        def probe(self, text, survey):
            return diagnosis.Found(device)

        def close(self):
            pass

    monkeypatch.setattr(diagnosis, "Executor", lambda log: Executor())
    found = by_topic(diagnosis._device("auto"))
    assert found["device"][0].value == "cuda:0: NVIDIA H200, sm_90, L2 60.00 MiB, CUDA 13.0"
    assert found["timer events"][0].state == "ok"
    assert found["timer cupti"][0] == Finding("timer cupti", "missing", "another CUPTI client seems attached")
