"""Cache entries in torch ops: gather by slot and dequantise, quantise and scatter by slot.

Slots of −1 mean "not there": they read as zeros and write nothing, without shapes that depend on data.
"""

import math

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import FP4_MAX, FP8_MAX, NOPE_DIM, EntryFormat
from torch.nn.functional import pad

ENTRY_AMAX_FLOOR = 1e-4
"""Smallest block maximum that an fp8 scale is computed from; keeps all-zero blocks finite."""
LATENT_DIM = 512
_LATENT_SCALES = slice(LATENT_DIM, LATENT_DIM + 16)
_WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


def power_of_two_scale(amax: torch.Tensor, largest: float) -> torch.Tensor:
    """Exponent ``ceil(log2(amax / largest))`` as int32, from the parts of the float: exact on powers of two."""
    mantissa, exponent = torch.frexp(amax / largest)
    return exponent - (mantissa == 0.5).int()


def exp2_int(exponent: torch.Tensor) -> torch.Tensor:
    """Exactly ``2 ** exponent`` in fp32 for −126 … 127."""
    return (exponent + 127 << 23).view(torch.float32)


def quantize_fp8(x: torch.Tensor, block: int, floor: float = ENTRY_AMAX_FLOOR) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 values like ``x`` and int32 exponents [..., dim/block] of one power-of-two scale per block."""
    blocks = torch.unflatten(x.float(), -1, (-1, block))
    exponent = power_of_two_scale(blocks.abs().amax(-1).clamp(min=floor), FP8_MAX)
    scaled = blocks / exp2_int(exponent).unsqueeze(-1)
    return scaled.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).flatten(-2), exponent


def quantize_fp4(x: torch.Tensor, block: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """e2m1 pairs uint8 [..., dim/2] (low nibble = even element) and int32 exponents [..., dim/block]."""
    blocks = torch.unflatten(x.float(), -1, (-1, block))
    exponent = power_of_two_scale(blocks.abs().amax(-1).clamp(min=FP4_MAX * 2.0**-126), FP4_MAX)
    scaled = (blocks / exp2_int(exponent).unsqueeze(-1)).flatten(-2)
    size = scaled.abs()
    # steps between 0, ½, 1, 1½, 2, 3, 4, 6; a tie goes to the even code
    code = (size > 0.25).to(torch.uint8)
    for tie, even_is_above in ((0.75, 1), (1.25, 0), (1.75, 1), (2.5, 0), (3.5, 1), (5.0, 0)):
        code += (size >= tie) if even_is_above else (size > tie)
    code += scaled.signbit() * 8
    return code[..., 0::2] | code[..., 1::2] << 4, exponent


def dequantize_fp4(packed: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[..., dim] from e2m1 pairs [..., dim/2] and ue8m0 bytes [..., dim/32]; exact in bf16.

    An e2m1 code shifted to the top of an e4m3 byte is the same number divided by 64.
    """
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    values = ((codes & 7) << 2 | (codes & 8) << 4).view(torch.float8_e4m3fn).to(dtype) * 64
    return _scaled(values, scales.view(torch.float8_e8m0fnu).to(dtype))


def read_entries(cache: PagedCache, slots: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Gather and dequantise entries: [*slots.shape, dim] in ``dtype``. A slot of −1 reads as zeros."""
    page, entry = _split(slots.clamp(min=0), cache.entries)
    missing = (slots < 0).unsqueeze(-1)
    records = _records(cache)[page, entry].masked_fill_(missing, 0).view(torch.uint8)
    scales = _scales(cache)[page, entry].masked_fill_(missing, 0) if cache.format.scale_bytes else records
    return _decode(cache.format, records, scales, dtype)


def read_pages(cache: PagedCache, pages: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Dequantise whole pages: [*pages.shape, entries, dim] in ``dtype``. Page ids must be valid."""
    records = _records(cache)[pages].view(torch.uint8)
    scales = _scales(cache)[pages] if cache.format.scale_bytes else records
    return _decode(cache.format, records, scales, dtype)


def write_entries(cache: PagedCache, slots: torch.Tensor, values: torch.Tensor) -> None:
    """Quantise ``values`` [S, dim] and store them at ``slots`` [S]; −1 writes nothing."""
    records, scales = _encode(cache.format, values)
    view = _records(cache)
    scatter_rows(view, slots, records.view(view.dtype))
    if cache.format.scale_bytes:
        scatter_rows(_scales(cache), slots, scales)


def scatter_rows(pages: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Store ``rows`` [S, r] at ``slots`` [S] of ``pages`` [P, n, r] in place; −1 writes nothing.

    A row that must not be written repeats the first one that must, so duplicates carry equal bytes and no order of
    writes matters. If none must, slot 0 gets its own bytes back.
    """
    if slots.shape[0] == 0:
        return
    valid = slots >= 0
    source = torch.where(valid, torch.arange(slots.shape[0], device=slots.device), valid.int().argmax())
    slots, rows = slots[source], rows[source]
    page, entry = _split(slots.clamp(min=0), pages.shape[1])
    pages[page, entry] = torch.where((slots >= 0).unsqueeze(-1), rows, pages[page, entry])


def _split(slots: torch.Tensor, entries: int) -> tuple[torch.Tensor, torch.Tensor]:
    slots = slots.long()
    return slots // entries, slots % entries


def _records(cache: PagedCache) -> torch.Tensor:
    """Value records in place, [num_pages, entries, words], in the widest words that the strides allow."""
    size = cache.format.record_bytes
    view = torch.unflatten(cache.pages[:, : cache.entries * size], 1, (cache.entries, size))
    alignment = math.gcd(size, int(view.stride(0)), int(view.storage_offset()))
    return view.view(next(word for word in _WORDS if alignment % word.itemsize == 0))


def _scales(cache: PagedCache) -> torch.Tensor:
    """Scale records in place, uint8 [num_pages, entries, scale_bytes], behind all value records of a page."""
    size, start = cache.format.scale_bytes, cache.format.scale_offset(cache.entries)
    return torch.unflatten(cache.pages[:, start : start + cache.entries * size], 1, (cache.entries, size))


def _encode(format: EntryFormat, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 value records [S, record_bytes] and scale records (any tensor where the format has none)."""
    if format.precision == "fp32":
        return (records := _bytes(values.float())), records
    values = values.to(torch.bfloat16)
    if format.precision == "bf16":
        return (records := _bytes(values)), records
    if format.precision == "fp4":
        packed, exponent = quantize_fp4(values, format.quant_block)
        return packed, _biased(exponent)
    width = {"main": NOPE_DIM, "latent": LATENT_DIM, "indexer": format.dim}[format.role]
    codes, exponent = quantize_fp8(values[:, :width], format.quant_block)
    rope = _bytes(values[:, width:])
    if format.role == "main":
        return torch.cat((_bytes(codes), rope), dim=1), pad(_biased(exponent), (0, 1))
    scales = _bytes(exp2_int(exponent))
    return (torch.cat((_bytes(codes), scales, rope), dim=1) if format.role == "latent" else _bytes(codes)), scales


def _decode(format: EntryFormat, records: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if format.precision in ("bf16", "fp32"):
        return records.view(torch.bfloat16 if format.precision == "bf16" else torch.float32).to(dtype)
    if format.precision == "fp4":
        return dequantize_fp4(records, scales, dtype)
    if format.role == "indexer":
        return _scaled(_e4m3(records, dtype), scales.view(torch.float32)).to(dtype)
    if format.role == "main":
        nope = _scaled(_e4m3(records[..., :NOPE_DIM], dtype), scales[..., :7].view(torch.float8_e8m0fnu).to(dtype))
        return torch.cat((nope, records[..., NOPE_DIM:].view(torch.bfloat16).to(dtype)), dim=-1)
    latent_scales = records[..., _LATENT_SCALES].view(torch.float32)
    latent = _scaled(_e4m3(records[..., :LATENT_DIM], dtype), latent_scales).to(dtype)
    return torch.cat((latent, records[..., _LATENT_SCALES.stop :].view(torch.bfloat16).to(dtype)), dim=-1)


def _scaled(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Multiply equal blocks of the last dim by one scale each."""
    return (torch.unflatten(values, -1, (scales.shape[-1], -1)) * scales.unsqueeze(-1)).flatten(-2)


def _e4m3(codes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return codes.view(torch.float8_e4m3fn).to(dtype)


def _biased(exponent: torch.Tensor) -> torch.Tensor:
    return (exponent + 127).to(torch.uint8)


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)
