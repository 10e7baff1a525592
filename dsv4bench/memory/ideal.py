"""The ideal view: what the design itself needs, without pages, padding or any engine."""

from dataclasses import dataclass
from fractions import Fraction

from dsv4_kernels.formats import HEAD_DIM, INDEX_DIM, entry_format, state_row_floats

from dsv4bench.errors import UserError
from dsv4bench.memory.usage import LayerBytes, Usage
from dsv4bench.model.shape import LayerKind, ModelShape

MAIN_PRECISIONS = ("bf16", "fp8")
INDEXER_PRECISIONS = {"v4": ("bf16", "fp8", "fp4"), "v3.2": ("bf16", "fp8")}


@dataclass(frozen=True)
class EntryBytes:
    """Bytes of an entry.

    Attributes:
        main: of a main or window entry, V3.2: of a latent.
        indexer: of an indexer key.
    """

    main: Fraction
    indexer: Fraction


def entry_bytes(shape: ModelShape, main: str, indexer: str) -> EntryBytes:
    """Entry sizes of a model family at a precision.

    Raises:
        UserError: the family has no such precision.
    """
    if main not in MAIN_PRECISIONS:
        raise UserError(f"--main must be {' or '.join(MAIN_PRECISIONS)}, got {main!r}")
    known = INDEXER_PRECISIONS[shape.family]
    if indexer not in known:
        raise UserError(f"--indexer of {shape.name} must be one of {', '.join(known)}, got {indexer!r}")
    role = "main" if shape.is_v4 else "latent"
    return EntryBytes(
        Fraction(entry_format(role, main).entry_bytes), Fraction(entry_format("indexer", indexer).entry_bytes)
    )


def layer_bytes(layer: int, kind: LayerKind, context: int, entry: EntryBytes, window: int) -> LayerBytes:
    """Bytes of one layer after ``context`` tokens; partial windows round down."""
    entries = context // kind.ratio if kind.ratio else 0
    return LayerBytes(
        layer=layer,
        kind=kind,
        main=float(entries * entry.main),
        indexer=float(entries * entry.indexer) if kind.has_indexer else 0,
        window=0 if kind is LayerKind.DSA else float(min(context, window) * entry.main),
    )


def ideal_usage(
    shape: ModelShape, context: int, entry: EntryBytes, layers: tuple[LayerKind, ...] | None = None
) -> Usage:
    """Bytes of one request, layer by layer, without compressor state (see `state_bytes`).

    Args:
        shape: the model.
        context: tokens.
        entry: bytes of an entry.
        layers: the layers to count; the backbone if None.
    """
    kinds = shape.layers if layers is None else layers
    counted = tuple(layer_bytes(i, kind, context, entry, shape.sliding_window) for i, kind in enumerate(kinds))
    terms = tuple(
        f"{kind} × {kinds.count(kind)}: {_formula(kind, context, entry, shape.sliding_window)} = "
        f"{layer_bytes(0, kind, context, entry, shape.sliding_window).total:,.0f} B each"
        for kind in dict.fromkeys(kinds)
    )
    return Usage(counted, terms=terms)


def _formula(kind: LayerKind, context: int, entry: EntryBytes, window: int) -> str:
    near, main, indexer = f"{min(context, window):,}", f"{float(entry.main):,g}", f"{float(entry.indexer):,g}"
    if kind is LayerKind.DSA:
        return f"{context:,}·({main} + {indexer})"
    if kind is LayerKind.SWA:
        return f"{near}·{main}"
    entries = f"{context:,}//{kind.ratio}"
    return f"({near} + {entries})·{main}" + (f" + ({entries})·{indexer}" if kind.has_indexer else "")


def bytes_per_token(layers: tuple[LayerKind, ...], entry: EntryBytes) -> Fraction:
    """Slope: bytes each further token costs."""
    slope = Fraction(0)
    for kind in layers:
        if kind.ratio:
            slope += (entry.main + (entry.indexer if kind.has_indexer else 0)) / kind.ratio
    return slope


def fixed_bytes(shape: ModelShape, entry: EntryBytes, layers: tuple[LayerKind, ...] | None = None) -> int:
    """What a request takes regardless of its length, once its window is full."""
    kinds = shape.layers if layers is None else layers
    windows = sum(kind is not LayerKind.DSA for kind in kinds)
    return int(windows * shape.sliding_window * entry.main)


def state_bytes(layers: tuple[LayerKind, ...]) -> int:
    """Rolling compressor state of one request: fp32 rows ``[kv | score]``, constant in its length."""
    c4a = 8 * 4 * (state_row_floats(HEAD_DIM, 4) + state_row_floats(INDEX_DIM, 4))
    c128a = 128 * 4 * state_row_floats(HEAD_DIM, 128)
    return layers.count(LayerKind.C4A) * c4a + layers.count(LayerKind.C128A) * c128a
