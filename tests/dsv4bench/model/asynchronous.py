"""A symbolic executor of schedules whose streams run as late as an adversary likes.

Buffers hold symbols instead of numbers: a stage's output is made of its name and everything it read, a cache is the
chain of its updates. Two steps run back to back over the same buffers, which start poisoned. While a stage runs, what
it writes is torn; what it read must not change before it has finished. Any difference from a serial run is a race.
"""

import random
from dataclasses import dataclass, field

from dsv4bench.model.schedule import DEFAULT, START, Schedule
from dsv4bench.model.stage import STAGES, Stage

POISON, TORN = "poison", "torn"
STEPS = (1, 2)
BEGIN = Stage(START, {}, ("x",))
END = Stage("end", {"y": "y"})


@dataclass
class _Launch:
    step: int
    stage: Stage
    stream: str
    after: tuple[tuple[int, str], ...]
    state: str = "waiting"
    seen: dict[str, object] = field(default_factory=dict)

    @property
    def key(self):
        return self.step, self.stage.name


def program(schedule: Schedule) -> list[_Launch]:
    """Two steps: each begins by writing x on the default stream and ends by reading y there."""
    stages = {stage.name: stage for stage in STAGES[schedule.kind]}
    launches = []
    for step in STEPS:
        launches.append(_Launch(step, BEGIN, DEFAULT, ()))
        launches += [
            _Launch(step, stages[launch.stage], launch.stream, tuple((step, name) for name in launch.after))
            for launch in schedule.launches
        ]
        launches.append(_Launch(step, END, DEFAULT, ()))
    return launches


def symbol(launch: _Launch, read: dict[str, object], tensor: str) -> object:
    return (
        launch.stage.name,
        launch.step if launch.stage is BEGIN else 0,
        tensor,
        tuple(sorted(read.items(), key=str)),
    )


def serial_reads(kind) -> dict[tuple[int, str], dict[str, object]]:
    """What every stage of both steps reads when nothing overlaps."""
    stages = STAGES[kind]
    serial = [_Launch(step, stage, DEFAULT, ()) for step in STEPS for stage in (BEGIN, *stages, END)]
    buffers: dict[str, object] = {}
    reads = {}
    for launch in serial:
        read = {tensor: buffers.get(tensor, POISON) for tensor in launch.stage.reads}
        reads[launch.key] = read
        buffers |= {tensor: hash(symbol(launch, read, tensor)) for tensor in launch.stage.writes}
    return reads


def race(schedule: Schedule, prefer) -> str:
    """Run with an adversary and name the first stage that reads what it shouldn't; empty if none does.

    ``prefer`` gives an action (``start`` or ``finish``, step, stage) a rank; the lowest goes first.
    """
    expected = serial_reads(schedule.kind)
    launches = program(schedule)
    by_key = {launch.key: launch for launch in launches}
    streams = {launch.stream: [other for other in launches if other.stream == launch.stream] for launch in launches}
    buffers: dict[str, object] = {}
    while any(streams.values()):
        actions = []
        for queue in streams.values():
            head = queue[0] if queue else None
            if head and head.state == "running":
                actions.append(("finish", head))
            elif head and all(by_key[key].state == "done" for key in head.after):
                actions.append(("start", head))
        action, launch = min(actions, key=lambda pair: prefer(pair[0], *pair[1].key))
        read = {tensor: buffers.get(tensor, POISON) for tensor in launch.stage.reads}
        written = launch.stage.writes
        if action == "start":
            if read != expected[launch.key]:
                return launch.stage.name
            launch.state, launch.seen = "running", read
            buffers |= dict.fromkeys(written, TORN)
            continue
        if any(read[t] != launch.seen[t] for t in launch.stage.reads - written):
            return launch.stage.name
        if any(buffers[t] != TORN for t in written):
            return launch.stage.name
        buffers |= {tensor: hash(symbol(launch, launch.seen, tensor)) for tensor in written}
        launch.state = "done"
        streams[launch.stream].pop(0)
    return ""


def adversaries(schedule: Schedule, orders: int = 5):
    """Delay the start or the end of each stage of each step as long as anything else can run; and random orders."""
    for step in STEPS:
        for stage in STAGES[schedule.kind]:
            for action in ("start", "finish"):
                victim = (action, step, stage.name)
                yield lambda *key, victim=victim: key == victim
    for seed in range(orders):
        yield lambda *key, seed=seed: random.Random(f"{seed}{key}").random()


def any_race(schedule: Schedule) -> str:
    """The first race that any adversary finds; empty if none does."""
    return next(filter(None, (race(schedule, prefer) for prefer in adversaries(schedule))), "")
