"""vLLM's arithmetic in words: every term of its accounting with the numbers put in, for ``--explain``."""

from collections import Counter

from dsv4bench.memory.deployment import Deployment
from dsv4bench.memory.layout import CacheLayout, Group
from dsv4bench.memory.page import BUCKETS


def request_terms(layout: CacheLayout, slabs: list[int], context: int, in_flight: int, dcp: int) -> tuple[str, ...]:
    """Pages, blocks and bytes of one decoding request."""
    pages = [
        f"page {page.kind}: {page.entries}·{page.entry_bytes:,} = {page.raw_bytes:,} → {page.page_bytes:,} B"
        for page in layout.pages
    ]
    counts = [group.blocks(context, in_flight, dcp) for group in layout.groups]
    blocks = sum(counts)
    slab = f"({_sum(slabs)})" if len(slabs) > 1 else f"{slabs[0]:,}"
    return (
        *pages,
        *_block_bytes_terms(layout),
        *_group_terms(layout, context, in_flight, dcp),
        f"blocks of a decoding request = {_sum(counts)} = {blocks:,}",
        f"engine bytes = {blocks:,} · {slab} = {blocks * sum(slabs):,}",
    )


def block_count_terms(layout: CacheLayout, length: int, in_flight: int, dcp: int, need: int) -> tuple[str, ...]:
    """Blocks that admission charges for the longest request."""
    counts = [group.blocks(length, in_flight, dcp) for group in layout.groups]
    lines = _group_terms(layout, length, in_flight, dcp)
    if layout.generation == "packed":
        return (*lines, f"blocks per request = {_sum(counts)} = {need:,}")
    parts = " + ".join(f"{n:,}·{group.bytes:,}" for n, group in zip(counts, layout.groups, strict=True))
    return (*lines, f"blocks per request = ⌈({parts}) / {layout.groups[0].bytes:,}⌉ = {need:,}")


def pool_terms(
    stage_bytes: list[int], available: int, num_blocks: int | None, need: int, length: int
) -> tuple[str, ...]:
    """From memory to blocks, concurrency and the tokens vLLM logs."""
    lines, size = [], max(stage_bytes)
    if len(stage_bytes) > 1:
        lines.append(
            f"bytes per block by pipeline stage: {', '.join(f'{b:,}' for b in stage_bytes)}; the largest counts"
        )
    pool = available // size if num_blocks is None else num_blocks
    given = f"⌊{available:,} / {size:,}⌋ = {pool:,}" if num_blocks is None else f"{pool:,}, as given"
    return (
        *lines,
        f"blocks = {given}",
        f"concurrency = {pool:,} / {need:,} = {pool / need:.2f}",
        f"KV cache tokens, derived = ⌊{pool:,} / {need:,} · {length:,}⌋ = {pool * length // need:,}",
    )


def in_flight_term(deployment: Deployment, in_flight: int, steps: int) -> str:
    """Where the tokens in flight come from."""
    if deployment.in_flight_tokens is not None:
        return f"{in_flight:,}, as given"
    if steps == 1:
        return f"max_num_batched_tokens = {in_flight:,}"
    why = "async scheduling" if deployment.pp == 1 else "pipeline stages"
    return f"{deployment.max_num_batched_tokens:,} · {steps} ({why}) = {in_flight:,}"


def decoding_term(pool: int, admitted: int, held: int, decoding: int) -> str:
    """How many requests decode at once, one of them just being admitted."""
    if pool < admitted:
        return f"decoding at once: {pool:,} blocks do not admit one of {admitted:,}"
    return f"decoding at once = 1 + ⌊({pool:,} − {admitted:,}) / {held:,}⌋ = {decoding:,}"


def _block_bytes_terms(layout: CacheLayout) -> tuple[str, ...]:
    """Bytes of each group's pages, and of the slab they share."""
    lines = []
    for group in layout.groups:
        pages = Counter(layout.page(place.kind).page_bytes for place in group.placements)
        parts = " + ".join(f"{count}·{size:,}" for size, count in sorted(pages.items(), reverse=True))
        lines.append(f"bytes of {group.name} = {parts} = {group.bytes:,}")
    return (*lines, f"bytes per block = {_slab(layout)} = {layout.bytes_per_block:,}")


def _group_terms(layout: CacheLayout, context: int, in_flight: int, dcp: int) -> list[str]:
    lines = []
    for group in layout.groups:
        formula, count = _group_formula(group, context, in_flight, dcp), group.blocks(context, in_flight, dcp)
        lines.append(f"{group.name}: {formula} = {count:,} blocks")
    return lines


def _group_formula(group: Group, context: int, in_flight: int, dcp: int) -> str:
    if group.window:
        return f"⌈min({group.window - 1} + {in_flight:,}, {context:,})/{group.tokens}⌉ + 1"
    return f"⌈{context:,}/{group.tokens * dcp}⌉"


def _slab(layout: CacheLayout) -> str:
    """The rule of the generation, with its numbers."""
    if layout.generation == "packed":
        return f"max({', '.join(f'{group.bytes:,}' for group in layout.groups)})"
    size = {page.bucket: page.page_bytes for page in layout.pages}
    slots = {
        bucket: max(sum(layout.page(p.kind).bucket == bucket for p in group.placements) for group in layout.groups)
        for bucket in BUCKETS
        if bucket in size
    }
    if layout.generation == "bucketed":
        return " + ".join(f"{count}·{size[bucket]:,}" for bucket, count in slots.items())
    return f"{max(slots.values())}·({_sum([size[bucket] for bucket in slots])})"


def _sum(numbers: list[int]) -> str:
    return " + ".join(f"{number:,}" for number in numbers)
