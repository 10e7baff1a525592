"""Running cases in workers: groups that share tensors, comparisons that share rounds, and what to do when one dies."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dsv4bench.bench.messages import Done, Found, Measure, Measured, Probe, Trace, Traced, Working
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.worker import Worker, await_found
from dsv4bench.errors import UserError
from dsv4bench.results.row import Status
from dsv4bench.scenario.case import Case, shape_digest

Event = Working | Measured | Traced | Done


def group_cases(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases by what their weights and caches depend on, in order of first appearance: a group shares them."""
    groups: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        groups.setdefault(shared_tensors(case), []).append(case)
    return list(groups.values())


def shared_tensors(case: Case) -> tuple[object, ...]:
    """What cases have in common whose weights and caches can be the same tensors."""
    return shape_digest(case.shape), case.kind, case.layers, case.copies, case.cache, case.weights, case.tp


def comparisons(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases by ``round_id``: the sides that a round interleaves, providers and stream schedules of the same step."""
    pairs: dict[str, list[Case]] = {}
    for case in cases:
        pairs.setdefault(case.round_id, []).append(case)
    return list(pairs.values())


class Executor:
    """Runs cases on this machine, one worker at a time."""

    def __init__(
        self, log: Path, clock: Callable[[], float] = time.monotonic, make_worker: Callable[[Path], Worker] = Worker
    ) -> None:
        self._log, self._clock, self._make_worker = log, clock, make_worker
        self._worker: Worker | None = None
        self._device = "auto"

    def probe(self, device: str, *, calibrate: bool = False, survey: bool = False) -> Found:
        """Start a worker and ask for the device; see ``messages.Probe``.

        Raises:
            UserError: there is no such device.
            MeasurementError: the worker does not come up.
        """
        self._device = device
        found = self._start(Probe(device, calibrate, survey))
        if found.error:
            raise UserError(found.error)
        return found

    def run(self, cases: Sequence[Case], settings: Settings) -> Iterator[Event]:
        """Measure cases, yielding what happens; every case gets exactly one ``Measured``, and may get a ``Traced``.

        Closing the iterator, or an exception at the consumer's side, kills the worker.
        """
        for number, group in enumerate(group_cases(cases)):
            if number:
                self.close()  # a fresh process: its memory is all there for the next group
            measured: list[Case] = []
            for sides in comparisons(group):
                for event in self._compare(sides, group, settings):
                    if isinstance(event, Measured) and event.row.status is Status.OK:
                        measured += [case for case in sides if case.case_id == event.row.case_id]
                    yield event
            if wanted := [case for case in measured if settings.wants_gaps(case)]:
                yield from self._trace(wanted, group, settings)

    def close(self) -> None:
        """End the worker, if there is one."""
        if self._worker is not None:
            self._worker.dismiss()
            self._worker = None

    def _start(self, probe: Probe) -> Found:
        self.close()
        worker = self._worker = self._make_worker(self._log)
        worker.send(probe)
        return await_found(worker, self._log)

    def _compare(self, sides: Sequence[Case], group: Sequence[Case], settings: Settings) -> Iterator[Event]:
        """Measure the sides of one comparison; whoever kills the worker drops out, and the others start over."""
        left = list(sides)
        while left:
            if self._worker is None:
                self._start(Probe(self._device))
            for event in self._attempt(left, group, settings):
                if isinstance(event, Measured):
                    left = [case for case in left if case.case_id != event.row.case_id]
                yield event

    def _attempt(self, sides: Sequence[Case], group: Sequence[Case], settings: Settings) -> Iterator[Event]:
        worker = self._worker
        assert worker is not None
        worker.send(Measure(tuple(sides), tuple(group), settings))
        watch = Watch(sides[0].case_id, settings.timing.timeout, self._clock)
        waiting = {case.case_id: case for case in sides}
        while True:
            try:
                event = worker.receive(watch.left())
            except TimeoutError:
                self.close()
                reason = f"no result within {settings.timing.timeout:g} s (timing.timeout), {watch.doing}"
                yield from _blame(waiting, watch, settings, Status.TIMEOUT, reason)
                return
            except EOFError:
                reason = f"{worker.obituary()}, {watch.doing}"
                self.close()
                yield from _blame(waiting, watch, settings, Status.RUNTIME_ERROR, reason)
                return
            yield event
            if isinstance(event, Working):
                watch.see(event)
            elif isinstance(event, Measured):
                waiting.pop(event.row.case_id, None)
            elif isinstance(event, Done):
                if not event.healthy:
                    self.close()
                return

    def _trace(self, cases: Sequence[Case], group: Sequence[Case], settings: Settings) -> Iterator[Event]:
        """Have launch gaps traced, the worker's last task; whoever kills or hangs it costs the rest their gaps."""
        if self._worker is None:
            self._start(Probe(self._device))
        worker = self._worker
        assert worker is not None
        worker.send(Trace(tuple(cases), tuple(group), settings))
        watch = Watch(cases[0].case_id, settings.timing.timeout, self._clock)
        event: Event | None = None
        while not isinstance(event, Done):
            try:
                event = worker.receive(watch.left())
            except (TimeoutError, EOFError):
                break
            if isinstance(event, Working):
                watch.see(event)
            yield event
        self.close()


def _blame(
    waiting: dict[str, Case], watch: "Watch", settings: Settings, status: Status, reason: str
) -> Iterator[Measured]:
    """The row of the case that a worker died on; none if that case had its row already."""
    if culprit := waiting.get(watch.case_id):
        yield Measured(settings.failed(culprit, status, reason))


class Watch:
    """Which case a worker is on, and how much of its time is left; time is counted per case over its turns."""

    def __init__(self, case_id: str, timeout: float, clock: Callable[[], float]) -> None:
        self.case_id, self.doing = case_id, "starting"
        self._timeout, self._clock = timeout, clock
        self._used: dict[str, float] = {}
        self._since = clock()

    def see(self, event: Working) -> None:
        """The worker turns to a case."""
        now = self._clock()
        self._used[self.case_id] = self._used.get(self.case_id, 0.0) + now - self._since
        self.case_id, self.doing, self._since = event.case_id, event.doing, now

    def left(self) -> float:
        """Seconds until the current case has had its time."""
        used = self._used.get(self.case_id, 0.0) + self._clock() - self._since
        return max(self._timeout - used, 0.0)
