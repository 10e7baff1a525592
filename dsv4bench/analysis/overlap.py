"""What a stream schedule gains: serial sum, critical path, what each stage makes the layer wait for, gain by batch.

Everything follows from stage times and the schedule's order, whether the spans were measured (a profile) or laid out
from serial times. Laid out, streams do not compete for the card: the result is the bound that a schedule can reach, and
what a measurement lacks to it is contention.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from dsv4bench.model.schedule import START, Schedule, make_schedule
from dsv4bench.model.shape import LayerKind
from dsv4bench.results.row import Row, Status


@dataclass(frozen=True)
class Span:
    """When a stage ran on its stream; seconds from the layer's begin."""

    stage: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took there."""
        return self.end - self.start


@dataclass(frozen=True)
class StageOverlap:
    """The four numbers of a stage in a multi-stream layer, seconds.

    Attributes:
        stage: its name.
        stream: where it runs.
        serial: its time when it runs alone.
        span: its time on its stream, beside others.
        exposed: the part of the span that the layer waits for, because it lies on the critical path.
    """

    stage: str
    stream: str
    serial: float
    span: float
    exposed: float

    @property
    def overlap(self) -> float:
        """The part of the span that is hidden behind others."""
        return self.span - self.exposed


@dataclass(frozen=True)
class LayerOverlap:
    """A layer under a schedule, seconds.

    Attributes:
        stages: in launch order.
        critical_path: stages that the layer waits for, first to last.
        seconds: from the layer's begin to its end; exposed times and gaps add up to it.
        gaps: time on the critical path in which nothing of it runs.
    """

    stages: tuple[StageOverlap, ...]
    critical_path: tuple[str, ...]
    seconds: float
    gaps: float

    @property
    def serial(self) -> float:
        """Sum of the stages' times alone."""
        return sum(stage.serial for stage in self.stages)

    @property
    def gain(self) -> float:
        """How much faster than the serial sum, as a share of the time it takes now: 0.06 is 6 %."""
        return self.serial / self.seconds - 1


def lay_out(schedule: Schedule, seconds: Mapping[str, float]) -> list[Span]:
    """Each stage as early as its stream and its waits allow, at its serial time.

    Args:
        schedule: of the layer.
        seconds: time of each of its stages alone.
    """
    ends = {START: 0.0}
    spans = []
    for launch, before in _waits(schedule):
        start = max((ends[name] for name in before), default=0.0)
        ends[launch] = start + seconds[launch]
        spans.append(Span(launch, start, ends[launch]))
    return spans


def layer_overlap(schedule: Schedule, serial: Mapping[str, float], spans: Sequence[Span] = ()) -> LayerOverlap:
    """Find the critical path and what each stage contributes to it.

    The path is followed from the last stage to end back through whatever it waited for that ended last.

    Args:
        schedule: of the layer.
        serial: time of each stage alone.
        spans: when each stage ran; laid out from ``serial`` if not given.
    """
    span_of = {span.stage: span for span in spans or lay_out(schedule, serial)}
    waits = dict(_waits(schedule))
    exposed = dict.fromkeys(span_of, 0.0)
    path, gaps = [], 0.0
    at = max(span_of, key=lambda stage: span_of[stage].end)
    while at != START:
        path.append(at)
        before = max((name for name in waits[at]), key=lambda name: _end(name, span_of), default=START)
        free = _end(before, span_of)
        exposed[at] = max(span_of[at].end - max(span_of[at].start, free), 0.0)
        gaps += max(span_of[at].start - free, 0.0)
        at = before
    streams = {launch.stage: launch.stream for launch in schedule.launches}
    stages = tuple(
        StageOverlap(stage, streams[stage], serial[stage], span.seconds, exposed[stage])
        for stage, span in ((launch.stage, span_of[launch.stage]) for launch in schedule.launches)
    )
    return LayerOverlap(stages, tuple(reversed(path)), max(span.end for span in span_of.values()), gaps)


@dataclass(frozen=True)
class Gain:
    """A measured layer under a schedule beside the same layer run serially; seconds.

    Attributes:
        case: what was measured.
        serial: the serial layer.
        seconds: the layer under the schedule.
        bound: the critical path, laid out from the stages' times alone.
        stage_sum: sum of those times.
        noise: relative scatter of the rounds of both.
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
            noise = median([base.layer.mad / base.layer.median, row.layer.mad / row.layer.median])
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


def _end(name: str, span_of: Mapping[str, Span]) -> float:
    return 0.0 if name == START else span_of[name].end


def _apart_from_streams(row: Row) -> str:
    return json.dumps({key: value for key, value in row.case.items() if key != "streams"}, sort_keys=True)
