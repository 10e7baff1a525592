"""Step metadata: positions, slots and window indices, from sequence lengths and block tables.

This is what an engine's scheduler hands to the layer. It is computed once per step, outside the timed layer, as
engines do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dsv4bench.model.shape import LayerKind, ModelShape
from dsv4bench.stack.pages import FULL_BLOCK, STATE_BLOCK, WINDOW_BLOCK

INDEX_ALIGNMENT = 128
"""Widths of index lists are multiples of this, as FlashMLA asks."""


@dataclass(frozen=True)
class BlockTables:
    """Pages of each request, int32 [B, n], by group of caches; None where the layer kind has no such cache.

    Attributes:
        full: compressed and indexer cache.
        window: window cache.
        state: compressor states.
    """

    full: torch.Tensor | None = None
    window: torch.Tensor | None = None
    state: torch.Tensor | None = None


def step_metadata(
    shape: ModelShape,
    kind: LayerKind,
    seq_lens: Sequence[int],
    query_lens: Sequence[int],
    tables: BlockTables,
) -> dict[str, Any]:
    """Everything of docs/stages.md's metadata table but ``cos_sin``, on the block tables' device.

    Args:
        shape: the model.
        kind: the layer.
        seq_lens: length of each request after the step.
        query_lens: query tokens of each request, the last ones of its sequence.
        tables: its pages.
    """
    device = next(t.device for t in (tables.window, tables.full) if t is not None)
    lens = torch.tensor(list(seq_lens), dtype=torch.int64)
    queries = torch.tensor(list(query_lens), dtype=torch.int64)
    start = torch.zeros(len(lens) + 1, dtype=torch.int64)
    start[1:] = queries.cumsum(0)
    request = torch.repeat_interleave(torch.arange(len(lens)), queries)
    positions = torch.arange(int(start[-1])) - start[request] + (lens - queries)[request]
    positions, request = positions.to(device), request.to(device)
    values: dict[str, Any] = {
        "positions": positions,
        "token_to_request": request.to(torch.int32),
        "seq_lens": lens.to(device, torch.int32),
        "query_start": start.to(device, torch.int32),
    }
    if tables.window is not None:
        values |= _window(tables.window, request, positions, shape.sliding_window)
    else:
        values |= {"window_cache": None, "window_indices": None, "window_lens": None}
    if kind in STATE_BLOCK and tables.state is not None:
        values |= {
            "state_slots": _slots(tables.state, request, positions, STATE_BLOCK[kind]),
            "state_block_table": tables.state,
        }
    if tables.full is not None:
        longest = max((shape.entries(kind, n) for n in seq_lens), default=0)
        values |= _entries(tables.full, request, positions, kind, longest)
    else:
        values |= {"compressed_cache": None, "compressed_indices": None, "compressed_lens": None}
    return values


def _slots(table: torch.Tensor, request: torch.Tensor, index: torch.Tensor, block: int) -> torch.Tensor:
    """Slot of entry ``index`` (int64, any shape that broadcasts with ``request``), for pages of ``block`` entries."""
    return table[request, index // block].long() * block + index % block


def _window(
    table: torch.Tensor, request: torch.Tensor, positions: torch.Tensor, window: int
) -> dict[str, torch.Tensor]:
    offsets = torch.arange(window, device=table.device)
    first = (positions - (window - 1)).clamp_min(0)
    visible = first[:, None] + offsets
    inside = visible <= positions[:, None]
    slots = _slots(table, request[:, None], torch.minimum(visible, positions[:, None]), WINDOW_BLOCK)
    return {
        "window_slots": _slots(table, request, positions, WINDOW_BLOCK),
        "window_block_table": table,
        "window_indices": torch.where(inside, slots, -1).to(torch.int32),
        "window_lens": (positions + 1).clamp_max(window).to(torch.int32),
    }


def _entries(
    table: torch.Tensor, request: torch.Tensor, positions: torch.Tensor, kind: LayerKind, longest: int
) -> dict[str, Any]:
    ratio, per_page = kind.ratio, FULL_BLOCK[kind] // kind.ratio
    completes = (positions + 1) % ratio == 0
    slots = _slots(table, request, positions // ratio, per_page)
    lens = ((positions + 1) // ratio).to(torch.int32)
    values: dict[str, Any] = {
        "block_table": table,
        "compressed_slots": torch.where(completes, slots, -1),
        "candidate_lens": lens,
        "max_candidates": longest,
    }
    if kind is LayerKind.C128A:
        width = max(1, -(-longest // INDEX_ALIGNMENT)) * INDEX_ALIGNMENT
        entry = torch.arange(width, device=table.device)
        known = entry < lens[:, None]
        entry_slots = _slots(table, request[:, None], torch.where(known, entry, 0), per_page)
        values["compressed_indices"] = torch.where(known, entry_slots, -1).to(torch.int32)
        values["compressed_lens"] = lens
    return values
