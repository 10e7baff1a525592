"""Results on stdout in the format asked for, and on stderr what a run has to say beside them."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

import typer

from dsv4bench.cli.console import output_console
from dsv4bench.report import quantity
from dsv4bench.report.records import Record, Shown, records_csv, records_json, records_markdown, records_table
from dsv4bench.results.row import Status
from dsv4bench.results.run_directory import Run

MOST_WARNINGS = 5
"""Warnings of rows that the end of a run prints."""


class Format(StrEnum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MD = "md"


def print_records(records: Sequence[Record], format: Format, shown: Shown) -> None:
    """Print flat records in a format."""
    match format:
        case Format.TABLE:
            console = output_console()
            console.print(records_table(records, shown, console.width))
        case Format.MD:
            typer.echo(records_markdown(records, shown), nl=False)
        case Format.CSV:
            typer.echo(records_csv(records), nl=False)
        case Format.JSON:
            typer.echo(records_json(records), nl=False)


def print_run(run: Run, format: Format, stages: bool) -> None:
    """Print a run's tables, and on stderr its warnings and where its time went."""
    from dsv4bench.report.layers_and_models import further_tables
    from dsv4bench.report.run_table import run_csv, run_json, run_markdown, run_table, stage_table

    console = output_console()
    match format:
        case Format.TABLE:
            console.print(run_table(run, console.width))
            if stages and any(row.layer for row in run.rows):
                console.print()
                console.print(stage_table(run))
            for table in further_tables(run, stages=stages, width=console.width):
                console.print()
                console.print(table)
        case Format.MD:
            typer.echo(run_markdown(run), nl=False)
        case Format.CSV:
            typer.echo(run_csv(run), nl=False)
        case Format.JSON:
            typer.echo(run_json(run), nl=False)
    for line in _closing(run):
        typer.echo(line, err=True)


def _closing(run: Run) -> list[str]:
    """What stderr says at the end: warnings, how the time was spent, where the run is."""
    lines = [f"warning: {text}" for text in run.manifest.warnings]
    if {row.status for row in run.rows} == {Status.UNSUPPORTED}:
        ((reason, count), *_) = Counter(row.reason for row in run.rows).most_common(1)
        lines.append(f"nothing was measured: {count} of {len(run.rows)} cases are unsupported: {reason}")
    of_rows = [f"warning: {row.label}: {text}" for row in run.rows for text in row.warnings]
    lines += of_rows[:MOST_WARNINGS]
    if len(of_rows) > MOST_WARNINGS:
        lines.append(f"warning: {len(of_rows) - MOST_WARNINGS} more of rows; --format json has them all")
    total = sum(run.manifest.spent.values())
    if total:
        parts = sorted(run.manifest.spent.items(), key=lambda item: -item[1])
        shown = ", ".join(f"{purpose} {quantity.seconds(spent)}" for purpose, spent in parts)
        lines.append(f"{quantity.seconds(total)} of wall time: {shown}")
    shares = [row.extra["timer_share"] for row in run.rows if "timer_share" in row.extra]
    if shares:
        lines.append(f"reading the timer: at most {max(shares):.2%} of any layer time")
    return [*lines, f"run: {run.path}"]
