"""Flat records as terminal table, Markdown, CSV or JSON."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

Record = Mapping[str, Any]
Shown = Mapping[str, Callable[[Any], str]]
"""How a column's values are printed in tables; plain ``str`` for the others. CSV and JSON keep the values."""


def records_table(records: Sequence[Record], shown: Shown | None = None) -> Table:
    """For a terminal; columns of numbers are right-aligned."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for key in _keys(records):
        numeric = any(isinstance(record[key], int | float) for record in records)
        table.add_column(key, justify="right" if numeric else "left", overflow="fold")
    for record in records:
        table.add_row(*(escape(cell) for cell in _cells(record, shown or {})))
    return table


def records_markdown(records: Sequence[Record], shown: Shown | None = None) -> str:
    """A Markdown table."""
    keys = _keys(records)
    lines = [keys, ["---"] * len(keys), *(_cells(record, shown or {}) for record in records)]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def records_csv(records: Sequence[Record]) -> str:
    """CSV with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _keys(records), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def records_json(records: Sequence[Record]) -> str:
    """A JSON list of objects."""
    return json.dumps(list(records), indent=2, allow_nan=False) + "\n"


def _keys(records: Sequence[Record]) -> list[str]:
    return list(records[0]) if records else []


def _cells(record: Record, shown: Shown) -> list[str]:
    return ["–" if value is None else shown.get(key, str)(value) for key, value in record.items()]
