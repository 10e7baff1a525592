"""Whole reports against stored ones; write them anew with DSV4BENCH_UPDATE_GOLDEN=1."""

import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dsv4bench.cli.memory import memory

APP = typer.Typer()
APP.command()(memory)
GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "memory"
REPORTS = {
    "ideal.txt": ["--ctx", "1M"],
    "page.txt": ["--by", "page", "--model", "v4-flash"],
    "capacity.txt": [
        "--engine", "vllm@0.28", "--model", "v4-flash", "--available", "26.3GiB", "--async-scheduling", "--explain",
    ],
    "sglang.md": ["--engine", "sglang@0.5.13", "--model", "v4-pro", "--swa-ratio", "0.15", "--available", "60GiB",
                  "--format", "md"],
    "layers.csv": ["--engine", "vllm", "--model", "v4-flash", "--ctx", "8K", "--by", "layer", "--format", "csv"],
}  # fmt: skip


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_as_stored(name: str) -> None:
    result = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(APP, REPORTS[name])
    assert result.exit_code == 0, result.exception
    found = "\n".join(line.rstrip() for line in result.stdout.splitlines()) + "\n"
    path = GOLDEN / name
    if os.environ.get("DSV4BENCH_UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


def test_the_manual_shows_a_report_as_it_is() -> None:
    manual = (GOLDEN.parents[3] / "docs" / "memory.md").read_text(encoding="utf-8")
    assert f"$ dsv4bench memory --ctx 1M\n{(GOLDEN / 'ideal.txt').read_text(encoding='utf-8')}```\n" in manual
