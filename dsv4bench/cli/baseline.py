"""``dsv4bench baseline``: the stored runs that later runs are held against."""

import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dsv4bench.analysis.history import Series, series
from dsv4bench.analysis.reason import MINIMUM_HISTORY
from dsv4bench.errors import UserError
from dsv4bench.report.quantity import change, seconds
from dsv4bench.results.baseline import ROOT, baseline_folders, store, stored_runs
from dsv4bench.results.run_directory import Run, read_run

app = typer.Typer(no_args_is_help=True, help="Store runs as baselines, look at them, thin them out.")

BARS = "▁▂▃▄▅▆▇█"

Root = Annotated[Path, typer.Option("--root", help="Folder of all baselines.")]
Name = Annotated[str, typer.Argument(help="GPU/SCENARIO as `baseline list` prints it, or a scenario that one GPU has.")]


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True)
class Stored:
    """The baselines of one scenario on one machine."""

    name: str
    folder: Path
    runs: Sequence[Run]


@app.command()
def add(
    runs: Annotated[list[Path], typer.Argument(help="Finished runs to store.")],
    root: Root = ROOT,
) -> None:
    """Store runs, one file each; commit the files like any other change."""
    for path in runs:
        run = read_run(path)
        if run.manifest.environment.git_dirty:
            typer.echo(f"note: {path} was measured with uncommitted changes", err=True)
        stored = store(run, root)
        have = len(stored_runs(stored.parent))
        more = "" if have >= MINIMUM_HISTORY else f"; {MINIMUM_HISTORY - have} more before the gate decides"
        typer.echo(f"{stored} ({have} stored{more})")


@app.command("list")
def list_(root: Root = ROOT, format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE) -> None:
    """What is stored: machines, scenarios, how many runs, how old."""
    records = [
        {
            "baseline": stored.name,
            "runs": len(stored.runs),
            "enough": len(stored.runs) >= MINIMUM_HISTORY,
            "cases": len(stored.runs[-1].rows),
            "oldest": stored.runs[0].manifest.started,
            "newest": stored.runs[-1].manifest.started,
        }
        for stored in _all(root)
    ]
    _print(records, format)


@app.command()
def show(
    name: Name, root: Root = ROOT, format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE
) -> None:
    """The cases of a baseline: median, and the interval that a further run of unchanged code would fall into."""
    _print([_shown(item, plain=format is not Format.TABLE) for item in series(_one(name, root).runs)], format)


@app.command()
def trend(
    name: Name,
    root: Root = ROOT,
    only: Annotated[list[str] | None, typer.Option(help="Cases whose label or id contains this.")] = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Every case over the stored runs, the largest change first."""
    found = [
        item
        for item in series(_one(name, root).runs)
        if not only or any(text in item.label or item.case_id.startswith(text) for text in only)
    ]
    ordered = sorted(found, key=lambda item: -abs(item.change))
    if format is Format.TABLE:
        _print([_trend_cells(item) for item in ordered], format)
    else:
        _print([record for item in ordered for record in _points(item)], format)


@app.command()
def prune(
    name: Name,
    keep: Annotated[int, typer.Option(min=MINIMUM_HISTORY, help="How many of the newest runs stay.")] = 20,
    root: Root = ROOT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Remove the oldest stored runs."""
    stored = _one(name, root)
    for run in stored.runs[:-keep]:
        if not dry_run:
            run.path.unlink()
        typer.echo(f"{'would remove' if dry_run else 'removed'} {run.path}")
    typer.echo(f"{min(keep, len(stored.runs))} runs of {stored.name} {'would stay' if dry_run else 'stay'}", err=True)


def _all(root: Path) -> list[Stored]:
    folders = baseline_folders(root)
    if not folders:
        raise UserError(f"no baselines under {root}; `dsv4bench baseline add RUN` stores one")
    return [Stored(str(folder.relative_to(root)), folder, stored_runs(folder)) for folder in folders]


def _one(name: str, root: Path) -> Stored:
    stored = _all(root)
    found = [item for item in stored if name in (item.name, item.folder.name)]
    if len(found) != 1:
        what = "no baseline" if not found else "several baselines"
        raise UserError(f"{what} called {name} under {root}; there are {', '.join(item.name for item in stored)}")
    return found[0]


def _shown(item: Series, *, plain: bool) -> dict[str, Any]:
    width = item.prediction_half_width
    return {
        "case": item.label,
        "metric": item.metric,
        "runs": len(item.medians),
        "left out": item.excluded,
        "median": item.median if plain else seconds(item.median),
        "next run within": width if plain else "–" if width is None else f"± {change(width).lstrip('+')}",
    }


def _trend_cells(item: Series) -> dict[str, Any]:
    return {
        "case": item.label,
        "metric": item.metric,
        "trend": sparkline(item.medians),
        "first": seconds(item.medians[0]),
        "last": seconds(item.medians[-1]),
        "change": change(item.change),
    }


def _points(item: Series) -> list[dict[str, Any]]:
    return [
        {"case_id": item.case_id, "case": item.label, "metric": item.metric, "started": started, "median": median}
        for started, median in zip(item.started, item.medians, strict=True)
    ]


def sparkline(values: Sequence[float]) -> str:
    """Values as bars between the smallest and the largest; flat where they differ by less than 0.1 %."""
    low, high = min(values), max(values)
    if high - low < 1e-3 * low:
        return BARS[0] * len(values)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in values)


def _print(records: Sequence[dict[str, Any]], format: Format) -> None:
    if format is Format.JSON:
        typer.echo(json.dumps(records, indent=2, ensure_ascii=False))
        return
    if format is Format.CSV:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(records[0]) if records else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        typer.echo(text.getvalue(), nl=False)
        return
    table = Table(*(records[0] if records else ()), box=None, header_style="bold", pad_edge=False)
    for record in records:
        table.add_row(*(str(value).replace("[", r"\[") for value in record.values()))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
