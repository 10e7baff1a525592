"""llama.cpp and ik_llama.cpp: one buffer per kind of cache, sized for the whole context when the server starts.

llama.cpp keeps compressed entries and a sliding window, in cells padded to 256 (``llama_kv_cache_dsv4``, PR #24162, and
``llama_kv_cache_iswa``). ik_llama.cpp keeps the uncompressed key of every token in place of the window, which outweighs
the rest by far.
"""

from dataclasses import dataclass
from fractions import Fraction

from dsv4_kernels.formats import HEAD_DIM, INDEX_DIM

from dsv4bench.errors import UserError
from dsv4bench.memory.deployment import Deployment
from dsv4bench.memory.ideal import EntryBytes, layer_bytes
from dsv4bench.memory.usage import Capacity, LayerBytes, Usage
from dsv4bench.model.shape import LayerKind

CACHE_TYPES = {"f16": Fraction(2), "q8_0": Fraction(34, 32)}
"""Bytes per element of a ``--cache-type``; q8_0 stores 32 elements in 34 bytes."""
VERSIONS = "none: leave the @ out"
CELL_PAD = 256
UBATCH_TOKENS = 512
"""Tokens of a step that fit beside the window unless the server is told otherwise (``--ubatch-size``)."""
CHECKED = ("v4-flash", "f16", 768)
"""Model, cache type and window cells of which a log sizes every buffer."""
V32_LATENT = 576


@dataclass(frozen=True)
class LlamaCpp:
    """Either of the two.

    Attributes:
        name: ``llama.cpp`` or ``ik_llama.cpp``.
        raw_keys: whether the key of every token is kept uncompressed.
    """

    name: str
    raw_keys: bool

    @property
    def options(self) -> frozenset[str]:
        """The cache type, and the size of the window where there is one."""
        return frozenset({"cache_type"} if self.raw_keys else {"cache_type", "window_cells"})

    @property
    def title(self) -> str:
        """Its name."""
        return self.name

    def check(self, deployment: Deployment) -> None:
        """Refuse unknown cache types, a window cache smaller than the window, and V3.2 in ik_llama.cpp.

        Raises:
            UserError: as said.
        """
        if deployment.cache_type not in CACHE_TYPES:
            raise UserError(f"--cache-type must be {' or '.join(CACHE_TYPES)}, got {deployment.cache_type!r}")
        window, cells = deployment.shape.sliding_window, deployment.window_cells
        if cells is not None and cells < window:
            least = f"{window:,}, the sliding window of {deployment.shape.name}"
            raise UserError(f"--window-cells must be at least {least}, got {cells:,}")
        if self.raw_keys and not deployment.shape.is_v4:
            raise UserError(
                f"{self.name}: no source says how it caches V3.2; known for V3.2 are vllm, sglang, llama.cpp"
            )

    def entry_bytes(self, deployment: Deployment) -> EntryBytes:
        """Entries of ``cache_type`` elements."""
        each = CACHE_TYPES[deployment.cache_type]
        return EntryBytes((HEAD_DIM if deployment.shape.is_v4 else V32_LATENT) * each, INDEX_DIM * each)

    def usage(self, deployment: Deployment, context: int) -> Usage:
        """Buffers of one sequence of ``context`` tokens."""
        layers = tuple(self._layer_bytes(deployment, i, kind, context) for i, kind in enumerate(deployment.layers))
        buffers, kind = self._buffers(deployment, context), deployment.cache_type
        sizes = {buffer.name: buffer.bytes(kind) for buffer in buffers}
        return Usage(layers, buffers=sizes, terms=tuple(buffer.term(kind) for buffer in buffers))

    def capacity(self, deployment: Deployment, available: int, num_blocks: int | None = None) -> Capacity:
        """One sequence per server slot: how many buffers of max_model_len fit."""
        if num_blocks is not None:
            raise UserError(f"--num-blocks: {self.name} has no blocks; give --available")
        length = deployment.max_model_len
        if length < 1:
            raise UserError(f"--max-model-len must be at least 1, got {length}")
        usage = self.usage(deployment, length)
        size = usage.total
        slots = available // size
        low, high = 0, deployment.shape.max_positions * 64
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.usage(deployment, middle).total <= available else (low, middle - 1)
        return Capacity(
            available_bytes=available,
            max_model_len=length,
            concurrency=float(slots),
            kv_cache_tokens=slots * length,
            largest_context=low,
            terms=(*usage.terms, f"slots = ⌊{available:,} / {size:,}⌋ = {slots:,}"),
        )

    def is_checked(self, deployment: Deployment, context: int) -> bool:
        """Whether a log agrees with every buffer. None of them shows padding, so a padded cache is not checked."""
        if self.raw_keys or deployment.mtp or context < 1 or context % (LayerKind.C128A.ratio * CELL_PAD):
            return False
        return (deployment.known_as, deployment.cache_type, _window_cells(deployment, context)) == CHECKED

    def notes(self, deployment: Deployment) -> tuple[str, ...]:
        """What a log confirms of these figures, and what is left out."""
        if not deployment.shape.is_v4:
            return ()
        if self.raw_keys:
            return (
                "raw K agrees with logs (ik_llama.cpp#2266, Flash, q8_0); compressed caches are taken as llama.cpp's "
                "and were reported larger (#2239); compressor state is not counted",
            )
        return ("compressor state is not counted: llama.cpp's log does not size it",)

    def _layer_bytes(self, d: Deployment, index: int, kind: LayerKind, context: int) -> LayerBytes:
        entry = self.entry_bytes(d)
        used = layer_bytes(index, kind, context, entry, d.shape.sliding_window)
        entries = _cells(context, kind.ratio) if kind.ratio else 0
        reserved = entries * (entry.main + (entry.indexer if kind.has_indexer else 0))
        if kind is not LayerKind.DSA and context:
            reserved += (context if self.raw_keys else _window_cells(d, context)) * entry.main
        return LayerBytes(index, kind, used.main, used.indexer, used.window, padding=float(reserved) - used.total)

    def _buffers(self, d: Deployment, context: int) -> tuple["_Buffer", ...]:
        kinds = d.layers
        if not d.shape.is_v4:
            return tuple(
                _Buffer(name, len(kinds), _cells(context, 1), dim, context)
                for name, dim in (("latent", V32_LATENT), ("indexer", INDEX_DIM))
            )
        n4, n128 = kinds.count(LayerKind.C4A), kinds.count(LayerKind.C128A)
        near = ("raw K", context) if self.raw_keys else ("window", _window_cells(d, context))
        return (
            _Buffer("CSA", n4, _cells(context, 4), HEAD_DIM, -(-context // 4)),
            _Buffer("HCA", n128, _cells(context, 128), HEAD_DIM, -(-context // 128)),
            _Buffer("indexer", n4, _cells(context, 4), INDEX_DIM, -(-context // 4)),
            _Buffer(near[0], len(kinds), near[1], HEAD_DIM, near[1]),
        )


@dataclass(frozen=True)
class _Buffer:
    """An allocation: elements = layers · cells · dim; of the cells as many as ``entries`` are needed."""

    name: str
    layers: int
    cells: int
    dim: int
    entries: int

    def bytes(self, cache_type: str) -> int:
        return int(self.layers * self.cells * self.dim * CACHE_TYPES[cache_type])

    def term(self, cache_type: str) -> str:
        each = f"{float(CACHE_TYPES[cache_type]):g}"
        mib = self.bytes(cache_type) / 2**20
        padded = f" ({self.entries:,} cells padded to {self.cells:,})" if self.entries < self.cells else ""
        return f"{self.name}: {self.layers}·{self.cells:,}·{self.dim}·{each} B = {mib:,.2f} MiB{padded}"


def _cells(context: int, ratio: int) -> int:
    """Cells for a context: entries rounded up, padded to 256."""
    return -(-context // (ratio * CELL_PAD)) * CELL_PAD


def _window_cells(d: Deployment, context: int) -> int:
    """Cells of the window cache: the window and a step, padded to 256, or as given; never more than for the context."""
    return min(d.window_cells or _cells(d.shape.sliding_window + UBATCH_TOKENS, 1), _cells(context, 1))


def llama_cpp(version: str) -> LlamaCpp:
    """llama.cpp, which has no versions to tell apart.

    Raises:
        UserError: a version was given.
    """
    return _unversioned(LlamaCpp("llama.cpp", raw_keys=False), version)


def ik_llama_cpp(version: str) -> LlamaCpp:
    """ik_llama.cpp, likewise."""
    return _unversioned(LlamaCpp("ik_llama.cpp", raw_keys=True), version)


def _unversioned(engine: LlamaCpp, version: str) -> LlamaCpp:
    if version:
        raise UserError(f"unknown {engine.name} version {version!r}; known are {VERSIONS}")
    return engine
