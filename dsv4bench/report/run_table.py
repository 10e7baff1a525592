"""A run as terminal table, Markdown, CSV or JSON: baseline first, then how much faster the others are."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.markup import escape
from rich.table import Table

from dsv4bench.analysis.speedup import Speedup, speedups
from dsv4bench.report.quantity import seconds, share
from dsv4bench.results.row import Row, StageRow, Status
from dsv4bench.results.run_directory import Run
from dsv4bench.scenario.sizes import format_bytes

STYLES = {Status.OK: "green", Status.UNSUPPORTED: "dim", Status.SKIPPED: "dim", Status.OOM: "yellow"}
DASH = "–"
TEXTS = {"case": 26, "provider": 10, "status": 14}
"""Columns of text, and how narrow each may become."""
WARNED = ", warned"
"""After the status of a row whose figures come with a warning; the end of a run prints the first few of them."""
STAGE_HEADS = ("provider", "median", "share", "launches", "host", "floor", "% of floor", "bound")
DISPENSABLE = ("± MAD", "idle", "% of floor", "KV memory")
"""Columns that a narrow terminal goes without; every format but the table has them all."""


@dataclass(frozen=True)
class Line:
    """A row of the table with its speedups.

    Attributes:
        row: the result.
        speedup: over the scenario's two baselines.
    """

    row: Row
    speedup: Speedup


def lines_of(run: Run) -> list[Line]:
    """The rows by step in order of appearance; within a step the baseline model, then the baseline provider, first."""
    baseline = run.manifest.scenario.get("baseline") or {}
    provider, model = baseline.get("provider"), baseline.get("model")
    gained = speedups(run.rows, provider, model)
    steps: dict[str, int] = {}
    pairs: dict[str, int] = {}
    for row in run.rows:
        steps.setdefault(_step(row), len(steps))
        pairs.setdefault(row.pair_id, len(pairs))

    def rank(row: Row) -> tuple[int, bool, int, bool]:
        other_model, other_provider = row.case["model"] != model, row.case["provider"] != provider
        return steps[_step(row)], other_model, pairs[row.pair_id], other_provider

    return [Line(row, gained.get(row.case_id, Speedup())) for row in sorted(run.rows, key=rank)]


def run_table(run: Run, width: int | None = None) -> Table:
    """For a terminal: the columns that have a value in any line.

    Args:
        run: what to show.
        width: columns of the terminal. Figures stay whole and texts fold; where that is not enough, the figures of
            ``DISPENSABLE`` are left out, first ones first, so that case and status are always seen.
    """
    lines = lines_of(run)
    texts = [dict(zip(_heads(run), _cells(run, line), strict=True)) for line in lines]
    valued = [head for head in _heads(run) if not texts or any(text[head] != DASH for text in texts)]
    heads = _fitting(valued, texts, width)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in heads:
        narrow = _narrow(head, texts) if head in TEXTS else None
        justify: Literal["left", "right"] = "left" if head in TEXTS else "right"
        table.add_column(head, justify=justify, overflow="fold", no_wrap=narrow is None, min_width=narrow)
    for line, text in zip(lines, texts, strict=True):
        cells = [escape(text[head]) for head in heads]
        style = STYLES.get(line.row.status, "red")
        table.add_row(*cells[:-1], f"[{style}]{cells[-1]}[/]")
    return table


def _fitting(heads: list[str], texts: Sequence[dict[str, str]], width: int | None) -> list[str]:
    """The columns that fit a width; a sole provider goes first, since it says the same in every line."""
    spare = [*(["provider"] if len({text["provider"] for text in texts}) == 1 else []), *DISPENSABLE]
    kept = list(heads)
    while width is not None and _least(kept, texts) > width and (droppable := [one for one in spare if one in kept]):
        kept.remove(droppable[0])
    return kept


def _least(heads: Sequence[str], texts: Sequence[dict[str, str]]) -> int:
    """Columns that a table of these heads takes at least, two between neighbours."""
    widths = [_narrow(head, texts) if head in TEXTS else _longest(head, texts) for head in heads]
    return sum(widths) + 2 * (len(widths) - 1)


def _narrow(head: str, texts: Sequence[dict[str, str]]) -> int:
    return min(TEXTS[head], _longest(head, texts))


def _longest(head: str, texts: Sequence[dict[str, str]]) -> int:
    return max(len(head), *(len(text[head]) for text in texts), 0)


def run_markdown(run: Run) -> str:
    """For a pull request or an issue."""
    heads = _heads(run)
    rule = ["---", *["---:"] * (len(heads) - 2), "---"]
    body = [[f"`{cells[0]}`", *cells[1:]] for cells in (_cells(run, line) for line in lines_of(run))]
    return "".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in (heads, rule, *body)
    )


def run_csv(run: Run) -> str:
    """One line a case, SI base units, empty where there is no number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["case_id", "label", "model", "layer", "phase", "batch", "context", "provider", "status", "reason"]
    head += ["median_s", "min_s", "mad_s", "host_s", "launches", "floor_s", "speedup_provider", "speedup_model"]
    head += ["ideal_bytes", "page_bytes", "compile_s", "energy_j"]
    writer.writerow([*head, "span_s", "busy_s", "idle_s", "largest_gap_s"])
    for line in lines_of(run):
        row, case, time, memory = line.row, line.row.case, line.row.layer, line.row.memory
        gaps = time.gaps if time else None
        writer.writerow(
            [row.case_id, row.label]
            + [case[key] for key in ("model", "layer", "phase", "batch", "context", "provider")]
            + [row.status.value, row.reason]
            + ([time.median, time.min, time.mad, time.host, time.launches] if time else [None] * 5)
            + [row.floor, line.speedup.provider, line.speedup.model]
            + ([memory.ideal_bytes, memory.engine_bytes] if memory else [None] * 2)
            + [row.compile_seconds, row.energy_joules]
            + ([gaps.span, gaps.busy, gaps.idle, gaps.largest] if gaps else [None] * 4)
        )
    return text.getvalue()


def run_json(run: Run) -> str:
    """Everything: the manifest, and each row with its speedups."""
    record = {
        "run": str(run.path),
        "manifest": run.manifest.model_dump(mode="json", exclude_none=True),
        "rows": [
            line.row.model_dump(mode="json", exclude_none=True)
            | {"speedup": {"provider": line.speedup.provider, "model": line.speedup.model}}
            for line in lines_of(run)
        ],
    }
    return json.dumps(record, indent=2, allow_nan=False) + "\n"


def stage_table(run: Run) -> Table:
    """Every stage of every timed case: time, share of the stages' sum, floor; the columns that have a value."""
    names: list[str] = []
    cells: list[list[str]] = []
    for line in lines_of(run):
        row = line.row
        timed = [stage for stage in row.stages if stage.timing]
        total = sum(stage.timing.median for stage in timed if stage.timing)
        if row.layer is None:
            continue
        whole = [seconds(row.layer.median), "", _number(row.layer.launches), _seconds(row.layer.host)]
        names += [escape(row.label), *(f"  {stage.name}" for stage in timed)]
        cells.append(["", *whole, _seconds(row.floor), _share(row.floor_share), ""])
        cells += [[stage.provider, *_stage_cells(stage, total)] for stage in timed]
    columns = [column for column in zip(STAGE_HEADS, *cells, strict=True) if set(column[1:]) - {"", DASH}]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("case / stage", overflow="fold", min_width=24)
    for head, *_ in columns:
        table.add_column(head, justify="right", no_wrap=True)
    for name, *values in zip(names, *(column[1:] for column in columns), strict=True):
        table.add_row(name, *values)
    return table


def _stage_cells(stage: StageRow, total: float) -> list[str]:
    assert stage.timing is not None
    time = stage.timing
    cells = [seconds(time.median), share(time.median / total), _number(time.launches), _seconds(time.host)]
    return [*cells, _seconds(stage.floor), _share(stage.floor_share), stage.bound or DASH]


def _heads(run: Run) -> list[str]:
    baseline = run.manifest.scenario.get("baseline") or {}
    heads = ["case", "provider", "median", "± MAD"]
    heads += [f"vs {baseline[key]}" for key in ("provider", "model") if baseline.get(key)]
    if any(line.floor for line in run.rows):
        heads.append("% of floor")
    if _traced(run):
        heads.append("idle")
    return [*heads, "KV memory", "status"]


def _cells(run: Run, line: Line) -> list[str]:
    row, baseline = line.row, run.manifest.scenario.get("baseline") or {}
    cells = [short_labels(run.rows)[row.case_id], row.case["provider"]]
    cells.append(_seconds(row.layer.median if row.layer else None))
    cells.append(share(row.layer.mad / row.layer.median) if row.layer else DASH)
    if baseline.get("provider"):
        cells.append(_times(line.speedup.provider))
    if baseline.get("model"):
        cells.append(_times(line.speedup.model))
    if any(other.floor for other in run.rows):
        cells.append(_share(row.floor_share))
    if _traced(run):
        gaps = row.layer.gaps if row.layer else None
        cells.append(share(gaps.idle / gaps.span) if gaps else DASH)
    memory = format_bytes(row.memory.ideal_bytes) if row.memory else DASH
    said = f": {row.reason}" if row.reason else WARNED if row.warnings else ""
    return [*cells, memory, row.status.value + said]


def _traced(run: Run) -> bool:
    """Whether any row knows its launch gaps."""
    return any(row.layer and row.layer.gaps for row in run.rows)


def short_labels(rows: Sequence[Row]) -> dict[str, str]:
    """Labels by case id, without the provider and without what follows the workload where all rows agree on it."""
    parts = {row.case_id: row.label.removesuffix("/" + row.case["provider"]).split("/") for row in rows}
    tail = 3 if any(row.case["stages"] for row in rows) else 2  # cache, execution, stages
    while tail and len({part[-1] for part in parts.values()}) == 1 and len(parts) > 1:
        parts = {case_id: part[:-1] for case_id, part in parts.items()}
        tail -= 1
    return {case_id: "/".join(part) for case_id, part in parts.items()}


def _step(row: Row) -> str:
    keys = ("phase", "batch", "context", "query_len", "boundary", "main", "indexer", "slab", "streams", "graph", "tp")
    return json.dumps([row.case.get(key) for key in keys])


def _seconds(value: float | None) -> str:
    return DASH if value is None else seconds(value)


def _number(value: int | None) -> str:
    return DASH if value is None else str(value)


def _times(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}×"


def _share(value: float | None) -> str:
    return DASH if value is None else share(value)
