"""``dsv4bench baseline``: the stored runs that later runs are held against."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dsv4bench.analysis.history import Series, series
from dsv4bench.analysis.reason import MINIMUM_HISTORY
from dsv4bench.cli.output import Format, print_records
from dsv4bench.errors import MeasurementError, UserError
from dsv4bench.report.quantity import change, seconds, share
from dsv4bench.report.records import Record
from dsv4bench.results.baseline import ROOT, baseline_folders, store, stored_runs
from dsv4bench.results.run_directory import Run, read_run

app = typer.Typer(no_args_is_help=True, help="Store runs as baselines, look at them, thin them out.")

BARS = "▁▂▃▄▅▆▇█"

Root = Annotated[Path, typer.Option("--root", help="Folder of all baselines.")]
Name = Annotated[str, typer.Argument(help="GPU/SCENARIO as `baseline list` prints it, or a scenario that one GPU has.")]


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
        enough = have >= MINIMUM_HISTORY or not any(row.layer for row in run.rows)  # bytes need no history
        more = "" if enough else f"; {MINIMUM_HISTORY - have} more before the gate decides"
        typer.echo(f"{stored} ({have} stored{more})")


@app.command("list")
def list_(root: Root = ROOT, format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE) -> None:
    """What is stored: machines, scenarios, how many runs (of those that the gate needs), how old."""
    records: list[Record] = [
        {
            "baseline": stored.name,
            "runs": len(stored.runs),
            "cases": len(stored.runs[-1].rows),
            "oldest": stored.runs[0].manifest.started,
            "newest": stored.runs[-1].manifest.started,
        }
        for stored in _all(root)
    ]
    print_records(records, format, SHOWN)


@app.command()
def show(
    name: Name, root: Root = ROOT, format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE
) -> None:
    """Each case: geometric mean of its medians, and the interval into which a run of unchanged code would fall."""
    print_records([_shown(item) for item in series(_one(name, root).runs)], format, SHOWN)


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
    if not found:
        raise MeasurementError(f"--only {' '.join(only or ())} selects none of the cases that {name} stores")
    ordered = sorted(found, key=lambda item: -abs(item.change))
    if format in (Format.TABLE, Format.MD):
        print_records([_trend(item) for item in ordered], format, SHOWN)
    else:
        print_records([record for item in ordered for record in _points(item)], format, SHOWN)


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
        raise UserError(
            f"{what} called {name} under {root}; there are {', '.join(item.name for item in found or stored)}"
        )
    return found[0]


SHOWN = {
    "runs": lambda count: f"{count} of {MINIMUM_HISTORY}" if count < MINIMUM_HISTORY else str(count),
    "geometric mean": seconds,
    "first": seconds,
    "last": seconds,
    "change": change,
    "next run within": lambda width: f"± {share(width)}" if width < 1 else "unknown",
}
"""How columns are printed."""


def _shown(item: Series) -> Record:
    return {
        "case": item.label,
        "metric": item.metric,
        "runs": len(item.medians),
        "cards": item.cards,
        "left out": item.excluded,
        "geometric mean": item.geometric_mean,
        "next run within": item.prediction_half_width,
    }


def _trend(item: Series) -> Record:
    return {
        "case": item.label,
        "metric": item.metric,
        "trend": sparkline(item.medians),
        "first": item.medians[0],
        "last": item.medians[-1],
        "change": item.change,
    }


def _points(item: Series) -> list[Record]:
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
