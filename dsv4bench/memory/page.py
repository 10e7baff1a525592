"""The pages of a KV cache: what each holds, how many entries, how many bytes before and after padding.

Byte formats of the entries come from `dsv4_kernels.formats`; what is decided here is how many of them a page has and
what the kernel library that reads it rounds pages up to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dsv4_kernels.formats import HEAD_DIM, INDEX_DIM, EntryFormat, entry_format, state_row_floats

from dsv4bench.errors import UserError
from dsv4bench.model.shape import LayerKind

BLOCK_TOKENS = 256
"""Positions of a compressed block; also the granularity of prefix reuse."""


class CacheKind(StrEnum):
    """What a page holds."""

    C4A_MAIN = "c4a_main"
    C4A_INDEXER = "c4a_indexer"
    C128A_MAIN = "c128a_main"
    WINDOW = "window"
    C4A_STATE = "c4a_state"
    C4A_INDEXER_STATE = "c4a_indexer_state"
    C128A_STATE = "c128a_state"
    DSA_MAIN = "dsa_main"
    DSA_INDEXER = "dsa_indexer"

    @property
    def is_state(self) -> bool:
        """Whether the rows are fp32 compressor state and not cache entries."""
        return self in (CacheKind.C4A_STATE, CacheKind.C4A_INDEXER_STATE, CacheKind.C128A_STATE)

    @property
    def is_indexer(self) -> bool:
        """Whether the entries are indexer keys."""
        return self in (CacheKind.C4A_INDEXER, CacheKind.DSA_INDEXER)


_K = CacheKind
CACHES: dict[LayerKind, tuple[CacheKind, ...]] = {
    LayerKind.SWA: (_K.WINDOW,),
    LayerKind.C4A: (_K.C4A_MAIN, _K.C4A_INDEXER, _K.WINDOW, _K.C4A_STATE, _K.C4A_INDEXER_STATE),
    LayerKind.C128A: (_K.C128A_MAIN, _K.WINDOW, _K.C128A_STATE),
    LayerKind.DSA: (_K.DSA_MAIN, _K.DSA_INDEXER),
}
"""The caches a layer of each kind has."""


@dataclass(frozen=True)
class Geometry:
    """What does not depend on precision: group, positions and entries of a page, bucket."""

    group: str
    tokens: int
    entries: int
    bucket: str
    row_floats: int = 0


GEOMETRY: dict[CacheKind, Geometry] = {
    _K.C4A_MAIN: Geometry("full", BLOCK_TOKENS, 64, "large"),
    _K.C4A_INDEXER: Geometry("full", BLOCK_TOKENS, 64, "middle"),
    _K.C128A_MAIN: Geometry("full", BLOCK_TOKENS, 2, "small"),
    _K.WINDOW: Geometry("window", 64, 64, "large"),
    _K.C4A_STATE: Geometry("c4_state", 4, 4, "large", state_row_floats(HEAD_DIM, 4)),
    _K.C4A_INDEXER_STATE: Geometry("c4_state", 4, 4, "middle", state_row_floats(INDEX_DIM, 4)),
    _K.C128A_STATE: Geometry("c128_state", 8, 8, "large", state_row_floats(HEAD_DIM, 128)),
    _K.DSA_MAIN: Geometry("full", 64, 64, "large"),
    _K.DSA_INDEXER: Geometry("full", 64, 64, "middle"),
}

BUCKETS = ("large", "middle", "small")
"""The page-size buckets, largest first."""


@dataclass(frozen=True)
class Backend:
    """The entry formats and page alignment that an attention kernel library asks for.

    Attributes:
        name: as on the command line.
        alignment: bytes that V4 pages are rounded up to; V3.2 pages are never padded.
        main: entry format of the main and window caches by precision.
        indexer: precisions of the indexer cache.
        latent: precisions of the V3.2 main cache.
    """

    name: str
    alignment: int
    main: dict[str, EntryFormat]
    indexer: tuple[str, ...]
    latent: tuple[str, ...]


_MAIN = {precision: entry_format("main", precision) for precision in ("fp8", "bf16", "fp32")}
_PER_TENSOR_FP8 = EntryFormat("main-fp8-per-tensor", "main", "fp8", HEAD_DIM, HEAD_DIM)
BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("flashmla", 576, {"fp8": _MAIN["fp8"]}, ("fp8", "fp4"), ("fp8", "bf16")),
        Backend("flashinfer", 512, {"fp8": _PER_TENSOR_FP8, "bf16": _MAIN["bf16"]}, ("fp8", "fp4"), ("fp8", "bf16")),
        Backend("plain", 128, _MAIN, ("fp8", "fp4", "bf16", "fp32"), ("fp8", "bf16", "fp32")),
    )
}
"""Kernel libraries by name: ``plain`` is no engine's, it is what the stack uses for bf16 and fp32 caches."""


@dataclass(frozen=True)
class PageLayout:
    """One page of one kind of cache.

    Attributes:
        kind: what it holds.
        format: byte format of an entry; None for state rows.
        entries: entries (or state rows) per page.
        tokens: positions per page.
        raw_bytes: bytes the entries take.
        page_bytes: bytes the page takes in the slab, alignment and bucket padding included.
        bucket: ``large``, ``middle`` or ``small``.
        group: group the page belongs to (``window`` where window groups are several).
        row_floats: fp32 elements of a state row; 0 for entries.
    """

    kind: CacheKind
    format: EntryFormat | None
    entries: int
    tokens: int
    raw_bytes: int
    page_bytes: int
    bucket: str
    group: str
    row_floats: int = 0

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry or state row."""
        return self.raw_bytes // self.entries

    @property
    def padding(self) -> int:
        """Bytes of the page that hold nothing."""
        return self.page_bytes - self.raw_bytes


def backend_named(name: str) -> Backend:
    """A kernel library by name.

    Raises:
        UserError: unknown; the message lists the known ones.
    """
    if name not in BACKENDS:
        raise UserError(f"unknown layout {name!r}; known are {', '.join(BACKENDS)}")
    return BACKENDS[name]


def _choose(precision: str, known: Sequence[str], what: str, backend: Backend) -> str:
    if precision not in known:
        engines = [b for b in BACKENDS.values() if b.name != "plain"]
        other = [b.name for b in engines if precision in (b.indexer if what == "indexer" else b.main)]
        hint = f"; {precision} needs layout {' or '.join(other)}" if other else ""
        raise UserError(f"layout {backend.name} has no {what} {precision!r}, only {', '.join(known)}{hint}")
    return precision


def page_layout(kind: CacheKind, backend: Backend, main: str, indexer: str, *, fp4_packed: bool = True) -> PageLayout:
    """A page by itself: raw bytes rounded up to the backend's alignment.

    Args:
        kind: what it holds.
        backend: kernel library.
        main: precision of main, window or latent entries.
        indexer: precision of indexer entries.
        fp4_packed: whether an fp4 indexer entry takes its own 68 bytes, or the 132 of an fp8 one (vLLM up to 0.26).

    Raises:
        UserError: the backend has no such precision.
    """
    geometry = GEOMETRY[kind]
    entry, reserved = None, geometry.row_floats * 4
    if kind.is_indexer:
        entry = entry_format("indexer", _choose(indexer, backend.indexer, "indexer", backend))
        unpacked = indexer == "fp4" and not fp4_packed
        reserved = entry_format("indexer", "fp8").entry_bytes if unpacked else entry.entry_bytes
    elif kind is CacheKind.DSA_MAIN:
        entry = entry_format("latent", _choose(main, backend.latent, "main", backend))
        reserved = entry.entry_bytes
    elif not kind.is_state:
        entry = backend.main[_choose(main, tuple(backend.main), "main", backend)]
        reserved = entry.entry_bytes
    alignment = 1 if kind in CACHES[LayerKind.DSA] else backend.alignment
    return PageLayout(
        kind=kind,
        format=entry,
        entries=geometry.entries,
        tokens=geometry.tokens,
        raw_bytes=geometry.entries * (entry.entry_bytes if entry else reserved),
        page_bytes=-(-geometry.entries * reserved // alignment) * alignment,
        bucket=geometry.bucket,
        group=geometry.group,
        row_floats=geometry.row_floats,
    )
