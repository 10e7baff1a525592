"""``dsv4bench doctor``: what is here, what is missing, and what it would enable."""

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from dsv4bench.cli.output import output_console

STYLES = {"ok": "green", "missing": "dim", "warning": "yellow"}


def doctor(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at this machine: packages, GPUs and who uses them, timers, profilers."""
    from dsv4bench.bench.device import parse_device

    parse_device(device)
    from dsv4bench.bench.diagnosis import diagnose

    findings = diagnose(device)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2, ensure_ascii=False))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        state = f"[{STYLES[finding.state]}]{finding.state}[/]"
        remedy = f" — {finding.remedy}" if finding.remedy else ""
        table.add_row(finding.topic, state, escape(finding.value + remedy))
    output_console().print(table)
