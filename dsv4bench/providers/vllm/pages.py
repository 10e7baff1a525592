"""Our paged caches as vLLM's kernels take them: views, never copies."""

import torch
from dsv4_kernels.cache import PagedCache


def by_entry(cache: PagedCache) -> torch.Tensor:
    """uint8 [pages, entries, bytes per entry] over the same bytes.

    The last two dims only size a page: its scales lie behind all its values, not beside them. The distance between
    pages stays what it is, so pages of a slab work.
    """
    size = cache.format.page_bytes(cache.entries)
    return torch.unflatten(cache.pages[:, :size], 1, (cache.entries, cache.format.entry_bytes))


def by_head(cache: PagedCache) -> torch.Tensor:
    """uint8 [pages, entries, 1, bytes per entry], as FlashMLA and DeepGEMM take it."""
    return by_entry(cache).unsqueeze(2)


def require_dense(cache: PagedCache, what: str) -> None:
    """Refuse pages with anything between them, for kernels that compute a page's address from its number alone.

    Raises:
        NotImplementedError: the pages lie in a slab.
    """
    size = cache.format.page_bytes(cache.entries)
    if cache.num_pages > 1 and cache.pages.stride(0) != size:
        raise NotImplementedError(
            f"vLLM's {what} takes pages of {size} B back to back and these lie {cache.pages.stride(0)} B apart; "
            "set cache.slab to false"
        )
