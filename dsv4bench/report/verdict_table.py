"""Verdicts for a terminal."""

from collections.abc import Iterable

from rich.table import Table

from dsv4bench.analysis.verdict import Outcome, Verdict
from dsv4bench.report.quantity import change
from dsv4bench.report.verdict_cells import explanation, figure, interval_of, name, notable, why

STYLE = {
    Outcome.REGRESSED: "bold red",
    Outcome.FAILED: "bold red",
    Outcome.INCOMPARABLE: "magenta",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.FASTER: "bold green",
    Outcome.PASS: "green",
}


def verdict_table(verdicts: Iterable[Verdict]) -> Table:
    """One line a verdict, in the order given; equal bytes are left out."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("verdict", no_wrap=True)
    table.add_column("case", overflow="fold")
    for heading in ("base", "new", "change", "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold", min_width=24)
    for verdict in notable(verdicts):
        subject, outcome = verdict.subject, verdict.outcome
        table.add_row(
            f"[{STYLE[outcome]}]{outcome.value}[/]",
            name(subject).replace("[", r"\["),
            figure(subject, verdict.base),
            figure(subject, verdict.new),
            change(verdict.effect),
            interval_of(verdict),
            why(verdict).replace("[", r"\["),
        )
    return table


def decisions(verdicts: Iterable[Verdict]) -> str:
    """Every decision in sentences, numbers put in."""
    blocks = []
    for verdict in notable(verdicts):
        lines = "".join(f"\n  {line}" for line in explanation(verdict))
        blocks.append(f"{name(verdict.subject)} is {verdict.outcome.value}{lines}")
    return "\n".join(blocks)
