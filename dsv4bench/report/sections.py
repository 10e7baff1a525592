"""A report as data: sections of a table and lines of text, written as rich text, Markdown or CSV.

Cells are strings for people; ``raw`` rows carry the numbers that CSV writes. The first column is the row's name.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Cell = str | int | float | None


@dataclass(frozen=True)
class Section:
    """A headed part of a report.

    Attributes:
        title: heading; "" for none.
        columns: column headings; empty where the section has lines only.
        rows: cells as shown.
        raw_columns: headings of the raw rows, with units; empty to write the shown ones.
        raw: cells as numbers.
        lines: sentences below the table.
        footer: number of last rows that are totals.
    """

    title: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    raw_columns: tuple[str, ...] = ()
    raw: tuple[tuple[Cell, ...], ...] = ()
    lines: tuple[str, ...] = ()
    footer: int = 0


def print_sections(sections: Sequence[Section], console: "Console") -> None:
    """Write sections as tables to a terminal."""
    for position, section in enumerate(sections):
        if position:
            console.print()
        if section.title:
            console.print(section.title, style="bold", highlight=False, markup=False, soft_wrap=True)
        if section.rows:
            console.print(_table(section))
        for line in section.lines:
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def _table(section: Section) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False, collapse_padding=True)
    for index, column in enumerate(section.columns):
        numeric = index > 0 and all(_looks_numeric(row[index]) for row in section.rows)
        table.add_column(column, justify="right" if numeric else "left", no_wrap=numeric or index == 0)
    first_total = len(section.rows) - section.footer
    for index, row in enumerate(section.rows):
        total = section.footer > 0 and index >= first_total
        table.add_row(
            *map(Text, row),
            style="bold" if total else None,
            end_section=index == first_total - 1 and section.footer > 0,
        )
    return table


def _looks_numeric(cell: str) -> bool:
    """Whether a cell is a figure, or stands for one."""
    return not cell or cell[0] in "–−+-0123456789" or cell in ("not counted", "as given")


def to_markdown(sections: Sequence[Section]) -> str:
    """Sections as GitHub Markdown."""
    parts = []
    for section in sections:
        block = [f"### {section.title}", ""] if section.title else []
        if section.rows:
            block += [_markdown_row(section.columns), _markdown_row(["---"] * len(section.columns))]
            block += [_markdown_row(row) for row in section.rows]
            block.append("")
        block += [f"- {line}" for line in section.lines]
        parts.append("\n".join(block).rstrip())
    return "\n\n".join(parts) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def to_csv(section: Section) -> str:
    """One section's numbers as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(section.raw_columns or section.columns)
    writer.writerows(section.raw or section.rows)
    return out.getvalue()
