"""Where a run loses time against the floor: the stages and shapes that are worth a kernel engineer's next day."""

from collections.abc import Sequence

from dsv4bench.report.quantity import seconds, share
from dsv4bench.report.records import Record, Shown
from dsv4bench.report.run_table import short_labels
from dsv4bench.results.row import Row

SHOWN: Shown = {"time": seconds, "floor": seconds, "lost": seconds, "% of floor": share}


def loss_records(rows: Sequence[Row]) -> list[Record]:
    """Every stage with a time and a floor, the most time beyond it first; of a model, a layer of each kind."""
    names = short_labels(rows)
    records: list[Record] = [
        {
            "case": names[row.case_id],
            "stage": stage.name,
            "provider": stage.provider,
            "time": stage.timing.median,
            "floor": stage.floor,
            "% of floor": stage.floor_share,
            "lost": stage.timing.median - stage.floor,
            "bound": stage.bound,
        }
        for row in rows
        for stage in row.stages
        if stage.timing and stage.floor and stage.floor_share
    ]
    return sorted(records, key=lambda record: -float(record["lost"]))
