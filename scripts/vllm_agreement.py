"""Hold measured rows of vLLM's kernels against figures that were taken of the same kernels elsewhere, cell by cell.

    PYTHONPATH=.:kernels python scripts/vllm_agreement.py RUN... [--figures CSV] [--provider triton] [--within 0.1]

RUN is a run directory or a stored baseline. The figures are ``reports/anchors/h200_vllm_0.26.csv``: CUDA graphs of ten
launches with a warm L2 (``graph_us``), and events after a memset of 512 MiB (``cold_us``); a row is held against the
column that its contract says. With ``--provider`` another provider's rows stand in, so the ratios say how they compare.

Ends with 1 where a cell lies further off than ``--within``, and with 2 where nothing can be held against anything.
"""

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import median

from dsv4bench.analysis.overlap import tokens_of
from dsv4bench.errors import UserError
from dsv4bench.model.config import load_shape
from dsv4bench.results.row import Row, Status
from dsv4bench.results.run_directory import read_run

FIGURES = Path(__file__).parents[1] / "reports/anchors/h200_vllm_0.26.csv"
STAGES = {"sparse_attention_decode": "sparse_attention"}
"""Stage that an operation of the figures is, where the names differ."""
INDEXER_STAGES = {"compressor_state_save": "indexer_state_save", "compress_norm_rope_insert": "indexer_compress_insert"}
"""Stage that an operation is for the indexer's compressor (variant ``c4idx``)."""
COMPLETING = ("compress_norm_rope_insert", "indexer_compress_insert")
"""Stages whose work depends on how many tokens complete an entry: in the figures all do."""
OF_VARIANT = ("compress_norm_rope_insert", "indexer_query_rope_quant")
"""Stages of which vLLM has a CuTe and a Triton form: providers ``vllm`` and ``vllm:triton``."""
HEADED = ("query_norm_rope_insert", "sparse_attention", "inverse_rope_quant")
"""Stages whose heads in the figures are query heads; elsewhere they are the indexer's, of which all models have 64."""
MOST_COOPERATIVE = 32
"""Rows up to which vLLM 0.26 takes its cooperative top-k; only the kernel that it takes is measured."""


@dataclass(frozen=True)
class Cell:
    """A figure, and what a row has to be to stand beside it; None where any will do.

    Attributes:
        name: what it is, for reading.
        stage: stage.
        provider: provider that runs that implementation; empty where vLLM doesn't take it there.
        tokens: of the step.
        layer: layer kind.
        heads: query heads.
        topk: selected entries.
        context: sequence length after the step.
        seconds: by L2 state, ``warm`` and ``cold``.
    """

    name: str
    stage: str
    provider: str
    tokens: int
    layer: str | None
    heads: int | None
    topk: int | None
    context: int | None
    seconds: dict[str, float]


def read_cells(path: Path) -> list[Cell]:
    """The cells of a file of figures."""
    with path.open(encoding="utf-8") as file:
        return [_cell(record) for record in csv.DictReader(file)]


def _cell(record: dict[str, str]) -> Cell:
    variant, op, tokens = record["variant"], record["op"], int(record["batch_or_tokens"])
    stage = INDEXER_STAGES[op] if variant == "c4idx" else STAGES.get(op, op)
    layer = {"c4main": "c4a", "c4idx": "c4a", "c128main": "c128a"}.get(variant)
    provider = "vllm"
    if stage in OF_VARIANT and record["implementation"] == "vllm-triton":
        provider = "vllm:triton"
    if stage == "topk" and (record["implementation"] == "vllm-cooperative") != (tokens <= MOST_COOPERATIVE):
        provider = ""
    parts = (op, record["implementation"], variant, record["heads"] and f"H={record['heads']}", f"T={tokens}")
    context = int(record["context"]) if record["context"] else None
    return Cell(
        name=" ".join((*filter(None, parts), f"N={context}" if context else "")).strip(),
        stage=stage,
        provider=provider,
        tokens=tokens,
        layer=layer or (variant if stage == "sparse_attention" else None),
        heads=int(record["heads"]) if stage in HEADED else None,
        topk=int(variant.removeprefix("k")) if stage == "topk" else None,
        context=context,
        seconds={"warm": float(record["graph_us"]) / 1e6, "cold": float(record["cold_us"]) / 1e6},
    )


@dataclass(frozen=True)
class Measured:
    """A stage of a row."""

    stage: str
    provider: str
    tokens: int
    layer: str
    heads: int
    topk: int
    context: int
    complete: bool
    l2: str
    seconds: float


def measured_stages(rows: Iterable[Row]) -> Iterator[Measured]:
    """The stages of decode steps of one token per request."""
    for row in rows:
        case = row.case
        if row.status is not Status.OK or case["query_len"] != 1:
            continue
        if row.contract.l2 == "warm" and row.contract.timer != "graph":
            continue  # the figures have no other
        shape = load_shape(case["model"]).shard(case["tp"])
        for stage in row.stages:
            if stage.timing is not None:
                yield Measured(
                    stage.name,
                    stage.provider,
                    tokens_of(case),
                    case["layer"],
                    shape.num_heads,
                    shape.index_topk,
                    case["context"],
                    case["boundary"] == "all",
                    row.contract.l2,
                    stage.timing.median,
                )


def matches(cell: Cell, found: Measured, provider: str = "") -> bool:
    """Whether a measured stage stands beside a figure; with ``provider``, of that one instead of vLLM's."""
    wanted = (
        (cell.layer, found.layer),
        (cell.heads, found.heads),
        (cell.topk, found.topk),
        (cell.context, found.context),
    )
    return (
        cell.stage == found.stage
        and cell.tokens == found.tokens
        and found.provider == (provider or cell.provider)
        and (found.complete or cell.stage not in COMPLETING)
        and all(want is None or want == have for want, have in wanted)
    )


@dataclass(frozen=True)
class Line:
    """A cell beside what was measured, seconds."""

    cell: Cell
    l2: str
    figure: float
    seconds: float

    @property
    def ratio(self) -> float:
        """Measured over figure."""
        return self.seconds / self.figure


def compare(cells: Sequence[Cell], found: Sequence[Measured], provider: str = "") -> list[Line]:
    """Every cell that was measured, the median where several rows measured it."""
    lines = []
    for cell in cells:
        beside = [one for one in found if matches(cell, one, provider)]
        for l2, figure in cell.seconds.items():
            seconds = [one.seconds for one in beside if one.l2 == l2]
            if seconds:
                lines.append(Line(cell, l2, figure, median(seconds)))
    return lines


def report(lines: Sequence[Line], cells: Sequence[Cell], within: float, provider: str = "") -> str:
    """The table, the cells further off than ``within``, and those that nothing was measured for."""
    text = [f"{'figure µs':>10} {'measured µs':>12} {'ratio':>6}  L2    cell"]
    text += [
        f"{line.figure * 1e6:10.2f} {line.seconds * 1e6:12.2f} {line.ratio:6.2f}  {line.l2:5} {line.cell.name}"
        for line in lines
    ]
    mean = exp(sum(log(line.ratio) for line in lines) / len(lines))
    off = [line for line in lines if abs(line.ratio - 1) > within]
    text += ["", f"{len(lines)} figures held against, geometric mean of the ratios {mean:.3f}"]
    text += [f"{len(off)} further off than {within:.0%}:"] if off else [f"all within {within:.0%}"]
    text += [
        f"  {line.ratio:.2f} ({(line.seconds - line.figure) * 1e6:+.2f} µs) {line.l2} {line.cell.name}" for line in off
    ]
    have = {line.cell.name for line in lines}
    for why, names in (
        ("not measured", [cell.name for cell in cells if cell.name not in have and (cell.provider or provider)]),
        ("not what vLLM takes there", [] if provider else [cell.name for cell in cells if not cell.provider]),
    ):
        text += [f"{why}: {len(names)}", *(f"  {name}" for name in names)] if names else []
    return "\n".join(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--figures", type=Path, default=FIGURES)
    parser.add_argument("--provider", default="")
    parser.add_argument("--within", type=float, default=0.1)
    options = parser.parse_args(arguments)
    try:
        cells = read_cells(options.figures)
        rows = [row for path in options.runs for row in read_run(path).rows]
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    lines = compare(cells, list(measured_stages(rows)), options.provider)
    if not lines:
        print("no row of these runs stands beside a figure", file=sys.stderr)
        return 2
    print(report(lines, cells, options.within, options.provider))
    return 1 if any(abs(line.ratio - 1) > options.within for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
