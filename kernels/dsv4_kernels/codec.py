"""Entries to bytes and back, for every cache format.

The layouts are data in ``formats``; this module quantises, packs, and reads or writes entries by slot. It is
written for exactness, not speed: kernels are compared with it byte by byte.
"""

import torch

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import FP4_MAX, FP8_MAX, NOPE_DIM, EntryFormat

FP8_AMAX_FLOOR = 1e-4
"""Smallest block maximum of cache entries and indexer queries; an all-zero block gets scale 2^-22 (byte 105)."""
OUTPUT_AMAX_FLOOR = 1e-10
"""Smallest block maximum of the attention output's fp8 blocks."""
FP4_AMAX_FLOOR = FP4_MAX * 2.0**-126
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_LATENT_DIM = 512
_FILL_BYTES = 1 << 26
_PLAIN = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


def scale_exponents(amax: torch.Tensor, largest: float, floor: float) -> torch.Tensor:
    """Exponents ``e`` of the smallest power of two with ``max(amax, floor) ≤ largest · 2^e``, int32.

    Works on the exponent and mantissa bits, so it is exact where ``ceil(log2(amax / largest))`` is not: at
    ``amax = largest · 2^k`` with rounding noise.

    Args:
        amax: non-negative block maxima; compared as fp32.
        largest: largest finite value of the target type (448 or 6).
        floor: lower bound of amax.
    """
    bits = amax.float().clamp_min(floor).view(torch.int32)
    limit = torch.tensor(largest, dtype=torch.float32).view(torch.int32).item()
    above = (bits & 0x7FFFFF) > (int(limit) & 0x7FFFFF)
    return (bits >> 23) - (int(limit) >> 23) + above.int()


def quantize_fp8(x: torch.Tensor, block: int, floor: float = FP8_AMAX_FLOOR) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise blocks of the last dim to e4m3 with a power-of-two scale each.

    Args:
        x: [..., n · block]; what is quantised is its fp32 value, so round to bf16 first where the model does.
        block: elements per scale.
        floor: lower bound of a block's maximum.

    Returns:
        e4m3fn values of the same shape, and int32 exponents [..., n]; x ≈ value · 2^exponent.
    """
    blocks = torch.unflatten(x.float(), -1, (-1, block))
    exponents = scale_exponents(blocks.abs().amax(-1), FP8_MAX, floor)
    scaled = torch.ldexp(blocks, -exponents.unsqueeze(-1)).clamp(-FP8_MAX, FP8_MAX)
    return scaled.to(torch.float8_e4m3fn).flatten(-2), exponents


def dequantize_fp8(values: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Undo ``quantize_fp8``: fp32 [..., n · block] from e4m3 values and int exponents [..., n]."""
    return _apply(values.float(), exponents)


def quantize_fp4(x: torch.Tensor, block: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise blocks of the last dim to e2m1 pairs, round to nearest even.

    Returns:
        uint8 [..., dim / 2] (low nibble = even element) and int32 exponents [..., dim / block].
    """
    blocks = torch.unflatten(x.float(), -1, (-1, block))
    exponents = scale_exponents(blocks.abs().amax(-1), FP4_MAX, FP4_AMAX_FLOOR)
    codes = _e2m1_codes(torch.ldexp(blocks, -exponents.unsqueeze(-1)).flatten(-2))
    return codes[..., 0::2] | (codes[..., 1::2] << 4), exponents


def _e2m1_codes(scaled: torch.Tensor) -> torch.Tensor:
    """4-bit codes of the nearest e2m1 values; larger magnitudes become 6."""
    a = scaled.abs()
    # ties go to the even code: upwards at .75, 1.75 and 3.5, downwards at the others
    up = (a >= 0.75).int() + (a >= 1.75).int() + (a >= 3.5).int()
    down = (a > 0.25).int() + (a > 1.25).int() + (a > 2.5).int() + (a > 5.0).int()
    return (up + down + 8 * torch.signbit(scaled).int()).to(torch.uint8)


def _e2m1_values(codes: torch.Tensor) -> torch.Tensor:
    table = torch.tensor(_E2M1, device=codes.device)
    return table[(codes & 7).long()] * (1 - 2 * (codes >> 3).int())


def nearest(precision: str, scaled: torch.Tensor) -> torch.Tensor:
    """The nearest ``fp8`` (e4m3fn) or ``fp4`` (e2m1) value of each element, ties to even, clamped, as fp32."""
    if precision == "fp8":
        return scaled.float().clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).float()
    return _e2m1_values(_e2m1_codes(scaled.float()))


def dequantize_fp4(packed: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Undo ``quantize_fp4``: fp32 [..., dim] from packed bytes and int exponents [..., dim / block]."""
    return _apply(_e2m1_values(torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)), exponents)


def ue8m0(exponents: torch.Tensor) -> torch.Tensor:
    """Biased scale bytes of exponents."""
    return (exponents + 127).clamp(0, 255).to(torch.uint8)


def record_view(cache: PagedCache) -> torch.Tensor:
    """The value records in place, uint8 [num_pages, entries, record_bytes]."""
    pages, size = cache.pages, cache.format.record_bytes
    return pages.as_strided((cache.num_pages, cache.entries, size), (pages.stride(0), size, 1), pages.storage_offset())


def scale_view(cache: PagedCache) -> torch.Tensor:
    """The scale records in place, uint8 [num_pages, entries, scale_bytes]; they lie behind all value records."""
    pages, size = cache.pages, cache.format.scale_bytes
    offset = pages.storage_offset() + cache.format.scale_offset(cache.entries)
    return pages.as_strided((cache.num_pages, cache.entries, size), (pages.stride(0), size, 1), offset)


def encode(format: EntryFormat, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Pack entries.

    Args:
        format: the target layout.
        values: [S, dim], any float dtype. Quantised formats round to bf16 first, as the model does.

    Returns:
        uint8 value records [S, record_bytes], and scale records [S, scale_bytes] or None where records hold everything.
    """
    if format.precision in _PLAIN:
        return _bytes(values.to(_PLAIN[format.precision])), None
    rounded = values.to(torch.bfloat16)
    if format.role == "main":
        nope, exponents = quantize_fp8(rounded[:, :NOPE_DIM], format.quant_block)
        scales = torch.nn.functional.pad(ue8m0(exponents), (0, 1))
        return torch.cat((nope.view(torch.uint8), _bytes(rounded[:, NOPE_DIM:])), dim=1), scales
    if format.role == "latent":
        latent, exponents = quantize_fp8(rounded[:, :_LATENT_DIM], format.quant_block)
        parts = (latent.view(torch.uint8), _bytes(power_of_two(exponents)), _bytes(rounded[:, _LATENT_DIM:]))
        return torch.cat(parts, dim=1), None
    if format.precision == "fp4":
        packed, exponents = quantize_fp4(rounded, format.quant_block)
        return packed, ue8m0(exponents)
    codes, exponents = quantize_fp8(rounded, format.quant_block)
    return codes.view(torch.uint8), _bytes(power_of_two(exponents))


def decode(format: EntryFormat, records: torch.Tensor, scales: torch.Tensor | None = None) -> torch.Tensor:
    """Undo ``encode``: [S, dim], fp32 (float64 for the fp64 format)."""
    records = records.contiguous()
    if format.precision in _PLAIN:
        values = records.view(_PLAIN[format.precision])
        return values.float() if format.precision == "bf16" else values
    if format.role == "latent":
        latent = torch.unflatten(_e4m3(records[:, :_LATENT_DIM]), -1, (-1, format.quant_block))
        scale = records[:, _LATENT_DIM : _LATENT_DIM + 16].contiguous().view(torch.float32)
        rope = records[:, _LATENT_DIM + 16 :].contiguous().view(torch.bfloat16).float()
        return torch.cat(((latent * scale.unsqueeze(-1)).flatten(-2), rope), dim=1)
    if scales is None:
        raise ValueError(f"{format.name} keeps its scales apart; they are needed to decode")
    scales = scales.contiguous()
    if format.role == "main":
        nope = dequantize_fp8(records[:, :NOPE_DIM].contiguous().view(torch.float8_e4m3fn), scales[:, :7].int() - 127)
        return torch.cat((nope, records[:, NOPE_DIM:].contiguous().view(torch.bfloat16).float()), dim=1)
    if format.precision == "fp4":
        return dequantize_fp4(records, scales.int() - 127)
    return _e4m3(records) * scales.view(torch.float32)


def write_entries(cache: PagedCache, slots: torch.Tensor, values: torch.Tensor) -> None:
    """Store entries in place.

    Args:
        cache: destination.
        slots: int [S]; negative slots are skipped.
        values: [S, dim].
    """
    kept = slots >= 0
    slots, values = slots[kept].long(), values[kept]
    records, scales = encode(cache.format, values)
    page, entry = slots // cache.entries, slots % cache.entries
    record_view(cache)[page, entry] = records
    if scales is not None:
        scale_view(cache)[page, entry] = scales


def read_entries(cache: PagedCache, slots: torch.Tensor) -> torch.Tensor:
    """Load entries as floats: [*slots.shape, dim]; a negative slot reads as zeros, whatever the pages hold."""
    flat = slots.reshape(-1).long()
    page, entry = flat.clamp_min(0) // cache.entries, flat.clamp_min(0) % cache.entries
    scales = scale_view(cache)[page, entry] if cache.format.scale_bytes else None
    values = decode(cache.format, record_view(cache)[page, entry], scales)
    return torch.where((flat >= 0)[:, None], values, 0.0).view(*slots.shape, cache.format.dim)


def random_fill(cache: PagedCache, generator: torch.Generator | None = None) -> None:
    """Fill every slot with valid random entries of about unit variance, page group by page group.

    Quantised values are drawn as bytes through a table of normal quantiles rather than quantised, which is what makes
    it fast enough for caches of many gigabytes; scales take two neighbouring powers of two, so that a kernel that reads
    the wrong one shows.

    Args:
        cache: destination; bytes of a page that belong to no entry are left alone.
        generator: source of randomness on the cache's device.
    """
    step = max(1, _FILL_BYTES // cache.format.page_bytes(cache.entries))
    records = record_view(cache)
    scales = scale_view(cache) if cache.format.scale_bytes else None
    for start in range(0, cache.num_pages, step):
        target = records[start : start + step]
        count = target.shape[0] * cache.entries
        values, scale = _random_records(cache.format, count, cache.device, generator)
        target.copy_(values.view(target.shape))
        if scales is not None and scale is not None:
            scales[start : start + step].copy_(scale.view(target.shape[0], cache.entries, -1))


def _random_records(
    format: EntryFormat, count: int, device: torch.device, generator: torch.Generator | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    def integers(low: int, high: int, width: int) -> torch.Tensor:
        return torch.randint(low, high, (count, width), dtype=torch.uint8, device=device, generator=generator)

    def normal(width: int, dtype: torch.dtype) -> torch.Tensor:
        drawn = torch.randn(count, width, device=device, generator=generator, dtype=torch.float32)
        return _bytes(drawn.to(dtype))

    if format.precision in _PLAIN:
        return normal(format.dim, _PLAIN[format.precision]), None
    if format.precision == "fp4":
        return integers(0, 256, 64), integers(125, 127, 4)
    normals = _normal_e4m3(device)
    if format.role == "main":
        values = torch.cat((normals[integers(0, 256, NOPE_DIM).int()], normal(64, torch.bfloat16)), dim=1)
        return values, torch.nn.functional.pad(integers(120, 122, 7), (0, 1))
    codes = normals[integers(0, 256, format.dim if format.role == "indexer" else _LATENT_DIM).int()]
    scale = _bytes(power_of_two(integers(120, 122, 1 if format.role == "indexer" else 4).int() - 127))
    if format.role == "indexer":
        return codes, scale
    return torch.cat((codes, scale, normal(64, torch.bfloat16)), dim=1), None


def _normal_e4m3(device: torch.device) -> torch.Tensor:
    """256 equally likely e4m3 bytes whose values have a standard deviation of 90, so of 0.7 at scale 2^-7."""
    quantiles = torch.special.ndtri((torch.arange(256, dtype=torch.float64) + 0.5) / 256)
    codes: torch.Tensor = (quantiles * 90).float().to(torch.float8_e4m3fn).view(torch.uint8)
    return codes.to(device)


def _apply(values: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Scale equal blocks of the last dim by 2^exponent, one exponent [..., n] per block."""
    blocks = torch.unflatten(values, -1, (exponents.shape[-1], -1))
    return torch.ldexp(blocks, exponents.unsqueeze(-1)).flatten(-2)


def power_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """fp32 2^exponent."""
    return torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents)


def _e4m3(records: torch.Tensor) -> torch.Tensor:
    return records.contiguous().view(torch.float8_e4m3fn).float()


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)
