"""Floors beside times, and rates that can't be."""

from collections.abc import Sequence

from dsv4bench.analysis.roofline import Floor, Peaks, floor, from_cache, impossible_rate, serial_floor
from dsv4bench.bench.footprint import memory_of
from dsv4bench.bench.settings import Settings
from dsv4bench.model.cost import Cost, stage_cost
from dsv4bench.model.gpus import gpu_of_device
from dsv4bench.model.step import LayerStep
from dsv4bench.results.manifest import Ceilings
from dsv4bench.results.row import Row, StageRow, Status
from dsv4bench.scenario.case import Case


def cost_of(case: Case, stage: str) -> Cost:
    """Least bytes and FLOPs of a stage of a case."""
    workload, cache = case.workload, case.cache
    lens = (workload.seq_lens, workload.query_lens)
    weight_bytes = 1 if case.weights.precision == "fp8" else 2
    return stage_cost(stage, LayerStep(case.shape, case.kind, *lens, cache.main, cache.indexer, weight_bytes))


def with_floors(row: Row, case: Case, settings: Settings, ceilings: Ceilings | None) -> Row:
    """The row with bytes, FLOPs, floor and bound per stage.

    Floors are over the card's own ceilings where they were measured, and over the datasheet beside them
    (``extra["datasheet_floor"]``). A stage that is faster than its card can be turns the row into ``invalid_rate``.
    """
    if row.status is not Status.OK or row.layer is None:
        return row
    gpu = gpu_of_device(settings.device.name) if settings.device.name else None
    datasheet = Peaks.datasheet(gpu) if gpu else None
    own = (Peaks.measured(ceilings, gpu) if ceilings else None) or datasheet
    if case.layers:
        return _with_model_floor(row, case, own)
    costs = [cost_of(case, stage.name) for stage in row.stages]
    if datasheet and (reason := _impossible(row, costs, datasheet)):
        return settings.failed(case, Status.INVALID_RATE, reason).model_copy(update={"memory": row.memory})
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


def _impossible(row: Row, costs: Sequence[Cost], datasheet: Peaks) -> str:
    cold = row.contract.l2 == "cold"
    for stage, cost in zip(row.stages, costs, strict=True):
        if stage.timing and (reason := impossible_rate(cost, stage.timing.median, datasheet, cold=cold)):
            return f"{stage.name}: {reason}"
    return ""


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
