"""A whole model as one side of a comparison: its layers one after another, as a single call."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from dsv4bench.bench.rounds import seed_of
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.side import WHOLE, Cast, Contestant, Part, Side, load_cast, make_side
from dsv4bench.bench.timers import Call
from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import Stage
from dsv4bench.results.row import Contract
from dsv4bench.scenario.case import Case
from dsv4bench.stack.graph import capture, refill
from dsv4bench.stack.inputs import Values
from dsv4bench.stack.layer import Layer
from dsv4bench.stack.model import Model
from dsv4bench.stack.scopes import scope

ModelValues = list[Values]
"""Inputs and outputs of each distinct layer."""
Casts = dict[LayerKind, Cast]
"""Who runs the layers of a case, by their kind; of a single layer, one."""


@dataclass(frozen=True)
class ModelSide:
    """A model ready to be measured; what a ``Side`` is for a layer.

    Attributes:
        case: the case.
        contract: of its numbers.
        sides: the distinct layers.
        order: for each layer of the model, which of them it is.
    """

    case: Case
    contract: Contract
    sides: tuple[Side, ...]
    order: tuple[int, ...]

    @cached_property
    def timed(self) -> tuple[Stage, ...]:
        """What is timed beside the whole: a layer of each kind."""
        return tuple(Stage(kind.value, {}) for kind in self.case.kinds)

    def provider_of(self, name: str) -> str:
        """Who runs the layers: the case's mix of providers."""
        return self.case.provider.label

    def inputs(self, seed: int) -> ModelValues:
        """Fresh inputs of every distinct layer, and its outputs from one pass."""
        return [side.inputs(seed_of(seed, number)) for number, side in enumerate(self.sides)]

    def run(self, values: ModelValues) -> None:
        """Run every layer of the model in order."""
        for number in self.order:
            with scope(self.sides[number].case.kind.value):
                self.sides[number].run(values[number])

    def calls(self, values: ModelValues) -> dict[str, Call]:
        """What is timed, by name: all layers in order, then one layer of each kind.

        They share what they put their outputs in: a layer makes all of its own again, and a long chunk's logits may be
        36 GiB.
        """
        own = [dict(one) for one in values]
        calls: dict[str, Call] = {WHOLE: lambda: self.run(own)}
        for number, side in enumerate(self.sides):
            calls.setdefault(side.case.kind.value, _alone(side.run, own[number]))
        return calls

    def parts(self, values: ModelValues) -> list[Part]:
        """Every distinct layer's stages with their inputs and outputs, to be checked."""
        return [part for side, one in zip(self.sides, values, strict=True) for part in side.parts(one)]

    def kv_bytes(self, values: ModelValues) -> int | None:
        """Bytes of allocated caches that the step holds; None where a set of caches stands in for several layers."""
        if len(self.sides) < len(self.order):
            return None
        return sum(side.kv_bytes(one) for side, one in zip(self.sides, values, strict=True))

    def replay(self, seed: int) -> ModelValues:
        """Capture the model on one input and replay it on another."""
        buffers = [side.buffers(one) for side, one in zip(self.sides, self.inputs(seed), strict=True)]
        values = [dict(one) for one in buffers]
        graph = capture(lambda: self.run(values))
        for one, fresh in zip(buffers, self.inputs(seed + 1), strict=True):
            refill(one, fresh)
        graph.replay()
        return values


def load_casts(case: Case, settings: Settings) -> Casts:
    """Load a case's providers, for each layer kind, and ask whether they support it; no tensor is needed.

    Raises:
        UnsupportedError: as `load_cast`, of any kind.
    """
    return {kind: load_cast(case.of_kind(kind) if case.layers else case, settings) for kind in case.kinds}


def make_contestant(case: Case, settings: Settings, tensors: Layer | Model, casts: Casts) -> Contestant:
    """A model's or a layer's side of a comparison, run by casts that were loaded for it."""
    if not isinstance(tensors, Model):
        return make_side(case, settings, tensors, casts[case.kind])
    sides = [make_side(case.of_kind(layer.kind), settings, layer, casts[layer.kind]) for layer in tensors.layers]
    return ModelSide(case, settings.contract(case), tuple(sides), tensors.order)


def _alone(run: Callable[[Values], None], values: Values) -> Call:
    return lambda: run(values)
