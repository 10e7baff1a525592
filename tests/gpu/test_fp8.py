"""fp8 products on a GPU, by cuBLAS's block-scaled GEMM or our kernels: they compute what dequantised operands give."""

import pytest
import torch
from dsv4_kernels import reference
from dsv4_kernels.scaled_gemm import has_block_scaled_gemm
from dsv4_kernels.weight import quantize_weight

from dsv4bench.providers.eager import fp8
from dsv4bench.providers.registry import load_provider
from dsv4bench.stack.graph import capture

pytestmark = pytest.mark.gpu

both = pytest.mark.parametrize("provider", ["eager", "triton"])


def draw(*shape, seed):
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").bfloat16()


def error(a, b):
    return float((a.float() - b.float()).norm() / b.float().norm())


def test_hopper_has_the_block_scaled_gemm():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("only sm_90 is known to have it")
    assert has_block_scaled_gemm(torch.device("cuda"))


@both
@pytest.mark.parametrize("tokens", [1, 3, 8, 64, 257])
@pytest.mark.parametrize(("rows", "columns"), [(1536, 4096), (2112, 7168), (65536, 1536), (4096, 8192)])
def test_a_projection_is_the_references(provider, tokens, rows, columns):
    x, weight = draw(tokens, columns, seed=1), quantize_weight(draw(rows, columns, seed=2) * columns**-0.5)
    found = load_provider(provider).input_projection(x=x, weight=weight)
    assert found.shape == (tokens, rows)
    assert error(found, reference.input_projection(x=x, weight=weight)) < 4e-3


@both
@pytest.mark.parametrize("tokens", [5, 129, 1028])
def test_the_grouped_projection_is_the_references(provider, tokens):
    values, exponent = fp8.quantize_fp8(draw(tokens, 8, 4096, seed=3), 128)
    weight = quantize_weight(draw(8, 1024, 4096, seed=4) / 64)
    arguments = {"o_values": values, "o_scales": fp8.exp2_int(exponent), "weight": weight}
    found = load_provider(provider).output_group_projection(**arguments)
    assert error(found, reference.output_group_projection(**arguments)) < 4e-3


def test_our_projections_give_the_same_sum_every_time():
    """Parts of a sum are joined in their order, whoever finishes last."""
    project = load_provider("triton").input_projection
    weight = quantize_weight(draw(1536, 4096, seed=8) / 64)
    for tokens in (1, 16, 50):
        x = draw(tokens, 4096, seed=9)
        first = project(x=x, weight=weight)
        assert all(torch.equal(first, project(x=x, weight=weight)) for _ in range(20))


@both
@pytest.mark.parametrize("tokens", [2, 40, 200])
def test_a_graph_can_capture_it(provider, tokens):
    project = load_provider(provider).input_projection
    weight = quantize_weight(draw(1536, 4096, seed=5) / 64)
    x, kept = draw(tokens, 4096, seed=6), []
    graph = capture(lambda: kept.append(project(x=x, weight=weight)))
    fresh = draw(tokens, 4096, seed=7)
    x.copy_(fresh)
    graph.replay()
    torch.cuda.synchronize()
    assert error(kept[-1], reference.input_projection(x=fresh, weight=weight)) < 4e-3
