"""Verdicts for a terminal."""

from collections.abc import Iterable

from rich.markup import escape
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

NARROW = 120
"""Columns of a terminal below which a verdict takes a line each for case, figures and reasons."""


def verdict_table(verdicts: Iterable[Verdict], width: int) -> Table:
    """The verdicts in the order given, for a terminal of ``width`` columns; equal bytes are left out."""
    return _stacked(verdicts) if width < NARROW else _wide(verdicts)


def verdict_lines(verdict: Verdict) -> str:
    """The figures of a verdict and its reasons, below each other, as markup."""
    if verdict.new is None:
        return escape(why(verdict))
    before, after = (figure(verdict.subject, value) for value in (verdict.base, verdict.new))
    bounds = f", 95 % interval {interval_of(verdict)}" if verdict.evidence is not None else ""
    return f"{before} → {after}, {change(verdict.effect)}{bounds}\n{escape(why(verdict))}"


def _stacked(verdicts: Iterable[Verdict]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("verdict", no_wrap=True)
    table.add_column("case, base → new, why", overflow="fold")
    for verdict in notable(verdicts):
        outcome = verdict.outcome
        cell = f"{escape(name(verdict.subject))}\n{verdict_lines(verdict)}"
        table.add_row(f"[{STYLE[outcome]}]{outcome.value}[/]", cell)
    return table


def _wide(verdicts: Iterable[Verdict]) -> Table:
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
            escape(name(subject)),
            figure(subject, verdict.base),
            figure(subject, verdict.new),
            change(verdict.effect),
            interval_of(verdict),
            escape(why(verdict)),
        )
    return table


def decisions(verdicts: Iterable[Verdict]) -> str:
    """Every decision in sentences, numbers put in."""
    blocks = []
    for verdict in notable(verdicts):
        lines = "".join(f"\n  {line}" for line in explanation(verdict))
        blocks.append(f"{name(verdict.subject)} is {verdict.outcome.value}{lines}")
    return "\n".join(blocks)
