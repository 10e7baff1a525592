"""One side of a comparison: a case with its providers loaded, and the calls that are timed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from dsv4bench.bench.contract import beyond_device
from dsv4bench.bench.failure import UnsupportedError
from dsv4bench.bench.footprint import held_bytes
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.timers import Call
from dsv4bench.errors import UserError
from dsv4bench.model.schedule import Schedule, make_schedule
from dsv4bench.model.stage import STAGES, Stage
from dsv4bench.providers.base import Need, Provider, implemented_stages, support_of
from dsv4bench.providers.registry import load_provider
from dsv4bench.results.row import Contract
from dsv4bench.scenario.case import Case
from dsv4bench.stack.graph import capture_layer
from dsv4bench.stack.inputs import Values
from dsv4bench.stack.layer import Layer, run_layer, run_stage
from dsv4bench.stack.scopes import scope
from dsv4bench.stack.streams import run_schedule, schedule_support

WHOLE = "layer"
"""Name of the timing of all timed stages together."""
UPSTREAM = "eager"
"""Provider of the stages that ``kind: stage`` doesn't time but whose outputs it needs, and of matrix products that a
provider leaves to torch."""
MATRIX_PRODUCTS = frozenset(
    stage.name for stages in STAGES.values() for stage in stages if "weight" in stage.inputs and len(stage.outputs) == 1
)
"""Stages that are a product with a weight and nothing else."""


Part = tuple[tuple[Stage, ...], Values]
"""Stages with their inputs and outputs."""


class Contestant(Protocol):
    """What a comparison needs of a case, be it a layer (``Side``) or a model (``ModelSide``)."""

    @property
    def case(self) -> Case:
        """The case."""

    @property
    def contract(self) -> Contract:
        """Of its numbers."""

    @property
    def timed(self) -> tuple[Stage, ...]:
        """What is timed beside the whole."""

    def provider_of(self, name: str) -> str:
        """Who runs what is timed under a name."""

    def inputs(self, seed: int) -> Any:
        """Fresh inputs with outputs from one pass."""

    def calls(self, values: Any) -> dict[str, Call]:
        """What is timed, by name."""

    def parts(self, values: Any) -> list[Part]:
        """What is checked."""

    def kv_bytes(self, values: Any) -> int | None:
        """Bytes of allocated caches that the step holds; None where not every layer has caches of its own."""

    def replay(self, seed: int) -> Any:
        """Values after a capture on one input and a replay on another."""


@dataclass(frozen=True)
class Side:
    """A case ready to be measured.

    Attributes:
        case: the case.
        contract: of its numbers.
        layer: weights and caches, shared with the other sides.
        providers: stage name → provider, for every stage that runs.
        chosen: stage name → what that provider is called in a scenario.
        stages: the stages that run, in order; the timed ones are among them.
        schedule: which streams they run on; None for the current one only.
    """

    case: Case
    contract: Contract
    layer: Layer
    providers: dict[str, Provider]
    chosen: dict[str, str]
    stages: tuple[Stage, ...]
    schedule: Schedule | None = None

    @property
    def timed(self) -> tuple[Stage, ...]:
        """The stages that are timed."""
        names = self.case.stage_names
        return tuple(stage for stage in self.stages if stage.name in names)

    def provider_of(self, name: str) -> str:
        """Who runs a stage."""
        return self.chosen[name]

    def inputs(self, seed: int) -> Values:
        """Fresh inputs, and every output of the timed stages and of those ahead of them, from one pass."""
        values = self.layer.draw(self.case.workload, seed)
        if self.schedule is None:
            run_layer(self.stages, self.providers, values)
        else:
            self.run(values)
        return values

    def run(self, values: Values) -> None:
        """Run the timed stages, on the streams of the schedule."""
        if self.schedule is None:
            run_layer(self.timed, self.providers, values)
        else:
            run_schedule(self.schedule, self.providers, values)

    def calls(self, values: Values) -> dict[str, Call]:
        """What is timed, by name: the timed stages together, then each alone; each call on a copy of its own."""
        calls: dict[str, Call] = {WHOLE: self._together(dict(values))}
        if len(self.timed) > 1:
            calls |= {stage.name: self._alone(stage, dict(values)) for stage in self.timed}
        return calls

    def parts(self, values: Values) -> list[Part]:
        """The timed stages with their inputs and outputs, to be checked."""
        return [(self.timed, values)]

    def kv_bytes(self, values: Values) -> int:
        """Bytes of allocated caches that the step holds."""
        return held_bytes(self.layer.caches, values)

    def buffers(self, values: Values) -> Values:
        """What a captured run reads: all but what it produces itself."""
        produced = {name for stage in self.timed for name in stage.outputs}
        return {name: value for name, value in values.items() if name not in produced}

    def replay(self, seed: int) -> Values:
        """Capture on one input and replay on another."""
        return capture_layer(self.run, self.buffers(self.inputs(seed))).replay(self.inputs(seed + 1))

    def _together(self, values: Values) -> Call:
        name = self.case.kind.value

        def call() -> None:
            with scope(name):
                self.run(values)

        return call

    def _alone(self, stage: Stage, values: Values) -> Call:
        provider = self.providers[stage.name]
        return lambda: run_stage(stage, provider, values)


@dataclass(frozen=True)
class Cast:
    """Who runs the stages of a layer's case: everything of a `Side` that needs no tensors."""

    providers: dict[str, Provider]
    chosen: dict[str, str]
    stages: tuple[Stage, ...]
    schedule: Schedule | None


def make_side(case: Case, settings: Settings, layer: Layer, cast: Cast) -> Side:
    """A layer's side, run by a cast that was loaded for it."""
    return Side(case, settings.contract(case), layer, cast.providers, cast.chosen, cast.stages, cast.schedule)


def load_cast(case: Case, settings: Settings) -> Cast:
    """Load a case's providers and ask whether they support it.

    Raises:
        UnsupportedError: one says no, or a schedule or graph that the device can't have.
    """
    if reason := beyond_device(case, settings.device):
        raise UnsupportedError(reason)
    schedule = _schedule(case, settings.device.type)
    names = case.stage_names
    every = STAGES[case.kind]
    last = max(index for index, stage in enumerate(every) if stage.name in names)
    stages = every[: last + 1]
    wanted = {stage.name: case.provider.of(stage.name) if stage.name in names else UPSTREAM for stage in stages}
    loaded = {spec: _load(spec) for spec in dict.fromkeys((*wanted.values(), UPSTREAM))}
    chosen = {name: _or_torch(case, name, spec, loaded[spec]) for name, spec in wanted.items()}
    for spec in dict.fromkeys(chosen.values()):
        provider, own = loaded[spec], tuple(name for name, choice in chosen.items() if choice == spec)
        _require(provider, spec, own, case, settings.device.type)
    return Cast({name: loaded[spec] for name, spec in chosen.items()}, chosen, stages, schedule)


def _or_torch(case: Case, stage: str, spec: str, provider: Provider) -> str:
    """The provider asked for or, for a matrix product of a whole layer that its kernels leave out, torch's.

    Not where the product was asked for by name, as a stage to be timed or with a provider of its own.
    """
    by_name = case.stages or stage in dict(case.provider.overrides)
    left_out = stage in MATRIX_PRODUCTS and stage not in implemented_stages(provider)
    return UPSTREAM if left_out and not by_name else spec


def _schedule(case: Case, device: str) -> Schedule | None:
    """The checked stream schedule of a whole layer; None where stages run one after another."""
    streams = case.execution.streams
    if streams == "serial":
        return None
    if case.stages:
        raise UnsupportedError(f"schedule {streams} is of whole layers; kind: stage runs its stages one after another")
    support = schedule_support(streams, device)
    if not support.ok:
        raise UnsupportedError(support.reason)
    return make_schedule(streams, case.kind, case.workload.tokens)


def _load(spec: str) -> Provider:
    try:
        return load_provider(spec)
    except UserError as error:
        if spec.rpartition(":")[0].endswith(".py"):  # the user's own file: broken, and nothing that a machine lacks
            raise
        raise UnsupportedError(str(error)) from error


def _require(provider: Provider, spec: str, stages: tuple[str, ...], case: Case, device: str) -> None:
    missing = sorted(set(stages) - set(implemented_stages(provider)))
    if missing:
        has = sorted(set(stages) - set(missing))
        hint = (
            f"; another can run the rest: --provider eager,{','.join(f'{stage}={spec}' for stage in has)}"
            if has
            else ""
        )
        raise UnsupportedError(f"provider {spec} has no stage {', '.join(missing)}{hint}")
    need = Need(
        kind=case.kind,
        stages=stages,
        device=device,
        main=case.cache.main,
        indexer=case.cache.indexer,
        num_heads=case.shape.num_heads,
        phase=case.workload.phase,
        weights=case.weights.precision,
    )
    support = support_of(provider, need)
    if not support.ok:
        raise UnsupportedError(f"provider {spec}: {support.reason}")


Report = Callable[[str, str], None]
"""Says which case is worked on and what is done for it."""
