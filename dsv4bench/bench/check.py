"""Correctness around a timing: before it, after it, and after a replay of a graph on fresh inputs."""

from functools import lru_cache
from typing import Any

from dsv4bench.bench.failure import IncorrectError
from dsv4bench.bench.side import Contestant, Side
from dsv4bench.model.shape import LayerKind, ModelShape
from dsv4bench.providers.registry import load_provider
from dsv4bench.results.row import Accuracy
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.stack.layer import run_stage, stage_arguments
from dsv4bench.verify.accuracy import ENTRIES_LIMIT, format_accuracy
from dsv4bench.verify.stage_check import check_stages, kept_inputs, overwritten_inputs

FIGURES_OF = (
    "query_norm_rope_insert", "compress_norm_rope_insert", "indexer_compress_insert", "latent_insert",
    "indexer_key_insert", "indexer_query_rope_quant", "indexer_logits", "topk", "sparse_attention",
)  # fmt: skip
"""Stages that figures of a cache precision depend on."""


def check_run(side: Contestant, seed: int) -> dict[str, Accuracy]:
    """Run on fresh inputs and compare every timed stage with the reference on the same inputs.

    Raises:
        IncorrectError: an output or a cache entry beyond its tolerance, or an input that a stage has overwritten.
    """
    if isinstance(side, Side):
        _require_inputs_kept(side, seed)
    return check_values(side, side.inputs(seed))


def _require_inputs_kept(side: Side, seed: int) -> None:
    """Run the stages one after another on fresh inputs, which none of them may change, caches aside."""
    values = side.layer.draw(side.case.workload, seed)
    for stage in side.stages:
        arguments = stage_arguments(stage, values)
        before = kept_inputs(arguments)
        run_stage(stage, side.providers[stage.name], values)
        if wrong := overwritten_inputs(arguments, before):
            raise IncorrectError(f"{stage.name}: {wrong.sentence}")


def check_replay(side: Contestant, seed: int) -> dict[str, Accuracy]:
    """Capture on one input, replay on another one, and compare: finds what was baked in at capture.

    Raises:
        IncorrectError: an output or a cache entry beyond its tolerance.
    """
    return check_values(side, side.replay(seed))


def check_values(side: Contestant, values: Any) -> dict[str, Accuracy]:
    """Compare the timed stages' outputs, which lie in ``values`` beside their inputs, with the reference.

    Returns:
        accuracy by stage name.

    Raises:
        IncorrectError: an output or a cache entry beyond its tolerance.
    """
    found: dict[str, Accuracy] = {}
    for stages, of_stages in side.parts(values):
        checks = check_stages(stages, of_stages)
        for check in checks.values():
            if not check.ok:
                raise IncorrectError(check.sentence)
        found = worse(found, {name: check.accuracy for name, check in checks.items()})
    return found


def with_format_figures(side: Contestant, accuracy: dict[str, Accuracy], device: str) -> dict[str, Accuracy]:
    """Add what the cache precisions cost beside fp32 caches: SNR, top-k recall, LSE error; not for whole models.

    Figures are no verdicts; a stage that can't be asked for them goes without.
    """
    if not isinstance(side, Side):
        return accuracy
    case = side.case
    entries = min(case.shape.entries(case.kind, max(case.workload.seq_lens)), ENTRIES_LIMIT)
    chosen = tuple((name, side.chosen[name]) for name in FIGURES_OF if name in side.chosen)
    figures = _format_figures(case.shape, case.kind, case.cache, chosen, entries * case.kind.ratio, device)
    return {
        name: found.model_copy(update={"numbers": {**figures.get(name, {}), **found.numbers}})
        for name, found in accuracy.items()
    }


@lru_cache(maxsize=64)
def _format_figures(
    shape: ModelShape,
    kind: LayerKind,
    precision: CachePrecision,
    chosen: tuple[tuple[str, str], ...],
    context: int,
    device: str,
) -> dict[str, dict[str, float]]:
    """Figures of a layer's precisions; cases that differ in batch or round share them."""
    providers = {stage: load_provider(spec) for stage, spec in chosen}
    try:
        return format_accuracy(providers, shape, kind, precision, context=context, device=device)
    except NotImplementedError:
        return {}


def worse(a: dict[str, Accuracy], b: dict[str, Accuracy]) -> dict[str, Accuracy]:
    """By stage, the accuracy that lies closer to its tolerance."""
    return {**a, **{name: max(a.get(name, new), new, key=share_of_tolerance) for name, new in b.items()}}


def share_of_tolerance(accuracy: Accuracy) -> float:
    """Error as a share of what is allowed; the error itself where nothing is allowed."""
    return accuracy.worst_error / accuracy.tolerance if accuracy.tolerance else accuracy.worst_error
