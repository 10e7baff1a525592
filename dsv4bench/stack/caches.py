"""The paged caches of one layer: real bytes, filled once with valid random entries.

An engine keeps the pages of all caches in one pool of blocks; a block belongs to one group of caches at a time (full,
window or state) and holds a page of each cache of that group. The calculator's `CacheLayout` says where each page lies.
Here the blocks of each group are a range of ids, so that every block can be filled once with bytes that are valid for
its group; which request owns which block is drawn anew for every input (``stack.inputs``).
"""

from dataclasses import dataclass

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import random_fill

from dsv4bench.memory.layout import CacheLayout
from dsv4bench.memory.page import CacheKind, PageLayout
from dsv4bench.model.shape import LayerKind
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.stack.pages import layer_layout

GROUPS = ("full", "window", "state")
"""Block tables of a layer: compressed and indexer cache, window cache, compressor states."""

TENSOR_NAMES = {
    CacheKind.C4A_MAIN: "compressed_cache",
    CacheKind.C128A_MAIN: "compressed_cache",
    CacheKind.DSA_MAIN: "compressed_cache",
    CacheKind.C4A_INDEXER: "indexer_cache",
    CacheKind.DSA_INDEXER: "indexer_cache",
    CacheKind.WINDOW: "window_cache",
    CacheKind.C4A_STATE: "compressor_state",
    CacheKind.C128A_STATE: "compressor_state",
    CacheKind.C4A_INDEXER_STATE: "indexer_state",
}
"""Name in the stage graph of each kind of cache."""


@dataclass(frozen=True)
class LayerCaches:
    """The caches of one layer and the ranges of block ids of each group.

    Attributes:
        layout: where pages lie in a block.
        caches: ``PagedCache``, or fp32 [blocks, rows, row_floats] for states, by tensor name.
        blocks: group → range of block ids, disjoint in a slab. Block 0 belongs to nobody: tables point to it where a
            page has slid out.
        allocated_bytes: bytes really reserved.
    """

    layout: CacheLayout
    caches: dict[str, PagedCache | torch.Tensor]
    blocks: dict[str, range]
    allocated_bytes: int


def allocate(
    kind: LayerKind, precision: CachePrecision, capacity: dict[str, int], *, device: torch.device | str
) -> LayerCaches:
    """Reserve the caches of a layer, uninitialised.

    Args:
        kind: the layer kind.
        precision: formats, and whether all caches lie interleaved in one slab (block-outermost, 64-bit offsets) or each
            in an allocation of its own.
        capacity: blocks of each group.
        device: where.
    """
    layout = layer_layout(kind, precision)
    if not precision.slab:
        return _separate(layout, capacity, device)
    blocks, first = {}, 1
    for group in GROUPS:
        blocks[group] = range(first, first + capacity.get(group, 0))
        first = blocks[group].stop
    slab = torch.empty((first, layout.bytes_per_block), dtype=torch.uint8, device=device)
    caches = {}
    for page in layout.pages:
        start = layout.placement(0, page.kind).offset
        caches[TENSOR_NAMES[page.kind]] = _cache(slab[:, start : start + page.raw_bytes], page)
    return LayerCaches(layout, caches, blocks, slab.numel())


def fill(layer: LayerCaches, *, seed: int) -> None:
    """Write valid random entries into every block of each cache's own group, state rows as standard normals."""
    for index, page in enumerate(layer.layout.pages):
        ids = layer.blocks[_table(page)]
        cache = layer.caches[TENSOR_NAMES[page.kind]]
        generator = torch.Generator(cache.device).manual_seed(seed * 1_000_003 + index)
        if isinstance(cache, PagedCache):
            random_fill(PagedCache(cache.pages[ids.start : ids.stop], cache.format, cache.entries), generator)
        else:
            cache[ids.start : ids.stop].normal_(generator=generator)


def _table(page: PageLayout) -> str:
    """The block table that addresses a page."""
    return "state" if page.kind.is_state else page.group


def _separate(layout: CacheLayout, capacity: dict[str, int], device: torch.device | str) -> LayerCaches:
    blocks = {group: range(1, 1 + capacity.get(group, 0)) for group in GROUPS}
    caches, total = {}, 0
    for page in layout.pages:
        storage = torch.empty((blocks[_table(page)].stop, page.raw_bytes), dtype=torch.uint8, device=device)
        caches[TENSOR_NAMES[page.kind]] = _cache(storage, page)
        total += storage.numel()
    return LayerCaches(layout, caches, blocks, total)


def _cache(pages: torch.Tensor, page: PageLayout) -> PagedCache | torch.Tensor:
    if page.format is not None:
        return PagedCache(pages, page.format, page.entries)
    return pages.view(torch.float32).as_strided(
        (len(pages), page.entries, page.row_floats),
        (pages.stride(0) // 4, page.row_floats, 1),
        pages.storage_offset() // 4,
    )
