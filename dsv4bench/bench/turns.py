"""Two sides in two worker processes that take turns: exactly one of them runs at any time.

Sides of two revisions can't share a process, since their kernels carry the same names. So each has a worker of its own,
and every round waits for leave to go. A side that prepares or checks does so alone as well. A round that throttled on
one side is repeated on both, since a comparison is within a round.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsv4bench.bench.checkout import Checkout
from dsv4bench.bench.execute import Event, shared_tensors
from dsv4bench.bench.messages import Done, Found, Go, Measure, Measured, Probe, Ready, Settled, Took, Working
from dsv4bench.bench.rounds import order_of
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.worker import Worker, await_found
from dsv4bench.errors import UserError
from dsv4bench.results.row import Status
from dsv4bench.scenario.case import Case

MakeWorker = Callable[[Path, Checkout | None], Worker]
"""Starts a worker that logs to a file and takes its kernels from a revision."""

Pair = tuple[Case, Case]
"""The same case on both sides."""


@dataclass
class Lane:
    """One side's worker, and how far it is with the current case.

    Attributes:
        log: file its output goes to.
        checkout: revision that its kernels come from; None for the working tree.
        make_worker: starts its process.
        worker: its process, if it is up.
        ready: turn that waits for leave to go; None while there is none.
        took: turn that was taken and waits to be settled; None while there is none.
        used: seconds spent on the current case.
        doing: what it was last heard to do.
    """

    log: Path
    checkout: Checkout | None = None
    make_worker: MakeWorker = Worker
    worker: Worker | None = None
    ready: Ready | None = None
    took: Took | None = None
    used: float = 0.0
    doing: str = field(default="starting")

    def launch(self, device: str) -> None:
        """Start the worker and ask it for the device."""
        self.close()
        self.worker = self.make_worker(self.log, self.checkout)
        self.worker.send(Probe(device, calibrate=False))

    def found(self) -> Found:
        """The worker's answer to a probe.

        Raises:
            UserError: there is no such device.
            MeasurementError: the worker does not come up.
        """
        worker = self.worker
        assert worker is not None
        found = await_found(worker, self.log, f" with the kernels of {self.checkout.sha[:12]}" if self.checkout else "")
        if found.error:
            raise UserError(found.error)
        return found

    def close(self) -> None:
        """Kill the worker, if there is one."""
        self.ready = self.took = None
        if self.worker is not None:
            self.worker.kill()
            self.worker = None


BEFORE = -1
"""Number of the round, as it were, in which both sides get their memory."""


class Turns:
    """Measures pairs of cases, one side each, in interleaved rounds.

    The side that gets its memory second can be the faster one for as long as the processes live, so which one begins is
    drawn by the pair, and the other begins where a pass is ``swapped``.
    """

    def __init__(
        self,
        lanes: tuple[Lane, Lane],
        device: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        swapped: bool = False,
    ) -> None:
        self._lanes, self._device, self._clock, self._swapped = lanes, device, clock, swapped

    def probe(self) -> tuple[Found, Found]:
        """Start both workers and have each look at the device and calibrate, one after the other."""
        for lane in self._lanes:
            lane.launch(self._device)
        for lane in self._lanes:
            lane.found()
        return self._calibrated(self._lanes[0]), self._calibrated(self._lanes[1])

    def _calibrated(self, lane: Lane) -> Found:
        assert lane.worker is not None
        lane.worker.send(Probe(self._device, calibrate=True))
        return lane.found()

    def close(self) -> None:
        """Kill both workers."""
        for lane in self._lanes:
            lane.close()

    def run(self, pairs: Sequence[Pair], settings: tuple[Settings, Settings]) -> Iterator[tuple[int, Event]]:
        """Measure pairs, yielding what happens on which side (0 or 1); every case gets exactly one ``Measured``."""
        for number, group in enumerate(group_pairs(pairs)):
            if number:
                self.close()  # fresh processes: their memory is all there for the next group
            for pair in group:
                yield from self._measure(pair, group, settings)

    def _measure(
        self, pair: Pair, group: Sequence[Pair], settings: tuple[Settings, Settings]
    ) -> Iterator[tuple[int, Event]]:
        begins = order_of(settings[0].timing.seed, pair[0].pair_id, BEFORE, 0, 2)
        for side in reversed(begins) if self._swapped else begins:
            lane = self._lanes[side]
            if lane.worker is None:
                lane.launch(self._device)
                lane.found()
            assert lane.worker is not None
            cases = tuple(each[side] for each in group)
            lane.used, lane.doing = 0.0, "starting"
            lane.worker.send(Measure((pair[side],), cases, settings[side], in_turns=True))
            yield from self._until_it_waits(side, pair[side], settings[side])
        while ready := next((lane.ready for lane in self._lanes if lane.ready is not None), None):
            order = order_of(settings[0].timing.seed, pair[0].pair_id, ready.round, ready.attempt, 2)
            for side in order:
                yield from self._say(Go(), side, pair[side], settings[side])
            taken = [lane.took for lane in self._lanes if lane.took is not None]
            reasons = tuple(dict.fromkeys(reason for took in taken for reason in took.spoiled_by))
            for side in order:
                yield from self._say(Settled(reasons), side, pair[side], settings[side])

    def _say(self, word: Go | Settled, side: int, case: Case, settings: Settings) -> Iterator[tuple[int, Event]]:
        """Answer a side, if it is there and waits for this, and let it run until it waits again."""
        lane = self._lanes[side]
        if lane.worker is not None and (lane.ready if isinstance(word, Go) else lane.took) is not None:
            lane.worker.send(word)
            yield from self._until_it_waits(side, case, settings)

    def _until_it_waits(self, side: int, case: Case, settings: Settings) -> Iterator[tuple[int, Event]]:
        """Let a side run until it waits for an answer or is done with the case."""
        lane, timeout = self._lanes[side], settings.timing.timeout
        began, measured = self._clock(), False
        lane.ready = lane.took = None
        while lane.worker is not None:
            try:
                event = lane.worker.receive(timeout - lane.used - (self._clock() - began))
            except (TimeoutError, EOFError) as error:
                late = isinstance(error, TimeoutError)
                how = f"no result within {timeout:g} s (timing.timeout)" if late else lane.worker.obituary()
                lane.close()
                if not measured:
                    status = Status.TIMEOUT if late else Status.RUNTIME_ERROR
                    yield side, Measured(settings.failed(case, status, f"{how}, {lane.doing}"))
                return
            if isinstance(event, Ready | Took):
                lane.ready = event if isinstance(event, Ready) else None
                lane.took = event if isinstance(event, Took) else None
                lane.used += self._clock() - began
                return
            if isinstance(event, Working):
                lane.doing = event.doing
            measured = measured or isinstance(event, Measured)
            yield side, event
            if isinstance(event, Done):
                if not event.healthy:
                    lane.close()
                return


def group_pairs(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Pairs whose first sides share weights and caches, in order of first appearance."""
    groups: dict[tuple[object, ...], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(shared_tensors(pair[0]), []).append(pair)
    return list(groups.values())
