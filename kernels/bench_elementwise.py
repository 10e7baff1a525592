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
        prepare: (heads, tokens, variant) → a launch that takes ``tile``.
        tiles: (tokens, variant) → tiles to try beside the table's own.
        pdl: the module whose ``launch_options`` decides about dependent launch.
    """

    prepare: Callable[[int, int, str], Callable[..., object]]
    tiles: Callable[[int, str], list[object]]
    pdl: object


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


def _query(heads: int, tokens: int, variant: str) -> Callable[..., object]:
    arguments = {
        "q": _tensor(tokens, heads, 512), "kv": _tensor(tokens, 512), "positions": _positions(tokens),
        "cos_sin": _table(), "window_cache": _cache("main-fp8", 64, tokens), "window_slots": _slots(tokens),
        "eps": 1e-6,
    }  # fmt: skip
    return lambda **tile: query.query_norm_rope_insert(**arguments, **tile)


def _inverse(heads: int, tokens: int, variant: str) -> Callable[..., object]:
    arguments = {
        "o": _tensor(tokens, heads, 512), "positions": _positions(tokens), "cos_sin": _table(), "groups": heads // 8,
        "precision": "fp8",
    }  # fmt: skip
    return lambda **tile: inverse.inverse_rope_quant(**arguments, **tile)


def _index_query(heads: int, tokens: int, variant: str) -> Callable[..., object]:
    arguments = {
        "index_q": _tensor(tokens, 64, 128), "head_weights": _tensor(tokens, 64), "positions": _positions(tokens),
        "cos_sin": _table(), "precision": "fp8", "rope_style": "interleaved",
    }  # fmt: skip
    return lambda **tile: index_query.indexer_query_rope_quant(**arguments, **tile)


def _shape(variant: str) -> tuple[int, int, int]:
    """Width, ratio and tokens per state page of a compressor variant."""
    return {"c4main": (512, 4, 4), "c128main": (512, 128, 8), "c4idx": (128, 4, 4)}[variant]


def _state_save(heads: int, tokens: int, variant: str) -> Callable[..., object]:
    dim, ratio, block = _shape(variant)
    row = state_row_floats(dim, ratio)
    arguments = {
        "kv_score": _tensor(tokens, row, dtype=torch.float32), "ape": _tensor(ratio, row // 2, dtype=torch.float32),
        "positions": _positions(tokens), "state_slots": _slots(tokens),
        "state_cache": torch.zeros((-(-tokens // block), block, row), device=DEVICE),
    }  # fmt: skip
    return lambda **tile: state_save.compressor_state_save(**arguments, **tile)


def _compress(heads: int, tokens: int, variant: str) -> Callable[..., object]:
    """Every token completes an entry, from pages of its own in random order."""
    dim, ratio, block = _shape(variant)
    span = 8 if ratio == 4 else 128
    pages = tokens * (span // block)
    arguments = {
        "state_cache": torch.randn((pages, block, state_row_floats(dim, ratio)), device=DEVICE),
        "state_block_table": torch.randperm(pages).to(DEVICE).int().view(tokens, -1),
        "token_to_request": torch.arange(tokens, device=DEVICE, dtype=torch.int32),
        "positions": torch.full((tokens,), span - 1, device=DEVICE), "compressed_slots": _slots(tokens),
        "norm_weight": _tensor(dim), "cos_sin": _table(), "ratio": ratio, "eps": 1e-6,
        "cache": _cache("indexer-fp8" if dim == 128 else "main-fp8", 64 if ratio == 4 else 2, tokens),
    }  # fmt: skip
    return lambda **tile: compress.compress_norm_rope_insert(**arguments, **tile)


def _compress_tiles(tokens: int, variant: str) -> list[object]:
    if variant == "c128main":
        tiles = [(1, 64, 4, 32, 4), (1, 64, 8, 16, 4), (1, 128, 8, 16, 4), (1, 32, 4, 32, 2)] if tokens <= 8 else []
        tiles += [(1, 64, 2, 32, 4), (1, 64, 1, 32, 4), (1, 64, 1, 16, 4), (1, 128, 1, 16, 4), (1, 64, 1, 32, 8)]
        if tokens >= 64:
            tiles += [(1, 128, 1, 32, 8), (1, 32, 1, 32, 4), (1, 128, 2, 16, 4), (1, 256, 1, 8, 4)]
        if tokens >= 1024:
            tiles += [(4, 64, 1, 32, 4), (8, 64, 1, 32, 4), (1, 512, 1, 4, 4), (1, 512, 1, 8, 8), (4, 128, 1, 16, 4)]
        return [compress.SplitTile(*tile) for tile in tiles]
    few = [(1, 1), (1, 2), (1, 4)] if variant == "c4idx" else [(1, 4), (1, 8), (1, 2)]
    many = [(2, few[0][1]), (4, few[0][1])] if tokens >= 1024 else []
    return [compress.OverlapTile(*tile) for tile in few + many]


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
    "query_norm_rope_insert": Family(_query, _query_tiles, query),
    "inverse_rope_quant": Family(_inverse, _inverse_tiles, inverse),
    "indexer_query_rope_quant": Family(_index_query, _index_query_tiles, index_query),
    "compressor_state_save": Family(_state_save, _state_tiles, state_save),
    "compress_norm_rope_insert": Family(_compress, _compress_tiles, compress),
}


def graph_us(launch: Callable[[], object]) -> float:
    """Microseconds per launch."""
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            launch()
    times = []
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    graph.replay()
    for _ in range(REPLAYS):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / LAUNCHES)
    return median(times)


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
    """(tile, microseconds) of the table's tile, of it without dependent launch, and of each candidate."""
    op, heads, tokens, variant = cell
    family = FAMILIES[op]
    launch = family.prepare(heads, tokens, variant)
    yield "table", graph_us(launch)
    options = family.pdl.launch_options
    family.pdl.launch_options = lambda: {"PDL": False}
    yield "no-pdl", graph_us(launch)
    family.pdl.launch_options = options
    for tile in family.tiles(tokens, variant):
        try:
            yield ",".join(map(str, dataclasses.astuple(tile))), graph_us(lambda t=tile: launch(tile=t))
        except Exception as error:  # a tile that does not compile is a result, too
            print(f"{cell} {tile}: {type(error).__name__}: {str(error)[:120]}", file=sys.stderr)


def compile_tiles(cells: list[Cell]) -> None:
    """Compile what ``measure`` would launch."""
    global DEVICE
    DEVICE = "meta"
    with compiled_kernels(ARCH):
        for op, heads, tokens, variant in cells:
            launch = FAMILIES[op].prepare(heads, tokens, variant)
            launch()
            for tile in FAMILIES[op].tiles(tokens, variant):
                launch(tile=tile)


def main() -> None:
    """Measure the cells and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--anchors", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen = {cell: best for cell, best in anchors(options.anchors).items() if options.only in " ".join(map(str, cell))}
    if options.compile:
        compile_tiles(list(chosen))
        return
    results = {}
    print(f"{torch.cuda.get_device_name()}: us per launch; x = anchor / table")
    for cell, (anchor, floor) in chosen.items():
        times = dict(measure(cell))
        results[" ".join(map(str, cell))] = {"anchor": anchor, "floor": floor, **times}
        ranked = sorted((us, tile) for tile, us in times.items() if tile not in ("table", "no-pdl"))
        best = " ".join(f"{tile}={us:.2f}" for us, tile in ranked[:3])
        op, heads, tokens, variant = cell
        print(
            f"{op[:22]:<22} {heads or variant:>8} T={tokens:<5} {times['table']:8.2f} nopdl {times['no-pdl']:8.2f} "
            f"anchor {anchor:8.2f} x {anchor / times['table']:.2f} floor {floor:7.2f} | {best}",
            flush=True,
        )
        torch.cuda.empty_cache()
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
