"""Running a layer: stages by name over a dictionary of tensors."""

from collections.abc import Iterable, Mapping
from typing import Any

from dsv4bench.model.stage import Stage
from dsv4bench.providers.base import stage_method
from dsv4bench.stack.inputs import Values


def stage_arguments(stage: Stage, values: Values) -> dict[str, Any]:
    """The keyword arguments of a stage's method.

    Raises:
        KeyError: a tensor that no earlier stage has produced.
    """
    return {parameter: values[tensor] for parameter, tensor in stage.inputs.items()}


def run_stage(stage: Stage, provider: object, values: Values) -> None:
    """Run one stage and store its outputs in ``values``; caches are written in place."""
    result = stage_method(provider, stage.name)(**stage_arguments(stage, values))
    if len(stage.outputs) == 1:
        values[stage.outputs[0]] = result
    elif stage.outputs:
        values.update(zip(stage.outputs, result, strict=True))


def run_layer(stages: Iterable[Stage], providers: Mapping[str, object], values: Values) -> None:
    """Run stages in order on the current stream.

    Args:
        stages: in execution order.
        providers: stage name → provider.
        values: inputs; outputs are added.
    """
    for stage in stages:
        run_stage(stage, providers[stage.name], values)
