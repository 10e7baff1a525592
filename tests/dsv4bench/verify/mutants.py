"""Providers with one planted fault each: what the conformance suite has to catch.

Each implements only the faulty stage, so the reference fills in the others and nothing but the fault can show.
"""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from dsv4_kernels import codec, reference
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.reference import compressor
from dsv4_kernels.rope import cos_sin_table

from dsv4bench.providers.base import SUPPORTED

ATTENTION = "dsv4_kernels.reference.attention"


def provider(**stages: Any) -> SimpleNamespace:
    """A provider of these stages."""
    return SimpleNamespace(name="mutant", supports=lambda need: SUPPORTED, **stages)


def changed(stage: str, change: Any) -> SimpleNamespace:
    """The reference's stage on arguments that ``change`` replaces."""
    right = getattr(reference, stage)
    return provider(**{stage: lambda **arguments: right(**(arguments | change(arguments)))})


def patched(stage: str, target: str, replacement: Any) -> SimpleNamespace:
    """The reference's stage with a part of it replaced while it runs."""
    right = getattr(reference, stage)

    def run(**arguments: Any) -> Any:
        with mock.patch(target, replacement):
            return right(**arguments)

    return provider(**{stage: run})


# compressor --------------------------------------------------------------------------------------------------------


def first_entry_missing() -> Any:
    return changed(
        "compress_norm_rope_insert",
        lambda a: {"compressed_slots": a["compressed_slots"].where(a["positions"] >= 2 * a["ratio"], -1)},
    )


def missing_rows_take_part() -> Any:
    right = compressor._mix

    def mix(rows: torch.Tensor, exists: torch.Tensor, d: int, ratio: int) -> torch.Tensor:
        return right(rows.masked_fill(~exists.unsqueeze(-1), 0), torch.ones_like(exists), d, ratio)

    return patched("compress_norm_rope_insert", "dsv4_kernels.reference.compressor._mix", mix)


def overlap_halves_swapped() -> Any:
    right = compressor._mix

    def mix(rows: torch.Tensor, exists: torch.Tensor, d: int, ratio: int) -> torch.Tensor:
        kv, score = (torch.cat((x[..., d:], x[..., :d]), -1) for x in rows.chunk(2, -1))
        return right(torch.cat((kv, score), -1), exists, d, ratio)

    return patched("compress_norm_rope_insert", "dsv4_kernels.reference.compressor._mix", mix)


def anchor_at_the_span_start() -> Any:
    """RoPE at 4j − 4, the first of the eight tokens, instead of 4j."""
    right = compressor.rotate

    def rotate(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return right(x, (positions - 4).clamp_min(0), table)

    return patched("compress_norm_rope_insert", "dsv4_kernels.reference.compressor.rotate", rotate)


def ape_by_order_in_step() -> Any:
    return changed(
        "compressor_state_save",
        lambda a: {"positions": torch.arange(len(a["positions"]), device=a["positions"].device)},
    )


def chunk_forgets_rows() -> Any:
    """Windows that began in an earlier chunk lose the rows of that chunk."""
    right = reference.compress_norm_rope_insert

    def compress(**arguments: Any) -> None:
        first = arguments["positions"].min()
        rows = compressor._mix

        def mix(state: torch.Tensor, exists: torch.Tensor, d: int, ratio: int) -> torch.Tensor:
            ends = arguments["positions"][arguments["compressed_slots"] >= 0]
            span = exists.shape[1]
            at = ends[:, None] - span + 1 + torch.arange(span, device=ends.device)
            return rows(state, exists & ((at >= first) | (at > ends[:, None] - 1)), d, ratio)

        with mock.patch("dsv4_kernels.reference.compressor._mix", mix):
            right(**arguments)

    return provider(compress_norm_rope_insert=compress)


def physically_preceding_page() -> Any:
    """The window before is taken from the page before in memory, not in the block table."""
    right = compressor._state_rows

    def state_rows(cache: torch.Tensor, table: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        rows = right(cache, table, at)
        current = table.long().gather(1, at[:, -1:] // cache.shape[1])
        if at.shape[1] != 8:
            return rows
        previous = cache[(current - 1).clamp_min(0)[:, 0]]
        return torch.cat((previous, rows[:, 4:]), dim=1)

    return patched("compress_norm_rope_insert", "dsv4_kernels.reference.compressor._state_rows", state_rows)


def first_write_wins() -> Any:
    """A state row that was written once stays, so a rejected draft's row is never replaced."""

    def save(**arguments: Any) -> None:
        cache, slots = arguments["state_cache"], arguments["state_slots"]
        block = cache.shape[1]
        fresh = cache[slots // block, slots % block].isnan().any(-1)
        reference.compressor_state_save(**(arguments | {"state_slots": slots.where(fresh, -1)}))

    return provider(compressor_state_save=save)


def window_keeps_the_end_of_a_chunk() -> Any:
    """Of a chunk, only the last 64 tokens reach the window cache."""

    def trim(arguments: dict[str, Any]) -> dict[str, Any]:
        slots = arguments["window_slots"].clone()
        slots[: max(len(slots) - 64, 0)] = -1
        return {"window_slots": slots}

    return changed("query_norm_rope_insert", trim)


# indexer -----------------------------------------------------------------------------------------------------------


def own_entry_invisible() -> Any:
    """The entry that a token completes is not offered to that token."""
    return changed("topk", lambda a: {"candidate_lens": (a["candidate_lens"] - 1).clamp_min(0)})


def own_c128a_entry_invisible() -> Any:
    return changed("sparse_attention", lambda a: {"compressed_lens": (a["compressed_lens"] - 1).clamp_min(0)})


def incomplete_group_visible() -> Any:
    """Visible groups are ⌈(q + 1) / m⌉."""

    def topk(**arguments: Any) -> torch.Tensor:
        logits, lens = arguments["logits"], arguments["candidate_lens"]
        lens = (lens + 1).clamp_max(logits.shape[1])
        return reference.topk(logits=logits.nan_to_num(neginf=-1e30), candidate_lens=lens, k=arguments["k"])

    return provider(topk=topk)


def no_relu() -> Any:
    return patched("indexer_logits", "torch.relu", lambda x: x)


def masked_with_zero() -> Any:
    """Future candidates get a logit of 0, which beats negative ones."""

    def topk(**arguments: Any) -> torch.Tensor:
        logits, lens = arguments["logits"], arguments["candidate_lens"]
        beyond = torch.arange(logits.shape[1], device=lens.device) >= lens[:, None]
        everyone = torch.full_like(lens, logits.shape[1])
        return reference.topk(logits=logits.masked_fill(beyond, 0), candidate_lens=everyone, k=arguments["k"])

    return provider(topk=topk)


def scales_after_each_key() -> Any:
    """Indexer pages read as if each key were followed by its scale."""

    def read(cache: PagedCache, slots: torch.Tensor) -> torch.Tensor:
        records = cache.pages[:, : cache.entries * 132].unflatten(1, (cache.entries, 132))
        record = records[slots // cache.entries, slots % cache.entries]
        values = record[:, :128].contiguous().view(torch.float8_e4m3fn).float()
        return values * record[:, 128:].contiguous().view(torch.float32)

    return patched("indexer_logits", "dsv4_kernels.reference.indexer.read_entries", read)


def selects_from_nothing() -> Any:
    return changed("topk", lambda a: {"candidate_lens": a["candidate_lens"].clamp_min(1)})


def faults_on_nothing() -> Any:
    def logits(**arguments: Any) -> torch.Tensor:
        lens = arguments["candidate_lens"]
        assert int(lens.max()) > 0, "grid of zero blocks"
        return reference.indexer_logits(**arguments)

    return provider(indexer_logits=logits)


def duplicates_fill_the_tail() -> Any:
    def topk(**arguments: Any) -> torch.Tensor:
        chosen = reference.topk(**arguments)
        return chosen.where(chosen >= 0, chosen[:, :1].clamp_min(0))

    return provider(topk=topk)


def past_the_end() -> Any:
    def topk(**arguments: Any) -> torch.Tensor:
        column = torch.arange(arguments["k"], device=arguments["logits"].device).int()
        chosen = reference.topk(**arguments)
        return torch.where((arguments["candidate_lens"] < arguments["k"])[:, None], column, chosen)

    return provider(topk=topk)


def last_column_of_a_tile_lost() -> Any:
    """The column after a whole number of blocks of 1,024 is never looked at."""

    def topk(**arguments: Any) -> torch.Tensor:
        logits, lens = arguments["logits"].clone(), arguments["candidate_lens"]
        for row in torch.nonzero(lens % 1024 == 1).flatten():
            logits[row, lens[row] - 1] = logits[row, : lens[row]].min() - 100
        return reference.topk(**(arguments | {"logits": logits}))

    return provider(topk=topk)


def at_most_512() -> Any:
    def topk(**arguments: Any) -> torch.Tensor:
        chosen = reference.topk(**(arguments | {"k": min(arguments["k"], 512)}))
        return torch.nn.functional.pad(chosen, (0, arguments["k"] - chosen.shape[1]), value=-1)

    return provider(topk=topk)


# attention ---------------------------------------------------------------------------------------------------------


def joint_softmax_split() -> Any:
    """Window and compressed entries are normalised apart and averaged."""

    def attend(**arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [
            dict.fromkeys((f"{part}_cache", f"{part}_indices", f"{part}_lens")) for part in ("compressed", "window")
        ]
        outs = [reference.sparse_attention(**(arguments | part)) for part in parts]
        _, lse = reference.sparse_attention(**arguments)
        return (outs[0][0] + outs[1][0]) / 2, lse

    return provider(sparse_attention=attend)


def no_sink() -> Any:
    return changed("sparse_attention", lambda a: {"sink": None})


def window_of_127() -> Any:
    def shorten(arguments: dict[str, Any]) -> dict[str, Any]:
        full = (arguments["window_lens"] == 128)[:, None]
        rolled = torch.cat((arguments["window_indices"][:, 1:], arguments["window_indices"][:, :1] * 0 - 1), dim=1)
        return {"window_indices": torch.where(full, rolled, arguments["window_indices"])}

    return changed("sparse_attention", shorten)


def window_of_129() -> Any:
    def lengthen(arguments: dict[str, Any]) -> dict[str, Any]:
        indices, lens = arguments["window_indices"], arguments["window_lens"]
        before = indices[:, :1].roll(1, 0).where((lens == 128)[:, None], -1)
        return {"window_indices": torch.cat((before, indices), dim=1), "window_lens": lens + 1}

    return changed("sparse_attention", lengthen)


def without_itself() -> Any:
    return changed("sparse_attention", lambda a: {"window_lens": a["window_lens"] - 1})


def invalid_clamped_to_zero() -> Any:
    return changed("sparse_attention", lambda a: {"window_indices": a["window_indices"].clamp_min(0)})


def zero_by_zero() -> Any:
    def attend(**arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = reference.sparse_attention(**arguments)
        return out.masked_fill((lse == -torch.inf).unsqueeze(-1), float("nan")), lse

    return provider(sparse_attention=attend)


def lse_with_the_sink() -> Any:
    def attend(**arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = reference.sparse_attention(**arguments)
        return out, torch.logaddexp(lse, arguments["sink"].expand_as(lse))

    return provider(sparse_attention=attend)


def zero_times_nan() -> Any:
    """Masked entries are read and given weight 0 instead of being left out."""

    def gather(cache: PagedCache, indices: torch.Tensor, lens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = (torch.arange(indices.shape[1], device=indices.device) < lens[:, None]) & (indices >= 0)
        return codec.read_entries(cache, indices.clamp_min(0)), seen

    return patched("sparse_attention", f"{ATTENTION}._gather", gather)


def batch_changes_the_result() -> Any:
    def attend(**arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = reference.sparse_attention(**arguments)
        return out * (1.0 if len(out) == 1 else 1.02), lse

    return provider(sparse_attention=attend)


def depends_on_the_row() -> Any:
    """Rows differ by less than the tolerance, as with a reduction whose order depends on the tile."""

    def attend(**arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = reference.sparse_attention(**arguments)
        factor = 1 + 0.004 * (torch.arange(len(out), device=out.device) % 2)
        return (out * factor[:, None, None]).to(out.dtype), lse

    return provider(sparse_attention=attend)


def not_rotated_back() -> Any:
    return changed("inverse_rope_quant", lambda a: {"positions": torch.zeros_like(a["positions"])})


# addresses ---------------------------------------------------------------------------------------------------------


def page_stride_ignored() -> Any:
    """Pages are taken to follow one another without a gap."""

    def packed(cache: PagedCache | None) -> PagedCache | None:
        if cache is None:
            return None
        size = cache.pages.shape[1]
        pages = cache.pages.as_strided(cache.pages.shape, (size, 1), cache.pages.storage_offset())
        return PagedCache(pages, cache.format, cache.entries)

    return changed("sparse_attention", lambda a: {"window_cache": packed(a["window_cache"])})


def offsets_in_32_bits() -> Any:
    """Byte offsets of pages wrap at 2³¹."""

    def read(cache: PagedCache, slots: torch.Tensor) -> torch.Tensor:
        stride, format, count = cache.pages.stride(0), cache.format, cache.entries
        first = cache.pages.storage_offset()
        flat = cache.pages.as_strided((cache.num_pages * stride - first,), (1,), first)
        page, entry = slots.clamp_min(0).long() // count, slots.clamp_min(0).long() % count
        base = (page * stride) & 0x7FFF_FFFF
        record = base + entry * format.record_bytes
        scale = base + format.scale_offset(count) + entry * format.scale_bytes
        records = flat[record[:, None] + torch.arange(format.record_bytes, device=flat.device)]
        scales = flat[scale[:, None] + torch.arange(format.scale_bytes, device=flat.device)]
        values = codec.decode(format, records, scales)
        return values.where((slots >= 0)[:, None], 0)

    return patched("sparse_attention", f"{ATTENTION}.read_entries", read)


# numbers -----------------------------------------------------------------------------------------------------------


def yarn_everywhere() -> Any:
    """The swa layers' θ of 10,000 with the compressed layers' YaRN."""

    def table(arguments: dict[str, Any]) -> dict[str, Any]:
        cos_sin = arguments["cos_sin"]
        return {"cos_sin": cos_sin_table(len(cos_sin), 10_000.0, 16.0, 65_536, device=cos_sin.device)}

    return changed("query_norm_rope_insert", table)


def one_theta() -> Any:
    """The compressed layers rotate with θ = 10,000."""

    def table(arguments: dict[str, Any]) -> dict[str, Any]:
        cos_sin = arguments["cos_sin"]
        return {"cos_sin": cos_sin_table(len(cos_sin), 10_000.0, device=cos_sin.device)}

    return changed("query_norm_rope_insert", table)


def _scaled_by(exponents: Any) -> Any:
    return patched("query_norm_rope_insert", "dsv4_kernels.codec.scale_exponents", exponents)


def scale_by_floor() -> Any:
    def exponents(amax: torch.Tensor, largest: float, floor: float) -> torch.Tensor:
        return torch.log2(amax.float().clamp_min(floor) / largest).floor().int()

    return _scaled_by(exponents)


def scale_rounded_up_by_one_too_many() -> Any:
    """floor(log2) + 1 is the ceiling except on exact powers of two."""

    def exponents(amax: torch.Tensor, largest: float, floor: float) -> torch.Tensor:
        return torch.log2(amax.float().clamp_min(floor) / largest).floor().int() + 1

    return _scaled_by(exponents)


def scale_floor_on_the_scale() -> Any:
    """The smallest scale is 2^-13, as one engine has it: a documented deviation."""
    right = codec.scale_exponents

    def exponents(amax: torch.Tensor, largest: float, floor: float) -> torch.Tensor:
        return right(amax, largest, floor).clamp_min(-13)

    return _scaled_by(exponents)
