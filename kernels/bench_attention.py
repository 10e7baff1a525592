"""Check and time indexer logits, top-k and sparse attention on a GPU, cell by cell, beside figures measured elsewhere.

Results are compared with the torch reference first; a wrong kernel is not timed. Times are per launch: a CUDA graph of
10 launches, replayed 20 times with L2 as the previous replay left it, median. The anchors are a CSV with columns op,
heads, batch_or_tokens, context, variant, graph_us, floor_us; the best implementation of a cell counts.

    python kernels/bench_attention.py --anchors FILE [--only OP] [--check-only] [--tune] [--out FILE]
"""

# ruff: noqa: T201
import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import quantize_fp8, random_fill, read_entries
from dsv4_kernels.formats import FORMATS
from dsv4_kernels.reference import attention as reference_attention
from dsv4_kernels.reference import indexer as reference_indexer
from dsv4_kernels.triton import indexer_logits as logits_module
from dsv4_kernels.triton import topk as topk_module
from dsv4_kernels.triton.sparse_attention import sparse_attention

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
    selected = min(entries, 512 if heads == 64 else 1024) if variant == "c4a" else entries
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
    weights = torch.randn(batch, 64, device=DEVICE) * torch.ldexp(
        torch.ones_like(exponents[..., 0]).float(), exponents[..., 0]
    )
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


def few_rows(arguments: dict[str, object], rows: torch.Tensor, batch: int) -> dict[str, object]:
    """The arguments of some tokens of a step."""
    return {
        name: value[rows] if isinstance(value, torch.Tensor) and name not in ("sink", "block_table") and len(value) == batch else value
        for name, value in arguments.items()
    }  # fmt: skip


def attention_error(arguments: dict[str, object], result: tuple[torch.Tensor, torch.Tensor]) -> tuple[float, float]:
    """Worst relative error of a (token, head) output vector and worst LSE difference, of a few tokens."""
    batch = len(arguments["q"])
    rows = torch.unique(torch.tensor([0, batch // 2, batch - 1], device=DEVICE))
    part = few_rows(arguments, rows, batch)
    want, lse = reference_attention.sparse_attention(**{**part, "q": part["q"].float()})
    got, got_lse = result[0][rows].float(), result[1][rows]
    empty = lse == float("-inf")
    if not torch.equal(got_lse == float("-inf"), empty) or got[empty].any():
        return float("inf"), float("inf")
    error = (got - want).norm(dim=-1) / want.norm(dim=-1).clamp_min(1e-20)
    return error.nan_to_num(float("inf")).max().item(), (got_lse - lse)[~empty].abs().nan_to_num(
        float("inf")
    ).max().item() if (~empty).any() else 0.0


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


def check_attention() -> Iterator[tuple[str, bool]]:
    """Formats, head counts, lengths, splits and both forms on small ragged steps."""
    torch.manual_seed(0)
    cases = [("main-fp8", heads, form) for heads in (8, 16, 32, 64, 128) for form in ("gluon", "plain")]
    cases += [
        ("main-bf16", 64, "plain"),
        ("main-bf16", 16, "plain"),
        ("latent-fp8", 128, "plain"),
        ("latent-fp8", 16, "plain"),
        ("latent-bf16", 128, "plain"),
    ]
    for name, heads, form in cases:
        latent = name.startswith("latent")
        for splits in (1, 3, None):
            tokens, dim = 9, 576 if latent else 512
            window, cache = paged(name, 64, 2048), paged(name, 64 if latent else 2, 4096)
            indices = torch.randint(0, 4096, (tokens, 700), device=DEVICE).int()
            indices[torch.rand(tokens, 700, device=DEVICE) < 0.1] = -1
            lens = torch.tensor([700, 0, 1, 63, 64, 65, 333, 640, 0], device=DEVICE).int()
            window_lens = torch.tensor([128, 0, 0, 1, 64, 128, 127, 5, 128], device=DEVICE).int()
            arguments = {
                "q": torch.randn(tokens, heads, dim, device=DEVICE).bfloat16(),
                "window_cache": None if latent else window,
                "window_indices": None if latent else torch.randint(0, 2048, (tokens, WINDOW), device=DEVICE).int(),
                "window_lens": None if latent else window_lens, "compressed_cache": cache,
                "compressed_indices": indices, "compressed_lens": lens,
                "sink": None if latent else torch.randn(heads, device=DEVICE), "softmax_scale": dim**-0.5,
            }  # fmt: skip
            worst = (0.0, 0.0)
            result = sparse_attention(**arguments, splits=splits, form=form)
            for token in range(tokens):
                rows = torch.tensor([token], device=DEVICE)
                one = attention_error(few_rows(arguments, rows, tokens), (result[0][rows], result[1][rows]))
                worst = tuple(map(max, worst, one))
            again = sparse_attention(**arguments, splits=splits, form=form)
            same = torch.equal(result[0], again[0])
            yield (
                f"attention {name} H={heads} {form} splits={splits}: {worst[0]:.1e} lse {worst[1]:.1e} repeat {same}",
                (worst[0] < 8e-3 and worst[1] < 2e-3 and same),
            )


def check_topk() -> Iterator[tuple[str, bool]]:
    """Widths on every path, ragged rows, ties and contrived orders."""
    torch.manual_seed(0)
    for rows, width, k in [(5, 600, 512), (4, 2048, 512), (3, 4096, 1024), (3, 4097, 512), (5, 16384, 1024), (1, 16385, 512), (3, 65536, 512), (1, 262144, 512), (1, 262144, 1024), (8, 262144, 512), (1, 1048576, 2048), (70, 40000, 2048)]:  # fmt: skip
        for kind in ("normal", "ties", "equal", "ascending", "cluster"):
            logits = {
                "normal": lambda: torch.randn(rows, width, device=DEVICE),
                "ties": lambda: torch.randint(-50, 50, (rows, width), device=DEVICE).float(),
                "equal": lambda: torch.zeros(rows, width, device=DEVICE),
                "ascending": lambda: torch.arange(width, device=DEVICE).float().repeat(rows, 1) - width / 2,
                "cluster": lambda: torch.randn(rows, width, device=DEVICE) + 9.0 * (torch.arange(width, device=DEVICE) < 3 * k),
            }[kind]()  # fmt: skip
            lens = torch.randint(1, width + 1, (rows,), device=DEVICE).int()
            lens[0] = width
            if rows > 2:
                lens[1], lens[2] = 0, min(k + 1, width)
            for row, length in enumerate(lens.tolist()):
                logits[row, length:] = float("nan")
            chosen = topk_module.topk(logits=logits, candidate_lens=lens, k=k)
            same = torch.equal(chosen, topk_module.topk(logits=logits, candidate_lens=lens, k=k))
            wrong = topk_wrong(logits, lens, k, chosen)
            yield f"topk {rows}x{width} k={k} {kind}: {wrong} wrong, repeat {same}", wrong == 0 and same


def check_logits() -> Iterator[tuple[str, bool]]:
    """Ragged steps with shared requests, fp8 and bf16."""
    torch.manual_seed(0)
    for precision in ("fp8", "bf16", "fp4"):
        cache = paged(f"indexer-{precision}", 64, 64 * 400)
        tokens = 11
        queries = torch.randn(tokens, 64, 128, device=DEVICE)
        scales = None
        if precision == "fp8":
            values = quantize_fp8(queries, 128)[0]
        elif precision == "bf16":
            values = queries.bfloat16()
        else:
            from dsv4_kernels.codec import quantize_fp4, ue8m0

            values, exponents = quantize_fp4(queries)
            scales = ue8m0(exponents)
        lens = torch.tensor([0, 1, 63, 64, 65, 127, 128, 129, 2000, 6000, 6001], device=DEVICE).int()
        arguments = {
            "index_q_values": values, "index_q_scales": scales, "index_weights": torch.randn(tokens, 64, device=DEVICE),
            "indexer_cache": cache, "block_table": torch.randperm(400, device=DEVICE)[:384].view(4, 96).int(),
            "token_to_request": torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], device=DEVICE).int(),
            "candidate_lens": lens, "max_candidates": 6001,
        }  # fmt: skip
        got, want = logits_module.indexer_logits(**arguments), reference_indexer.indexer_logits(**arguments)
        worst = 0.0
        for row, length in enumerate(lens.tolist()):
            if length:
                error = (got[row, :length] - want[row, :length]).norm() / want[row, :length].norm()
                worst = max(worst, error.nan_to_num(float("inf")).item())
        yield f"logits {precision}: {worst:.1e}", worst < 2e-3


CHECKS = {"sparse_attention": check_attention, "topk": check_topk, "indexer_logits": check_logits}


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
                cell = Cell(names[row["op"]], int(row["heads"] or 0), int(row["batch_or_tokens"]), int(row["context"]), row["variant"])  # fmt: skip
                best = min(float(row["graph_us"]), cells.get(cell, (float("inf"), 0.0))[0])
                cells[cell] = (best, float(row["floor_us"]))
    return cells


def measure(cell: Cell, tune: bool) -> tuple[str, dict[str, float]]:
    """A word on correctness, and microseconds of the kernel as shipped and of what tuning tries beside it."""
    if cell.op == "sparse_attention":
        arguments = attention_arguments(cell.heads, cell.batch, cell.context, cell.variant)
        error, _ = attention_error(arguments, sparse_attention(**arguments))
        note = f"err {error:.1e}"
        if error > 8e-3:
            return note + " WRONG", {"shipped": float("nan")}
        times = {"shipped": graph_us(lambda: sparse_attention(**arguments))}
        listed = arguments["compressed_indices"]
        tiles = 2 + (0 if listed is None else -(-listed.shape[1] // 64))
        blocks = cell.batch * cell.heads // 64
        tried = {132 // blocks, 66 // blocks, 44 // blocks, 33 // blocks, 2, 5, tiles}
        for splits in sorted(s for s in tried if 1 <= s <= tiles) if tune else ():
            if blocks * splits <= 140:
                times[f"splits={splits}"] = graph_us(lambda s=splits: sparse_attention(**arguments, splits=s))
        return note, times
    if cell.op == "indexer_logits":
        arguments = logits_arguments(cell.batch, cell.context)
        times = {"shipped": graph_us(lambda: logits_module.indexer_logits(**arguments))}
        for programs, stages in ((4, 2), (5, 2)) if tune else ():
            saved = logits_module._PROGRAMS_PER_PROCESSOR, logits_module._STAGES
            logits_module._PROGRAMS_PER_PROCESSOR, logits_module._STAGES = programs, stages
            times[f"{programs},{stages}"] = graph_us(lambda: logits_module.indexer_logits(**arguments))
            logits_module._PROGRAMS_PER_PROCESSOR, logits_module._STAGES = saved
        return "", times
    arguments = topk_arguments(cell.batch, cell.context, int(cell.variant[1:]))
    wrong = topk_wrong(arguments["logits"], arguments["candidate_lens"], arguments["k"], topk_module.topk(**arguments))
    times = {"shipped": graph_us(lambda: topk_module.topk(**arguments))}
    for programs in (256, 512) if tune and cell.context > 65536 else ():
        saved = topk_module._PROGRAMS
        topk_module._PROGRAMS = programs
        times[f"programs={programs}"] = graph_us(lambda: topk_module.topk(**arguments))
        topk_module._PROGRAMS = saved
    return f"{wrong} wrong", times


def check(only: str) -> bool:
    """Run the checks and print failures and a count."""
    passed = True
    for op, checks in CHECKS.items():
        if only in op:
            results = []
            try:
                for text, fine in checks():
                    results.append(fine)
                    if not fine:
                        print("FAIL", text, flush=True)
            except Exception as error:  # report and go on: the other kernels' results are worth having
                print("FAIL", op, type(error).__name__, str(error)[:600], flush=True)
                results.append(False)
            print(f"{op}: {sum(results)} of {len(results)} checks pass", flush=True)
            passed &= all(results)
    return passed


def main() -> None:
    """Check, then measure the cells and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--anchors", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--check-only", action="store_true")
    parser.add_argument("--skip-check", action="store_true")
    parser.add_argument("--tune", action="store_true", help="also time other splits and pipeline shapes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not options.skip_check and not check(options.only) and options.check_only:
        sys.exit(1)
    if options.check_only or options.anchors is None:
        return
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
