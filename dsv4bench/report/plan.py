"""What a run would do: its cases and, on a card from the GPU table, the floors of their stages."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from rich.markup import escape
from rich.table import Table

from dsv4bench.analysis.roofline import Peaks, floor
from dsv4bench.bench.roofline import cost_of, together
from dsv4bench.report.quantity import seconds
from dsv4bench.scenario.case import Case
from dsv4bench.scenario.sizes import format_bytes, format_tokens

SHOWN: dict[str, Callable[[Any], str]] = {
    "context": format_tokens,
    "floor": seconds,
    "bytes": format_bytes,
    "flops": lambda n: f"{n:.3g}",
}
"""How columns are printed in tables."""
WHOLE = "together"


def plan_records(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """One record a case."""
    return [
        {
            "id": case.case_id,
            "label": case.label,
            "context": case.workload.context,
            "query_len": case.workload.query_len,
        }
        for case in cases
    ]


def floor_records(cases: Sequence[Case], peaks: Peaks) -> list[dict[str, Any]]:
    """One record a stage (of a model: a layer kind), and one for all of a case together; bytes, FLOPs, seconds.

    Floors don't depend on the provider, so cases that differ in it alone appear once.
    """
    records = []
    first: dict[str, Case] = {}
    for case in cases:
        first.setdefault(case.pair_id, case)
    for case in first.values():
        label = case.label.removesuffix("/" + case.provider.label)
        if case.layers:
            records += _model_records(case, label, peaks)
            continue
        costs = {name: cost_of(case, name) for name in case.stage_names}
        for name, cost in costs.items():
            least = floor(cost, peaks)
            what = {"case": label, "stage": name, "bytes": cost.bytes, "flops": cost.flops}
            records.append(what | {"floor": least.seconds, "bound": least.bound})
        total = together(list(costs.values()), peaks, case.execution.streams)
        moved, done = sum(cost.bytes for cost in costs.values()), sum(cost.flops for cost in costs.values())
        what = {"case": label, "stage": WHOLE, "bytes": moved, "flops": done}
        records.append(what | {"floor": total, "bound": None})
    return records


def floor_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """For a terminal: of every case the sums, and its stages below."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("case / stage", overflow="fold", min_width=24)
    for head in ("bytes", "flops", "floor", "bound"):
        table.add_column(head, justify="right", no_wrap=True)
    for label, of_case in groupby(records, key=itemgetter("case")):
        *stages, whole = of_case
        table.add_row(escape(label), *_figures(whole))
        for record in stages:
            table.add_row(f"  {record['stage']}", *_figures(record))
    return table


def _figures(record: Mapping[str, Any]) -> list[str]:
    return [*(SHOWN[key](record[key]) for key in ("bytes", "flops", "floor")), record["bound"] or ""]


def _model_records(case: Case, label: str, peaks: Peaks) -> list[dict[str, Any]]:
    """All layers of each kind, and all layers."""
    records: list[dict[str, Any]] = []
    for kind, count in case.kinds.items():
        layer = case.of_kind(kind)
        costs = [cost_of(layer, name) for name in layer.stage_names]
        moved, done = count * sum(cost.bytes for cost in costs), count * sum(cost.flops for cost in costs)
        least = count * together(costs, peaks, case.execution.streams)
        what = {"case": label, "stage": f"{count} × {kind}", "bytes": moved, "flops": done}
        records.append(what | {"floor": least, "bound": None})
    whole = {key: sum(record[key] for record in records) for key in ("bytes", "flops", "floor")}
    return [*records, {"case": label, "stage": WHOLE, **whole, "bound": None}]
