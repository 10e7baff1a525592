"""A pool of KV blocks over real memory: one slab per block, all groups aliasing it.

The slab tensor is block-outermost, ``[num_blocks, bytes_per_block]``; the page of any cache of any layer is a view into
it whose stride between pages is a whole block. Offsets exceed 2**31 bytes after some two thousand blocks, so every
kernel that reads these views needs 64-bit addressing.
"""

from collections.abc import Hashable, Sequence

import torch
from dsv4_kernels.cache import PagedCache

from dsv4bench.memory.allocator import BlockAllocator
from dsv4bench.memory.layout import CacheLayout
from dsv4bench.memory.page import CacheKind


class BlockPool:
    """Blocks of a cache layout in one allocation, and who holds them.

    Args:
        layout: pages, groups and bytes per block.
        num_blocks: blocks to allocate.
        device: where.
        retention: see `BlockAllocator`.
    """

    def __init__(
        self, layout: CacheLayout, num_blocks: int, *, device: torch.device | str = "cpu", retention: int | None = None
    ) -> None:
        self.layout = layout
        self.slab = torch.empty((num_blocks, layout.bytes_per_block), dtype=torch.uint8, device=device)
        self.allocator = BlockAllocator(layout.groups, num_blocks, retention=retention)

    def admit(self, request: Hashable, prompt: int, content: Sequence[Hashable] = ()) -> int:
        """Take a request in; returns the tokens reused. See `BlockAllocator.admit`."""
        return self.allocator.admit(request, prompt, content)

    def advance(self, request: Hashable, tokens: int) -> None:
        """Make room for ``tokens`` more. See `BlockAllocator.advance`."""
        self.allocator.advance(request, tokens)

    def finish(self, request: Hashable) -> None:
        """Give back a request's blocks."""
        self.allocator.finish(request)

    def cache(self, layer: int, kind: CacheKind) -> PagedCache:
        """Pages of a cache of entries, one per block, with a stride of a whole slab.

        Raises:
            KeyError: the layer has no such cache, or it holds state rows.
        """
        page = self.layout.page(kind)
        if page.format is None:
            raise KeyError(f"{kind} holds state rows; use state()")
        return PagedCache(self._bytes(layer, kind), page.format, page.entries)

    def state(self, layer: int, kind: CacheKind) -> torch.Tensor:
        """Compressor state rows, fp32 [num_blocks, rows per block, row_floats], with a stride of a whole slab.

        Raises:
            KeyError: the layer has no such cache, or it holds entries.
        """
        page = self.layout.page(kind)
        if page.format is not None:
            raise KeyError(f"{kind} holds entries; use cache()")
        rows = self._bytes(layer, kind).view(torch.float32)
        return rows.view(rows.shape[0], page.entries, page.row_floats)

    def block_table(self, requests: Sequence[Hashable], group: str) -> torch.Tensor:
        """Block ids, int32 [requests, longest]; 0 where a window has passed or a request is shorter."""
        rows = [self.allocator.table(request, group) for request in requests]
        table = torch.zeros((len(rows), max((len(row) for row in rows), default=0)), dtype=torch.int32)
        for index, row in enumerate(rows):
            table[index, : len(row)] = torch.tensor([block or 0 for block in row], dtype=torch.int32)
        return table.to(self.slab.device)

    def slots(self, request: Hashable, kind: CacheKind, entries: Sequence[int]) -> torch.Tensor:
        """Slots of a request's entries in a cache, int64: block · entries per page + offset; −1 where it was freed."""
        page = self.layout.page(kind)
        table = self.allocator.table(request, self._group(kind))
        slots = []
        for entry in entries:
            block = table[entry // page.entries]
            slots.append(-1 if block is None else block * page.entries + entry % page.entries)
        return torch.tensor(slots, dtype=torch.int64, device=self.slab.device)

    def _group(self, kind: CacheKind) -> str:
        for group in self.layout.groups:
            if any(place.kind is kind for place in group.placements):
                return group.name
        raise KeyError(f"no {kind} cache in this layout")

    def _bytes(self, layer: int, kind: CacheKind) -> torch.Tensor:
        start = self.layout.placement(layer, kind).offset
        return self.slab[:, start : start + self.layout.page(kind).raw_bytes]
