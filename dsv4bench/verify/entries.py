"""Checking what a stage wrote into a cache, without a copy of the cache.

The reference writes the same entries into a small exact shadow; what the provider wrote is read back from its slots.
"""

from dataclasses import replace
from typing import Any

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import read_entries
from dsv4_kernels.formats import NOPE_DIM, EntryFormat, entry_format

from dsv4bench.verify.difference import ROW_TOLERANCE, Difference, activation_difference, row_difference
from dsv4bench.verify.quantised import cache_quantiser, quantised_difference, snr_db, stored_scales

WRITES = {
    "query_norm_rope_insert": ("window_cache", "window_slots"),
    "compressor_state_save": ("state_cache", "state_slots"),
    "indexer_state_save": ("state_cache", "state_slots"),
    "compress_norm_rope_insert": ("cache", "compressed_slots"),
    "indexer_compress_insert": ("cache", "compressed_slots"),
    "latent_insert": ("cache", "slots"),
    "indexer_key_insert": ("cache", "slots"),
}
"""Stage → the parameters that name the cache it writes and the slots."""

_QUANTISED_DIMS = {"main": NOPE_DIM, "latent": 512, "indexer": 128}
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


def with_shadow(name: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Arguments that make a stage write its entries, in token order, to a small exact cache; and that cache."""
    cache_name, slots_name = WRITES[name]
    cache, slots = arguments[cache_name], arguments[slots_name]
    written = slots >= 0
    count = int(written.sum())
    renumbered = torch.where(written, written.cumsum(0) - 1, -1)
    shadow: Any
    if isinstance(cache, PagedCache):
        format = exact_format(cache.format)
        pages = torch.zeros((max(count, 1), format.page_bytes(1)), dtype=torch.uint8, device=cache.device)
        shadow = PagedCache(pages, format, 1)
    else:
        shadow = cache.new_zeros((max(count, 1), 1, cache.shape[-1]))
    return arguments | {cache_name: shadow, slots_name: renumbered}, shadow


def exact_format(format: EntryFormat) -> EntryFormat:
    """The unquantised format of the same role."""
    return format if format.precision == "fp64" else entry_format(format.role, "fp32")


def compare_writes(name: str, arguments: dict[str, Any], shadow: Any, tokens: torch.Tensor) -> list[Difference]:
    """Compare what lies at the stage's slots with what the reference put into the shadow.

    Args:
        name: the stage.
        arguments: what the provider was called with.
        shadow: of ``with_shadow``, after the reference ran.
        tokens: numbers of the arguments' tokens.
    """
    cache_name, slots_name = WRITES[name]
    cache, slots = arguments[cache_name], arguments[slots_name]
    written = slots >= 0
    slots, tokens = slots[written].long(), tokens[written]
    order = torch.arange(len(slots), device=slots.device)
    if isinstance(cache, PagedCache):
        return compare_entries(cache_name, cache, slots, read_entries(shadow, order), tokens)
    block = cache.shape[1]
    rows = cache[slots // block, slots % block]
    return [row_difference("state row", rows, shadow[order, 0], ROW_TOLERANCE[cache.dtype], labels=tokens)]


def compare_entries(
    what: str, cache: PagedCache, slots: torch.Tensor, values: torch.Tensor, tokens: torch.Tensor
) -> list[Difference]:
    """Compare stored entries with exact values [S, dim], part by part as the format stores them."""
    format, dims = cache.format, ("token",)
    stored = read_entries(cache, slots)
    snr = {"snr_db": snr_db(stored, values)} if len(slots) else {}
    if not format.quant_block:
        found = activation_difference(what, stored, values, _DTYPES[format.precision], dims, tokens)
        return [replace(found, numbers=found.numbers | snr)]
    width = _QUANTISED_DIMS[format.role]
    scales, quantiser = stored_scales(cache, slots), cache_quantiser(format)
    found = quantised_difference(what, stored[:, :width], scales, values[:, :width], quantiser, dims, tokens)
    found = replace(found, numbers=snr)
    if width == format.dim:
        return [found]
    rest = stored[:, width:], values[:, width:]
    return [found, activation_difference(f"{what} rope", *rest, torch.bfloat16, dims, tokens)]
