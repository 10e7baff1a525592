"""``dsv4bench doctor``: what is here, what is missing, and what it would enable."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from dsv4bench.cli.console import output_console
from dsv4bench.cli.output import Format, print_records

STYLES = {"ok": "green", "missing": "dim", "warning": "yellow"}


def doctor(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Look at this machine: packages, GPUs and who uses them, timers, profilers."""
    from dsv4bench.bench.device import parse_device

    parse_device(device)
    from dsv4bench.bench.diagnosis import diagnose

    findings = diagnose(device)
    if format is not Format.TABLE:
        print_records([asdict(finding) for finding in findings], format, {})
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        state = f"[{STYLES[finding.state]}]{finding.state}[/]"
        remedy = f" — {finding.remedy}" if finding.remedy else ""
        table.add_row(finding.topic, state, escape(finding.value + remedy))
    output_console().print(table)
