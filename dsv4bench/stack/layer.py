"""A layer ready to run, and running it: stages by name over a dictionary of tensors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from dsv4_kernels.rope import cos_sin_table
from dsv4_kernels.weight import Weight

from dsv4bench.errors import MeasurementError
from dsv4bench.model.shape import LayerKind, ModelShape, Rope
from dsv4bench.model.stage import Stage
from dsv4bench.providers.base import further_parameters, stage_method
from dsv4bench.scenario.case import CachePrecision, WeightChoice
from dsv4bench.scenario.workload import Workload
from dsv4bench.stack.caches import LayerCaches, allocate, fill
from dsv4bench.stack.checkpoint import load_weights
from dsv4bench.stack.inputs import Values, capacity, draw
from dsv4bench.stack.scopes import scope
from dsv4bench.stack.selection import PLANTED, SELECTED
from dsv4bench.stack.weights import make_weights

RANDOM_BF16 = WeightChoice()


@dataclass(frozen=True)
class Layer:
    """One attention layer with weights and filled caches; any number of inputs can be drawn over it.

    Attributes:
        shape: the model (of one tensor-parallel rank).
        kind: layer kind.
        precision: of the caches.
        weights: by tensor name.
        caches: real pages.
        cos_sin: rotary table, fp32 [≥ longest sequence, 64].
    """

    shape: ModelShape
    kind: LayerKind
    precision: CachePrecision
    weights: Mapping[str, Weight]
    caches: LayerCaches
    cos_sin: torch.Tensor

    def draw(self, workload: Workload, seed: int) -> Values:
        """Fresh activations and page order for one step of ``workload``."""
        return draw(self.shape, self.kind, workload, self.precision, self.caches, self.weights, self.cos_sin, seed=seed)


def prepare(
    shape: ModelShape,
    kind: LayerKind,
    precision: CachePrecision,
    workloads: Sequence[Workload],
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    weights: Mapping[str, Weight] | None = None,
    choice: WeightChoice = RANDOM_BF16,
    tp: int = 1,
) -> Layer:
    """Make a layer whose caches hold any one of the workloads at a time.

    Args:
        shape: the model.
        kind: layer kind.
        precision: of the caches.
        workloads: what will be drawn; they size the caches and the rotary table.
        device: where everything lives.
        seed: of weights and cache contents.
        weights: to share between layers; made as ``choice`` says otherwise.
        choice: precision of weights, and the checkpoint that they are read from rather than drawn from the seed.
        tp: tensor-parallel size that ``shape`` is a rank of; of a checkpoint, the first rank's share is read.

    Raises:
        UserError: a checkpoint that doesn't hold the layer.
    """
    caches = allocate(kind, precision, capacity(kind, shape, list(workloads)), device=device)
    fill(caches, seed=seed)
    rows = max(max(workload.seq_lens) for workload in workloads)
    if weights is None and choice.checkpoint:
        weights = load_weights(
            Path(choice.checkpoint), choice.layer, shape, kind, device=device, precision=choice.precision, tp=tp
        )
    elif weights is None:
        weights = make_weights(shape, kind, device=device, seed=seed, precision=choice.precision)
    return Layer(shape, kind, precision, weights, caches, rope_table(shape.rope_of(kind), rows, str(device)))


@lru_cache(maxsize=4)
def rope_table(rope: Rope, rows: int, device: str) -> torch.Tensor:
    """The rotary table of a layer kind, fp32 [rows, 64]; the last few are kept, since cases share them."""
    return cos_sin_table(
        rows, rope.theta, rope.factor, rope.original_positions, rope.beta_fast, rope.beta_slow, device=device
    )


def stage_arguments(stage: Stage, values: Values) -> dict[str, Any]:
    """The keyword arguments of a stage's method; a planted selection (``stack.selection``) goes before a computed one.

    Raises:
        KeyError: a tensor that no earlier stage has produced.
    """
    arguments = {parameter: values[tensor] for parameter, tensor in stage.inputs.items()}
    if PLANTED in values:
        arguments |= {parameter: values[PLANTED] for parameter, tensor in stage.inputs.items() if tensor == SELECTED}
    return arguments


def further_arguments(method: Callable[..., Any], stage: Stage, values: Values) -> dict[str, Any]:
    """Tensors of the step that a method takes beside its stage's own parameters, as far as they are there."""
    arguments = {}
    for name in further_parameters(method):
        if name in values and name not in stage.inputs:
            arguments[name] = values[PLANTED if name == SELECTED and PLANTED in values else name]
    return arguments


def stage_outputs(stage: Stage, result: Any) -> tuple[Any, ...]:
    """What a stage's method returned, as a tuple in the order of ``stage.outputs``; nothing for a stage without any.

    Raises:
        MeasurementError: it returned more or fewer outputs than the stage has.
    """
    if not stage.outputs:
        return ()
    outputs = tuple(result) if isinstance(result, (tuple, list)) else () if result is None else (result,)
    if len(outputs) != len(stage.outputs):
        count = f"{len(outputs)} output{'s' if len(outputs) != 1 else ''}"
        raise MeasurementError(f"{stage.name} returned {count}, {len(stage.outputs)} expected")
    return outputs


def run_stage(stage: Stage, provider: object, values: Values) -> None:
    """Run one stage and store its outputs in ``values``; caches are written in place.

    Stages of a few microseconds are timed through this, so it is kept short.

    Raises:
        MeasurementError: the provider returned more or fewer outputs than the stage has.
    """
    method = stage_method(provider, stage.name)
    arguments = stage_arguments(stage, values)
    if further_parameters(method):
        arguments |= further_arguments(method, stage, values)
    with scope(stage.name):
        result = method(**arguments)
    outputs = stage_outputs(stage, result)
    for index, name in enumerate(stage.outputs):
        values[name] = outputs[index]


def run_layer(stages: Iterable[Stage], providers: Mapping[str, object], values: Values) -> None:
    """Run stages in order on the current stream.

    Args:
        stages: in execution order.
        providers: stage name → provider.
        values: inputs; outputs are added.
    """
    for stage in stages:
        run_stage(stage, providers[stage.name], values)
