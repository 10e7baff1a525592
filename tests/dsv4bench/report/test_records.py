"""Flat records in terminals of every width."""

import pytest
from rich.console import Console

from dsv4bench.report.records import Record, records_table

RECORDS: list[Record] = [
    {"case": case, "provider": "triton", "attention per step": step, "kind": "c4a"}
    for case, step in (("v4-flash/c4a/decode-b128-1M", 123456.5), ("v4-pro/c4a/decode-b1-8K", 2.0))
]


def lines(records: list[Record], width: int) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(records_table(records, width=width))
    return capture.get().splitlines()


def test_a_wide_terminal_has_every_column_on_one_line():
    head, first, second = lines(RECORDS, 80)
    assert head.split() == ["case", "provider", "attention", "per", "step", "kind"]
    assert first.split() == ["v4-flash/c4a/decode-b128-1M", "triton", "123456.5", "c4a"]
    assert second.split() == ["v4-pro/c4a/decode-b1-8K", "triton", "2.0", "c4a"]


def test_heads_of_several_words_fold_before_names_do():
    assert any("v4-flash/c4a/decode-b128-1M  triton" in line for line in lines(RECORDS, 60))


@pytest.mark.parametrize(("width", "gone"), [(45, "provider triton"), (40, "provider triton, kind c4a")])
def test_what_every_line_says_moves_below_a_narrow_table_from_the_left(width, gone):
    text = " ".join(" ".join(lines(RECORDS, width)).split())
    table, _, below = text.partition("in every line: ")
    assert below == gone
    assert ("kind" in table.split(), "provider" in table.split()) == ("kind" not in gone, False)


def test_figures_stay_whole_where_names_fold():
    assert any("123456.5" in line for line in lines(RECORDS, 38))


def test_a_single_line_keeps_its_columns():
    assert not any("in every line" in line for line in lines(RECORDS[:1], 40))
