"""KV bytes of a case's layer for its whole batch: what the design needs, what its pages take, and what a step held."""

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dsv4_kernels.formats import entry_format

from dsv4bench.memory.ideal import EntryBytes, layer_bytes
from dsv4bench.results.row import MemoryFigures
from dsv4bench.scenario.case import Case
from dsv4bench.stack.pages import layer_layout, page_spans

if TYPE_CHECKING:  # torch is not there wherever bytes are computed
    from dsv4bench.stack.caches import LayerCaches

TABLES = {"full": "block_table", "window": "window_block_table", "state": "state_block_table"}
"""Block table of each group of caches, by its name in the stage graph."""


def memory_of(case: Case) -> MemoryFigures:
    """Ideal bytes of every request, and the bytes of the pages that its block tables hold.

    Pages are those of a single layer as this process lays them out: whole blocks of 256 positions (64 for dsa), window
    blocks and compressor states included, padding to the page size included. Of a model, all layers together: what the
    step stands for, however few sets of caches it was measured over.
    """
    if case.layers:
        parts = [(memory_of(case.of_kind(kind)), count) for kind, count in case.kinds.items()]
        engine = sum(figures.engine_bytes * count for figures, count in parts if figures.engine_bytes is not None)
        return MemoryFigures(ideal_bytes=sum(figures.ideal_bytes * n for figures, n in parts), engine_bytes=engine)
    role = "main" if case.shape.is_v4 else "latent"
    entry = EntryBytes(
        Fraction(entry_format(role, case.cache.main).entry_bytes),
        Fraction(entry_format("indexer", case.cache.indexer).entry_bytes),
    )
    lens = case.workload.seq_lens
    window = case.shape.sliding_window
    ideal = sum(layer_bytes(0, case.kind, length, entry, window).total for length in lens)
    return MemoryFigures(ideal_bytes=round(ideal), engine_bytes=_page_bytes(case))


def _page_bytes(case: Case) -> int:
    pages = layer_layout(case.kind, case.cache).pages
    total = 0
    for seq_len, query_len in zip(case.workload.seq_lens, case.workload.query_lens, strict=True):
        spans = page_spans(case.kind, case.shape, seq_len, query_len)
        for page in pages:
            group = "state" if page.kind.is_state else page.group
            total += len(spans[group]) * page.page_bytes
    return total


def held_bytes(caches: "LayerCaches", values: Mapping[str, Any]) -> int:
    """Bytes of allocated storage that the requests of a step hold, read off its block tables and cache tensors.

    A block takes what lies between it and the next in its tensor: in a slab the whole slab row whatever group the block
    belongs to, in separate allocations a page of each of its caches. Blocks are allocated once for all cases that share
    them, and more than any of them needs; those that no table of this step points to are not counted.

    Args:
        caches: of the layer.
        values: inputs drawn over it.
    """
    from dsv4_kernels.cache import PagedCache

    from dsv4bench.stack.caches import TENSOR_NAMES

    taken: dict[tuple[str, int], int] = {}
    for page in caches.layout.pages:
        group = "state" if page.kind.is_state else page.group
        cache = caches.caches[TENSOR_NAMES[page.kind]]
        tensor = cache.pages if isinstance(cache, PagedCache) else cache
        blocks = values[TABLES[group]].unique()
        between = tensor.stride(0) * tensor.element_size()
        taken[group, tensor.untyped_storage().data_ptr()] = int((blocks > 0).sum()) * between
    return sum(taken.values())
