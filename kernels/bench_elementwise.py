"""Check and tune the element-wise kernels on a GPU: every tile in every cell, beside figures measured elsewhere.

Times are per launch: a CUDA graph of 10 launches, replayed 20 times with L2 as the previous replay left it, median. The
anchors are a CSV with columns op, heads, batch_or_tokens, variant, graph_us; the best implementation of a cell counts.

    python kernels/bench_elementwise.py --anchors FILE [--only OP] [--compile] [--out FILE]

``--compile`` only fills Triton's cache, without a GPU, so that several families compile side by side.
"""

# ruff: noqa: T201
import argparse
import csv
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch
from compile_report import compiled_kernels
from dsv4_kernels import triton_unfused as unfused
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import FORMATS, state_row_floats
from dsv4_kernels.rope import cos_sin_table
from dsv4_kernels.triton import compress_norm_rope_insert as compress
from dsv4_kernels.triton import compressor_state_save as state_save
from dsv4_kernels.triton import indexer_query_rope_quant as index_query
from dsv4_kernels.triton import inverse_rope_quant as inverse
from dsv4_kernels.triton import query_norm_rope_insert as query

DEVICE = "cuda"
ARCH = 90
LAUNCHES, REPLAYS = 10, 20
Cell = tuple[str, int, int, str]


@dataclasses.dataclass(frozen=True)
class Family:
    """A kernel with the tiles to try.

    Attributes:
        prepare: (heads, tokens, variant) → arguments of the stage.
        tiles: (tokens, variant) → tiles to try beside the table's own.
        fused: the launcher.
        unfused: the same stage as a kernel per step.
    """

    prepare: Callable[[int, int, str], dict[str, object]]
    tiles: Callable[[int, str], list[object]]
    fused: Callable[..., object]
    unfused: Callable[..., object]


def _tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.float32).to(dtype)


def _positions(tokens: int) -> torch.Tensor:
    return torch.randint(0, 8192, (tokens,), device=DEVICE)


_TABLE: list[torch.Tensor] = []


def _table() -> torch.Tensor:
    if not _TABLE:
        _TABLE.append(cos_sin_table(8192, 160000.0, 16.0, 65536).to(DEVICE))
    return _TABLE[0]


def _cache(name: str, entries: int, slots: int) -> PagedCache:
    size = -(-FORMATS[name].page_bytes(entries) // 576) * 576
    pages = torch.zeros((-(-slots // entries), size), dtype=torch.uint8, device=DEVICE)
    return PagedCache(pages, FORMATS[name], entries)


def _slots(tokens: int) -> torch.Tensor:
    return torch.randperm(tokens).to(DEVICE)


def _query(heads: int, tokens: int, variant: str) -> dict[str, object]:
    return {
        "q": _tensor(tokens, heads, 512), "kv": _tensor(tokens, 512), "positions": _positions(tokens),
        "cos_sin": _table(), "window_cache": _cache("main-fp8", 64, tokens), "window_slots": _slots(tokens),
        "eps": 1e-6,
    }  # fmt: skip


def _inverse(heads: int, tokens: int, variant: str) -> dict[str, object]:
    return {
        "o": _tensor(tokens, heads, 512), "positions": _positions(tokens), "cos_sin": _table(), "groups": heads // 8,
        "precision": "fp8",
    }  # fmt: skip


def _index_query(heads: int, tokens: int, variant: str) -> dict[str, object]:
    return {
        "index_q": _tensor(tokens, 64, 128), "head_weights": _tensor(tokens, 64), "positions": _positions(tokens),
        "cos_sin": _table(), "precision": "fp8", "rope_style": "interleaved",
    }  # fmt: skip


def _shape(variant: str) -> tuple[int, int, int]:
    """Width, ratio and tokens per state page of a compressor variant."""
    return {"c4main": (512, 4, 4), "c128main": (512, 128, 8), "c4idx": (128, 4, 4)}[variant]


def _state_save(heads: int, tokens: int, variant: str) -> dict[str, object]:
    dim, ratio, block = _shape(variant)
    row = state_row_floats(dim, ratio)
    return {
        "kv_score": _tensor(tokens, row, dtype=torch.float32), "ape": _tensor(ratio, row // 2, dtype=torch.float32),
        "positions": _positions(tokens), "state_slots": _slots(tokens),
        "state_cache": torch.zeros((-(-tokens // block), block, row), device=DEVICE),
    }  # fmt: skip


def _compress(heads: int, tokens: int, variant: str) -> dict[str, object]:
    """Every token completes an entry, from pages of its own; or a step of decodes, or of one prefill."""
    kind, _, step = variant.partition(" ")
    dim, ratio, block = _shape(kind)
    span = 8 if ratio == 4 else 128
    requests = 1 if step == "prefill" else tokens
    reach = tokens if step == "prefill" else 2 * span if step == "spread" else span
    pages = requests * (reach // block)
    positions = torch.full((tokens,), span - 1)
    if step == "prefill":
        positions = torch.arange(tokens)
    elif step == "spread":
        positions = span - 1 + torch.arange(tokens) * 37 % ratio
    slots = torch.where((positions + 1) % ratio == 0, torch.randperm(tokens), -1)
    return {
        "state_cache": torch.randn((pages, block, state_row_floats(dim, ratio)), device=DEVICE),
        "state_block_table": torch.randperm(pages).to(DEVICE).int().view(requests, -1),
        "token_to_request": (torch.arange(tokens) % requests).to(DEVICE).int(),
        "positions": positions.to(DEVICE), "compressed_slots": slots.to(DEVICE),
        "norm_weight": _tensor(dim), "cos_sin": _table(), "ratio": ratio, "eps": 1e-6,
        "cache": _cache("indexer-fp8" if dim == 128 else "main-fp8", 64 if ratio == 4 else 2, tokens),
    }  # fmt: skip


def _compress_tiles(tokens: int, variant: str) -> list[object]:
    if "c128main" in variant:
        tiles = [(1, 32, 128), (1, 32, 64)] if tokens <= 256 else [(16, 32, 128), (16, 32, 128, 2, 6)]
        tiles += [(4, 32, 64), (4, 32, 64, 2, 6), (4, 32, 128)] if 8 < tokens <= 256 else []
        tiles += [(8, 32, 64), (8, 32, 64, 2, 6), (8, 32, 128, 2, 6)] if tokens > 8 else []
        tiles += [(32, 32, 128), (32, 32, 128, 2, 6), (32, 32, 64, 2, 6)] if tokens >= 1024 else []
        return [compress.SplitTile(*tile) for tile in tiles]
    warps = 1 if "c4idx" in variant else 4
    tiles = [(1, warps)] + ([(2, warps), (4, warps), (8, warps)] if tokens >= 1024 else [])
    return [compress.OverlapTile(*tile) for tile in tiles]


def _state_tiles(tokens: int, variant: str) -> list[object]:
    return [state_save.Tile(*tile) for tile in ((512, 4), (1024, 4), (2048, 4), (2048, 8), (512, 2), (1024, 2))]


def _query_tiles(tokens: int, variant: str) -> list[object]:
    few = [(1, 1), (2, 1), (4, 1), (2, 2), (4, 4)]
    many = [(4, 1), (8, 1), (8, 2), (16, 2), (16, 4), (32, 4), (2, 1)]
    return [query.Tile(*tile) for tile in (few if tokens <= 8 else many)]


def _inverse_tiles(tokens: int, variant: str) -> list[object]:
    few = [(1, 1, 1), (1, 2, 1), (1, 4, 1), (2, 1, 1), (4, 1, 1)]
    many = [(4, 1, 1), (8, 1, 1), (8, 1, 2), (16, 1, 4), (4, 4, 4), (1, 8, 2), (1, 4, 1), (8, 2, 4), (2, 2, 1)]
    return [inverse.Tile(*tile) for tile in (few if tokens <= 8 else many)]


def _index_query_tiles(tokens: int, variant: str) -> list[object]:
    few = [(1, 1), (2, 1), (4, 1), (8, 1), (8, 2)]
    many = [(4, 1), (8, 1), (16, 1), (32, 1), (16, 2), (32, 4), (64, 4)]
    return [index_query.Tile(*tile) for tile in (few if tokens <= 8 else many)]


FAMILIES = {
    "query_norm_rope_insert": Family(
        _query, _query_tiles, query.query_norm_rope_insert, unfused.query_norm_rope_insert
    ),
    "inverse_rope_quant": Family(_inverse, _inverse_tiles, inverse.inverse_rope_quant, unfused.inverse_rope_quant),
    "indexer_query_rope_quant": Family(
        _index_query, _index_query_tiles, index_query.indexer_query_rope_quant, unfused.indexer_query_rope_quant
    ),
    "compressor_state_save": Family(
        _state_save, _state_tiles, state_save.compressor_state_save, unfused.compressor_state_save
    ),
    "compress_norm_rope_insert": Family(
        _compress, _compress_tiles, compress.compress_norm_rope_insert, unfused.compress_norm_rope_insert
    ),
}
STEPS = [("compress_norm_rope_insert", 0, tokens, f"{kind} {step}")
         for kind in ("c4main", "c128main", "c4idx")
         for tokens, step in ((128, "spread"), (1024, "prefill"), (8192, "prefill"))]  # fmt: skip
"""Cells without an anchor: steps as an engine has them, where one token in 4 or 128 completes an entry."""


def graph_us(launch: Callable[[], object]) -> float:
    """Microseconds per launch."""
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            launch()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    _spin()
    times = []
    for _ in range(REPLAYS):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / LAUNCHES)
    return median(times)


def _spin() -> None:
    """A few milliseconds of work, so that clocks are up."""
    x = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)
    for _ in range(20):
        x @ x


def anchors(path: Path) -> dict[Cell, tuple[float, float]]:
    """Cell → microseconds of its best implementation, and the floor."""
    cells: dict[Cell, tuple[float, float]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            if row["op"] in FAMILIES:
                cell = (row["op"], int(row["heads"] or 0), int(row["batch_or_tokens"]), row["variant"])
                best = min(float(row["graph_us"]), cells.get(cell, (float("inf"), 0.0))[0])
                cells[cell] = (best, float(row["floor_us"]))
    return cells


def measure(cell: Cell) -> Iterator[tuple[str, float]]:
    """(tile, microseconds) of the table's tile, of the unfused stage, and of each candidate."""
    op, heads, tokens, variant = cell
    family = FAMILIES[op]
    arguments = family.prepare(heads, tokens, variant)
    yield "table", graph_us(lambda: family.fused(**arguments))
    yield "unfused", graph_us(lambda: family.unfused(**arguments))
    for tile in family.tiles(tokens, variant):
        name = ",".join(map(str, dataclasses.astuple(tile)))
        try:
            yield name, graph_us(lambda t=tile: family.fused(**arguments, tile=t))
        except Exception as error:  # a tile that does not compile is a result, too
            print(f"{cell} {tile}: {type(error).__name__}: {str(error)[:120]}", file=sys.stderr)


def compile_tiles(cells: list[Cell]) -> None:
    """Compile what ``measure`` would launch."""
    global DEVICE
    DEVICE = "meta"
    with compiled_kernels(ARCH):
        for op, heads, tokens, variant in cells:
            arguments = FAMILIES[op].prepare(heads, tokens, variant)
            FAMILIES[op].fused(**arguments)
            FAMILIES[op].unfused(**arguments)
            for tile in FAMILIES[op].tiles(tokens, variant):
                FAMILIES[op].fused(**arguments, tile=tile)


def main() -> None:
    """Measure the cells and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--anchors", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    known = anchors(options.anchors) | dict.fromkeys(STEPS, (float("nan"), float("nan")))
    chosen = {cell: best for cell, best in known.items() if options.only in " ".join(map(str, cell))}
    if options.compile:
        compile_tiles(list(chosen))
        return
    results = {}
    print(f"{torch.cuda.get_device_name()}: us per launch; x = anchor / table")
    for cell, (anchor, floor) in chosen.items():
        times = dict(measure(cell))
        results[" ".join(map(str, cell))] = {"anchor": anchor, "floor": floor, **times}
        ranked = sorted((us, tile) for tile, us in times.items() if tile not in ("table", "unfused"))
        best = " ".join(f"{tile}={us:.2f}" for us, tile in ranked[:4])
        op, heads, tokens, variant = cell
        print(
            f"{op[:14]:<14} {heads or variant:>16} T={tokens:<5} {times['table']:7.2f} unfused {times['unfused']:7.2f} "
            f"anchor {anchor:7.2f} x {anchor / times['table']:.2f} floor {floor:6.2f} | {best}",
            flush=True,
        )
        torch.cuda.empty_cache()
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
