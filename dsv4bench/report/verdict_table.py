"""Verdicts for a terminal."""

from collections.abc import Iterable

from rich.table import Table

from dsv4bench.analysis.verdict import Outcome, Verdict
from dsv4bench.report.quantity import change
from dsv4bench.report.verdict_cells import explanation, figure, interval_of, name, why

STYLE = {
    Outcome.REGRESSED: "bold red",
    Outcome.FAILED: "bold red",
    Outcome.INCOMPARABLE: "magenta",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.FASTER: "bold green",
    Outcome.PASS: "green",
}


def verdict_table(verdicts: Iterable[Verdict], *, explain: bool = False) -> Table:
    """One line a verdict, in the order given; with ``explain`` the whole decision under each."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("verdict", no_wrap=True)
    table.add_column("case", overflow="fold")
    for heading in ("base", "new", "change", "95 % interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for verdict in verdicts:
        subject, outcome = verdict.subject, verdict.outcome
        reasons = "\n".join(explanation(verdict)) if explain else why(verdict)
        table.add_row(
            f"[{STYLE[outcome]}]{outcome.value}[/]",
            name(subject).replace("[", r"\["),
            figure(subject, verdict.base),
            figure(subject, verdict.new),
            change(verdict.effect),
            interval_of(verdict),
            reasons.replace("[", r"\["),
        )
    return table
