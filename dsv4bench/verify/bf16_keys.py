"""The deviation of kernels that attend fp8 latents by bf16 keys: what they are expected to return instead.

The 656 B entry stores fp32 scales. A kernel that multiplies by a bf16 scale into a bf16 key rounds twice, which shows
unless scales are powers of two. FlashMLA's sparse decode on compute capability 9.0 does so
(``csrc/sm90/decode/sparse_fp8``).
"""

from dataclasses import replace
from typing import Any

import torch
from dsv4_kernels import reference
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import read_entries, record_view, write_entries
from dsv4_kernels.formats import HEAD_DIM, entry_format

from dsv4bench.verify.difference import Difference
from dsv4bench.verify.quantised import BF16_KEYS, stored_scales

_PAGE = 64


def attends_latents(arguments: dict[str, Any]) -> bool:
    """Whether a call of sparse attention reads fp8 latents, in bf16."""
    cache = arguments["compressed_cache"]
    fp8 = isinstance(cache, PagedCache) and (cache.format.role, cache.format.precision) == ("latent", "fp8")
    return fp8 and arguments["q"].dtype == torch.bfloat16


def attend_bf16_keys(arguments: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference's sparse attention where scales are rounded to bf16 and then keys to bf16.

    Args:
        arguments: of the stage, over fp8 latents.

    Returns:
        output and LSE, as of the stage.
    """
    cache, indices, lens = (arguments[f"compressed_{name}"] for name in ("cache", "indices", "lens"))
    seen = torch.arange(indices.shape[1], device=indices.device) < lens[:, None]
    slots, place = torch.unique(torch.where(seen, indices, -1).clamp_min(-1), return_inverse=True)
    format = entry_format("latent", "bf16")
    raw = torch.zeros((-(-len(slots) // _PAGE), format.page_bytes(_PAGE)), dtype=torch.uint8, device=indices.device)
    keys = PagedCache(raw, format, _PAGE)
    write_entries(keys, torch.arange(len(slots), device=slots.device), bf16_keys(cache, slots.long()))
    listed = torch.where(slots[place] >= 0, place, -1).int()
    return reference.sparse_attention(**(arguments | {"compressed_cache": keys, "compressed_indices": listed}))


def bf16_keys(cache: PagedCache, slots: torch.Tensor) -> torch.Tensor:
    """Entries as bf16, scales rounded first, [S, 576]; a negative slot reads as zeros."""
    kept = slots.clamp_min(0)
    records = record_view(cache)[kept // cache.entries, kept % cache.entries]
    codes = records[:, :HEAD_DIM].contiguous().view(torch.float8_e4m3fn).to(torch.bfloat16)
    scales = stored_scales(cache, kept).to(torch.bfloat16)
    latent = (torch.unflatten(codes, -1, (scales.shape[1], -1)) * scales.unsqueeze(-1)).flatten(-2)
    rope = read_entries(cache, slots)[:, HEAD_DIM:].to(torch.bfloat16)
    return torch.where((slots >= 0)[:, None], torch.cat((latent, rope), dim=1), 0.0)


def named(found: list[Difference], instead: list[Difference]) -> list[Difference]:
    """The differences from the reference, by name where there is none from what bf16 keys give."""
    if not all(difference.ok for difference in instead):
        return found
    return [difference if difference.ok else replace(difference, deviation=BF16_KEYS) for difference in found]
