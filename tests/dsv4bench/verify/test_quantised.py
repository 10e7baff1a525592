import pytest
import torch
from dsv4_kernels.codec import dequantize_fp8, quantize_fp8
from dsv4_kernels.formats import FORMATS

from dsv4bench.verify.quantised import (
    INDEX_QUERY,
    SCALE_FLOOR,
    cache_quantiser,
    power_exponents,
    quantised_difference,
    scales_of,
    snr_db,
)

FP8 = INDEX_QUERY["fp8"]
LATENT = cache_quantiser(FORMATS["latent-fp8"])


def compare(stored, exponents, exact):
    return quantised_difference("k", stored, scales_of(exponents), exact, FP8, ("token",))


def stored_with(scales, exact):
    """Values as they are read back when quantised with given scales, one per row."""
    return (exact / scales).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scales


@pytest.fixture
def keys():
    return torch.randn(20, 128, generator=torch.Generator().manual_seed(3))


def test_what_the_codec_stores_is_right(keys):
    values, exponents = quantize_fp8(keys.bfloat16(), 128)
    found = compare(dequantize_fp8(values, exponents), exponents, keys)
    assert found.error == 0
    assert 25 < found.numbers["snr_db"] < 40


def test_values_one_bf16_ulp_away_before_quantising_are_right_too(keys):
    nudged = keys.bfloat16().view(torch.int16).add(1).view(torch.bfloat16)
    values, exponents = quantize_fp8(nudged, 128)
    assert compare(dequantize_fp8(values, exponents), exponents, keys.bfloat16().float()).ok


def test_a_value_one_step_off_is_wrong(keys):
    values, exponents = quantize_fp8(keys.bfloat16(), 128)
    codes = values.view(torch.uint8)
    codes[7, 5] ^= 1
    found = compare(dequantize_fp8(values, exponents), exponents, keys)
    assert not found.ok
    assert found.where == "token 7"
    value, right = (float(one[7, 5]) for one in (dequantize_fp8(values, exponents), keys))
    assert found.detail.startswith(f"element 5 is {value:.6g}, expected ")
    assert abs(value - right) < 0.2 * abs(right)
    assert found.detail.endswith(f"; 1 of {len(keys)} vectors are off")


def test_several_values_off_are_counted_with_the_first_and_the_last(keys):
    values, exponents = quantize_fp8(keys.bfloat16(), 128)
    values.view(torch.uint8)[7, 5:80:2] ^= 0x80
    found = compare(dequantize_fp8(values, exponents), exponents, keys)
    assert "; 38 of 128 elements differ, 5 to 79; " in found.detail


def test_another_scale_is_wrong_even_if_the_values_match_it(keys):
    values, exponents = quantize_fp8(keys.bfloat16(), 128)
    found = compare((values.float() / 2) * torch.exp2(exponents + 1.0), exponents + 1, keys)
    assert not found.ok
    assert found.detail.startswith("block 0, whose largest magnitude is ")
    assert "has the scale 2^" in found.detail
    assert found.deviation == ""


def test_a_higher_floor_of_the_scale_is_named_as_the_deviation_it_is():
    zero = torch.zeros(2, 128)
    found = compare(zero, torch.full((2, 1), -13), zero)
    assert not found.ok
    assert found.deviation == SCALE_FLOOR
    assert "has the scale 2^-13 (byte 114), expected 2^-22 (byte 105); 2 of 2 vectors are off" in found.detail


def test_a_format_of_float_scales_also_takes_them_unrounded_but_no_other(keys):
    exact = keys.bfloat16().float()
    exact[3] = 0.0
    unrounded = (exact.abs().amax(1, keepdim=True) / 448).clamp_min(torch.finfo(torch.float32).tiny)

    def found(factor, quantiser):
        scales = unrounded * factor
        return quantised_difference("kv", stored_with(scales, exact), scales, exact, quantiser, ("token",))

    assert found(1.0, LATENT).ok
    assert "no power of two, expected 2^" in found(1.0, FP8).detail
    assert not found(1.02, LATENT).ok
    assert not found(0.98, LATENT).ok


def test_values_rounded_by_another_scale_than_the_stored_one_are_wrong(keys):
    exact = keys.bfloat16().float()
    scales = exact.abs().amax(1, keepdim=True) / 448
    stored = stored_with(scales_of(power_exponents(torch.ones_like(scales)) - 7), exact)
    assert not quantised_difference("kv", stored, scales, exact, LATENT, ("token",)).ok


def test_nan_bytes_are_wrong(keys):
    _, exponents = quantize_fp8(keys, 128)
    assert not compare(keys * float("nan"), exponents, keys).ok


def test_only_powers_of_two_are_scales():
    assert power_exponents(torch.tensor([1.0, 0.25, 3.0, 0.0])).tolist() == [0, -2, -1000, -1000]


def test_the_signal_to_noise_ratio_is_in_decibels():
    x = torch.ones(1000)
    assert snr_db(x * 1.1, x) == pytest.approx(20, abs=1e-3)
    assert snr_db(x, x) == 200
