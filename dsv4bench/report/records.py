"""Flat records as terminal table, Markdown, CSV or JSON."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table

Record = Mapping[str, Any]
Shown = Mapping[str, Callable[[Any], str]]
"""How a column's values are printed in tables; plain ``str`` for the others. CSV and JSON keep the values."""
NARROW = 24
"""Columns that a text keeps in a narrow terminal, folded."""


def records_table(records: Sequence[Record], shown: Shown | None = None, width: int | None = None) -> Table:
    """For a terminal; columns of numbers are right-aligned.

    Args:
        records: the lines.
        shown: how values are printed.
        width: columns of the terminal. Where the table needs more, columns that say the same in every line go below it.
    """
    heads = _keys(records)
    numeric = {key for key in heads if any(isinstance(record[key], int | float) for record in records)}
    lines = [dict(zip(heads, _cells(record, shown or {}), strict=True)) for record in records]
    full = {key: max(len(key), *(len(line[key]) for line in lines)) for key in heads}
    kept, most = heads, dict[str, int]()
    if width is not None and _total(full.values()) > width:
        least = _least(heads, numeric, lines)
        kept = _fitting(
            least, [key for key in heads if len(lines) > 1 and len({line[key] for line in lines}) == 1], width
        )
        most = {key: least[key] for key in numeric}  # a head of several words folds before any text does
    same = ", ".join(f"{key} {lines[0][key]}" for key in heads if key not in kept)
    table = Table(
        box=None, header_style="bold", pad_edge=False, caption=escape(f"in every line: {same}") if same else None
    )
    table.caption_justify = "left"
    for key in kept:
        justify: Literal["left", "right"] = "right" if key in numeric else "left"
        table.add_column(key, justify=justify, overflow="fold", max_width=most.get(key))
    for line in lines:
        table.add_row(*(escape(line[key]) for key in kept))
    return table


def _least(heads: Sequence[str], numeric: Set[str], lines: Sequence[Mapping[str, str]]) -> dict[str, int]:
    """Columns that each needs: figures and words of the head stay whole, texts fold."""
    words = {key: max(len(word) for word in key.split()) for key in heads}
    cells = {key: max(len(line[key]) for line in lines) for key in heads}
    return {key: max(words[key], cells[key] if key in numeric else min(cells[key], NARROW)) for key in heads}


def _fitting(least: Mapping[str, int], spare: Sequence[str], width: int) -> list[str]:
    """The columns that fit a width, without as many of the spare ones as that takes."""
    kept = list(least)
    for key in spare:
        if _total(least[one] for one in kept) <= width:
            break
        kept.remove(key)
    return kept


def _total(widths: Iterable[int]) -> int:
    """Columns of a table whose columns are so wide, two between neighbours."""
    return sum(width + 2 for width in widths) - 2


def records_markdown(records: Sequence[Record], shown: Shown | None = None) -> str:
    """A Markdown table."""
    keys = _keys(records)
    lines = [keys, ["---"] * len(keys), *(_cells(record, shown or {}) for record in records)]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def records_csv(records: Sequence[Record]) -> str:
    """CSV with a header; a list is its items, separated by blanks."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _keys(records), lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({key: " ".join(value) if isinstance(value, list) else value for key, value in record.items()})
    return text.getvalue()


def records_json(records: Sequence[Record]) -> str:
    """A JSON list of objects."""
    return json.dumps(list(records), indent=2, allow_nan=False) + "\n"


def _keys(records: Sequence[Record]) -> list[str]:
    return list(records[0]) if records else []


def _cells(record: Record, shown: Shown) -> list[str]:
    return ["–" if value is None else shown.get(key, str)(value) for key, value in record.items()]
