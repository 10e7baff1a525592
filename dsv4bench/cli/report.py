"""``dsv4bench report``: a stored run as text, on any machine."""

from pathlib import Path
from typing import Annotated

import typer

from dsv4bench.cli.flags import given_flags, refuse_beside, refuse_without
from dsv4bench.cli.output import Format, print_records, print_run
from dsv4bench.errors import UserError
from dsv4bench.report.losses import SHOWN, loss_records
from dsv4bench.results.run_directory import read_run


def report(
    call: typer.Context,
    run: Annotated[Path, typer.Argument(help="Run directory, or a stored baseline file.")],
    stages: Annotated[bool, typer.Option("--stages", help="Print every stage and launch gaps as well.")] = False,
    losses: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Instead, the N stages that take longest beyond their floor."),
    ] = None,
    provider: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --losses: only the stages that this provider ran.")
    ] = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Print a run that is stored: its table, its stages, or where it loses most against the floor."""
    found = read_run(run)
    if losses is None:
        refuse_without("--losses", given_flags(call), {"provider"})
        if stages and not any(stage.timing for row in found.rows for stage in row.stages):
            memory = found.manifest.scenario.get("kind") == "memory"
            why = "kind: memory times nothing" if memory else "none of its cases was timed"
            raise UserError(f"--stages: {run} has no stage with a time; {why}")
        print_run(found, format, stages)
        return
    refuse_beside("--losses", given_flags(call), {"stages"})
    records = loss_records(found.rows)
    if not records:
        raise UserError(f"{run} has no stage with a time and a floor; a run on a GPU has")
    names = dict.fromkeys(record["provider"] for record in records)
    if provider is not None and provider not in names:
        raise UserError(f"--provider {provider}: no such provider in {run}; it has {', '.join(names)}")
    records = [record for record in records if provider in (None, record["provider"])]
    print_records(records[:losses], format, SHOWN)
