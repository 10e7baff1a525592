"""Which pages a request needs of a layer's caches, without torch: what a parent counts, and what a worker draws."""

from dsv4bench.memory.layout import CacheLayout, build_layout
from dsv4bench.memory.page import BACKENDS, GEOMETRY, CacheKind
from dsv4bench.model.shape import LayerKind, ModelShape
from dsv4bench.scenario.case import CachePrecision

WINDOW_BLOCK = GEOMETRY[CacheKind.WINDOW].tokens
"""Positions of a page of the window cache."""
STATE_BLOCK = {
    LayerKind.C4A: GEOMETRY[CacheKind.C4A_STATE].tokens,
    LayerKind.C128A: GEOMETRY[CacheKind.C128A_STATE].tokens,
}
"""Positions of a page of the compressor state."""
FULL_BLOCK = {
    LayerKind.C4A: GEOMETRY[CacheKind.C4A_MAIN].tokens,
    LayerKind.C128A: GEOMETRY[CacheKind.C128A_MAIN].tokens,
    LayerKind.DSA: GEOMETRY[CacheKind.DSA_MAIN].tokens,
}
"""Positions that a page of the compressed (dsa: latent) cache stands for."""


def layer_layout(kind: LayerKind, precision: CachePrecision) -> CacheLayout:
    """The slab of a single layer of this kind: FlashMLA's pages where it has the precisions, plain ones elsewhere."""
    flashmla = BACKENDS["flashmla"]
    known = flashmla.latent if kind is LayerKind.DSA else flashmla.main
    fits = precision.main in known and precision.indexer in flashmla.indexer
    backend = "flashmla" if fits else "plain"
    return build_layout([kind], main=precision.main, indexer=precision.indexer, backend=backend)


def page_spans(kind: LayerKind, shape: ModelShape, seq_len: int, query_len: int) -> dict[str, range]:
    """Table columns that a request needs in each group: all entries; what window and compressor still read."""
    first_query = seq_len - query_len
    spans = {}
    if kind in FULL_BLOCK:
        spans["full"] = range(-(-seq_len // FULL_BLOCK[kind]))
    if shape.sliding_window:
        oldest = max(first_query - (shape.sliding_window - 1), 0)
        spans["window"] = range(oldest // WINDOW_BLOCK, -(-seq_len // WINDOW_BLOCK))
    if kind in STATE_BLOCK:
        overlap = 4 if kind is LayerKind.C4A else 0
        oldest = max(first_query // kind.ratio * kind.ratio - overlap, 0)
        spans["state"] = range(oldest // STATE_BLOCK[kind], -(-seq_len // STATE_BLOCK[kind]))
    return spans
