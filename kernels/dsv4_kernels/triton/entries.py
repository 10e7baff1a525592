"""Quantise finished rows and store them as cache entries, for use inside kernels.

The layouts are those of ``dsv4_kernels.formats``: value records from the start of a page, scale records behind them.
Rows come as pairs (see ``pairs``). Page offsets are 64-bit. The launch-time half, ``page_arguments``, checks what the
stores rely on.
"""

import triton
import triton.language as tl

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.triton.casts import pack_bf16, pack_fp8, unpack_bf16
from dsv4_kernels.triton.pairs import block_maximum, pair_index
from dsv4_kernels.triton.scales import (
    e2m1_code,
    fp4_scale_byte,
    fp8_scale_byte,
    power_of_two,
    reciprocal_power_of_two,
)

PAGE_ALIGNMENT = 8
"""Bytes to which pages must be aligned: the scale record of a main entry is written as one 8-byte word."""
MAIN_BLOCKS = tl.constexpr(8)
"""Blocks in which a 512-wide row is stored: 7 quantised by 64 elements each, and the rotated dims."""
INDEXER_BLOCKS = tl.constexpr(4)
"""Blocks in which a 128-wide row is stored: what fp4 shares a scale over."""
_MAIN_RECORD = tl.constexpr(576)
_AMAX_FLOOR = tl.constexpr(1e-4)


def page_arguments(cache: PagedCache) -> dict[str, object]:
    """Kernel arguments that describe a cache: ``pages``, ``page_stride`` (bytes), ``ENTRIES`` and ``PRECISION``.

    Raises:
        ValueError: the pages are not aligned.
    """
    stride = cache.pages.stride(0)
    if cache.pages.data_ptr() % PAGE_ALIGNMENT or (cache.num_pages > 1 and stride % PAGE_ALIGNMENT):
        raise ValueError(f"pages must start at multiples of {PAGE_ALIGNMENT} bytes; their stride is {stride}")
    return {
        "pages": cache.pages,
        "page_stride": stride,
        "ENTRIES": cache.entries,
        "PRECISION": cache.format.precision,
    }


@triton.jit
def store_main_entries(even, odd, slots, pages, page_stride, ENTRIES: tl.constexpr, PRECISION: tl.constexpr):
    """Store 512-wide entries.

    Args:
        even, odd: fp32 [ROWS, 8, 32], rotated.
        slots: int64 [ROWS]; negative slots are skipped.
        pages: uint8 pointer to the first page.
        page_stride: bytes between pages.
        ENTRIES: entries per page.
        PRECISION: ``fp8`` (448 e4m3 and 64 bf16, ue8m0 per 64 at the end of the page), ``bf16`` or ``fp32``.
    """
    kept = slots >= 0
    entry = slots % ENTRIES
    page = pages + (slots // ENTRIES) * page_stride
    if PRECISION == "fp8":
        word = pair_index(8, 32)
        words = pack_bf16(even, odd)
        even, odd = unpack_bf16(words)
        scale = fp8_scale_byte(block_maximum(even, odd), _AMAX_FLOOR)
        inverse = reciprocal_power_of_two(scale)[:, :, None]
        record = page + entry * _MAIN_RECORD
        nope = record.to(tl.pointer_type(tl.uint16))[:, None, None] + word
        tl.store(nope, pack_fp8(even * inverse, odd * inverse), mask=kept[:, None, None] & (word < 224))
        rope = (record + 448).to(tl.pointer_type(tl.int32))[:, None, None] + (word - 224)
        tl.store(rope, words, mask=kept[:, None, None] & (word >= 224))
        # the 7 scales and the zero pad as one little-endian word: one store a row
        block = tl.arange(0, 8)[None, :]
        scales = tl.sum(tl.where(block < 7, scale.to(tl.int64) << (8 * block.to(tl.int64)), 0), axis=1)
        tl.store((page + ENTRIES * _MAIN_RECORD + entry * 8).to(tl.pointer_type(tl.int64)), scales, mask=kept)
    else:
        _store_plain_entries(even, odd, page, entry, kept, PRECISION)


@triton.jit
def store_indexer_entries(even, odd, slots, pages, page_stride, ENTRIES: tl.constexpr, PRECISION: tl.constexpr):
    """Store 128-wide indexer entries.

    Args:
        even, odd: fp32 [ROWS, 4, 16], rotated.
        slots: int64 [ROWS]; negative slots are skipped.
        pages: uint8 pointer to the first page.
        page_stride: bytes between pages.
        ENTRIES: entries per page.
        PRECISION: ``fp8`` (one fp32 scale), ``fp4`` (e2m1 pairs, ue8m0 per 32), ``bf16`` or ``fp32``.
    """
    kept = slots >= 0
    entry = slots % ENTRIES
    page = pages + (slots // ENTRIES) * page_stride
    word = pair_index(4, 16)
    if PRECISION == "fp8":
        packed, scale = quantize_fp8_rows(even, odd)
        record = (page + entry * 128).to(tl.pointer_type(tl.uint16))
        tl.store(record[:, None, None] + word, packed, mask=kept[:, None, None])
        scales = (page + ENTRIES * 128 + entry * 4).to(tl.pointer_type(tl.float32))
        tl.store(scales, power_of_two(scale), mask=kept)
    elif PRECISION == "fp4":
        packed, scales = quantize_fp4_rows(even, odd)
        tl.store((page + entry * 64)[:, None, None] + word, packed, mask=kept[:, None, None])
        tl.store((page + ENTRIES * 64 + entry * 4).to(tl.pointer_type(tl.int32)), scales, mask=kept)
    else:
        _store_plain_entries(even, odd, page, entry, kept, PRECISION)


@triton.jit
def quantize_fp8_rows(even, odd):
    """Round fp32 [ROWS, BLOCKS, PAIRS] to bf16, then to e4m3 with one scale a row.

    Returns:
        16-bit words of the same shape, and biased scale exponents int32 [ROWS].
    """
    even, odd = unpack_bf16(pack_bf16(even, odd))
    scale = fp8_scale_byte(tl.max(block_maximum(even, odd), axis=1), _AMAX_FLOOR)
    inverse = reciprocal_power_of_two(scale)[:, None, None]
    return pack_fp8(even * inverse, odd * inverse), scale


@triton.jit
def quantize_fp4_rows(even, odd):
    """Round fp32 [ROWS, 4, 16] to bf16, then to e2m1 with one scale a block.

    Returns:
        uint8 [ROWS, 4, 16] (low nibble = even element) and int32 [ROWS], the four ue8m0 bytes as a little-endian word.
    """
    even, odd = unpack_bf16(pack_bf16(even, odd))
    scale = fp4_scale_byte(block_maximum(even, odd))
    inverse = reciprocal_power_of_two(scale)[:, :, None]
    packed = e2m1_code(even * inverse) | (e2m1_code(odd * inverse) << 4)
    return packed.to(tl.uint8), tl.sum(scale << (8 * tl.arange(0, 4)[None, :]), axis=1)


@triton.jit
def _store_plain_entries(even, odd, page, entry, kept, PRECISION: tl.constexpr):
    tl.static_assert(PRECISION == "bf16" or PRECISION == "fp32", "unknown cache precision")
    BLOCKS: tl.constexpr = even.shape[1]
    PAIRS: tl.constexpr = even.shape[2]
    word = pair_index(BLOCKS, PAIRS)
    mask = kept[:, None, None]
    if PRECISION == "bf16":
        record = (page + entry * (4 * BLOCKS * PAIRS)).to(tl.pointer_type(tl.int32))
        tl.store(record[:, None, None] + word, pack_bf16(even, odd), mask=mask)
    else:
        record = (page + entry * (8 * BLOCKS * PAIRS)).to(tl.pointer_type(tl.float32))[:, None, None] + 2 * word
        tl.store(record, even, mask=mask)
        tl.store(record + 1, odd, mask=mask)
