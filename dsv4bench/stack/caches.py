"""The paged caches of one layer: real bytes, filled once with valid random entries.

An engine keeps the pages of all caches in one pool of blocks; a block belongs to one group of caches at a time (full,
window or state) and holds a page of each cache of that group. Here the blocks of each group are a range of ids, so that
every block can be filled once with bytes that are valid for its group; which request owns which block is drawn anew
for every input (``stack.inputs``).
"""

from dataclasses import dataclass

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import random_fill
from dsv4_kernels.formats import entry_format, state_row_floats

from dsv4bench.model.shape import LayerKind, ModelShape
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.stack.metadata import FULL_BLOCK, STATE_BLOCK, WINDOW_BLOCK

GROUPS = ("full", "window", "state")


@dataclass(frozen=True)
class PageSpec:
    """One cache of a layer.

    Attributes:
        name: tensor name in the stage graph.
        group: which block table addresses it.
        format: name of the entry format, or None for fp32 state rows.
        entries: entries (or rows) per page.
        row_floats: fp32 elements of a state row; 0 for entries.
        raw_bytes: bytes of a page before alignment.
        page_bytes: bytes that the page takes in a slab.
    """

    name: str
    group: str
    format: str | None
    entries: int
    row_floats: int
    raw_bytes: int
    page_bytes: int


def layer_pages(shape: ModelShape, kind: LayerKind, precision: CachePrecision) -> tuple[PageSpec, ...]:
    """The caches of a layer kind in the order in which they lie in a block."""
    alignment = 576 if precision.main == "fp8" and shape.is_v4 else 512 if shape.is_v4 else 1

    def entry(name: str, group: str, role: str, bits: str, entries: int) -> PageSpec:
        fmt = entry_format(role, bits)
        raw = fmt.page_bytes(entries)
        return PageSpec(name, group, fmt.name, entries, 0, raw, -(-raw // alignment) * alignment)

    def state(name: str, dim: int) -> PageSpec:
        rows, floats = STATE_BLOCK[kind], state_row_floats(dim, kind.ratio)
        raw = 4 * rows * floats
        return PageSpec(name, "state", None, rows, floats, raw, -(-raw // alignment) * alignment)

    pages = []
    if kind is not LayerKind.SWA:
        role = "main" if shape.is_v4 else "latent"
        pages.append(entry("compressed_cache", "full", role, precision.main, FULL_BLOCK[kind] // kind.ratio))
    if kind.has_indexer:
        pages.append(entry("indexer_cache", "full", "indexer", precision.indexer, FULL_BLOCK[kind] // kind.ratio))
    if shape.sliding_window:
        pages.append(entry("window_cache", "window", "main", precision.main, WINDOW_BLOCK))
    if kind.compresses:
        pages.append(state("compressor_state", shape.kv_dim))
    if kind is LayerKind.C4A:
        pages.append(state("indexer_state", shape.index_dim))
    return tuple(pages)


@dataclass(frozen=True)
class LayerCaches:
    """The caches of one layer and the ranges of block ids of each group.

    Attributes:
        caches: ``PagedCache`` or fp32 [blocks, rows, row_floats] state tensor, by tensor name.
        blocks: group → range of block ids, disjoint in a slab. Block 0 belongs to nobody: tables point to it where a
            page has slid out.
        allocated_bytes: bytes really reserved.
    """

    caches: dict[str, PagedCache | torch.Tensor]
    blocks: dict[str, range]
    allocated_bytes: int


def allocate(
    shape: ModelShape,
    kind: LayerKind,
    precision: CachePrecision,
    capacity: dict[str, int],
    *,
    device: torch.device | str,
) -> LayerCaches:
    """Reserve the caches of a layer, uninitialised.

    Args:
        shape: the model.
        kind: the layer kind.
        precision: formats, and whether all caches lie interleaved in one slab (block-outermost, 64-bit offsets) or each
            in an allocation of its own.
        capacity: blocks of each group.
        device: where.
    """
    pages = layer_pages(shape, kind, precision)
    if not precision.slab:
        return _separate(pages, capacity, device)
    blocks, first = {}, 1
    for group in GROUPS:
        blocks[group] = range(first, first + capacity.get(group, 0))
        first = blocks[group].stop
    # groups alias: each starts at byte 0 of the block, and the widest one sets the block's size
    block_bytes = max(sum(page.page_bytes for page in pages if page.group == group) for group in GROUPS)
    slab = torch.empty((first, block_bytes), dtype=torch.uint8, device=device)
    caches: dict[str, PagedCache | torch.Tensor] = {}
    offset = dict.fromkeys(GROUPS, 0)
    for page in pages:
        start = offset[page.group]
        caches[page.name] = _cache(slab[:, start : start + page.raw_bytes], page)
        offset[page.group] += page.page_bytes
    return LayerCaches(caches, blocks, slab.numel())


def _separate(pages: tuple[PageSpec, ...], capacity: dict[str, int], device: torch.device | str) -> LayerCaches:
    blocks = {group: range(1, 1 + capacity.get(group, 0)) for group in GROUPS}
    caches: dict[str, PagedCache | torch.Tensor] = {}
    total = 0
    for page in pages:
        storage = torch.empty((blocks[page.group].stop, page.raw_bytes), dtype=torch.uint8, device=device)
        caches[page.name] = _cache(storage, page)
        total += storage.numel()
    return LayerCaches(caches, blocks, total)


def _cache(pages: torch.Tensor, spec: PageSpec) -> PagedCache | torch.Tensor:
    if spec.format is not None:
        role, _, bits = spec.format.partition("-")
        return PagedCache(pages, entry_format(role, bits), spec.entries)
    return pages.view(torch.float32).as_strided(
        (len(pages), spec.entries, spec.row_floats),
        (pages.stride(0) // 4, spec.row_floats, 1),
        pages.storage_offset() // 4,
    )


def fill(layer: LayerCaches, pages: tuple[PageSpec, ...], *, seed: int) -> None:
    """Write valid random entries into every block of each cache's own group, state rows as standard normals."""
    for index, spec in enumerate(pages):
        ids = layer.blocks[spec.group]
        cache = layer.caches[spec.name]
        device = cache.device
        generator = torch.Generator(device).manual_seed(seed * 1_000_003 + index)
        if isinstance(cache, PagedCache):
            random_fill(PagedCache(cache.pages[ids.start : ids.stop], cache.format, cache.entries), generator)
        else:
            rows = cache[ids.start : ids.stop]
            rows.copy_(torch.randn(rows.shape, generator=generator, device=device))
