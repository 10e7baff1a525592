"""From a scenario to its cases: the product of its axes."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, product
from math import prod

from dsv4bench.errors import UserError
from dsv4bench.model.config import load_shape
from dsv4bench.model.shape import V3_2, LayerKind, ModelShape
from dsv4bench.model.stage import STAGES
from dsv4bench.scenario.case import CachePrecision, Case, Execution, ProviderChoice, WeightChoice
from dsv4bench.scenario.schema import ProviderEntry, Scenario, WeightsSection, WorkloadSection
from dsv4bench.scenario.workload import Workload

MOST_CASES = 10_000
"""Cases of a scenario; at a few seconds each, more than these take half a day."""


def expand(scenario: Scenario) -> list[Case]:
    """Every case of a scenario, providers innermost so that the sides of a comparison are neighbours.

    Raises:
        UserError: a model that can't be read or has none of the layers asked for, a query longer than its context, a
            tensor-parallel size that doesn't divide the heads, or more than ``MOST_CASES`` cases.
    """
    cache, schedule, whole = scenario.cache, scenario.schedule, scenario.kind == "model"
    axes = (
        _layers(scenario),
        scenario.tp,
        list(islice(_workloads(scenario.workload), MOST_CASES + 1)),
        [CachePrecision(*point) for point in product(cache.main, cache.indexer, cache.slab)],
        _weights(scenario.weights),
        [Execution(*point) for point in product(schedule.streams, schedule.graph)],
        [_choice(entry) for entry in scenario.providers],
    )
    if prod(len(axis) for axis in axes) > MOST_CASES:
        raise UserError(f"the lists multiply to more than {MOST_CASES:,} cases, which no run finishes; shorten them")
    cases = [
        Case(
            scenario_kind=scenario.kind,
            shape=shape.shard(tp),
            kind=kind,
            workload=workload if whole else _for_kind(workload, kind),
            cache=precision,
            execution=execution,
            provider=provider,
            stages=tuple(scenario.stages or ()),
            tp=tp,
            weights=weights,
            layers=shape.layers if whole else (),
            copies=min(scenario.copies, max(Counter(shape.layers).values())) if whole else 1,
        )
        for (shape, kind), tp, workload, precision, weights, execution, provider in product(*axes)
    ]
    with_stages = [case for case in cases if case.stage_names]
    if not with_stages:
        raise UserError(
            f"no layer of scenario {scenario.name} has any of the stages {', '.join(scenario.stages or ())}"
        )
    return list({case.case_id: case for case in with_stages}.values())


def select(cases: list[Case], patterns: list[str]) -> list[Case]:
    """The cases whose id or label contains any of the patterns (all cases for none)."""
    if not patterns:
        return cases
    return [case for case in cases if any(text in case.label or case.case_id.startswith(text) for text in patterns)]


def _layers(scenario: Scenario) -> list[tuple[ModelShape, LayerKind]]:
    shapes = [load_shape(name) for name in scenario.model]
    if scenario.kind == "model":
        return [(shape, shape.layers[0]) for shape in shapes]
    wanted = scenario.layers
    found: list[tuple[ModelShape, LayerKind]] = []
    for shape in shapes:
        kinds = [kind for kind in shape.kinds if wanted is None or kind in wanted]
        if not kinds and not (wanted and LayerKind.DSA in wanted):
            have, asked = ", ".join(shape.kinds), ", ".join(wanted or ())
            raise UserError(f"model {shape.name} has layers {have}, none of the layers asked for: {asked}")
        if scenario.weights.layer is not None:
            kinds = [_kind_of_layer(shape, scenario.weights.layer)]
        found += [(shape, kind) for kind in kinds]
    if (
        wanted
        and LayerKind.DSA in wanted
        and scenario.weights.layer is None
        and all(kind is not LayerKind.DSA for _, kind in found)
    ):
        found.append((V3_2, LayerKind.DSA))
    return found


def _kind_of_layer(shape: ModelShape, layer: int) -> LayerKind:
    if layer >= len(shape.layers):
        raise UserError(f"weights.layer {layer}: {shape.name} has layers 0 to {len(shape.layers) - 1}")
    return shape.layers[layer]


def _weights(section: WeightsSection) -> list[WeightChoice]:
    return [WeightChoice(precision, section.checkpoint or "", section.layer or 0) for precision in section.precision]


def _workloads(section: WorkloadSection) -> Iterator[Workload]:
    for pattern in section.index_pattern:
        if section.requests:
            named = product(section.requests, section.boundary)
            yield from (Workload.of_requests(text, boundary, pattern) for text, boundary in named)
        elif section.prefix:
            grid = product(section.phase, section.batch, section.prefix, section.boundary, section.query_len or [1])
            yield from (
                Workload(phase, batch, prefix + query_len, query_len, boundary, pattern)
                for phase, batch, prefix, boundary, query_len in grid
            )
        else:
            yield from _by_context(section, pattern)


def _by_context(section: WorkloadSection, pattern: str) -> Iterator[Workload]:
    grid = product(section.phase, section.batch, section.context or (), section.boundary)
    for phase, batch, given, boundary in grid:
        mix = None if isinstance(given, int) else given.mix
        context = given if isinstance(given, int) else given.mix.nominal
        shortest = min(mix.lengths(batch)) if mix else context
        for query_len in section.query_len or [1 if phase == "decode" else context]:
            if query_len > shortest:
                raise UserError(f"workload.query_len {query_len} is longer than workload.context {shortest}")
            yield Workload(phase, batch, context, query_len, boundary, pattern, mix)


def _for_kind(workload: Workload, kind: LayerKind) -> Workload:
    """Layers without an indexer don't have its patterns."""
    return workload if kind.has_indexer else replace(workload, index_pattern="random")


def _choice(entry: ProviderEntry) -> ProviderChoice:
    if isinstance(entry, str):
        return ProviderChoice(entry)
    overrides = tuple((stage, name) for stage, name in entry.items() if stage != "default")
    order = [stage.name for stages in STAGES.values() for stage in stages]
    return ProviderChoice(entry["default"], tuple(sorted(overrides, key=lambda pair: order.index(pair[0]))))
