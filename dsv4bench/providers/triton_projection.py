"""Projections of provider ``triton``: products with fp8 weights of its own, torch's with all others.

A bf16 product is cuBLAS's business, so there the provider runs exactly what ``eager`` runs. An fp8 product quantises
its activations as well, which as torch operations takes longer than the product of a decode step.
"""

import torch
from dsv4_kernels.formats import INDEX_DIM
from dsv4_kernels.triton.linear_fp8 import grouped_linear_fp8, linear_fp8
from dsv4_kernels.weight import Fp8Weight, Weight

from dsv4bench.providers.eager import projection as eager


def project(*, x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """``x @ weight.T`` in the activation dtype: [T, h] · [N, h] → [T, N]."""
    return _product(x, weight) if isinstance(weight, Fp8Weight) else eager.project(x=x, weight=weight)


def query_projection(*, q_latent: torch.Tensor, weight: Weight, head_dim: int) -> torch.Tensor:
    """Queries: [T, rq] · [H·D, rq] → [T, H, D]."""
    return torch.unflatten(project(x=q_latent, weight=weight), -1, (-1, head_dim))


def indexer_query_projection(*, q_latent: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Indexer queries: [T, rq] · [HI·128, rq] → [T, HI, 128]."""
    return torch.unflatten(project(x=q_latent, weight=weight), -1, (-1, INDEX_DIM))


def output_group_projection(*, o_values: torch.Tensor, o_scales: torch.Tensor | None, weight: Weight) -> torch.Tensor:
    """Each group of heads to its output rank: [T, G, w] · [G, ro, w] → [T, G, ro]; as ``eager`` takes them."""
    if not isinstance(weight, Fp8Weight):
        return eager.output_group_projection(o_values=o_values, o_scales=o_scales, weight=weight)
    out: torch.Tensor = grouped_linear_fp8(o_values, o_scales, weight)
    return out


def output_projection(*, o: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Back to the residual stream: [T, …] · [h, …] → [T, h]."""
    return _product(o, weight) if isinstance(weight, Fp8Weight) else eager.output_projection(o=o, weight=weight)


def _product(x: torch.Tensor, weight: Fp8Weight) -> torch.Tensor:
    out: torch.Tensor = linear_fp8(x, weight)
    return out
