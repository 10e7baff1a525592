"""Projections: DeepGEMM's where weights are fp8, with a kernel in front that quantises; torch's for bf16, as in vLLM.

The products' weights keep their power-of-two block scales as fp32, which is how vLLM holds them on compute capability
9.0; on 10.0 it packs them as bytes, which our weights are not (``needs``).
"""

import torch
from dsv4_kernels.formats import INDEX_DIM
from dsv4_kernels.weight import BLOCK, Fp8Weight, Weight

from dsv4bench.providers.eager import projection as eager
from dsv4bench.providers.vllm.library import Library

RECIPE = (1, 128, 128)
"""How DeepGEMM's einsum scales on compute capability 9.0: per token, by blocks of 128 rows, by 128 columns."""
ALIGNMENT = 4
"""Tokens to a multiple of which DeepGEMM wants activation scales padded."""


def project(library: Library, *, x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """``x @ weight.T`` in the activation dtype: [T, h] · [N, h] → [T, N]."""
    if not isinstance(weight, Fp8Weight):
        return eager.project(x=x, weight=weight)
    out = x.new_empty((len(x), weight.shape[0]))
    if len(x):
        quantised = library.function("quantise_activations")(
            x=x.contiguous(), group_size=BLOCK, column_major_scales=True, tma_aligned_scales=True, use_ue8m0=True
        )
        library.function("fp8_product")(quantised, (weight.values, weight.scales), out, is_deep_gemm_e8m0_used=True)
    return out


def query_projection(library: Library, *, q_latent: torch.Tensor, weight: Weight, head_dim: int) -> torch.Tensor:
    """Queries: [T, rq] · [H·D, rq] → [T, H, D]."""
    return torch.unflatten(project(library, x=q_latent, weight=weight), -1, (-1, head_dim))


def indexer_query_projection(library: Library, *, q_latent: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Indexer queries: [T, rq] · [HI·128, rq] → [T, HI, 128]."""
    return torch.unflatten(project(library, x=q_latent, weight=weight), -1, (-1, INDEX_DIM))


def output_group_projection(
    library: Library, *, o_values: torch.Tensor, o_scales: torch.Tensor | None, weight: Weight
) -> torch.Tensor:
    """Each group of heads to its output rank: [T, G, w] · [G, ro, w] → [T, G, ro].

    Values and scales lie as vLLM's own ``inverse_rope_quant`` leaves them, groups outermost; others are copied so.
    """
    if not isinstance(weight, Fp8Weight) or o_scales is None:
        return eager.output_group_projection(o_values=o_values, o_scales=o_scales, weight=weight)
    out = torch.empty((*o_values.shape[:2], weight.shape[1]), dtype=torch.bfloat16, device=o_values.device)
    if len(o_values):
        values = o_values.transpose(0, 1).contiguous().transpose(0, 1)
        operands = (values, groups_outermost(o_scales)), (weight.values, weight.scales)
        library.function("fp8_einsum")("bhr,hdr->bhd", *operands, out, recipe=RECIPE)
    return out


def output_projection(library: Library, *, o: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Back to the residual stream: [T, …] · [h, …] → [T, h]."""
    return project(library, x=o.flatten(1), weight=weight)


def groups_outermost(scales: torch.Tensor) -> torch.Tensor:
    """Scales [T, G, n] with strides (1, n·T4, T4), T4 being T rounded up to 4; the same tensor if they lie so."""
    tokens, groups, blocks = scales.shape
    padded = -(-tokens // ALIGNMENT) * ALIGNMENT
    if scales.stride()[1:] == (blocks * padded, padded) and (tokens == 1 or scales.stride(0) == 1):
        return scales
    laid = scales.new_zeros((groups, blocks, padded)).permute(2, 0, 1)[:tokens]
    laid.copy_(scales)
    return laid
