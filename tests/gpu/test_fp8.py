"""fp8 products on a GPU: cuBLAS's block-scaled GEMM computes what dequantised operands give."""

import pytest
import torch
from dsv4_kernels import reference
from dsv4_kernels.weight import quantize_weight

from dsv4bench.providers.eager import EagerProvider, fp8
from dsv4bench.stack.graph import capture

pytestmark = pytest.mark.gpu

EAGER = EagerProvider()


def draw(*shape, seed):
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").bfloat16()


def error(a, b):
    return float((a.float() - b.float()).norm() / b.float().norm())


def test_hopper_has_the_block_scaled_gemm():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("only sm_90 is known to have it")
    assert fp8.has_block_scaled_gemm(torch.device("cuda"))


@pytest.mark.parametrize("tokens", [1, 3, 8, 64, 257])
@pytest.mark.parametrize(("rows", "columns"), [(1536, 4096), (2112, 7168), (65536, 1536), (4096, 8192)])
def test_a_projection_is_the_references(tokens, rows, columns):
    x, weight = draw(tokens, columns, seed=1), quantize_weight(draw(rows, columns, seed=2) * columns**-0.5)
    found = EAGER.input_projection(x=x, weight=weight)
    assert found.shape == (tokens, rows)
    assert error(found, reference.input_projection(x=x, weight=weight)) < 4e-3


def test_the_grouped_projection_is_the_references():
    values, exponent = fp8.quantize_fp8(draw(5, 8, 4096, seed=3), 128)
    weight = quantize_weight(draw(8, 1024, 4096, seed=4) / 64)
    arguments = {"o_values": values, "o_scales": fp8.exp2_int(exponent), "weight": weight}
    found = EAGER.output_group_projection(**arguments)
    assert error(found, reference.output_group_projection(**arguments)) < 4e-3


def test_a_graph_can_capture_it():
    weight = quantize_weight(draw(1536, 4096, seed=5) / 64)
    x, kept = draw(2, 4096, seed=6), []
    graph = capture(lambda: kept.append(EAGER.input_projection(x=x, weight=weight)))
    fresh = draw(2, 4096, seed=7)
    x.copy_(fresh)
    graph.replay()
    torch.cuda.synchronize()
    assert error(kept[-1], reference.input_projection(x=fresh, weight=weight)) < 4e-3
