"""Check and tune the fp8 projections on a GPU: every projection of the three models, beside torch's with either weight.

Times are per launch: a CUDA graph with a launch per weight, of which there are enough (160 MB) that L2 keeps none;
median of 9 replays. "eager" is provider eager with the fp8 weight, "bf16" torch's product with a bf16 weight, "triton"
what provider triton runs; --tune adds tiles to try.

    python kernels/bench_projection.py [--tokens 1 8 64] [--only v4-flash] [--tune]
"""

# ruff: noqa: T201
import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from statistics import median

import torch
from dsv4_kernels.triton.activation_blocks import quantise_activations
from dsv4_kernels.triton.block_scaled_product import Tile, block_scaled_product
from dsv4_kernels.triton.linear_fp8 import FUSED_TOKENS, grouped_linear_fp8, linear_fp8
from dsv4_kernels.weight import BLOCK, Fp8Weight, dense, quantized_activations

from dsv4bench.providers.eager import projection as eager

DEVICE = "cuda"
REPLAYS = 9
WEIGHT_BYTES = 160e6
BANDWIDTH = 4.2e12
TOLERANCE = 4e-3
SHAPES = {
    "v4-flash input": (1, 1536, 4096), "v4-flash query": (1, 32768, 1024), "v4-flash indexer query": (1, 8192, 1024),
    "v4-flash output group": (8, 1024, 4096), "v4-flash output": (1, 4096, 8192), "v4-pro input": (1, 2048, 7168),
    "v4-pro query": (1, 65536, 1536), "v4-pro indexer query": (1, 8192, 1536),
    "v4-pro output group": (16, 1024, 4096), "v4-pro output": (1, 7168, 16384), "v3.2 input": (1, 2112, 7168),
    "v3.2 query": (1, 24576, 1536),
}  # fmt: skip
"""Groups, rows and columns; V3.2's indexer query and output projections are V4-Pro's."""
TUNED = {
    16: (Tile(64, 16, 528, 4, 4, 4), Tile(64, 16, 264, 4, 6), Tile(128, 16, 396, 4, 3), Tile(128, 16, 264, 8, 4)),
    64: (Tile(64, 64, 396, 4, 4), Tile(64, 64, 264, 4, 4, 4), Tile(128, 64, 264, 8, 4, 4), Tile(128, 64, 132, 8, 6, 4)),
    1 << 62: (Tile(64, 64, 264, 4, 4), Tile(128, 64, 264, 8, 4), Tile(64, 128, 264, 4, 4)),
}
"""Largest T → tiles to try."""
Product = Callable[[Fp8Weight], torch.Tensor]


def weights(groups: int, rows: int, columns: int) -> list[Fp8Weight]:
    """Random weights [G, N, K], as many as L2 can't keep."""
    size = groups * rows * columns
    blocks = (groups, -(-rows // BLOCK), columns // BLOCK)
    found = []
    for _ in range(max(2, min(24, int(WEIGHT_BYTES / size) + 1))):
        values = torch.randn((groups, rows, columns), device=DEVICE, dtype=torch.bfloat16).mul_(60).clamp_(-448, 448)
        scales = torch.exp2(torch.randint(-13, -11, blocks, device=DEVICE).float())
        found.append(Fp8Weight(values.to(torch.float8_e4m3fn), scales))
    return found


def products(groups: int, columns: int, tokens: int, tune: bool) -> Iterator[tuple[str, Product]]:
    """What is compared, over one input; the first is the exact one."""
    x = torch.randn((tokens, groups, columns), device=DEVICE).bfloat16()
    blocks, scales, seen = x.unflatten(-1, (-1, BLOCK)), None, quantized_activations(x)
    yield "exact", lambda w: torch.einsum("tgk,gnk->tgn", seen.float(), dense(w, torch.float32))
    if groups == 1:
        yield "eager", lambda w: eager.project(x=x[:, 0], weight=_first(w))[:, None]
        yield "triton", lambda w: linear_fp8(x[:, 0], _first(w))[:, None]
    else:
        values, scales = (part[:tokens] for part in quantise_activations(blocks))
        blocks = values.unflatten(-1, (-1, BLOCK))
        yield "eager", lambda w: eager.output_group_projection(o_values=values, o_scales=scales, weight=w)
        yield "triton", lambda w: grouped_linear_fp8(values, scales, w)
    if tune:
        for tile in next(tiles for most, tiles in TUNED.items() if tokens <= most):
            yield _name(tile), _tiled(blocks, scales, tile)


def _tiled(blocks: torch.Tensor, scales: torch.Tensor | None, tile: Tile) -> Product:
    def product(weight: Fp8Weight) -> torch.Tensor:
        if scales is not None or len(blocks) <= FUSED_TOKENS:
            return block_scaled_product(blocks, scales, weight, tile)
        values, own = (part[: len(blocks)] for part in quantise_activations(blocks))
        return block_scaled_product(values.unflatten(-1, (-1, BLOCK)), own, weight, tile)

    return product


def _name(tile: Tile) -> str:
    return f"{tile.rows}x{tile.tokens}/{tile.programs}w{tile.warps}s{tile.stages}a{tile.ahead}"


def _first(weight: Fp8Weight) -> Fp8Weight:
    return Fp8Weight(weight.values[0], weight.scales[0])


def microseconds(calls: list[Callable[[], object]]) -> float:
    """Median time of a call in a graph of all of them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    return median(times)


def bench(shape: tuple[int, int, int], made: list[Fp8Weight], tokens: int, tune: bool) -> str:
    """A line of times; what is wrong says so."""
    groups, rows, columns = shape
    launches = max(10, len(made))

    def time(product: Callable[..., object], operands: list[object]) -> float:
        return microseconds([partial(product, operand) for operand in islice(cycle(operands), launches)])

    plain = [dense(weight, torch.bfloat16) for weight in made]
    x = torch.randn((tokens, groups, columns), device=DEVICE).bfloat16()
    bf16 = time(partial(_plain, x), plain)
    del plain
    cells = [f"floor {groups * rows * columns / BANDWIDTH * 1e6:.1f}", f"bf16 {bf16:.1f}"]
    (_, exact), *others = products(groups, columns, tokens, tune)
    right = exact(made[0])
    for name, product in others:
        error = float((product(made[0]).float() - right).norm() / right.norm())
        cells.append(f"{name} {time(product, made):.1f}" + ("" if error < TOLERANCE else f" WRONG by {error:.1e}"))
    return " | ".join(cells)


def _plain(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if len(weight) == 1:
        return eager.project(x=x[:, 0], weight=weight[0])
    return eager.output_group_projection(o_values=x, o_scales=None, weight=weight)


def main() -> None:
    """Print a line per projection and number of tokens."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 64, 128, 1024])
    parser.add_argument("--only", default="", help="projections whose name contains this")
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    for name, shape in SHAPES.items():
        if options.only in name:
            made = weights(*shape)
            for tokens in options.tokens:
                print(f"{name:<24} T={tokens:<5} {bench(shape, made, tokens, options.tune)}", flush=True)


if __name__ == "__main__":
    main()
