"""Rows about numbers: which rotary table a layer uses, and exact scales where rounding is easy to get wrong."""

from typing import Any

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import FP8_AMAX_FLOOR, OUTPUT_AMAX_FLOOR, read_entries, scale_exponents, write_entries
from dsv4_kernels.formats import FP8_MAX, EntryFormat, entry_format, state_row_floats

from dsv4bench.model.shape import LayerKind
from dsv4bench.stack.layer import rope_table
from dsv4bench.verify.quantised import (
    NO_POWER,
    SCALE_FLOOR,
    cache_quantiser,
    power_exponents,
    quantised_difference,
    stored_scales,
)
from dsv4bench.verify.trial import Trial

POWERS = (-12, -7, -3, -1, 0, 1, 4, 9)
DIVISION = 2.0**-22
"""Relative error that a division of fp32 numbers leaves."""


def rotary_tables(trial: Trial) -> None:
    """Swa layers rotate with θ = 10,000 and no YaRN, compressed ones with θ = 160,000 and YaRN, far out too."""
    base = 3_000 if trial.setting.quick else 150_000
    rope = trial.shape.rope_of(trial.kind)
    table = rope_table(rope, base + 8, trial.setting.device)
    start = [base, base + 1, base + 2]
    seqs = trial.sequences(requests=3, limit=base + 8, start=start, seed=trial.setting.seed + 1)
    values = seqs.step([1, 2, 4]) | {"cos_sin": table}
    trial.layer(values)


def exact_scales(trial: Trial) -> None:
    """Block maxima of exactly 448 · 2^k, just above it, all-zero and subnormal blocks get the integer form's scale."""
    if trial.setting.precision.main == "fp8":
        values = _crafted(512)
        if trial.kind is LayerKind.DSA:
            _latent(trial, values)
        else:
            _window(trial, values)
            _output(trial, values)
    if trial.kind.compresses:
        _compressed(trial, "compress_norm_rope_insert", entry_format("main", trial.setting.precision.main))
    if trial.kind is LayerKind.C4A:
        _compressed(trial, "indexer_compress_insert", entry_format("indexer", trial.setting.precision.indexer))
    if trial.kind is LayerKind.DSA:
        _index_keys(trial)


def _crafted(dim: int) -> torch.Tensor:
    """bf16 rows [n, dim] whose blocks of 64 have the maxima in question."""
    pattern = torch.linspace(-0.9, 0.9, dim).view(-1, 64)
    rows = []
    for k in POWERS:
        row = pattern * FP8_MAX * 2.0**k
        row[:, 17] = FP8_MAX * 2.0**k
        rows.append(row.flatten())
        above = row.clone()
        above[:, 17] = (FP8_MAX + 2) * 2.0**k
        rows.append(above.flatten())
    rows += [torch.zeros(dim), torch.full((dim,), 1e-39), torch.full((dim,), -9e-5)]
    return torch.stack(rows).to(torch.bfloat16)


def _identity(device: str) -> torch.Tensor:
    """Rotary table of position 0, which rotates nothing."""
    return torch.cat((torch.ones(1, 32), torch.zeros(1, 32)), dim=1).to(device)


def _empty_cache(trial: Trial, format: EntryFormat, count: int) -> PagedCache:
    pages = torch.zeros((-(-count // 64), format.page_bytes(64)), dtype=torch.uint8, device=trial.setting.device)
    return PagedCache(pages, format, 64)


def _window(trial: Trial, values: torch.Tensor) -> None:
    device, count = trial.setting.device, len(values)
    cache = _empty_cache(trial, entry_format("main", "fp8"), count)
    kv, slots = values.to(device, trial.setting.dtype), torch.arange(count, device=device)
    trial.plain(
        "query_norm_rope_insert",
        q=trial.randn(count, trial.shape.num_heads, 512),
        kv=kv,
        positions=torch.zeros(count, dtype=torch.int64, device=device),
        cos_sin=_identity(device),
        window_cache=cache,
        window_slots=slots,
        eps=trial.shape.rms_norm_eps,
    )
    _expect_entries(trial, "query_norm_rope_insert", cache, kv)


def _latent(trial: Trial, values: torch.Tensor) -> None:
    device, count = trial.setting.device, len(values)
    cache = _empty_cache(trial, entry_format("latent", "fp8"), count)
    kv = values.to(device, trial.setting.dtype)
    rope = trial.randn(count, 64)
    trial.plain(
        "latent_insert",
        kv=kv,
        qkv_latent=torch.cat((trial.randn(count, 640, salt=1), rope), dim=1),
        positions=torch.zeros(count, dtype=torch.int64, device=device),
        cos_sin=_identity(device),
        cache=cache,
        slots=torch.arange(count, device=device),
    )
    _expect_entries(trial, "latent_insert", cache, torch.cat((kv, rope), dim=1))


def _compressed(trial: Trial, stage: str, format: EntryFormat) -> None:
    """Constant rows of ±1 stay ±1 through softmax and norm (eps 0), so an entry is exactly its norm weight."""
    if format.precision not in ("fp8", "fp4"):
        return
    device, ratio, dim = trial.setting.device, trial.kind.ratio, format.dim
    block = 4 if ratio == 4 else 8
    positions = torch.tensor([ratio - 1], device=device)
    state = torch.ones((-(-ratio // block), block, state_row_floats(dim, ratio)), device=device)
    for weight in _crafted(dim).to(device):
        if not bool(weight.abs().max() > 1e-6):
            continue  # a norm weight near 0 loses its last bits in the norm itself
        cache = _empty_cache(trial, format, 1)
        trial.plain(
            stage,
            state_cache=state,
            state_block_table=torch.arange(len(state), dtype=torch.int32, device=device)[None],
            token_to_request=torch.zeros(1, dtype=torch.int32, device=device),
            positions=positions,
            compressed_slots=torch.zeros(1, dtype=torch.int64, device=device),
            norm_weight=weight.to(trial.setting.dtype),
            cos_sin=_identity(device),
            cache=cache,
            ratio=ratio,
            eps=0.0,
        )
        _expect_entries(trial, stage, cache, weight[None])


def _index_keys(trial: Trial) -> None:
    """With a norm weight of 0, a key is exactly its norm bias."""
    format = entry_format("indexer", trial.setting.precision.indexer)
    if format.precision not in ("fp8", "fp4"):
        return
    device = trial.setting.device
    for bias in _crafted(128).to(device):
        cache = _empty_cache(trial, format, 1)
        trial.plain(
            "indexer_key_insert",
            index_k=trial.randn(1, 128),
            norm_weight=torch.zeros(128, device=device),
            norm_bias=bias.float(),
            positions=torch.zeros(1, dtype=torch.int64, device=device),
            cos_sin=_identity(device),
            cache=cache,
            slots=torch.zeros(1, dtype=torch.int64, device=device),
            eps=trial.shape.rms_norm_eps,
        )
        _expect_entries(trial, "indexer_key_insert", cache, bias[None])


def _expect_entries(trial: Trial, stage: str, cache: PagedCache, values: torch.Tensor) -> None:
    """Scales must be those of the integer form, and what is stored must be what the reference codec stores.

    A format that takes any scale may also hold each block's maximum / 448, and values rounded by that.
    """
    slots = torch.arange(len(values), device=values.device)
    want = PagedCache(torch.zeros_like(cache.pages), cache.format, cache.entries)
    write_entries(want, slots, values)
    scales = stored_scales(cache, slots)
    got, right = power_exponents(scales), power_exponents(stored_scales(want, slots))
    quantiser = cache_quantiser(cache.format)
    if quantiser.any_scale and bool((got == NO_POWER).any()):
        width = scales.shape[1] * quantiser.block
        values, stored = values[:, :width], read_entries(cache, slots)[:, :width]
        found = quantised_difference(stage, stored, scales, values, quantiser, ("row",), slack=DIVISION)
        trial.expect(stage, "scales", found.ok, found.where)
        return
    wrong = (got != right).any(1)
    row = int(wrong.int().argmax())
    block = int((got[row] != right[row]).int().argmax())
    where = f"row {row}, block {block}: scale byte {got[row, block] + 127}, expected {right[row, block] + 127}"
    tiny = bool((right[got != right] <= -13).all()) and bool((got[got != right] <= -13).all())
    trial.expect(stage, "scale exponents", not bool(wrong.any()), where, SCALE_FLOOR if tiny else "")
    stored = read_entries(cache, slots)
    same = (stored == read_entries(want, slots)).all(1) | wrong
    trial.expect(stage, "stored values", bool(same.all()), f"row {int((~same).int().argmax())} does not round-trip")


def _output(trial: Trial, values: torch.Tensor) -> None:
    """The attention output's blocks of 128, with a floor of 1e-10."""
    device, heads = trial.setting.device, trial.shape.num_heads
    o = values.to(device, trial.setting.dtype)[:, None].expand(-1, heads, -1).contiguous()
    result: Any = trial.plain(
        "inverse_rope_quant",
        o=o,
        positions=torch.zeros(len(o), dtype=torch.int64, device=device),
        cos_sin=_identity(device),
        groups=trial.shape.o_groups,
        precision="fp8",
    )
    amax = o.float().view(len(o), trial.shape.o_groups, -1, 128).abs().amax(-1)
    right = scale_exponents(amax, FP8_MAX, OUTPUT_AMAX_FLOOR)
    got = power_exponents(result[1])
    wrong = (got != right).flatten(1).any(1)
    where = f"row {int(wrong.int().argmax())}: another scale than the integer form's"
    tiny = bool((amax[got != right] < FP8_AMAX_FLOOR).all())
    trial.expect("inverse_rope_quant", "scale exponents", not bool(wrong.any()), where, SCALE_FLOOR if tiny else "")
