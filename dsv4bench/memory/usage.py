"""What an accounting of KV memory yields: bytes by layer and purpose, and how many requests fit."""

from dataclasses import dataclass, field

from dsv4bench.model.shape import LayerKind

PARTS = ("main", "indexer", "window", "state", "padding")
"""What the bytes of a layer are for, in the order of tables and plots."""


@dataclass(frozen=True)
class LayerBytes:
    """Bytes that one layer takes for one request.

    Attributes:
        layer: index of the layer; MTP layers follow the backbone.
        kind: its kind.
        main: compressed entries (V3.2: latents).
        indexer: indexer keys.
        window: sliding-window entries.
        state: compressor state.
        padding: reserved but holding nothing: alignment, unfilled pages, rows beyond the window.
    """

    layer: int
    kind: LayerKind
    main: float = 0
    indexer: float = 0
    window: float = 0
    state: float = 0
    padding: float = 0

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return self.main + self.indexer + self.window + self.state + self.padding


@dataclass(frozen=True)
class Usage:
    """What one request of a given length takes.

    Attributes:
        layers: by layer.
        shared: bytes reserved that belong to no layer: the rest of a slab whose group does not fill it.
        buffers: bytes of each allocation, by its name, where an engine makes one per kind of cache.
        terms: the arithmetic, a line each, with the numbers put in.
    """

    layers: tuple[LayerBytes, ...]
    shared: float = 0
    buffers: dict[str, int] = field(default_factory=dict)
    terms: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """All bytes, rounded to the nearest."""
        return round(sum(layer.total for layer in self.layers) + self.shared)

    def part(self, name: str) -> float:
        """Bytes of one of `PARTS` over all layers."""
        return float(sum(getattr(layer, name) for layer in self.layers))


@dataclass(frozen=True)
class Capacity:
    """What fits into the memory an engine has for its cache, per GPU. Fields an engine has no notion of are None.

    Attributes:
        available_bytes: memory for the cache.
        max_model_len: tokens of a request.
        concurrency: requests of that length that fit.
        kv_cache_tokens: tokens the engine reports. vLLM derives it as concurrency × max_model_len.
        largest_context: longest request that fits alone.
        num_blocks: blocks of the pool.
        bytes_per_block: bytes of one.
        blocks_per_request: blocks admission charges for one request.
        group_blocks: the same by group.
        in_flight_tokens: tokens in flight that it charges for.
        in_flight_share: share of those blocks that is charged for them and not held while decoding.
        decoding_requests: requests of that length that can decode at once while one of them is being admitted.
        bytes_per_token: bytes per token of the pool, where an engine counts so.
        pools: further pool sizes in tokens, by name.
        bound_by: which of them holds the fewest requests of that length.
        terms: the arithmetic, a line each, with the numbers put in.
        notes: sentences a reader of these figures should see.
    """

    available_bytes: int
    max_model_len: int
    concurrency: float
    kv_cache_tokens: int
    largest_context: int
    num_blocks: int | None = None
    bytes_per_block: int | None = None
    blocks_per_request: int | None = None
    group_blocks: dict[str, int] = field(default_factory=dict)
    in_flight_tokens: int | None = None
    in_flight_share: float | None = None
    decoding_requests: int | None = None
    bytes_per_token: float | None = None
    pools: dict[str, int] = field(default_factory=dict)
    bound_by: str = ""
    terms: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
