"""Streams and graphs on a GPU: poisoned buffers and late stages show that the events order what has to be ordered."""

from dataclasses import replace

import pytest
import torch

from dsv4bench.bench.launches import count_launches
from dsv4bench.bench.spin import spin
from dsv4bench.errors import UserError
from dsv4bench.model.schedule import SCHEDULES, check, hazards, make_schedule
from dsv4bench.model.shape import V3_2, V4_FLASH, LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.registry import load_provider
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.scenario.workload import Workload
from dsv4bench.stack.graph import capture, capture_layer
from dsv4bench.stack.layer import prepare, run_layer
from dsv4bench.stack.side_streams import side_stream
from dsv4bench.stack.streams import run_schedule

pytestmark = pytest.mark.gpu

DELAY_NS = 30_000_000
"""Longer than the host needs to launch the whole layer, so that whoever doesn't wait comes too early."""
WORKLOAD = Workload("decode", 8, 2048, 1, "all")
SPLIT = [(name, kind) for name in ("multi", "multi3") for kind in LayerKind if kind is not LayerKind.SWA]
ERROR = 2e-3
"""Largest relative error between two runs of the same kernels: cuBLAS may choose another one on another stream."""


@pytest.fixture(scope="module")
def layers():
    made = {}
    spin(1)  # compiled here, not while a stage should be late

    def layer(kind):
        if kind not in made:
            base = V3_2 if kind is LayerKind.DSA else V4_FLASH
            groups = 0 if kind is LayerKind.DSA else 2
            small = replace(base, hidden_size=512, num_heads=16, o_groups=groups, q_lora_rank=256, index_topk=256)
            made[kind] = prepare(small, kind, CachePrecision(), [WORKLOAD], device="cuda")
        return made[kind]

    return layer


def providers(kind, provider="eager"):
    return dict.fromkeys((stage.name for stage in STAGES[kind]), load_provider(provider))


def serial(layer, seed):
    values = layer.draw(WORKLOAD, seed)
    run_layer(STAGES[layer.kind], providers(layer.kind), values)
    torch.cuda.synchronize()
    return values


def outputs(kind):
    return [
        name for stage in STAGES[kind] for name in stage.outputs if name not in ("topk_indices", "compressed_indices")
    ]


def difference(kind, values, expected):
    """Largest relative difference of any output; infinite where poison arrived."""
    worst = 0.0
    for name in outputs(kind):
        if not isinstance(expected[name], torch.Tensor):
            continue
        a, b = (t.float().nan_to_num(nan=1e30, neginf=-1e30).flatten() for t in (values[name], expected[name]))
        if name == "logits":
            a, b = (t.view_as(expected[name])[:, : WORKLOAD.context // kind.ratio] for t in (a, b))
        worst = max(worst, float((a - b).norm() / b.norm().clamp_min(1e-30)))
    return worst


def bytes_of(layer):
    """All bytes of the layer's slab."""
    cache = layer.caches.caches["compressed_cache"]
    return torch.empty(0, dtype=torch.uint8, device="cuda").set_(cache.pages.untyped_storage())


class Poisoned:
    """A provider whose outputs go into buffers that held poison before the run, some stages late."""

    name = "poisoned"

    def __init__(self, expected, kind, late):
        self._eager, self._late = load_provider("eager"), late
        self._buffers = {stage.name: [_poison(expected[name]) for name in stage.outputs] for stage in STAGES[kind]}

    def __getattr__(self, stage):
        def run(**arguments):
            if stage in self._late:
                spin(DELAY_NS)
            result = getattr(self._eager, stage)(**arguments)
            results = result if isinstance(result, tuple) else (result,)
            for buffer, value in zip(self._buffers[stage], results, strict=False):
                if buffer is not None:
                    buffer.copy_(value)
            kept = tuple(self._buffers[stage])
            return kept if len(kept) > 1 else next(iter(kept), None)

        return run


def _poison(tensor):
    if not isinstance(tensor, torch.Tensor):
        return None
    buffer = torch.empty_like(tensor)
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
        return buffer.fill_(float("nan"))
    if tensor.dtype.itemsize == 1:
        buffer.view(torch.uint8).fill_(0x7F)
        return buffer
    return buffer.fill_(-1)


def run_poisoned(layer, schedule, late):
    """Run over outputs and cache bytes that are poisoned before the step; returns the difference to a serial run.

    The caches are left as they were.
    """
    slab = bytes_of(layer)
    before = slab.clone()
    expected = serial(layer, seed=7)
    written = slab != before
    slab.copy_(torch.where(written, 0x7F, before))
    provider = Poisoned(expected, layer.kind, late)
    values = layer.draw(WORKLOAD, 7)
    torch.cuda.synchronize()
    run_schedule(schedule, dict.fromkeys((stage.name for stage in STAGES[layer.kind]), provider), values)
    torch.cuda.synchronize()
    found = difference(layer.kind, values, expected)
    slab.copy_(before)
    return found


@pytest.mark.parametrize(("name", "kind"), SPLIT)
def test_no_late_stage_lets_poison_through(layers, name, kind):
    schedule = make_schedule(name, kind)
    for stage in STAGES[kind]:
        assert run_poisoned(layers(kind), schedule, {stage.name}) < ERROR, f"{stage.name} late"


@pytest.mark.parametrize(("name", "kind"), SPLIT)
def test_without_a_needed_join_poison_arrives(layers, name, kind):
    """The check refuses these; run anyway, with the stage late that is not waited for, each shows on the GPU."""
    schedule = make_schedule(name, kind)
    for launch in schedule.launches:
        for awaited in launch.after:
            kept = tuple(other for other in launch.after if other != awaited)
            launches = tuple(replace(one, after=kept) if one is launch else one for one in schedule.launches)
            mutant = replace(schedule, launches=launches)
            found = hazards(mutant)
            if not found:
                continue
            with pytest.raises(UserError):
                check(mutant)
            late = {found[0].first}
            assert run_poisoned(layers(kind), mutant, late) > 0.01, f"{launch.stage} without {awaited}"


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("kind", list(LayerKind))
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_every_schedule_gives_what_serial_eager_gives_on_fresh_inputs(layers, name, kind, graph):
    layer, schedule = layers(kind), make_schedule(name, kind)
    if graph:
        captured = capture_layer(
            lambda values: run_schedule(schedule, providers(kind), values), layer.draw(WORKLOAD, 1)
        )
    for seed in (2, 3):
        expected = serial(layer, seed)
        if graph:
            values = captured.replay(layer.draw(WORKLOAD, seed))
        else:
            values = layer.draw(WORKLOAD, seed)
            run_schedule(schedule, providers(kind), values)
        torch.cuda.synchronize()
        assert difference(kind, values, expected) < ERROR


@pytest.mark.parametrize("kind", list(LayerKind))
def test_schedules_launch_the_same_kernels(layers, kind):
    counts = {}
    for name in SCHEDULES:
        values = layers(kind).draw(WORKLOAD, 1)
        counts[name] = count_launches(lambda n=name, v=values: run_schedule(make_schedule(n, kind), providers(kind), v))
    assert counts["serial"]
    assert len(set(counts.values())) == 1, counts


def test_named_streams_stay_apart_from_each_other_and_from_the_capture():
    for _ in range(100):
        torch.cuda.Stream()
    device = torch.cuda.current_device()
    handles = [side_stream(device, name).cuda_stream for name in ("capture", "aux0", "aux1", "aux2", "indexer")]
    assert len(set(handles)) == 5
    assert torch.cuda.default_stream().cuda_stream not in handles


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_two_stages_of_known_duration_overlap_on_two_streams(layers, graph):
    """c128a under multi: compression (held for 30 ms) hides behind the query path (held as well)."""
    schedule = make_schedule("multi", LayerKind.C128A)
    layer = layers(LayerKind.C128A)
    late = {"compress_norm_rope_insert", "query_projection"}
    expected = serial(layer, 7)
    provider = Poisoned(expected, LayerKind.C128A, late)
    held = dict.fromkeys((stage.name for stage in STAGES[LayerKind.C128A]), provider)
    values = layer.draw(WORKLOAD, 7)

    def run():
        run_schedule(schedule, held, values)

    run()
    call = capture(run).replay if graph else run
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    assert DELAY_NS * 1e-6 < start.elapsed_time(end) < 1.6 * DELAY_NS * 1e-6
