"""Floors beside times, and rates that can't be."""

from collections.abc import Iterator, Sequence

from dsv4bench.analysis.roofline import (
    Floor,
    Least,
    Peaks,
    floor,
    from_cache,
    least_traffic,
    serial_floor,
)
from dsv4bench.bench.footprint import memory_of
from dsv4bench.bench.settings import Settings
from dsv4bench.model.cost import Cost, stage_cost
from dsv4bench.model.gpus import gpu_of_device
from dsv4bench.model.step import LayerStep
from dsv4bench.results.manifest import Ceilings
from dsv4bench.results.row import Row, StageRow, Status, Timing
from dsv4bench.scenario.case import Case


def cost_of(case: Case, stage: str) -> Cost:
    """Least bytes and FLOPs of a stage of a case."""
    return stage_cost(stage, _step(case, case.workload.seq_lens, case.workload.query_lens))


def weights_of(case: Case, stage: str) -> Cost:
    """What is left of a stage's cost in a step without requests: its weights."""
    return stage_cost(stage, _step(case, (), ()))


def _step(case: Case, seq_lens: tuple[int, ...], query_lens: tuple[int, ...]) -> LayerStep:
    cache, weight_bytes = case.cache, 1 if case.weights.precision == "fp8" else 2
    return LayerStep(case.shape, case.kind, seq_lens, query_lens, cache.main, cache.indexer, weight_bytes)


def with_floors(row: Row, case: Case, settings: Settings, ceilings: Ceilings | None) -> Row:
    """The row with bytes, FLOPs, floor and bound per stage.

    Floors are over the card's own ceilings where they were measured, and over the datasheet beside them
    (``extra["datasheet_floor"]``). A stage, a layer or a model that is faster than its card can be turns the row into
    ``invalid_rate``.
    """
    if row.status is not Status.OK or row.layer is None:
        return row
    gpu = gpu_of_device(settings.device.name) if settings.device.name else None
    datasheet = Peaks.datasheet(gpu) if gpu else None
    own = (Peaks.measured(ceilings, gpu) if ceilings else None) or datasheet
    if gpu and datasheet:
        l2_bytes = max(settings.device.l2_bytes, gpu.l2_bytes)
        if reason := impossible(row, case, datasheet, l2_bytes):
            return settings.failed(case, Status.INVALID_RATE, reason)
    if case.layers:
        return _with_model_floor(row, case, own)
    costs = [cost_of(case, stage.name) for stage in row.stages]
    stages = [_with_floor(stage, cost, own, datasheet) for stage, cost in zip(row.stages, costs, strict=True)]
    update = {"stages": stages}
    return row.model_copy(update=update | {"floor": together(costs, own, row.contract.streams) if own else None})


def _with_model_floor(row: Row, case: Case, own: Peaks | None) -> Row:
    """Each layer kind's least work, and the floor of all layers in a row."""
    stages, total = [], 0.0
    for stage, (kind, count) in zip(row.stages, case.kinds.items(), strict=True):
        layer = case.of_kind(kind)
        costs = [cost_of(layer, name) for name in layer.stage_names]
        seconds = together(costs, own, row.contract.streams) if own else None
        total += count * (seconds or 0.0)
        work = {"bytes": sum(cost.bytes for cost in costs), "flops": sum(cost.flops for cost in costs)}
        about = stage.extra | {"layers": count, "ideal_bytes": memory_of(layer).ideal_bytes}
        stages.append(stage.model_copy(update=work | {"floor": seconds, "extra": about}))
    return row.model_copy(update={"stages": stages, "floor": total if own else None})


def together(costs: Sequence[Cost], peaks: Peaks, streams: str) -> float:
    """Floor of stages as one, seconds: the sum of theirs, unless they overlap on several streams.

    Then memory and matrix units may work at once, each for all of them.
    """
    if streams == "serial":
        return serial_floor(floor(cost, peaks) for cost in costs)
    memory = sum(cost.bytes for cost in costs) / peaks.bandwidth
    return max(memory, sum(cost.flops / peaks.flops_of(cost) for cost in costs))


def impossible(row: Row, case: Case, datasheet: Peaks, l2_bytes: int) -> str:
    """Which time of a row can't be right, and why; empty if none is.

    A stage alone is held to its own work, and what runs as one (a layer, a model, each layer kind of a model) to the
    work of all its stages. Bytes per second count as far as the bytes can't come from L2.
    """
    for name, timing, least in _held_to(row, case, datasheet, l2_bytes):
        if timing and (reason := least.impossible(timing.median, datasheet)):
            return f"{name}: {reason}"
    return ""


def _held_to(row: Row, case: Case, datasheet: Peaks, l2_bytes: int) -> Iterator[tuple[str, Timing | None, Least]]:
    """Times of a row by name, each with the least work it has to contain."""
    cold, overlap = row.contract.l2 == "cold", row.contract.streams != "serial"

    def least(one: Case, names: Sequence[str], *, cold: bool = cold, overlap: bool = overlap) -> Least:
        costs = [cost_of(one, name) for name in names]
        weights = [weights_of(one, name) for name in names]
        compute = sum(cost.flops / datasheet.flops_of(cost) for cost in costs)
        return Least(compute, least_traffic(costs, weights, l2_bytes, cold=cold, overlap=overlap))

    if not case.layers:
        names = [stage.name for stage in row.stages]
        for stage in row.stages:
            yield stage.name, stage.timing, least(case, [stage.name], overlap=False)
        yield "stages together" if case.stages else "layer", row.layer, least(case, names)
        return
    whole = Least(0.0, 0)
    for stage, (kind, count) in zip(row.stages, case.kinds.items(), strict=True):
        layer = case.of_kind(kind)
        yield stage.name, stage.timing, least(layer, layer.stage_names)
        # within the model a layer may find weights in L2 that the layer before it shares
        whole += least(layer, layer.stage_names, cold=False).times(count)
    yield "model", row.layer, whole


def _with_floor(stage: StageRow, cost: Cost, own: Peaks | None, datasheet: Peaks | None) -> StageRow:
    extra = dict(stage.extra)
    found: Floor | None = floor(cost, own) if own else None
    if datasheet:
        extra["datasheet_floor"] = floor(cost, datasheet).seconds
        extra["in_l2"] = stage.timing is not None and from_cache(cost, stage.timing.median, datasheet)
    return stage.model_copy(
        update={
            "bytes": cost.bytes,
            "flops": cost.flops,
            "floor": found.seconds if found else None,
            "bound": found.bound if found else None,
            "extra": extra,
        }
    )
