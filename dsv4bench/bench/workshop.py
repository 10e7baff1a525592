"""What a worker does with its tasks: it keeps the layer that the cases share and runs comparisons over it."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dsv4bench.bench.calibration import timer_calibration, timer_floors
from dsv4bench.bench.comparison import Comparison, Contender, PoisonedError
from dsv4bench.bench.compilation import watch_compilation
from dsv4bench.bench.device import Device, find_device, use_device
from dsv4bench.bench.failure import is_out_of_memory, status_of
from dsv4bench.bench.gaps import trace_cases
from dsv4bench.bench.messages import Done, Found, Measure, Measured, Probe, Ready, Settled, Took, Trace, Working
from dsv4bench.bench.rounds import Turn
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.spending import Spending
from dsv4bench.bench.telemetry import open_sensor
from dsv4bench.bench.timers import TIMERS, make_timer
from dsv4bench.errors import UserError
from dsv4bench.results.manifest import Ceilings
from dsv4bench.scenario.case import Case
from dsv4bench.stack.layer import Layer, prepare
from dsv4bench.stack.model import Model, prepare_model


class Workshop:
    """Holds what outlives a task: the shared layer and the books on time."""

    def __init__(self, send: Callable[[Any], None], receive: Callable[[], Any]) -> None:
        self._send, self._receive = send, receive
        self._spending = Spending()
        self._layer: Layer | Model | None = None
        self._group: tuple[Case, ...] = ()

    def probe(self, task: Probe) -> Found:
        """Find the device and, if asked, calibrate."""
        try:
            device = find_device(task.device)
        except UserError as error:
            return Found(None, error=str(error))
        use_device(device.torch_name)
        if task.survey:
            device = replace(device, timers={name: make_timer(name).unavailable() for name in TIMERS})
        if not task.calibrate:
            return Found(device)
        timers = ("wall",) if device.type == "cpu" else ("events", "graph")
        return Found(device, self._ceilings(device), timer_floors(timers), timer_calibration(timers))

    def measure(self, task: Measure) -> bool:
        """Measure a comparison and send its rows; False when the device no longer works."""
        settings = task.settings
        self._spending.take()  # what passed since the last task is in the parent's books
        use_device(settings.device.torch_name)
        sensor = open_sensor(settings.device.uuid)[0] if settings.device.type == "cuda" else None
        healthy = True
        try:
            with watch_compilation() as log:
                wait, agree = (self._await_turn, self._agree) if task.in_turns else (_at_once, None)
                comparison = Comparison(settings, sensor, log, self._spending, self._report, wait, agree)
                for measured in comparison.measure(task.cases, partial(self._tensors, task)):
                    self._send(measured)
        except PoisonedError:
            healthy = False
        except Exception as error:  # nothing of a case may end the worker
            traceback.print_exc()
            for case in task.cases:
                self._send(Measured(settings.failed(case, *status_of(error))))
        self._send(Done(self._spending.take(), healthy))
        return healthy

    def trace(self, task: Trace) -> None:
        """Trace launch gaps and send them; the process is not one to time in any more."""
        self._spending.take()
        try:
            layer = self._tensors(task, task.cases)
            with self._spending.on("launch gaps"):
                for traced in trace_cases(task.cases, layer, task.settings, self._report):
                    self._send(traced)
        except Exception:  # the rows stand without
            traceback.print_exc()
        self._send(Done(self._spending.take(), healthy=False))

    def _await_turn(self, turn: Turn[Contender]) -> None:
        """Wait until the parent says that this side goes: other processes measure in between."""
        self._send(Ready(turn.round, turn.attempt))
        self._receive()

    def _agree(self, reasons: tuple[str, ...]) -> tuple[str, ...]:
        """Say why a round doesn't count here, and hear whether it counts."""
        self._send(Took(reasons))
        settled: Settled = self._receive()
        return settled.spoiled_by

    def _report(self, case_id: str, doing: str) -> None:
        self._send(Working(case_id, doing))

    def _tensors(self, task: Measure | Trace, cases: Sequence[Case]) -> Layer | Model:
        """What the cases of a task share, made for the whole group at once or, if that is too much, for them alone."""
        if self._layer is not None and set(cases) <= set(self._group):
            return self._layer
        self._report(cases[0].case_id, "drawing weights and caches")
        with self._spending.on("weights and caches"):
            try:
                return self._make(task.group, task.settings)
            except Exception as error:
                if not is_out_of_memory(error) or set(task.group) == set(cases):
                    raise
                return self._make(cases, task.settings)

    def _make(self, cases: Sequence[Case], settings: Settings) -> Layer | Model:
        self._layer, self._group = None, ()
        first, workloads = cases[0], [case.workload for case in cases]
        where, seed = settings.device.torch_name, settings.timing.seed
        made: Layer | Model
        if first.layers:
            made = prepare_model(
                first.shape,
                first.layers,
                first.copies,
                first.cache,
                workloads,
                device=where,
                seed=seed,
                choice=first.weights,
            )
        else:
            made = prepare(
                first.shape,
                first.kind,
                first.cache,
                workloads,
                device=where,
                seed=seed,
                choice=first.weights,
                tp=first.tp,
            )
        self._layer, self._group = made, tuple(cases)
        return made

    def _ceilings(self, device: Device) -> Ceilings | None:
        from dsv4bench.bench.ceilings import measure_ceilings

        if device.type != "cuda":
            return None
        with self._spending.on("ceilings"):
            return measure_ceilings(device.torch_name)


def _at_once(_: Turn[Contender]) -> None:
    """Wait for nobody: no other process measures."""
