"""Stream schedules as data: which stage runs on which stream, and what it waits for.

A schedule is a list of launches in the order the host issues them. A stream runs its launches one after another;
between streams nothing is ordered but by ``after``: the event that another stage recorded when it was done.

* ``serial`` has one stream.
* ``multi`` is vLLM's original split (post of 2026-04-24): the indexer on a stream of its own, compression and window
  insert on the default one; c128a compresses beside the insert.
* ``multi3`` is vLLM 0.26: three auxiliary streams, for the input projections (up to a token threshold; serial
  beyond it) and again for the indexer, the two compressors and the query path.

Neither speaks of V3.2. Its indexer gets a stream in both, so that the baseline has the same chance.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dsv4bench.errors import UserError
from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGES

DEFAULT = "default"
"""The stream a layer is called on."""
START = "start"
"""The layer's begin on the default stream: what an auxiliary stream waits for to fork."""
GEMM_TOKEN_THRESHOLD = 1024
"""Tokens up to which ``multi3`` spreads the input projections (vLLM's VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD)."""


@dataclass(frozen=True)
class Launch:
    """One stage on its stream.

    Attributes:
        stage: stage name.
        stream: ``default``, or an auxiliary stream's name.
        after: stages of other streams (or ``start``) that it waits for.
    """

    stage: str
    stream: str = DEFAULT
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """The launches of one layer.

    Attributes:
        name: ``serial``, ``multi`` or ``multi3``.
        kind: layer kind.
        launches: in the order the host issues them.
    """

    name: str
    kind: LayerKind
    launches: tuple[Launch, ...]

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams in use, the default one first."""
        return (DEFAULT, *sorted({launch.stream for launch in self.launches} - {DEFAULT}))

    @property
    def awaited(self) -> frozenset[str]:
        """Stages (or ``start``) that record an event because another stream waits for them."""
        return frozenset(name for launch in self.launches for name in launch.after)


def _on(stream: str, stages: str, after: str = "") -> tuple[Launch, ...]:
    """Stages on one stream in a row, the first of which waits."""
    first, *rest = stages.split()
    return (Launch(first, stream, tuple(after.split())), *(Launch(stage, stream) for stage in rest))


_QUERY = "query_projection query_norm_rope_insert"
_COMPRESS = "compressor_state_save compress_norm_rope_insert"
_INDEXER_QUERY = "indexer_query_projection indexer_query_rope_quant"
_INDEXER_COMPRESS = "indexer_state_save indexer_compress_insert"
_OUTPUT = "sparse_attention inverse_rope_quant output_group_projection output_projection"
_DSA_OUTPUT = "sparse_attention value_up_projection output_projection"

_DSA_SPLIT = (
    *_on("default", "input_projection"),
    *_on("indexer", "indexer_weights_projection indexer_key_projection indexer_key_insert", "start"),
    *_on("default", "qkv_norm"),
    *_on("indexer", f"{_INDEXER_QUERY} indexer_logits topk", "qkv_norm"),
    *_on("default", "query_projection query_absorb query_rope latent_insert"),
    *_on("default", f"index_map {_DSA_OUTPUT}", "topk"),
)

_MULTI = {
    LayerKind.C4A: (
        *_on("default", "input_projection compressor_projection"),
        *_on("indexer", f"indexer_weights_projection indexer_compressor_projection {_INDEXER_COMPRESS}", "start"),
        *_on("default", "qkv_norm"),
        *_on("indexer", f"{_INDEXER_QUERY} indexer_logits topk", "qkv_norm"),
        *_on("default", f"{_QUERY} {_COMPRESS}"),
        *_on("default", f"index_map {_OUTPUT}", "topk"),
    ),
    LayerKind.C128A: (
        *_on("default", "input_projection"),
        *_on("compressor", f"compressor_projection {_COMPRESS}", "start"),
        *_on("default", f"qkv_norm {_QUERY}"),
        *_on("default", _OUTPUT, "compress_norm_rope_insert"),
    ),
    LayerKind.DSA: _DSA_SPLIT,
}

_SPREAD_C4A = (
    *_on("default", "input_projection"),
    *_on("aux0", "compressor_projection", "start"),
    *_on("aux1", "indexer_weights_projection", "start"),
    *_on("aux2", "indexer_compressor_projection", "start"),
    *_on("default", "qkv_norm", "compressor_projection indexer_weights_projection indexer_compressor_projection"),
)
_SERIAL_C4A = _on(
    "default",
    "input_projection compressor_projection indexer_weights_projection indexer_compressor_projection qkv_norm",
)
_FANNED_C4A = (
    *_on("aux0", _INDEXER_QUERY, "qkv_norm"),
    *_on("aux2", _INDEXER_COMPRESS, "qkv_norm"),
    *_on("aux0", "indexer_logits topk", "indexer_compress_insert"),
    *_on("aux1", _COMPRESS, "qkv_norm"),
    *_on("default", _QUERY),
    *_on("default", f"index_map {_OUTPUT}", "topk compress_norm_rope_insert"),
)
_SPREAD_C128A = (
    *_on("default", "input_projection"),
    *_on("aux0", "compressor_projection", "start"),
    *_on("default", "qkv_norm", "compressor_projection"),
)
_FANNED_C128A = (
    *_on("aux0", _COMPRESS, "qkv_norm"),
    *_on("default", _QUERY),
    *_on("default", _OUTPUT, "compress_norm_rope_insert"),
)

_MULTI3 = {
    LayerKind.C4A: _SPREAD_C4A + _FANNED_C4A,
    LayerKind.C128A: _SPREAD_C128A + _FANNED_C128A,
    LayerKind.DSA: _DSA_SPLIT,
}
_MULTI3_MANY_TOKENS = {
    LayerKind.C4A: _SERIAL_C4A + _FANNED_C4A,
    LayerKind.C128A: _on("default", "input_projection compressor_projection qkv_norm") + _FANNED_C128A,
}

SCHEDULES: dict[str, Mapping[LayerKind, tuple[Launch, ...]]] = {"serial": {}, "multi": _MULTI, "multi3": _MULTI3}
"""Launches by schedule and layer kind; a kind that is not named runs serially."""


def make_schedule(name: str, kind: LayerKind, tokens: int = 1) -> Schedule:
    """The checked schedule of a layer.

    Args:
        name: ``serial``, ``multi`` or ``multi3``.
        kind: layer kind.
        tokens: of the step; ``multi3`` spreads its input projections up to ``GEMM_TOKEN_THRESHOLD``.

    Raises:
        UserError: no such schedule, or one that lacks a join.
    """
    if name not in SCHEDULES:
        raise UserError(f"unknown schedule {name!r}; known: {', '.join(SCHEDULES)}")
    launches = SCHEDULES[name].get(kind)
    if name == "multi3" and tokens > GEMM_TOKEN_THRESHOLD:
        launches = _MULTI3_MANY_TOKENS.get(kind, launches)
    if launches is None:
        launches = tuple(Launch(stage.name) for stage in STAGES[kind])
    schedule = Schedule(name, kind, launches)
    check(schedule)
    return schedule


@dataclass(frozen=True)
class Hazard:
    """Two stages that touch the same tensor, one of them writing, in no certain order.

    Attributes:
        kind: ``read after write``, ``write after read`` or ``write after write``.
        first: the stage that comes first when run serially.
        second: the stage that may overtake it.
        tensor: what they share.
    """

    kind: str
    first: str
    second: str
    tensor: str

    def __str__(self) -> str:
        verb = {"read after write": "reads", "write after read": "overwrites", "write after write": "writes"}[self.kind]
        done = "read" if self.kind == "write after read" else "written"
        return f"{self.second} {verb} {self.tensor} and does not wait for {self.first}, by which it is {done}"


def order(schedule: Schedule) -> dict[str, frozenset[str]]:
    """For each stage the stages that are certainly done when it starts (``start`` among them).

    Raises:
        UserError: a launch waits for something that was not launched before it, so that its event is not recorded yet.
    """
    done_before: dict[str, frozenset[str]] = {START: frozenset()}
    last: dict[str, str] = {DEFAULT: START}
    for launch in schedule.launches:
        known: frozenset[str] = frozenset()
        for name in (*launch.after, *([last[launch.stream]] if launch.stream in last else [])):
            if name not in done_before:
                raise UserError(f"{_name(schedule)}: {launch.stage} waits for {name}, which is not launched before it")
            known |= done_before[name] | {name}
        done_before[launch.stage] = known
        last[launch.stream] = launch.stage
    del done_before[START]
    return done_before


def levels(schedule: Schedule) -> list[dict[str, Launch]]:
    """Launches by stream, level by level: a launch stands one level below the last thing it waits for."""
    depth: dict[str, int] = {START: -1}
    last: dict[str, str] = {}
    rows: list[dict[str, Launch]] = []
    for launch in schedule.launches:
        before = [*launch.after, *([last[launch.stream]] if launch.stream in last else [])]
        depth[launch.stage] = 1 + max((depth[name] for name in before), default=-1)
        last[launch.stream] = launch.stage
        rows += [{} for _ in range(depth[launch.stage] + 1 - len(rows))]
        rows[depth[launch.stage]][launch.stream] = launch
    return rows


def hazards(schedule: Schedule) -> list[Hazard]:
    """Every pair of stages that share a tensor, one of them writing, without being ordered as they are serially.

    Caches count: an insert and the attention that reads the entry, or two inserts into one cache. Stages of the next
    layer or step need no pairs of their own, because ``check`` wants every stream joined at the end.
    """
    done_before = order(schedule)
    stages = STAGES[schedule.kind]
    found = []
    for index, second in enumerate(stages):
        for first in stages[:index]:
            if first.name in done_before[second.name]:
                continue
            for kind, shared in (
                ("read after write", first.writes & second.reads - second.writes),
                ("write after read", (first.reads - first.writes) & second.writes),
                ("write after write", first.writes & second.writes),
            ):
                found += [Hazard(kind, first.name, second.name, tensor) for tensor in sorted(shared)]
    return found


def check(schedule: Schedule) -> None:
    """Refuse a schedule that could read stale data or leave work behind, before anything runs.

    Raises:
        UserError: a stage is missing, unknown or doubled; a wait for a later stage; a missing join; an auxiliary stream
            that does not fork from the default one or is not joined before the layer ends.
    """
    for problem in _problems(schedule):
        raise UserError(f"{_name(schedule)}: {problem}")


def _problems(schedule: Schedule) -> Iterator[str]:
    launched = [launch.stage for launch in schedule.launches]
    expected = [stage.name for stage in STAGES[schedule.kind]]
    for name in dict.fromkeys((*expected, *launched)):
        if launched.count(name) != 1 or name not in expected:
            what = "is no stage of this layer" if name not in expected else f"is launched {launched.count(name)} times"
            yield f"{name} {what}"
            return
    done_before = order(schedule)
    for launch in schedule.launches:
        if START not in done_before[launch.stage]:
            yield f"{launch.stage} starts stream {launch.stream} without waiting for the default stream"
    for hazard in hazards(schedule):
        yield str(hazard)
    on_default = [launch.stage for launch in schedule.launches if launch.stream == DEFAULT]
    joined = {on_default[-1]} | done_before[on_default[-1]] if on_default else frozenset()
    for launch in schedule.launches:
        if launch.stage not in joined:
            yield f"{launch.stage} on stream {launch.stream} is never joined: it may run on when the layer has ended"


def _name(schedule: Schedule) -> str:
    return f"schedule {schedule.name} of {schedule.kind}"
