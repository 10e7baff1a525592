"""Check and time indexer logits, top-k and sparse attention on a GPU, cell by cell, beside figures measured elsewhere.

Every cell's result is compared with the torch reference first; a wrong kernel is not timed. Times are per launch: a
CUDA graph of 10 launches, replayed 20 times with L2 as the previous replay left it, median. The anchors are a CSV with
columns op, heads, batch_or_tokens, context, variant, graph_us, floor_us; a cell's best implementation counts.

    python kernels/bench_attention.py --anchors FILE [--only OP] [--tune] [--out FILE]
"""

# ruff: noqa: T201
import argparse
import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import power_of_two, quantize_fp8, random_fill
from dsv4_kernels.formats import FORMATS
from dsv4_kernels.reference import attention as reference_attention
from dsv4_kernels.reference import indexer as reference_indexer
from dsv4_kernels.triton import indexer_logits as logits_module
from dsv4_kernels.triton import topk as topk_module
from dsv4_kernels.triton.sparse_attention import sparse_attention
from dsv4_kernels.triton.splits import TILE, Gpu, plan_splits

DEVICE = "cuda"
LAUNCHES, REPLAYS = 10, 20
WINDOW = 128


@dataclass(frozen=True)
class Cell:
    """One row of the anchors."""

    op: str
    heads: int
    batch: int
    context: int
    variant: str


def paged(name: str, entries: int, slots: int) -> PagedCache:
    """A cache of at least ``slots`` random entries in pages padded to 576 bytes."""
    size = -(-FORMATS[name].page_bytes(entries) // 576) * 576
    pages = torch.full((-(-slots // entries), size), 255, dtype=torch.uint8, device=DEVICE)
    cache = PagedCache(pages, FORMATS[name], entries)
    random_fill(cache)
    return cache


def attention_arguments(
    heads: int, batch: int, context: int, variant: str, name: str = "main-fp8"
) -> dict[str, object]:
    """What ``sparse_attention`` takes in a decode step: scattered slots, every request with pages of its own."""
    window = paged(name, 64, batch * WINDOW)
    arguments: dict[str, object] = {
        "q": torch.randn(batch, heads, 512, device=DEVICE).bfloat16(), "window_cache": window,
        "window_indices": torch.randperm(batch * WINDOW, device=DEVICE).view(batch, WINDOW).int(),
        "window_lens": torch.full((batch,), WINDOW, dtype=torch.int32, device=DEVICE), "compressed_cache": None,
        "compressed_indices": None, "compressed_lens": None, "sink": torch.randn(heads, device=DEVICE),
        "softmax_scale": 512**-0.5,
    }  # fmt: skip
    if variant == "swa":
        return arguments
    entries = context // (4 if variant == "c4a" else 128)
    selected = min(entries, 8 * heads) if variant == "c4a" else entries
    cache = paged(name, 64 if variant == "c4a" else 2, batch * entries)
    pages = torch.randperm(cache.num_pages, device=DEVICE).view(batch, -1)
    columns = [
        torch.randperm(entries, device=DEVICE)[:selected] if variant == "c4a" else torch.arange(selected, device=DEVICE)
        for _ in range(batch)
    ]
    local = torch.stack(columns)
    slots = pages.gather(1, local // cache.entries) * cache.entries + local % cache.entries
    arguments |= {
        "compressed_cache": cache, "compressed_indices": slots.int(),
        "compressed_lens": torch.full((batch,), selected, dtype=torch.int32, device=DEVICE),
    }  # fmt: skip
    return arguments


def logits_arguments(batch: int, context: int) -> dict[str, object]:
    """What ``indexer_logits`` takes in a decode step over fp8 keys."""
    entries = context // 4
    cache = paged("indexer-fp8", 64, batch * entries)
    values, exponents = quantize_fp8(torch.randn(batch, 64, 128, device=DEVICE), 128)
    weights = torch.randn(batch, 64, device=DEVICE) * power_of_two(exponents[..., 0])
    return {
        "index_q_values": values, "index_q_scales": None, "index_weights": weights, "indexer_cache": cache,
        "block_table": torch.randperm(cache.num_pages, device=DEVICE).view(batch, -1).int(),
        "token_to_request": torch.arange(batch, device=DEVICE, dtype=torch.int32),
        "candidate_lens": torch.full((batch,), entries, dtype=torch.int32, device=DEVICE), "max_candidates": entries,
    }  # fmt: skip


def topk_arguments(batch: int, context: int, k: int) -> dict[str, object]:
    """What ``topk`` takes: normally distributed logits."""
    entries = context // 4
    return {
        "logits": torch.randn(batch, entries, device=DEVICE),
        "candidate_lens": torch.full((batch,), entries, dtype=torch.int32, device=DEVICE), "k": k,
    }  # fmt: skip


def few_rows(arguments: dict[str, object], batch: int) -> tuple[dict[str, object], torch.Tensor]:
    """The arguments of the first, middle and last token of a step, and their numbers."""
    rows = torch.unique(torch.tensor([0, batch // 2, batch - 1], device=DEVICE))
    per_token = {
        name
        for name, value in arguments.items()
        if isinstance(value, torch.Tensor) and name not in ("sink", "block_table") and len(value) == batch
    }
    return {name: value[rows] if name in per_token else value for name, value in arguments.items()}, rows


def attention_error(arguments: dict[str, object], out: torch.Tensor) -> float:
    """Worst relative error of a (token, head) output vector, of a few tokens."""
    part, rows = few_rows(arguments, len(out))
    want, _ = reference_attention.sparse_attention(**{**part, "q": part["q"].float()})
    error = (out[rows].float() - want).norm(dim=-1) / want.norm(dim=-1)
    return error.nan_to_num(float("inf")).max().item()


def logits_error(arguments: dict[str, object], out: torch.Tensor) -> float:
    """Worst relative error of a row, of a few tokens."""
    part, rows = few_rows(arguments, len(out))
    want = reference_indexer.indexer_logits(**part)
    error = (out[rows] - want).norm(dim=-1) / want.norm(dim=-1)
    return error.nan_to_num(float("inf")).max().item()


def topk_wrong(logits: torch.Tensor, lens: torch.Tensor, k: int, chosen: torch.Tensor) -> int:
    """Rows whose selection is not a set of k best valid candidates followed by −1."""
    wrong = 0
    for row, length, got in zip(logits, lens.tolist(), chosen, strict=True):
        count = min(length, k)
        valid = got[:count].long()
        fine = bool((got[count:] == -1).all()) and bool((valid >= 0).all()) and bool((valid < max(length, 1)).all())
        if fine and count:
            best = torch.topk(row[:length], count).values.sort().values
            fine = torch.equal(row[valid].sort().values, best) and len(valid.unique()) == count
        wrong += not fine
    return wrong


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
    names = {"sparse_attention_decode": "sparse_attention", "topk": "topk", "indexer_logits": "indexer_logits"}
    with path.open() as file:
        for row in csv.DictReader(file):
            if row["op"] in names:
                numbers = (int(row[name] or 0) for name in ("heads", "batch_or_tokens", "context"))
                cell = Cell(names[row["op"]], *numbers, row["variant"])
                best = min(float(row["graph_us"]), cells.get(cell, (float("inf"), 0.0))[0])
                cells[cell] = (best, float(row["floor_us"]))
    return cells


def measure(cell: Cell, tune: bool) -> tuple[str, dict[str, float]]:
    """A word on correctness, and microseconds of the kernel as shipped and of what tuning tries beside it."""
    return {"sparse_attention": measure_attention, "indexer_logits": measure_logits, "topk": measure_topk}[cell.op](
        cell, tune
    )


def measure_attention(cell: Cell, tune: bool) -> tuple[str, dict[str, float]]:
    """As shipped, and with other numbers of splits."""
    arguments = attention_arguments(cell.heads, cell.batch, cell.context, cell.variant)
    error = attention_error(arguments, sparse_attention(**arguments)[0])
    if error > 8e-3:
        return f"WRONG {error:.1e}", {"shipped": float("nan")}
    times = {"shipped": graph_us(lambda: sparse_attention(**arguments))}
    for splits in splits_to_try(cell) if tune else ():
        times[f"splits={splits}"] = graph_us(lambda s=splits: sparse_attention(**arguments, splits=s))
    return f"err {error:.1e}", times


def attention_tiles(cell: Cell) -> int:
    """Tiles of entries that a token of the cell attends."""
    entries = {"swa": 0, "c4a": min(cell.context // 4, 8 * cell.heads), "c128a": cell.context // 128}[cell.variant]
    return (WINDOW + entries) // TILE


def splits_to_try(cell: Cell) -> list[int]:
    """The planner's choice, the least splits for every length of a share, and what fills 132 processors in few ways."""
    tiles, blocks = attention_tiles(cell), cell.batch * cell.heads // 64
    tried = {-(-tiles // walk) for walk in range(1, tiles + 1)} | {132 // blocks, 66 // blocks, 44 // blocks}
    few = [s for s in tried if tiles / 12 <= s <= tiles and blocks * s <= 264]
    planned = plan_splits(cell.batch, cell.heads, tiles, 64, Gpu(132, 60 << 20), "gluon")
    return sorted({*few, planned, 1})


def measure_logits(cell: Cell, tune: bool) -> tuple[str, dict[str, float]]:
    """As shipped, with other pipelines of the plain form, and in the Gluon form."""
    arguments = logits_arguments(cell.batch, cell.context)
    error = logits_error(arguments, logits_module.indexer_logits(**arguments))
    if error > 2e-3:
        return f"WRONG {error:.1e}", {"shipped": float("nan")}
    times = {"shipped": graph_us(lambda: logits_module.indexer_logits(**arguments))}
    saved = logits_module._PIPELINE
    for programs, stages in ((3, 3), (4, 2), (2, 4)) if tune else ():
        logits_module._PIPELINE = dict.fromkeys(saved, (programs, stages))
        times[f"plain={programs},{stages}"] = graph_us(lambda: logits_module.indexer_logits(**arguments, form="plain"))
    logits_module._PIPELINE = saved
    operands = (arguments[name] for name in ("index_q_values", "index_weights", "indexer_cache"))
    if tune and logits_module.gluon_applies(*operands):
        times["gluon"] = graph_us(lambda: logits_module.indexer_logits(**arguments, form="gluon"))
    return f"err {error:.1e}", times


def measure_topk(cell: Cell, tune: bool) -> tuple[str, dict[str, float]]:
    """As shipped, and with other numbers of programs where they share rows."""
    arguments = topk_arguments(cell.batch, cell.context, int(cell.variant[1:]))
    wrong = topk_wrong(arguments["logits"], arguments["candidate_lens"], arguments["k"], topk_module.topk(**arguments))
    if wrong:
        return f"WRONG in {wrong} rows", {"shipped": float("nan")}
    times = {"shipped": graph_us(lambda: topk_module.topk(**arguments))}
    for programs in (256, 512) if tune and cell.context > 65536 else ():
        saved = topk_module._PROGRAMS
        topk_module._PROGRAMS = programs
        times[f"programs={programs}"] = graph_us(lambda: topk_module.topk(**arguments))
        topk_module._PROGRAMS = saved
    return "exact", times


def main() -> None:
    """Check, then measure the cells and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--anchors", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--tune", action="store_true", help="also time other splits and pipeline shapes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results, ratios = {}, {}
    print(f"{torch.cuda.get_device_name()}: us per launch; x = anchor / shipped")
    for cell, (anchor, floor) in anchors(options.anchors).items():
        if options.only not in cell.op:
            continue
        try:
            note, times = measure(cell, options.tune)
        except Exception as error:
            print(cell, type(error).__name__, str(error)[:300], flush=True)
            continue
        shipped = times["shipped"]
        ratios.setdefault(cell.op, []).append(anchor / shipped)
        results[f"{cell.op} {cell.heads} {cell.batch} {cell.context} {cell.variant}"] = {
            "anchor": anchor,
            "floor": floor,
            **times,
        }
        tried = " ".join(f"{name}:{us:.1f}" for name, us in times.items() if name != "shipped")
        print(
            f"{cell.op[:8]:<8} H={cell.heads:<3} B={cell.batch:<3} {cell.context:>7} {cell.variant:<5} {shipped:8.2f} "
            f"anchor {anchor:7.2f} x {anchor / shipped:.2f} floor {floor:7.2f} {note} | {tried}",
            flush=True,
        )
        torch.cuda.empty_cache()
    for op, values in ratios.items():
        print(f"{op}: geometric mean {geometric_mean(values):.2f}, least {min(values):.2f}, {len(values)} cells")
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
