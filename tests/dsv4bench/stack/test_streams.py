"""The executor of schedules: on a CPU it says no; its events are checked on a recorder that stands in for CUDA."""

from types import SimpleNamespace

import pytest

from dsv4bench.model.schedule import DEFAULT, SCHEDULES, START, make_schedule, order
from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.registry import load_provider
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.scenario.workload import Workload
from dsv4bench.stack import streams
from dsv4bench.stack.layer import prepare
from dsv4bench.stack.streams import run_schedule, schedule_support


def test_a_cpu_has_serial_only_and_says_why():
    assert schedule_support("serial", "cpu").ok
    assert schedule_support("multi3", "cuda").ok
    assert schedule_support("multi", "cpu").reason == (
        "schedule multi needs CUDA streams, and this is the CPU; use serial"
    )


def test_serial_runs_anywhere(small_shape):
    kind = LayerKind.C4A
    workload = Workload("decode", 2, 512, 1, "all")
    layer = prepare(small_shape(kind), kind, CachePrecision(), [workload])
    values = layer.draw(workload, 1)
    reference = load_provider("reference")
    run_schedule(make_schedule("serial", kind), {stage.name: reference for stage in STAGES[kind]}, values)
    assert values["y"].shape == (2, 256)


class Recorder:
    """Streams and events that note what certainly precedes what, as CUDA orders them."""

    def __init__(self):
        self.done_before = {}
        self.active = [Recorder.Stream("caller")]

    class Stream:
        def __init__(self, name):
            self.name, self.device, self.past = name, SimpleNamespace(index=0), frozenset()

        def record_event(self):
            return self.past

        def wait_event(self, event):
            self.past |= event

    def current_stream(self):
        return self.active[-1]

    def stream(self, stream):
        recorder = self

        class Switch:
            def __enter__(self):
                recorder.active.append(stream)

            def __exit__(self, *_):
                recorder.active.pop()

        return Switch()

    def stage(self, name):
        stream = self.current_stream()
        self.done_before[name] = stream.past
        stream.past |= {name}


@pytest.mark.parametrize("kind", list(LayerKind))
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_events_order_the_stages_exactly_as_the_schedule_says(name, kind, monkeypatch):
    recorder = Recorder()
    recorder.active[0].past = frozenset({START})
    monkeypatch.setattr(streams, "torch", SimpleNamespace(cuda=recorder))
    made = {}
    monkeypatch.setattr(streams, "side_stream", lambda device, label: made.setdefault(label, Recorder.Stream(label)))
    monkeypatch.setattr(streams, "run_stage", lambda stage, provider, values: recorder.stage(stage.name))
    monkeypatch.setattr(streams, "run_layer", lambda stages, p, v: [recorder.stage(stage.name) for stage in stages])
    schedule = make_schedule(name, kind)
    run_schedule(schedule, dict.fromkeys(stage.name for stage in STAGES[kind]), {})
    assert recorder.done_before == order(schedule)
    assert recorder.active[0].past == {START} | set(recorder.done_before)
    assert set(made) == set(schedule.streams) - {DEFAULT}
