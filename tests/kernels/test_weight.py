"""fp8 weights: exact where they can be, close where they can't, the same product in every provider."""

import pytest
import torch
from dsv4_kernels import reference
from dsv4_kernels.weight import BLOCK, Fp8Weight, dense, quantize_weight, quantized_activations
from hypothesis import given
from hypothesis import strategies as st


def draw(*shape, seed=0, scale=1.0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("shape", [(128, 128), (256, 384), (64, 128), (200, 256), (3, 130, 128), (2112, 256)])
def test_quantised_weights_lie_within_half_a_step_of_e4m3(shape):
    weight = draw(*shape, scale=0.02)
    back = dense(quantize_weight(weight), torch.float32)
    assert back.shape == weight.shape
    assert float((back - weight).norm() / weight.norm()) < 0.03
    assert (back - weight).abs().max() <= weight.abs().max() * 2**-4


@given(st.integers(-20, 20), st.integers(1, 300), st.integers(1, 3))
def test_scales_are_the_smallest_powers_of_two_that_hold_their_block(exponent, rows, blocks):
    weight = draw(rows, blocks * BLOCK, seed=rows) * 2.0**exponent
    found = quantize_weight(weight)
    mantissa, _ = torch.frexp(found.scales)
    assert (mantissa == 0.5).all()
    padded = torch.nn.functional.pad(weight, (0, 0, 0, -rows % BLOCK))
    amax = padded.view(-1, BLOCK, blocks, BLOCK).abs().amax((1, 3))
    assert (amax <= 448 * found.scales).all()
    assert (amax > 448 * found.scales / 2).all()


def test_dequantising_to_bf16_loses_nothing():
    weight = quantize_weight(draw(256, 256, scale=0.02))
    assert torch.equal(dense(weight, torch.bfloat16).float(), dense(weight, torch.float32))


def test_quantising_what_was_quantised_changes_nothing():
    once = dense(quantize_weight(draw(256, 256)), torch.float32)
    assert torch.equal(dense(quantize_weight(once), torch.float32), once)
    x = quantized_activations(draw(5, 256))
    assert torch.equal(quantized_activations(x), x)


def test_an_all_zero_block_stays_zero():
    assert (dense(quantize_weight(torch.zeros(128, 128)), torch.float32) == 0).all()


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="a multiple of 128 columns, got 100"):
        quantize_weight(draw(128, 100))
    values = torch.zeros(256, 128).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=r"scales must be fp32 \[2, 1\]"):
        Fp8Weight(values, torch.ones(1, 1))


def test_a_reference_projection_multiplies_quantised_activations_with_dequantised_weights():
    x, weight = draw(3, 256, seed=1).bfloat16(), quantize_weight(draw(192, 256, seed=2))
    found = reference.input_projection(x=x, weight=weight)
    expected = quantized_activations(x).float() @ dense(weight, torch.float32).T
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected.bfloat16())
    unquantised = x.float() @ dense(weight, torch.float32).T
    assert 0.005 < float((found - unquantised).norm() / unquantised.norm()) < 0.05


@pytest.mark.parametrize("quantised", [False, True])
def test_the_grouped_projection_takes_quantised_outputs_and_quantises_others(quantised):
    values, weight = draw(3, 2, 256, seed=3).bfloat16(), quantize_weight(draw(2, 64, 256, seed=4))
    seen = quantized_activations(values)
    if quantised:
        scales = torch.full((3, 2, 2), 2.0**-6)
        o_values = (seen.float().unflatten(-1, (2, 128)) / scales.unsqueeze(-1)).flatten(-2).to(torch.float8_e4m3fn)
        seen = (o_values.float().unflatten(-1, (2, 128)) * scales.unsqueeze(-1)).flatten(-2)
        found = reference.output_group_projection(o_values=o_values, o_scales=scales, weight=weight)
    else:
        found = reference.output_group_projection(o_values=values, o_scales=None, weight=weight)
    expected = torch.einsum("tgw,grw->tgr", seen.float(), dense(weight, torch.float32))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected.bfloat16())
