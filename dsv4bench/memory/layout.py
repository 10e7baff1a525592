"""The layout of a KV cache, entry × page × bucket × group, as one object.

The calculator sums it and the stack's tensors are cut out of it, so the bytes that are printed are the bytes that are
allocated. A *page* holds the entries of one cache of one layer for a fixed run of positions. A *block* is one slab of
`CacheLayout.bytes_per_block` bytes; it belongs to one *group* at a time and then holds one page of every cache of that
group, at the byte offset the layout gives. Groups overlap in the slab: a window block and a compressed block are the
same bytes used differently. How pages are placed in the slab is the *generation* of vLLM's allocator:

- ``tuple``: slots of one page of each bucket; as many slots as the fullest bucket of any group needs.
- ``bucketed``: every bucket has its own slots, as many as any group puts in that bucket.
- ``packed``: every group packs its own pages from byte 0; the largest group decides.

Typical use::

    layout = build_layout(shape.layers, main="fp8", indexer="fp8")       # vLLM packed, FlashMLA
    page = layout.page(CacheKind.C4A_MAIN)                               # 64 entries, 37,376 raw, 37,440 B
    offset = layout.placement(layer=2, kind=CacheKind.C4A_MAIN).offset   # byte of that page in a block's slab
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dsv4bench.errors import UserError
from dsv4bench.memory.page import BUCKETS, CACHES, GEOMETRY, CacheKind, PageLayout, backend_named, page_layout
from dsv4bench.model.shape import LayerKind

GENERATIONS = ("tuple", "bucketed", "packed")
"""How pages are placed in a slab, oldest first."""
_WINDOW_GROUPS = 2


@dataclass(frozen=True)
class Placement:
    """Where the page of one cache of one layer lies in a block's slab.

    Attributes:
        layer: index of the layer, MTP layers after the backbone.
        kind: which of its caches.
        group: name of the group.
        offset: first byte of the page within the slab.
    """

    layer: int
    kind: CacheKind
    group: str
    offset: int


@dataclass(frozen=True)
class Group:
    """Caches that are allocated together: one block table serves them all.

    Attributes:
        name: ``full``, ``window0``, ``window1``, ``c4_state`` or ``c128_state``.
        tokens: positions a block of this group holds.
        window: positions that must be kept; 0 keeps all of them.
        placements: its pages in a block.
        bytes: sum of its own pages.
    """

    name: str
    tokens: int
    window: int
    placements: tuple[Placement, ...]
    bytes: int

    def blocks(self, context: int, in_flight: int, dcp: int = 1) -> int:
        """Blocks a request of ``context`` tokens takes; one without tokens takes none.

        Args:
            context: tokens of the request.
            in_flight: tokens a step may add before the window slides.
            dcp: ranks that compressed entries are split over.
        """
        if context == 0:
            return 0
        if self.window:
            return -(-min(self.window - 1 + in_flight, context) // self.tokens) + 1
        return -(-context // (self.tokens * dcp))


@dataclass(frozen=True)
class CacheLayout:
    """Every page of every layer, and the slab they share.

    Attributes:
        backend: name of the kernel library whose formats these are.
        generation: ``tuple``, ``bucketed`` or ``packed``.
        main: precision of main and window entries.
        indexer: precision of indexer entries.
        layers: kind of each layer.
        pages: page of each kind of cache that occurs, largest group first.
        groups: block groups; all draw on one pool.
        bytes_per_block: bytes of a slab.
    """

    backend: str
    generation: str
    main: str
    indexer: str
    layers: tuple[LayerKind, ...]
    pages: tuple[PageLayout, ...]
    groups: tuple[Group, ...]
    bytes_per_block: int
    _places: dict[tuple[int, CacheKind], Placement] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        places = {(place.layer, place.kind): place for group in self.groups for place in group.placements}
        object.__setattr__(self, "_places", places)

    @property
    def name(self) -> str:
        """Such as ``packed flashmla, main fp8, indexer fp8``."""
        return f"{self.generation} {self.backend}, main {self.main}, indexer {self.indexer}"

    @cached_property
    def group_bytes(self) -> tuple[int, ...]:
        """Bytes of each group's own pages, in the order of `groups`."""
        return tuple(group.bytes for group in self.groups)

    def page(self, kind: CacheKind) -> PageLayout:
        """The page of a kind of cache.

        Raises:
            KeyError: no layer has such a cache.
        """
        for page in self.pages:
            if page.kind is kind:
                return page
        raise KeyError(f"no {kind} cache in this layout; it has {', '.join(page.kind for page in self.pages)}")

    def group(self, name: str) -> Group:
        """A group by name.

        Raises:
            KeyError: no such group.
        """
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(f"no group {name!r}; known: {', '.join(group.name for group in self.groups)}")

    def placement(self, layer: int, kind: CacheKind) -> Placement:
        """Where a cache of a layer lies.

        Raises:
            KeyError: the layer has no such cache.
        """
        return self._places[layer, kind]


def build_layout(
    layers: Sequence[LayerKind],
    *,
    main: str = "fp8",
    indexer: str = "fp8",
    backend: str = "flashmla",
    generation: str = "packed",
    sliding_window: int = 128,
    stage: range | None = None,
) -> CacheLayout:
    """Lay out the caches of a list of layers.

    Args:
        layers: kind of each layer; append MTP layers where they are served.
        main: precision of main, window or latent entries.
        indexer: precision of indexer entries. Before ``packed``, an fp4 row still takes an fp8 row's 132 bytes.
        backend: a name of `BACKENDS`.
        generation: a name of `GENERATIONS`. V3.2 has one group and is laid out alike in all of them.
        sliding_window: positions of the window, the token itself included.
        stage: layers that a pipeline stage holds; groups are formed over all layers, pages outside are left out.

    Raises:
        UserError: an unknown backend, generation or precision, or V4 and V3.2 layers mixed.
    """
    kinds = [kind for kind in GEOMETRY if any(kind in CACHES[layer] for layer in layers)]
    if not kinds:
        raise UserError("a cache layout needs at least one layer")
    if LayerKind.DSA in layers and set(layers) != {LayerKind.DSA}:
        raise UserError("V4 and V3.2 layers cannot share a cache layout")
    if generation not in GENERATIONS:
        raise UserError(f"unknown layout generation {generation!r}; known are {', '.join(GENERATIONS)}")
    raw = {
        kind: page_layout(kind, backend_named(backend), main, indexer, fp4_packed=generation == "packed")
        for kind in kinds
    }
    pages = raw if generation == "packed" or LayerKind.DSA in layers else _bucket_pages(raw)
    members = _group_members(layers, kinds, stage)
    groups, size = _place(members, pages, generation, sliding_window)
    return CacheLayout(backend, generation, main, indexer, tuple(layers), tuple(pages.values()), groups, size)


def _bucket_pages(pages: dict[CacheKind, PageLayout]) -> dict[CacheKind, PageLayout]:
    """Every page grown to the largest of its bucket."""
    size = {b: max((p.page_bytes for p in pages.values() if p.bucket == b), default=0) for b in BUCKETS}
    return {kind: replace(page, page_bytes=size[page.bucket]) for kind, page in pages.items()}


_Members = dict[str, list[tuple[int, CacheKind]]]


def _group_members(layers: Sequence[LayerKind], kinds: Sequence[CacheKind], stage: range | None) -> _Members:
    """Layer and kind of every page, by group; window layers alternate between the window groups."""
    members: _Members = {}
    for kind in kinds:
        owners = [index for index, layer in enumerate(layers) if kind in CACHES[layer]]
        name = GEOMETRY[kind].group
        split = _WINDOW_GROUPS if name == "window" else 1
        for part in range(min(split, len(owners))):
            here = [(index, kind) for index in owners[part::split] if stage is None or index in stage]
            members.setdefault(f"{name}{part}" if name == "window" else name, []).extend(here)
    return members


def _place(
    members: _Members, pages: dict[CacheKind, PageLayout], generation: str, sliding_window: int
) -> tuple[tuple[Group, ...], int]:
    """Give every page its offset; returns the groups and the bytes of a slab."""
    offsets, slab = (
        _packed_offsets(members, pages)
        if generation == "packed"
        else _slot_offsets(members, pages, shared=generation == "tuple")
    )
    groups = []
    for name, owned in members.items():
        page = pages[owned[0][1]] if owned else None
        if page is None:
            continue
        window = {"window": sliding_window, "c4_state": 8, "c128_state": 128}.get(page.group, 0)
        placements = tuple(Placement(layer, kind, name, offsets[layer, kind]) for layer, kind in owned)
        own = sum(pages[kind].page_bytes for _, kind in owned)
        groups.append(Group(name, page.tokens, window, placements, own))
    return tuple(groups), slab


_Offsets = dict[tuple[int, CacheKind], int]


def _packed_offsets(members: _Members, pages: dict[CacheKind, PageLayout]) -> tuple[_Offsets, int]:
    offsets: _Offsets = {}
    largest = 0
    for owned in members.values():
        at = 0
        for layer, kind in owned:
            offsets[layer, kind] = at
            at += pages[kind].page_bytes
        largest = max(largest, at)
    return offsets, largest


def _slot_offsets(members: _Members, pages: dict[CacheKind, PageLayout], *, shared: bool) -> tuple[_Offsets, int]:
    """Slot ``i`` of a bucket; ``shared`` slots hold one page of each bucket."""
    size = {page.bucket: page.page_bytes for page in pages.values()}
    slot: dict[tuple[int, CacheKind], tuple[str, int]] = {}
    slots = dict.fromkeys(size, 0)
    for owned in members.values():
        used = dict.fromkeys(size, 0)
        for layer, kind in owned:
            bucket = pages[kind].bucket
            slot[layer, kind] = (bucket, used[bucket])
            used[bucket] += 1
        slots = {bucket: max(count, used[bucket]) for bucket, count in slots.items()}
    order = [bucket for bucket in BUCKETS if bucket in size]
    if shared:
        stride, most = sum(size.values()), max(slots.values())
        start = {bucket: sum(size[b] for b in order[:i]) for i, bucket in enumerate(order)}
        return {key: start[b] + i * stride for key, (b, i) in slot.items()}, most * stride
    start = {bucket: sum(size[b] * slots[b] for b in order[:i]) for i, bucket in enumerate(order)}
    slab = sum(size[b] * slots[b] for b in order)
    return {key: start[b] + i * size[b] for key, (b, i) in slot.items()}, slab
