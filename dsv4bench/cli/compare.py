"""``dsv4bench compare``: runs side by side, worst case first."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dsv4bench.analysis.compare import Comparison, refused
from dsv4bench.analysis.compare import compare as compare_runs
from dsv4bench.analysis.verdict import PRESETS
from dsv4bench.cli.console import output_console
from dsv4bench.cli.gate import Preset
from dsv4bench.cli.output import Format
from dsv4bench.errors import IncomparableError, UserError
from dsv4bench.report.compare_text import compare_csv, compare_json, compare_markdown, compare_table, run_names
from dsv4bench.results.run_directory import Run, read_run


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Runs or stored baselines; the first is the base.")],
    preset: Annotated[Preset, typer.Option(help="Tolerance and floor of the verdicts.")] = Preset.DEFAULT,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Compare runs case by case, worst first.

    Runs that were measured apart are shown with their change and stay inconclusive: only interleaved rounds (`ab`) or
    a stored history (`gate`) decide. Cases under unlike contracts are never compared: exit 4.
    """
    if len(runs) < 2:
        raise UserError("compare needs at least two runs")
    read = [read_run(path) for path in runs]
    comparisons, notes = compare_runs(read[0], read[1:], PRESETS[preset.value])
    print_comparison(read, run_names(read), comparisons, notes, format)
    if refused(comparisons):
        raise IncomparableError("some cases were measured under unlike contracts or have changed shape; see the table")


def print_comparison(
    runs: Sequence[Run], names: Sequence[str], comparisons: Sequence[Comparison], notes: Sequence[str], format: Format
) -> None:
    """Print a comparison: results on stdout, notes of a table on stderr."""
    match format:
        case Format.TABLE:
            console = output_console()
            console.print(compare_table(names, comparisons, console.width))
            for note in notes:
                typer.echo(f"note: {note}", err=True)
        case Format.MD:
            typer.echo(compare_markdown(runs, names, comparisons, notes), nl=False)
        case Format.CSV:
            typer.echo(compare_csv(names, comparisons), nl=False)
        case Format.JSON:
            typer.echo(compare_json(names, comparisons, notes), nl=False)
