"""Checks of the fp8 projections against the reference.

``test_triton_projection`` runs them as a script of its own process: on a GPU, or without one in Triton's interpreter.
"""

import torch
from checks import DEVICE, check, main
from dsv4_kernels import reference
from dsv4_kernels.codec import power_of_two, quantize_fp8
from dsv4_kernels.rope import cos_sin_table
from dsv4_kernels.triton.activation_blocks import quantise_activations
from dsv4_kernels.triton.block_scaled_product import Tile, block_scaled_product
from dsv4_kernels.triton.inverse_rope_quant import inverse_rope_quant
from dsv4_kernels.triton.linear_fp8 import grouped_linear_fp8, linear_fp8
from dsv4_kernels.weight import AMAX_FLOOR, BLOCK, Fp8Weight, quantize_weight, quantized_activations


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    """bf16 whose blocks differ in magnitude, so that a scale of another block shows."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    values = torch.randn(*shape, generator=generator).unflatten(-1, (-1, BLOCK))
    values *= torch.exp2(torch.randint(-3, 4, (*values.shape[:-1], 1), generator=generator))
    return values.flatten(-2).bfloat16().to(DEVICE)


def weight(*shape: int, seed: int = 1) -> Fp8Weight:
    made = quantize_weight(randn(*shape, seed=seed).cpu() * 0.02)
    return Fp8Weight(made.values.to(DEVICE), made.scales.to(DEVICE))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """One rounding to bf16 apart at most, up to the order of the fp32 sum."""
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype == torch.bfloat16
    difference = (found.float() - expected.float()).norm() / expected.float().norm()
    assert difference < 1e-3, f"relative difference {difference:.2e}"


# quantisation ---------------------------------------------------------------------------------------------------------


def activations_are_quantised_as_the_codec_does(tokens: int) -> None:
    x = randn(tokens, 3, 256)[:, 1:]
    x[0, 0] = 0
    x[0, 1, :128] *= 2.0**-60
    x[-1, 1, 128:] *= 2.0**60
    x[-1, 0, 5] = 448.0 * 2**5  # the largest of its scale
    values, scales = quantise_activations(x.unflatten(-1, (-1, BLOCK)))
    right, exponents = quantize_fp8(x, BLOCK, AMAX_FLOOR)
    padded = -(-tokens // 4) * 4
    assert values.shape == (padded, 2, 256)
    assert scales.shape == (padded, 2, 2)
    assert scales.stride() == (1, 2 * padded, padded)
    assert torch.equal(values[:tokens].contiguous().view(torch.uint8), right.view(torch.uint8))
    assert torch.equal(scales[:tokens], power_of_two(exponents))
    assert not values[tokens:].float().any()


for _tokens in (1, 6, 9):
    check(activations_are_quantised_as_the_codec_does, tokens=_tokens)


def a_product_sees_exactly_those_activations(tile: tuple[int, ...], tokens: int) -> None:
    """One-hot weights hand through what was multiplied."""
    x = randn(tokens, 512)
    eye = Fp8Weight(torch.eye(512).to(torch.float8_e4m3fn)[None].to(DEVICE), torch.ones(1, 4, 4, device=DEVICE))
    found = block_scaled_product(x.view(tokens, 1, 4, BLOCK), None, eye, Tile(*tile))
    assert torch.equal(found[:, 0], quantized_activations(x))


check(a_product_sees_exactly_those_activations, tile=(64, 16, 1, 4, 3), tokens=3)
check(a_product_sees_exactly_those_activations, tile=(128, 16, 16, 4, 3), tokens=18)
check(a_product_sees_exactly_those_activations, tile=(64, 64, 32, 4, 3), tokens=66)


# products -------------------------------------------------------------------------------------------------------------


def projections_agree_with_the_reference(tokens: int, rows: int, columns: int) -> None:
    x, w = randn(tokens, columns + BLOCK)[:, :columns], weight(rows, columns)
    expected = reference.input_projection(x=x, weight=w)
    found = [linear_fp8(x, w) for _ in range(3)]  # again: a launch must leave its counters as it found them
    close(found[0], expected)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


for _tokens in (1, 5, 16, 17, 66):  # quantised in the product; ahead of it; more than one tile of tokens
    check(projections_agree_with_the_reference, tokens=_tokens, rows=200, columns=512)
check(projections_agree_with_the_reference, tokens=3, rows=64, columns=128)
check(projections_agree_with_the_reference, tokens=65, rows=256, columns=7 * 128)
check(projections_agree_with_the_reference, tokens=4, rows=96, columns=7 * 128)


def every_tile_gives_the_same_product(tile: tuple[int, ...], quantised: bool) -> None:
    """Shares of one block up, parts in one go or several, rows and tokens that end within a tile."""
    tokens, columns = 37, 16 * BLOCK
    x, w = randn(tokens, columns), weight(200, columns)
    blocks, scales = x.view(tokens, 1, -1, BLOCK), None
    if quantised:
        values, scales = (part[:tokens] for part in quantise_activations(blocks))
        blocks = values.unflatten(-1, (-1, BLOCK))
    found = block_scaled_product(blocks, scales, Fp8Weight(w.values[None], w.scales[None]), Tile(*tile))
    close(found[:, 0], reference.input_projection(x=x, weight=w))


for _quantised in (False, True):
    check(every_tile_gives_the_same_product, tile=(64, 16, 1, 4, 3), quantised=_quantised)
    check(every_tile_gives_the_same_product, tile=(64, 16, 48, 4, 3, 4), quantised=_quantised)
    check(every_tile_gives_the_same_product, tile=(128, 64, 8, 8, 3), quantised=_quantised)
    check(every_tile_gives_the_same_product, tile=(64, 64, 32, 4, 3), quantised=_quantised)


def heads_are_flattened_without_a_copy() -> None:
    """V3.2's values come head by head, [H, T, 128] transposed."""
    o, w = randn(4, 3, BLOCK).transpose(0, 1), weight(64, 4 * BLOCK)
    close(linear_fp8(o, w), reference.output_projection(o=o, weight=w))
    close(linear_fp8(o.contiguous(), w), reference.output_projection(o=o, weight=w))


check(heads_are_flattened_without_a_copy)


# groups ---------------------------------------------------------------------------------------------------------------


def groups_take_what_attention_output_leaves(tokens: int) -> None:
    o = randn(tokens, 4 * 512).view(tokens, 4, 512)
    positions = torch.arange(tokens, device=DEVICE)
    table = cos_sin_table(128, 160000.0, 16.0, 65536).to(DEVICE)
    values, scales = inverse_rope_quant(o=o, positions=positions, cos_sin=table, groups=2, precision="fp8")
    w = weight(2, 136, 1024)
    expected = reference.output_group_projection(o_values=values, o_scales=scales, weight=w)
    close(grouped_linear_fp8(values, scales, w), expected)
    values, scales = values.contiguous(), scales.contiguous()
    close(grouped_linear_fp8(values, scales, w), expected)


for _tokens in (1, 6, 21):
    check(groups_take_what_attention_output_leaves, tokens=_tokens)


def groups_quantise_activations(tokens: int) -> None:
    values, w = randn(tokens, 2, 512), weight(2, 64, 512)
    expected = reference.output_group_projection(o_values=values, o_scales=None, weight=w)
    close(grouped_linear_fp8(values, None, w), expected)


check(groups_quantise_activations, tokens=2)
check(groups_quantise_activations, tokens=18)


def no_tokens_give_no_rows() -> None:
    x, w = randn(0, 512), weight(128, 512)
    assert linear_fp8(x, w).shape == (0, 128)
    grouped = weight(2, 128, 512)
    scales = torch.empty((0, 2, 4), device=DEVICE)
    for values, given in ((randn(0, 2, 512), None), (randn(0, 2, 512).to(torch.float8_e4m3fn), scales)):
        found = grouped_linear_fp8(values, given, grouped)
        assert found.shape == (0, 2, 128)
        assert found.dtype == torch.bfloat16
    values, scales = quantise_activations(randn(0, 2, 512).unflatten(-1, (-1, BLOCK)))
    assert (values.shape, scales.shape) == ((0, 2, 512), (0, 2, 4))


check(no_tokens_give_no_rows)


if __name__ == "__main__":
    main()
