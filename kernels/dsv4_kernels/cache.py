"""A paged cache as kernels see it: bytes, a format, and how many entries a page holds."""

from dataclasses import dataclass

import torch

from dsv4_kernels.formats import EntryFormat


@dataclass(frozen=True)
class PagedCache:
    """Pages of cache entries inside a larger allocation.

    Attributes:
        pages: uint8 [num_pages, page_bytes]; ``stride(1) == 1``, ``stride(0)`` is the distance between pages in
            bytes and may exceed ``page_bytes`` (padding, or a slab that holds other caches too). Offsets need 64 bits.
        format: layout of an entry within its page.
        entries: entries per page. Slot ``s`` is entry ``s % entries`` of page ``s // entries``.
    """

    pages: torch.Tensor
    format: EntryFormat
    entries: int

    def __post_init__(self) -> None:
        if self.pages.dtype != torch.uint8 or self.pages.dim() != 2 or self.pages.stride(1) != 1:
            raise ValueError("pages must be a uint8 tensor [num_pages, page_bytes] with unit inner stride")
        need = self.format.page_bytes(self.entries)
        if self.pages.shape[1] < need:
            raise ValueError(
                f"a page of {self.entries} {self.format.name} entries needs {need} B, got {self.pages.shape[1]}"
            )

    @property
    def num_pages(self) -> int:
        """Pages in the allocation."""
        return self.pages.shape[0]

    @property
    def num_slots(self) -> int:
        """Entries in the allocation."""
        return self.pages.shape[0] * self.entries

    @property
    def device(self) -> torch.device:
        """Device of the bytes."""
        return self.pages.device
