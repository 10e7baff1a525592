"""Eager products with fp8 weights are those of the reference, whatever the card has."""

import pytest
import torch
from dsv4_kernels.scaled_gemm import has_block_scaled_gemm
from dsv4_kernels.weight import Fp8Weight, quantize_weight

from dsv4bench.providers.eager import EagerProvider, fp8
from dsv4bench.providers.reference import ReferenceProvider

EAGER, REFERENCE = EagerProvider(), ReferenceProvider()


def draw(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def close(a, b):
    return float((a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-30)) < 4e-3


@pytest.mark.parametrize("tokens", [0, 1, 5])
@pytest.mark.parametrize("stage", ["input_projection", "output_projection"])
def test_plain_projections_agree_with_the_reference(stage, tokens):
    x, weight = draw(tokens, 512, seed=1), quantize_weight(draw(2112, 512, seed=2) * 0.05)
    arguments = {"x" if stage == "input_projection" else "o": x, "weight": weight}
    found, expected = getattr(EAGER, stage)(**arguments), getattr(REFERENCE, stage)(**arguments)
    assert found.shape == expected.shape == (tokens, 2112)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert close(found, expected)


@pytest.mark.parametrize(
    ("stage", "rows", "shape"),
    [
        ("query_projection", 1024, (3, 2, 512)),
        ("query_projection", 384, (3, 2, 192)),
        ("indexer_query_projection", 1024, (3, 8, 128)),
    ],
)
def test_query_projections_agree_with_the_reference(stage, rows, shape):
    arguments = {"q_latent": draw(3, 256, seed=3), "weight": quantize_weight(draw(rows, 256, seed=4))}
    if stage == "query_projection":
        arguments["head_dim"] = shape[-1]
    found, expected = getattr(EAGER, stage)(**arguments), getattr(REFERENCE, stage)(**arguments)
    assert found.shape == shape
    assert close(found, expected)


@pytest.mark.parametrize("quantised", [False, True])
def test_grouped_projections_agree_with_the_reference(quantised):
    values, weight = draw(3, 2, 512, seed=5), quantize_weight(draw(2, 64, 512, seed=6))
    scales = None
    if quantised:
        values, exponent = fp8.quantize_fp8(values, 128)
        scales = fp8.exp2_int(exponent)
    arguments = {"o_values": values, "o_scales": scales, "weight": weight}
    found = EAGER.output_group_projection(**arguments)
    assert found.dtype == torch.bfloat16
    assert close(found, REFERENCE.output_group_projection(**arguments))


def test_a_cpu_dequantises():
    assert not has_block_scaled_gemm(torch.device("cpu"))


def test_float32_activations_stay_float32():
    x, weight = draw(3, 256, seed=7).float(), quantize_weight(draw(128, 256, seed=8))
    assert EAGER.input_projection(x=x, weight=weight).dtype == torch.float32
    assert isinstance(weight, Fp8Weight)
