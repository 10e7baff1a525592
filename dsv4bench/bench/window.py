"""One side's turn in a round: everything timed once, between two readings of the card."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dsv4bench.bench.compilation import CompileLog
from dsv4bench.bench.load import CpuTimes
from dsv4bench.bench.rounds import seed_of
from dsv4bench.bench.side import Contestant
from dsv4bench.bench.telemetry import Sensor, Telemetry
from dsv4bench.bench.timers import Call, Samples, timer_of
from dsv4bench.errors import MeasurementError
from dsv4bench.results.row import Contract
from dsv4bench.scenario.schema import TimingSection

DISCARDS = 3
"""Windows of one timing that may be discarded because something was compiled inside them."""


@dataclass(frozen=True)
class Window:
    """What a turn yielded.

    Attributes:
        round: number of the round, from 0.
        attempt: how often it was repeated before.
        seed: of its inputs.
        samples: by name of what was timed.
        readings: of the card before and after; empty without NVML.
        discarded: windows in which something was compiled.
        cpu: what passed on the processor meanwhile, where that is what is timed.
    """

    round: int
    attempt: int
    seed: int
    samples: dict[str, Samples]
    readings: tuple[Telemetry, ...]
    discarded: int
    cpu: CpuTimes | None = None

    @property
    def spoiled_by(self) -> tuple[str, ...]:
        """Throttle reasons that make the round not count."""
        return tuple(dict.fromkeys(reason for reading in self.readings for reason in reading.spoiled_by))

    def samples_records(self, case_id: str) -> list[dict[str, Any]]:
        """As lines of ``samples.jsonl``."""
        about = {"case_id": case_id, "round": self.round, "attempt": self.attempt}
        return [
            about | {"what": name, "seconds": samples.seconds, "host": samples.host}
            for name, samples in self.samples.items()
        ]

    def telemetry_records(self, case_id: str) -> list[dict[str, Any]]:
        """As lines of ``telemetry.jsonl``."""
        about = {"case_id": case_id, "round": self.round, "attempt": self.attempt}
        return [about | reading.as_record() for reading in self.readings]


def time_calls(
    contract: Contract, calls: Sequence[Call], timing: TimingSection, flush: Call | None, log: CompileLog
) -> tuple[Samples, int]:
    """Time calls, discarding windows in which Triton compiled or loaded a kernel.

    Args:
        contract: what the numbers have to mean.
        calls: the same work on different inputs.
        timing: warm-up and iterations.
        flush: runs before each call, outside the timed region.
        log: counts what becomes ready.

    Returns:
        the samples and how many windows were discarded.

    Raises:
        MeasurementError: something is compiled in every window.
    """
    timer = timer_of(contract)
    ready = replays(calls, graph=contract.graph and contract.timer != "graph")
    for discarded in range(DISCARDS + 1):
        before = log.events
        samples = timer.time(ready, timing.warmup, timing.iterations, flush)
        if log.events == before:
            return samples, discarded
    raise MeasurementError(f"a kernel is compiled in every call ({DISCARDS + 1} timed windows were discarded)")


def calls_of(side: Contestant, seed: int, sets: int) -> dict[str, list[Call]]:
    """What a turn times: by name, one call per input set."""
    calls: dict[str, list[Call]] = {}
    for number in range(sets):
        values = side.inputs(seed_of(seed, number))
        for name, call in side.calls(values).items():
            calls.setdefault(name, []).append(call)
    return calls


def replays(calls: Sequence[Call], *, graph: bool) -> list[Call]:
    """The calls themselves or, with ``graph``, the replays of a fresh capture of each."""
    if not graph:
        return list(calls)
    from dsv4bench.stack.graph import capture

    return [capture(call).replay for call in calls]


def read_card(sensor: Sensor | None) -> tuple[Telemetry, ...]:
    """A reading, or none without NVML."""
    return (sensor.read(),) if sensor else ()
