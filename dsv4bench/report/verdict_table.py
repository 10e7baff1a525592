"""Verdicts for a terminal."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dsv4bench.analysis.verdict import Outcome, Verdict
from dsv4bench.report.quantity import change
from dsv4bench.report.verdict_cells import decided, figure, interval_of, name, notable, shared_why, why

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


def verdict_table(verdicts: Iterable[Verdict], width: int) -> RenderableType:
    """The verdicts in the order given, for a terminal of ``width`` columns; equal bytes are left out.

    A reason that all have in common stands once, below the table.
    """
    shown = notable(verdicts)
    shared = shared_why(shown)
    table = (_stacked if width < NARROW else _wide)(shown, with_why=not shared)
    return Group(table, Text(shared)) if shared else table


def verdict_lines(verdict: Verdict, *, with_why: bool) -> str:
    """The figures of a verdict and its reasons, below each other, as markup."""
    lines = []
    if verdict.new is not None:
        parts = [" → ".join(figure(verdict.subject, value) for value in (verdict.base, verdict.new))]
        parts += [change(verdict.effect)] if verdict.effect is not None else []
        parts += [f"95 % interval {interval_of(verdict)}"] if verdict.evidence is not None else []
        lines.append(", ".join(parts))
    if with_why:
        lines.append(escape(why(verdict)))
    return "\n".join(lines)


def _stacked(verdicts: Sequence[Verdict], *, with_why: bool) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("verdict", no_wrap=True)
    table.add_column(f"case, base → new{', why' if with_why else ''}", overflow="fold")
    for verdict in verdicts:
        lines = (escape(name(verdict.subject)), verdict_lines(verdict, with_why=with_why))
        table.add_row(styled(verdict), "\n".join(line for line in lines if line))
    return table


def _wide(verdicts: Sequence[Verdict], *, with_why: bool) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("verdict", no_wrap=True)
    table.add_column("case", overflow="fold")
    for heading in ("base", "new", "change", "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    if with_why:
        table.add_column("why", overflow="fold", min_width=24)
    for verdict in verdicts:
        subject = verdict.subject
        table.add_row(
            styled(verdict),
            escape(name(subject)),
            figure(subject, verdict.base),
            figure(subject, verdict.new),
            change(verdict.effect),
            interval_of(verdict),
            *([escape(why(verdict))] if with_why else []),
        )
    return table


def styled(verdict: Verdict) -> str:
    """The outcome in its colour, as markup."""
    return f"[{STYLE[verdict.outcome]}]{verdict.outcome.value}[/]"


def decisions(verdicts: Iterable[Verdict]) -> str:
    """Every decision in sentences, numbers put in."""
    return "\n".join("\n  ".join((title, *lines)) for title, lines in decided(notable(verdicts)))
