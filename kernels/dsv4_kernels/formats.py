"""The byte formats of every KV-cache entry, as data.

One table serves the memory calculator, the torch reference and the kernels, so that none of them can
disagree about how many bytes an entry has or where its scales lie. Nothing here imports torch.

A page of ``n`` entries starts with ``n`` value records of ``record_bytes`` each; where a format keeps its
scales apart (``scale_bytes`` > 0), ``n`` scale records follow at byte ``n * record_bytes``. Entry ``t`` is
therefore *not* at ``t * entry_bytes``; that product only sizes the page.
"""

from dataclasses import dataclass

HEAD_DIM = 512
"""Dimensions of a V4 key/value vector (key and value are the same vector)."""
ROPE_DIM = 64
"""Trailing dimensions of that vector which carry the rotary embedding."""
NOPE_DIM = HEAD_DIM - ROPE_DIM
INDEX_DIM = 128
"""Dimensions of an indexer key."""
FP8_MAX = 448.0
"""Largest finite e4m3fn value."""
FP4_MAX = 6.0
"""Largest finite e2m1 value."""


@dataclass(frozen=True)
class EntryFormat:
    """How one cache entry is stored.

    Attributes:
        name: identifier, ``<role>-<precision>``.
        role: ``main`` (V4 key/value vector), ``indexer`` (indexer key) or ``latent`` (V3.2 latent + rope key).
        precision: ``fp8``, ``fp4``, ``bf16`` or ``fp32`` (the last for exact comparisons only).
        dim: elements per entry.
        record_bytes: bytes of the value record of one entry.
        scale_bytes: bytes of the scale record that lies at the end of the page; 0 where there is none.
        quant_block: elements that share one scale; 0 where nothing is quantised.
    """

    name: str
    role: str
    precision: str
    dim: int
    record_bytes: int
    scale_bytes: int = 0
    quant_block: int = 0

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry, scales included."""
        return self.record_bytes + self.scale_bytes

    def page_bytes(self, entries: int) -> int:
        """Bytes of a page of ``entries`` entries before any alignment."""
        return entries * self.entry_bytes

    def scale_offset(self, entries: int) -> int:
        """Byte at which the scale records of a page of ``entries`` entries begin."""
        return entries * self.record_bytes


def _formats() -> dict[str, EntryFormat]:
    table = (
        # 448 e4m3 + 64 bf16 | 7 ue8m0 + 1 pad at the end of the page
        EntryFormat("main-fp8", "main", "fp8", 512, 576, 8, 64),
        EntryFormat("main-bf16", "main", "bf16", 512, 1024),
        EntryFormat("main-fp32", "main", "fp32", 512, 2048),
        # 128 e4m3 | one fp32 power-of-two scale at the end of the page
        EntryFormat("indexer-fp8", "indexer", "fp8", 128, 128, 4, 128),
        # 64 bytes of e2m1 pairs (low nibble = even element) | 4 ue8m0 at the end of the page
        EntryFormat("indexer-fp4", "indexer", "fp4", 128, 64, 4, 32),
        EntryFormat("indexer-bf16", "indexer", "bf16", 128, 256),
        EntryFormat("indexer-fp32", "indexer", "fp32", 128, 512),
        # 512 e4m3 | 4 fp32 scales | 64 bf16, contiguous per token
        EntryFormat("latent-fp8", "latent", "fp8", 576, 656, 0, 128),
        EntryFormat("latent-bf16", "latent", "bf16", 576, 1152),
        EntryFormat("latent-fp32", "latent", "fp32", 576, 2304),
    )
    return {entry.name: entry for entry in table}


FORMATS = _formats()
"""Every entry format by name."""


def entry_format(role: str, precision: str) -> EntryFormat:
    """Look a format up by role and precision.

    Raises:
        KeyError: no such format; the message lists the known ones.
    """
    name = f"{role}-{precision}"
    if name not in FORMATS:
        raise KeyError(f"no cache format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def state_row_floats(dim: int, ratio: int) -> int:
    """fp32 elements of one compressor state row ``[kv | score + ape]``; windows that overlap (ratio 4) double it."""
    return 2 * dim * (2 if ratio == 4 else 1)
