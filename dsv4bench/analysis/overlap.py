"""What a stream schedule gains: serial sum, critical path, what each stage makes the layer wait for, gain by batch.

Everything follows from the stages' times alone and the schedule's order. Laid out so, streams do not compete for the
card: the result is the bound that a schedule can reach, and what a measurement lacks to it is contention.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dsv4bench.model.schedule import START, Schedule, make_schedule
from dsv4bench.model.shape import LayerKind
from dsv4bench.results.row import Row, Status


@dataclass(frozen=True)
class StageOverlap:
    """A stage in a multi-stream layer, seconds.

    Attributes:
        stage: its name.
        stream: where it runs.
        serial: its time when it runs alone.
        exposed: the part of it that the layer waits for: all where the stage lies on the critical path, else nothing.
    """

    stage: str
    stream: str
    serial: float
    exposed: float


@dataclass(frozen=True)
class LayerOverlap:
    """A layer under a schedule, seconds.

    Attributes:
        stages: in launch order.
        critical_path: stages that the layer waits for, first to last.
        seconds: from the layer's begin to its end; exposed times add up to it.
    """

    stages: tuple[StageOverlap, ...]
    critical_path: tuple[str, ...]
    seconds: float

    @property
    def serial(self) -> float:
        """Sum of the stages' times alone."""
        return sum(stage.serial for stage in self.stages)


def layer_overlap(schedule: Schedule, serial: Mapping[str, float]) -> LayerOverlap:
    """Find the critical path and what each stage contributes to it.

    Each stage is laid out as early as its stream and its waits allow. The path is followed from the last stage to end
    back through whatever it waited for that ended last.

    Args:
        schedule: of the layer.
        serial: time of each stage alone.
    """
    waits = dict(_waits(schedule))
    ends = {START: 0.0}
    for stage, before in waits.items():
        ends[stage] = max((ends[name] for name in before), default=0.0) + serial[stage]
    path: list[str] = []
    at = max(waits, key=lambda stage: ends[stage])
    while at != START:
        path.append(at)
        at = max(waits[at], key=lambda name: ends[name], default=START)
    stages = tuple(
        StageOverlap(launch.stage, launch.stream, serial[launch.stage], serial[launch.stage] * (launch.stage in path))
        for launch in schedule.launches
    )
    return LayerOverlap(stages, tuple(reversed(path)), max(ends.values()))


@dataclass(frozen=True)
class Gain:
    """A measured layer under a schedule beside the same layer run serially; seconds.

    Attributes:
        case: what was measured.
        serial: the serial layer.
        seconds: the layer under the schedule.
        bound: the critical path, laid out from the stages' times alone.
        stage_sum: sum of those times.
        noise: relative scatter (MAD over median) of the rounds of both, as of a ratio: the root of the summed squares.
    """

    case: dict[str, object]
    serial: float
    seconds: float
    bound: float
    stage_sum: float
    noise: float

    @property
    def gain(self) -> float:
        """How much faster than serial, as a share of the time it takes now."""
        return self.serial / self.seconds - 1

    @property
    def most(self) -> float:
        """What the critical path would allow: the gain without contention and gaps."""
        return self.stage_sum / self.bound - 1


def gains(rows: Iterable[Row]) -> list[Gain]:
    """Every layer that was measured under another schedule than serial and serially as well, in order of appearance."""
    timed = [row for row in rows if row.status is Status.OK and row.layer and not row.case["stages"]]
    serial = {_apart_from_streams(row): row for row in timed if row.case["streams"] == "serial"}
    found = []
    for row in timed:
        base = serial.get(_apart_from_streams(row))
        if row.case["streams"] != "serial" and base is not None and row.layer and base.layer:
            alone = {stage.name: stage.timing.median for stage in base.stages if stage.timing}
            schedule = make_schedule(row.case["streams"], LayerKind(row.case["layer"]), tokens_of(row.case))
            over = layer_overlap(schedule, alone)
            noise = math.hypot(base.layer.mad / base.layer.median, row.layer.mad / row.layer.median)
            found.append(Gain(row.case, base.layer.median, row.layer.median, over.seconds, over.serial, noise))
    return found


def tokens_of(case: Mapping[str, object]) -> int:
    """Query tokens of the step of a stored case."""
    from dsv4bench.scenario.requests import parse_requests

    if text := case.get("requests"):
        return sum(request.query_len for request in parse_requests(str(text)))
    return int(str(case["batch"])) * int(str(case["query_len"]))


def _waits(schedule: Schedule) -> list[tuple[str, tuple[str, ...]]]:
    """Each stage with what must have ended before it starts: its stream's previous stage, and what it waits for."""
    last: dict[str, str] = {}
    found = []
    for launch in schedule.launches:
        found.append((launch.stage, (*launch.after, *([last[launch.stream]] if launch.stream in last else []))))
        last[launch.stream] = launch.stage
    return found


def _apart_from_streams(row: Row) -> str:
    return json.dumps({key: value for key, value in row.case.items() if key != "streams"}, sort_keys=True)
