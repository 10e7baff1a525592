"""A comparison of runs as terminal table, Markdown, CSV or JSON."""

import csv
import io
import json
from collections.abc import Sequence
from itertools import takewhile

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dsv4bench.analysis.compare import Comparison
from dsv4bench.analysis.verdict import Verdict
from dsv4bench.report.quantity import change
from dsv4bench.report.verdict_cells import MARK, figure, interval_of, shared_why, speedup, why
from dsv4bench.report.verdict_json import verdict_record
from dsv4bench.report.verdict_markdown import environment, folded
from dsv4bench.report.verdict_table import styled, verdict_lines
from dsv4bench.results.run_directory import Run


def run_names(runs: Sequence[Run]) -> list[str]:
    """Short, distinct names of runs: the folder's or file's own, or the whole path where those agree."""
    short = [run.path.stem for run in runs]
    return short if len(set(short)) == len(short) else [str(run.path) for run in runs]


COLUMNS = 60
"""What a run takes of a terminal's width beside the case; where that isn't there, each run has lines of its own."""


def compare_table(names: Sequence[str], comparisons: Sequence[Comparison], width: int) -> RenderableType:
    """For a terminal of ``width`` columns: base, then time, change and verdict of each other run.

    A reason that all verdicts on a run have in common stands once, below the table.
    """
    shared = _shared(names, comparisons)
    table = (_stacked if width < COLUMNS * len(names) else _wide)(names, comparisons, shared)
    return Group(table, *(Text(line) for line in _shared_lines(names, shared)))


def _shared(names: Sequence[str], comparisons: Sequence[Comparison]) -> list[str]:
    """For each run beside the base the reason that all of its verdicts have in common; empty where they differ."""
    columns = [[item.verdicts[number] for item in comparisons] for number in range(len(names) - 1)]
    return [shared_why([verdict for verdict in column if verdict is not None]) for column in columns]


def _shared_lines(names: Sequence[str], shared: Sequence[str]) -> list[str]:
    return [f"{name}, {reason}" for name, reason in zip(names[1:], shared, strict=True) if reason]


def _stacked(names: Sequence[str], comparisons: Sequence[Comparison], shared: Sequence[str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("run", overflow="fold", max_width=20)
    table.add_column("case, base → new, verdict", overflow="fold")
    for item in comparisons:
        table.add_row("case", f"[bold]{escape(_name(item))}[/]")
        table.add_row(escape(names[0]), _base(item))
        for name, verdict, reason in zip(names[1:], item.verdicts, shared, strict=True):
            lines = ["–"] if verdict is None else [styled(verdict), verdict_lines(verdict, with_why=not reason)]
            table.add_row(escape(name), "\n".join(line for line in lines if line))
    return table


def _wide(names: Sequence[str], comparisons: Sequence[Comparison], shared: Sequence[str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("case", overflow="fold")
    table.add_column(names[0], justify="right", no_wrap=True)
    for name, reason in zip(names[1:], shared, strict=True):
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("change", justify="right", no_wrap=True)
        table.add_column("95 % interval", justify="right", no_wrap=True)
        table.add_column("verdict", overflow="fold", min_width=None if reason else 24)
    for item in comparisons:
        cells = [escape(_name(item)), _base(item)]
        for verdict, reason in zip(item.verdicts, shared, strict=True):
            if verdict is None:
                cells += ["–"] * 4
            else:
                cells += [figure(verdict.subject, verdict.new), change(verdict.effect), interval_of(verdict)]
                cells.append(styled(verdict) if reason else f"{styled(verdict)}: {escape(why(verdict))}")
        table.add_row(*cells)
    return table


def compare_markdown(
    runs: Sequence[Run], names: Sequence[str], comparisons: Sequence[Comparison], notes: Sequence[str]
) -> str:
    """For a pull request: before, after, change, speedup, verdict; environment folded away."""
    heads = ["Case", names[0]]
    for name in names[1:]:
        heads += [name, "Change", "95 % interval", "Speedup", "Verdict"]
    lines = [_line(heads), _line(["---", *["---:"] * (len(heads) - 1)])]
    shared = _shared(names, comparisons)
    for item in comparisons:
        cells = [f"`{_name(item)}`".replace("|", r"\|"), _base(item)]
        for verdict, reason in zip(item.verdicts, shared, strict=True):
            cells += ["–"] * 5 if verdict is None else _markdown_cells(verdict, with_why=not reason)
        lines.append(_line(cells))
    parts = ["\n".join(lines), "\n".join(f"- {note}" for note in (*_shared_lines(names, shared), *notes))]
    parts += [folded(f"Environment of {name}", environment(run)) for name, run in zip(names, runs, strict=True)]
    return "\n\n".join(part for part in parts if part) + "\n"


def compare_csv(names: Sequence[str], comparisons: Sequence[Comparison]) -> str:
    """For a spreadsheet: a line per case and run, SI units."""
    text = io.StringIO()
    fields = ("case", "metric", "run", "base", "new", "effect", "lower", "upper", "outcome", "reasons", "detail")
    writer = csv.DictWriter(text, fields, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for item in comparisons:
        for name, verdict in zip(names[1:], item.verdicts, strict=True):
            if verdict is not None:
                record = verdict_record(verdict)
                record |= {"case": item.name, "run": name, "reasons": " ".join(record["reasons"])}
                writer.writerow(record)
    return text.getvalue()


def compare_json(names: Sequence[str], comparisons: Sequence[Comparison], notes: Sequence[str]) -> str:
    """For a script: every case with its verdict for each run, SI units."""
    record = {
        "base": names[0],
        "runs": list(names[1:]),
        "cases": [
            {
                "case": item.name,
                "metric": item.metric,
                "base": item.base,
                "verdicts": [verdict and verdict_record(verdict) for verdict in item.verdicts],
            }
            for item in comparisons
        ],
        "notes": list(notes),
    }
    return json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _name(item: Comparison) -> str:
    """The case and its metric; where a run has it under another name, such as another provider's, that name too."""
    labels = dict.fromkeys(verdict.subject.label for verdict in item.verdicts if verdict is not None)
    others = [_rest(item.name, label) for label in labels if label != item.name]
    name = " → ".join((item.name, ", ".join(others))) if others else item.name
    return name if item.metric == "time" else f"{name} [{item.metric}]"


def _rest(name: str, label: str) -> str:
    """What a label has beyond the parts that it begins alike with another."""
    pairs = zip(name.split("/"), label.split("/"), strict=False)
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return "/".join(label.split("/")[alike:])


def _base(item: Comparison) -> str:
    return figure(item.worst.subject, item.base)


def _markdown_cells(verdict: Verdict, *, with_why: bool) -> list[str]:
    reason = f": {why(verdict)}" if with_why else ""
    return [
        figure(verdict.subject, verdict.new),
        change(verdict.effect),
        interval_of(verdict),
        speedup(verdict),
        f"{MARK[verdict.outcome]} {verdict.outcome.value}{reason}".replace("|", r"\|"),
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
