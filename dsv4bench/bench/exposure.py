"""What each stage of a multi-stream layer makes the layer wait for, beside its time."""

from dsv4bench.analysis.overlap import layer_overlap
from dsv4bench.model.schedule import make_schedule
from dsv4bench.results.row import Row, Status
from dsv4bench.scenario.case import Case


def with_exposure(row: Row, case: Case) -> Row:
    """The row with stream and exposed time per stage, and the critical path of the layer.

    Laid out from the stages' times alone (``extra["exposed"]``, seconds): beside them stages slow each other down, by
    what the layer's own time shows. Rows of one stream, of models and of single stages are left as they are.
    """
    alone = {stage.name: stage.timing.median for stage in row.stages if stage.timing}
    if row.status is not Status.OK or case.execution.streams == "serial" or case.layers or case.stages:
        return row
    schedule = make_schedule(case.execution.streams, case.kind, case.workload.tokens)
    found = layer_overlap(schedule, alone)
    by_name = {stage.stage: stage for stage in found.stages}
    stages = [
        stage.model_copy(
            update={
                "extra": stage.extra | {"stream": by_name[stage.name].stream, "exposed": by_name[stage.name].exposed}
            }
        )
        for stage in row.stages
    ]
    about = {"critical_path": list(found.critical_path), "critical_path_seconds": found.seconds}
    return row.model_copy(update={"stages": stages, "extra": row.extra | about | {"stage_sum_seconds": found.serial}})
