"""Timers on a GPU against kernels of known duration, and L2 states against a buffer that fits into it."""

from statistics import median

import pytest
import torch

from dsv4bench.bench.calibration import timer_calibration, timer_floors
from dsv4bench.bench.ceilings import measure_ceilings
from dsv4bench.bench.compilation import watch_compilation
from dsv4bench.bench.device import find_device
from dsv4bench.bench.energy import cuda_checkpoint, energy_per_call
from dsv4bench.bench.l2 import make_flush
from dsv4bench.bench.launches import count_launches
from dsv4bench.bench.spin import spin
from dsv4bench.bench.telemetry import open_sensor
from dsv4bench.bench.timers import make_timer
from dsv4bench.bench.timers.events import EventTimer
from dsv4bench.bench.window import time_calls
from dsv4bench.errors import MeasurementError
from dsv4bench.model.gpus import gpu_of_device
from dsv4bench.results.row import Contract
from dsv4bench.scenario.schema import TimingSection

pytestmark = pytest.mark.gpu

DEVICE_TIMERS = ("events", "graph", "cupti")
TIMING = TimingSection(rounds=1, iterations=20, warmup=3)


def read(timer, call, before=None, repeats=30):
    return median(make_timer(timer).time([call], 3, repeats, before).seconds)


@pytest.mark.parametrize("timer", DEVICE_TIMERS)
def test_timers_are_available(timer):
    assert make_timer(timer).unavailable() == ""


@pytest.mark.parametrize("timer", DEVICE_TIMERS)
@pytest.mark.parametrize("nanoseconds", [20_000, 50_000, 200_000, 1_000_000])
def test_a_spin_of_known_duration_is_read_within_two_per_cent(timer, nanoseconds):
    """Beyond what the same timer reads for the same kernel when it does not spin at all."""
    empty = read(timer, lambda: spin(0))
    seconds = read(timer, lambda: spin(nanoseconds))
    print(f"{timer} {nanoseconds} ns: {seconds * 1e9:.0f} ns, empty {empty * 1e9:.0f} ns")
    assert seconds - empty == pytest.approx(nanoseconds * 1e-9, rel=0.02)


def test_what_timers_read_for_nothing_is_small_and_reported():
    timers = ("events", "graph")
    floors, calibration = timer_floors(timers), timer_calibration(timers)
    print(floors, calibration)
    assert set(floors) == set(calibration) == {"events", "graph"}
    assert all(0 <= seconds < 10e-6 for seconds in floors.values())


def test_events_hold_device_work_and_not_the_hosts_gaps():
    x = torch.randn(1024, device="cuda")

    def call():
        y = x
        for _ in range(20):
            y = y * 1.01

    by_events, by_kernels = read("events", call), read("cupti", call)
    print(f"events {by_events * 1e6:.1f} µs, kernels {by_kernels * 1e6:.1f} µs")
    assert by_events < 1.5 * by_kernels + 5e-6


@pytest.fixture(scope="module")
def chase():
    """Dependent loads along a random cycle over 4 MiB: their time is the latency of where the lines lie."""
    import triton
    import triton.language as tl

    @triton.jit
    def walk(cycle, end, steps):
        at = tl.load(cycle)
        for _ in range(steps):
            at = tl.load(cycle + at)
        tl.store(end, at)

    order = torch.randperm(2**20, generator=torch.Generator().manual_seed(1))
    cycle = torch.empty(2**20, dtype=torch.int32)
    cycle[order] = order.roll(-1).int()
    cycle, end = cycle.cuda(), torch.empty(1, dtype=torch.int32, device="cuda")
    return lambda: walk[(1,)](cycle, end, 300, num_warps=1)


@pytest.mark.parametrize("timer", DEVICE_TIMERS)
def test_cold_means_read_from_memory(chase, timer):
    graph = timer == "graph"
    warm = Contract(timer=timer, l2="warm", graph=graph, iterations_per_graph=10 if graph else 0)
    sweep = {"l2": "cold", "flush": "read_sweep", "flush_bytes": 2 * find_device("cuda").l2_bytes}
    cold = warm.model_copy(update=sweep | {"iterations_per_graph": 1 if graph else 0})
    with watch_compilation() as log:
        from_l2, _ = time_calls(warm, [chase], TIMING, None, log)
        from_memory, _ = time_calls(cold, [chase], TIMING, make_flush(cold, "cuda"), log)
    near, far = median(from_l2.seconds) / 300, median(from_memory.seconds) / 300
    print(f"{timer}: {near * 1e9:.0f} ns a load from L2, {far * 1e9:.0f} ns from memory")
    assert far > 1.3 * near


def test_a_kernel_that_compiles_in_the_window_discards_it():
    import triton
    import triton.language as tl

    @triton.jit
    def store(pointer, VALUE: tl.constexpr):
        tl.store(pointer, VALUE)

    x = torch.empty(1, dtype=torch.int32, device="cuda")
    spin(0)
    compiled = []

    def sometimes():
        if len(compiled) < 5:
            compiled.append(0)
        store[(1,)](x, VALUE=len(compiled))

    def always():
        compiled.append(0)
        store[(1,)](x, VALUE=len(compiled))

    contract = Contract(timer="events", l2="warm")
    with watch_compilation() as log:
        _, discarded = time_calls(contract, [sometimes], TIMING, None, log)
        assert discarded == 1
        assert log.seconds["store"] > 0
        with pytest.raises(MeasurementError, match="compiled in every call"):
            time_calls(contract, [always], TimingSection(iterations=2, warmup=0), None, log)


def test_launches_are_counted_from_a_capture():
    x = torch.randn(1024, device="cuda")
    assert count_launches(lambda: x + 1) == 1
    assert count_launches(lambda: ((x + 1) * 2).clone()) == 3
    assert count_launches(lambda: x.sum().item()) is None
    torch.randn(4, device="cuda").sum().item()  # a capture that failed leaves context and generators well


def test_a_calls_host_time_stands_beside_its_device_time():
    x = torch.randn(1024, device="cuda")
    samples = EventTimer().time([lambda: x + 1], 3, 20, None)
    assert len(samples.host) == len(samples.seconds)
    assert 0 < median(samples.host) < 1e-3


def test_the_card_tells_its_state():
    device = find_device("cuda")
    sensor, reason = open_sensor(device.uuid)
    assert sensor is not None, reason
    assert sensor.describe().name == device.name
    reading = sensor.read()
    print(reading)
    assert reading.sm_clock_hz > 1e8
    assert 10 < reading.temperature_c < 100


def test_energy_per_call_is_plausible():
    sensor, _ = open_sensor(find_device("cuda").uuid)
    if sensor.energy() is None:
        pytest.skip("this card has no energy counter")
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

    def many():  # long enough for the card to reach its power
        for _ in range(500):
            a @ a

    seconds = read("events", many, repeats=5) / 500
    joules = energy_per_call(sensor.energy, lambda: a @ a, cuda_checkpoint, seconds)
    print(f"{joules / seconds:.0f} W over {seconds * 1e6:.0f} µs")
    assert 100 < joules / seconds < 1.15 * (sensor.describe().power_limit_w or 1000)


def test_ceilings_lie_below_the_datasheet():
    device = find_device("cuda")
    ceilings, gpu = measure_ceilings("cuda"), gpu_of_device(device.name)
    print(ceilings)
    assert 0.5 * gpu.memory_bandwidth < ceilings.copy_bytes_per_second < gpu.memory_bandwidth
    assert 0.4 * gpu.bf16_flops < ceilings.bf16_flops_per_second < gpu.bf16_flops
    assert ceilings.fp8_flops_per_second is None or ceilings.fp8_flops_per_second < gpu.fp8_flops
