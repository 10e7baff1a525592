"""``dsv4bench plot``: the figures of a run."""

from pathlib import Path
from typing import Annotated

import typer

from dsv4bench.errors import UserError
from dsv4bench.results.run_directory import read_run


def plot(
    run: Annotated[Path, typer.Argument(help="Run directory, or a stored baseline file.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the PNGs; default: the run directory, or that of the file.")
    ] = None,
) -> None:
    """Write speedups.png, floors.png and kv_memory.png of a run, and what its schedules or models give beyond."""
    found = read_run(run)
    folder = out or (run if run.is_dir() else run.parent)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file; name a folder")
    from dsv4bench.report.layer_plots import further_figures
    from dsv4bench.report.run_plots import plot_run

    baseline = found.manifest.scenario.get("baseline") or {}
    paths = plot_run(found.rows, baseline, folder)
    for path in (*paths, *further_figures(found.rows, baseline, folder)):
        typer.echo(str(path))
