import io

import pytest
from rich.console import Console

from dsv4bench.report.memory_tables import three_digits
from dsv4bench.report.sections import Section, print_sections, to_csv, to_markdown

SECTION = Section(
    title="Sizes",
    columns=("kind", "bytes", "why"),
    rows=(("a|b", "1.5 KiB", "it [is] so"), ("total", "1.5 KiB", "")),
    raw_columns=("kind", "bytes"),
    raw=(("a|b", 1536), ("total", 1536)),
    lines=("a line with [brackets] that is not markup",),
    footer=1,
)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1536, "1.50 KiB"), (10_334_371_840, "9.62 GiB"), (90_060_095_488, "83.9 GiB"),
        (335_675_392, "320 MiB"), (7_995_392, "7.63 MiB"), (2**41, "2.00 TiB"), (1023, "1,023 B"),
    ],
)  # fmt: skip
def test_bytes_have_three_significant_digits(count: int, text: str) -> None:
    assert three_digits(count) == text


def test_markdown_escapes_bars_and_lists_the_lines() -> None:
    assert to_markdown([SECTION]) == (
        "### Sizes\n\n| kind | bytes | why |\n| --- | --- | --- |\n| a\\|b | 1.5 KiB | it [is] so |\n"
        "| total | 1.5 KiB |  |\n\n- a line with [brackets] that is not markup\n"
    )


def test_csv_carries_the_numbers() -> None:
    assert to_csv(SECTION) == "kind,bytes\na|b,1536\ntotal,1536\n"


def test_a_terminal_shows_the_cells_as_they_are() -> None:
    out = io.StringIO()
    print_sections([SECTION, Section(lines=("second",))], Console(file=out, width=60, no_color=True))
    text = out.getvalue()
    assert text.startswith("Sizes\n")
    assert "it [is] so" in text
    assert "a line with [brackets] that is not markup\n\nsecond\n" in text
