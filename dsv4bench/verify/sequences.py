"""Requests that grow step by step over the paged caches of one layer: the inputs of conformance checks.

Unlike a benchmark's step, whose caches are filled at random, these requests can start empty, be prefilled in chunks,
rejected in part and resumed, and what a step may not read can be poisoned.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from dsv4_kernels.cache import PagedCache

from dsv4bench.model.shape import V3_2, V4_FLASH, LayerKind, ModelShape
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.stack.caches import TENSOR_NAMES, allocate, fill
from dsv4bench.stack.inputs import Values, constants
from dsv4bench.stack.layer import rope_table
from dsv4bench.stack.metadata import BlockTables, step_metadata
from dsv4bench.stack.pages import FULL_BLOCK, STATE_BLOCK, WINDOW_BLOCK, page_spans
from dsv4bench.stack.weights import make_weights


def small_shape(kind: LayerKind, device: str = "cpu") -> ModelShape:
    """A model narrow enough to check on a CPU, with the widths that matter kept: entries, rope and index dims.

    On a GPU, heads and top-k have the sizes of a real model, because kernels are compiled for those.
    """
    full = device != "cpu"
    base = V3_2 if kind is LayerKind.DSA else V4_FLASH
    heads, index_heads = (64, 64) if full else (16, 16)
    return replace(
        base,
        name=f"{base.name}-small",
        hidden_size=256,
        num_heads=heads,
        q_lora_rank=128,
        o_groups=heads // 8 if base.is_v4 else 0,
        o_lora_rank=128 if base.is_v4 else 0,
        index_heads=index_heads,
        index_topk=base.index_topk if full else 64,
    )


class Sequences:
    """A batch of requests over one layer's caches.

    Attributes:
        lens: present length of each request.
        tables: block tables by group (``full``, ``window``, ``state``), int32 [requests, pages]; may be edited.
        caches: caches by tensor name; may be replaced.
        groups: group of each cache.
        spare: page of each group that no request owns.
        x: activations by request and position, [requests, limit, hidden]; may be edited.
    """

    def __init__(
        self,
        shape: ModelShape,
        kind: LayerKind,
        precision: CachePrecision,
        *,
        requests: int,
        limit: int | Sequence[int],
        device: str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
        seed: int = 0,
        start: Sequence[int] | None = None,
        poison: int | None = None,
        weights: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """Reserve pages for every request in random order.

        Args:
            shape: the model.
            kind: the layer kind.
            precision: of the caches.
            requests: number of requests.
            limit: longest length that they, or each of them, will reach.
            device: where.
            dtype: of the activations.
            seed: of weights, activations and page order.
            start: lengths to begin with over caches of random valid entries; empty by default.
            poison: byte that caches hold where nothing was written (0xFF: NaN), and that pages get as soon as they slid
                out of reach. None: random valid entries.
            weights: use these instead of drawing some.
        """
        self.shape, self.kind, self.precision, self.device, self.poison = shape, kind, precision, device, poison
        limits = [limit] * requests if isinstance(limit, int) else list(limit)
        self.limit = max(limits)
        self.lens = list(start) if start is not None else [0] * requests
        generator = torch.Generator().manual_seed(seed)
        columns = self._columns(limits)
        layer = allocate(kind, precision, {g: sum(map(len, c)) + 1 for g, c in columns.items()}, device=device)
        self.caches: dict[str, PagedCache | torch.Tensor] = dict(layer.caches)
        self.groups = {
            TENSOR_NAMES[page.kind]: "state" if page.kind.is_state else page.group for page in layer.layout.pages
        }
        if poison is None:
            fill(layer, seed=seed)
        else:
            for cache in self.caches.values():
                _poison_pages(cache, slice(None), poison)
        self.spare = {group: layer.blocks[group].stop - 1 for group in columns}
        self.tables = {
            group: self._draw_table(layer.blocks[group], spans, generator).to(device)
            for group, spans in columns.items()
        }
        self.weights = weights or make_weights(shape, kind, device=device, dtype=dtype, seed=seed)
        self.cos_sin = rope_table(shape.rope_of(kind), self.limit, device)
        x = torch.randn(requests, self.limit, shape.hidden_size, generator=generator, dtype=torch.float32)
        self.x = x.to(device, dtype)

    def _columns(self, limits: list[int]) -> dict[str, list[range]]:
        """Table columns by group that each request will ever need, from its present length on."""
        positions = {}
        if self.kind in FULL_BLOCK:
            positions["full"] = FULL_BLOCK[self.kind]
        if self.shape.sliding_window:
            positions["window"] = WINDOW_BLOCK
        if self.kind in STATE_BLOCK:
            positions["state"] = STATE_BLOCK[self.kind]
        needed = [page_spans(self.kind, self.shape, n + 1, 1) for n in self.lens]
        return {
            group: [range(first[group].start, -(-n // block)) for first, n in zip(needed, limits, strict=True)]
            for group, block in positions.items()
        }

    def _draw_table(self, blocks: range, columns: list[range], generator: torch.Generator) -> torch.Tensor:
        """Pages in random order where requests need them; everything else points to the spare page, the last one."""
        order = (torch.randperm(len(blocks) - 1, generator=generator) + blocks.start).int()
        table = torch.full((len(columns), max((c.stop for c in columns), default=0) + 4), blocks.stop - 1).int()
        used = 0
        for row, span in enumerate(columns):
            table[row, span.start : span.stop] = order[used : used + len(span)]
            used += len(span)
        return table

    def step(self, query_lens: Sequence[int]) -> Values:
        """Lengthen the requests and return everything the layer's stages read in that step."""
        before, self.lens = self.lens, [n + q for n, q in zip(self.lens, query_lens, strict=True)]
        if self.poison is not None:
            self._poison_dead(query_lens)
        values: dict[str, Any] = {**self.weights, **self.caches}
        values |= step_metadata(self.shape, self.kind, self.lens, query_lens, BlockTables(**self.tables))
        values |= constants(self.shape, self.kind, self.precision)
        rows = [self.x[r, n : n + q] for r, (n, q) in enumerate(zip(before, query_lens, strict=True))]
        return values | {"x": torch.cat(rows), "cos_sin": self.cos_sin}

    def rewind(self, tokens: Sequence[int]) -> None:
        """Take back the last tokens of each request, as rejected drafts are: nothing but the length changes."""
        self.lens = [n - t for n, t in zip(self.lens, tokens, strict=True)]

    def _poison_dead(self, query_lens: Sequence[int]) -> None:
        """Overwrite window and state pages that this step may no longer read, as their next owner would."""
        spans = [page_spans(self.kind, self.shape, n, q) for n, q in zip(self.lens, query_lens, strict=True)]
        alive = {
            group: {page for row, span in enumerate(spans) for page in self._pages(group, row, span[group])}
            for group in self.tables
        }
        for name, group in self.groups.items():
            if group == "full":
                continue
            dead = sorted(set(self.tables[group].flatten().tolist()) - alive[group])
            _poison_pages(self.caches[name], torch.tensor(dead, dtype=torch.long, device=self.device), self.poison or 0)

    def _pages(self, group: str, row: int, columns: range) -> list[int]:
        pages: list[int] = self.tables[group][row, columns.start : columns.stop].tolist()
        return pages


def _poison_pages(cache: PagedCache | torch.Tensor, pages: torch.Tensor | slice, byte: int) -> None:
    if isinstance(cache, PagedCache):
        cache.pages[pages] = byte
    else:
        cache[pages] = torch.full((4,), byte, dtype=torch.uint8).view(torch.float32).item()
