import math

import pytest
import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import (
    decode,
    dequantize_fp4,
    encode,
    quantize_fp4,
    quantize_fp8,
    random_fill,
    read_entries,
    record_view,
    scale_exponents,
    write_entries,
)
from dsv4_kernels.formats import FORMATS, EntryFormat
from hypothesis import given, settings
from hypothesis import strategies as st

RELATIVE_ERROR = {"fp8": 0.04, "fp4": 0.15, "bf16": 0.003, "fp32": 0.0}


def make_cache(format: EntryFormat, pages: int = 6, entries: int = 4, padding: int = 24) -> PagedCache:
    return PagedCache(torch.zeros(pages, format.page_bytes(entries) + padding, dtype=torch.uint8), format, entries)


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_entries_come_back_as_near_as_the_precision_allows(format):
    cache = make_cache(format)
    slots = torch.randperm(cache.num_slots)[:15]
    values = torch.randn(15, format.dim)
    write_entries(cache, slots, values)
    error = (read_entries(cache, slots) - values).norm() / values.norm()
    assert error <= RELATIVE_ERROR[format.precision]


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_what_was_read_is_stored_again_without_a_change(format):
    cache = make_cache(format)
    random_fill(cache, torch.Generator().manual_seed(1))
    slots = torch.arange(cache.num_slots)
    records, scales = encode(format, read_entries(cache, slots))
    assert torch.equal(decode(format, records, scales), read_entries(cache, slots))


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_a_random_fill_is_finite_and_of_about_unit_variance(format):
    cache = make_cache(format, pages=40)
    random_fill(cache, torch.Generator().manual_seed(1))
    values = read_entries(cache, torch.arange(cache.num_slots))
    assert values.isfinite().all()
    assert 0.8 < values.std() < 1.3
    assert abs(values.mean()) < 0.05


@pytest.mark.parametrize("format", FORMATS.values(), ids=FORMATS)
def test_a_fill_and_a_write_touch_no_byte_outside_the_entries(format):
    inner = format.page_bytes(4)
    slab = torch.full((6, inner + 40), 0xAB, dtype=torch.uint8)
    cache = PagedCache(slab[:, 16 : 16 + inner], format, 4)
    random_fill(cache)
    write_entries(cache, torch.arange(cache.num_slots), torch.randn(cache.num_slots, format.dim))
    assert (slab[:, :16] == 0xAB).all()
    assert (slab[:, 16 + inner :] == 0xAB).all()


def test_a_negative_slot_is_neither_written_nor_read():
    cache = make_cache(FORMATS["main-fp8"])
    cache.pages.fill_(0xFF)
    write_entries(cache, torch.tensor([-1, 3]), torch.ones(2, 512))
    assert (record_view(cache)[0, 0] == 0xFF).all()
    expected = torch.stack((torch.zeros(512), torch.ones(512)))[None]
    assert torch.equal(read_entries(cache, torch.tensor([[-1, 3]])), expected)


def test_fp8_scales_lie_behind_all_records_of_the_page():
    cache = make_cache(FORMATS["main-fp8"], pages=2, entries=2)
    write_entries(cache, torch.tensor([3]), torch.full((1, 512), 448.0))
    page = cache.pages[1]
    assert page[576 : 576 + 448].eq(0x7E).all(), "448 is the largest e4m3 value"
    assert page[576 + 448 : 1152].view(torch.bfloat16).eq(448).all()
    assert page[1152 + 8 : 1152 + 15].eq(127).all(), "scale 2^0 at the end of the page"
    assert page[1152 + 15] == 0


def test_fp4_keeps_the_even_element_in_the_low_nibble():
    values = torch.zeros(1, 32)
    values[0, 0], values[0, 1], values[0, 2] = 6.0, -1.0, 0.5
    packed, exponents = quantize_fp4(values)
    assert packed[0, 0] == 0b1010_0111
    assert packed[0, 1] == 0b0000_0001
    assert exponents.item() == 0


def test_fp4_rounds_half_to_the_even_code():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    packed, exponents = quantize_fp4(torch.cat((ties, -ties, torch.zeros(16)))[None])
    values = dequantize_fp4(packed, exponents)[0]
    assert values[:8].tolist() == [0, 1, 1, 2, 2, 4, 4, 6]
    assert values[8:16].tolist() == [0, -1, -1, -2, -2, -4, -4, -6]


@pytest.mark.parametrize("k", range(-20, 20))
def test_a_block_maximum_of_448_times_a_power_of_two_gets_exactly_that_power(k):
    assert scale_exponents(torch.tensor(448.0 * 2.0**k), 448.0, 1e-4).item() == k
    above = torch.nextafter(torch.tensor(448.0 * 2.0**k), torch.tensor(math.inf))
    assert scale_exponents(above, 448.0, 1e-4).item() == k + 1


def test_an_all_zero_block_gets_scale_byte_105():
    _, scales = encode(FORMATS["main-fp8"], torch.zeros(1, 512))
    assert scales is not None
    assert scales[0, :7].eq(105).all()


@settings(max_examples=200, deadline=None)
@given(st.floats(min_value=2.0**-13, max_value=2.0**100, width=32))
def test_the_exponent_is_the_smallest_that_holds_the_maximum(amax):
    e = scale_exponents(torch.tensor(amax), 448.0, 1e-4).item()
    assert amax <= 448.0 * 2.0**e
    assert amax > 448.0 * 2.0 ** (e - 1)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([64, 128]))
def test_fp8_is_within_half_a_step_of_the_value(seed, block):
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(seed)) * 10
    values, exponents = quantize_fp8(x, block)
    step = torch.ldexp(torch.ones_like(exponents).float(), exponents).repeat_interleave(block, -1)
    error = (values.float() * step - x).abs()
    assert (error <= torch.maximum(x.abs() * 2.0**-4, step * 2.0**-10)).all()
