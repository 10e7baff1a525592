"""Projections with fp8 weights: who quantises the activations and who multiplies, by the number of tokens.

A few tokens take one launch, which quantises as it reads; up to 64 are quantised first, since every program would
quantise all of them again; beyond that, arithmetic counts and cuBLAS has the better product, where torch and the card
have it.
"""

import torch

from dsv4_kernels.scaled_gemm import ROW_MULTIPLE, block_scaled_gemm, has_block_scaled_gemm, takes
from dsv4_kernels.triton.activation_blocks import quantise_activations
from dsv4_kernels.triton.block_scaled_product import block_scaled_product
from dsv4_kernels.weight import BLOCK, Fp8Weight

FUSED_TOKENS = 16
"""Most tokens that are quantised within the product."""
OWN_TOKENS, OWN_GROUPED_TOKENS = 64, 1024
"""Most tokens that our product takes although cuBLAS has one; per group, cuBLAS needs a launch and a copy."""


def linear_fp8(x: torch.Tensor, weight: Fp8Weight) -> torch.Tensor:
    """``x @ weight.T`` with activations quantised per token and 128 elements: bf16 [T, …] · [N, K] → bf16 [T, N].

    Args:
        x: any strides; dims behind the first are flattened, without a copy where blocks of 128 elements lie evenly.
        weight: contiguous.
    """
    tokens = len(x)
    if not tokens:
        return x.new_empty((0, weight.shape[0]))
    blocks = _blocks(x.reshape(tokens, -1, BLOCK))[:, None]
    if tokens <= FUSED_TOKENS:
        return block_scaled_product(blocks, None, _grouped(weight)).squeeze(1)
    values, scales = quantise_activations(blocks)
    if tokens > OWN_TOKENS and takes(weight) and has_block_scaled_gemm(x.device):
        return block_scaled_gemm(values.squeeze(1), scales.squeeze(1), weight)[:tokens]
    values = values[:tokens].unflatten(-1, (-1, BLOCK))
    return block_scaled_product(values, scales[:tokens], _grouped(weight)).squeeze(1)


def grouped_linear_fp8(values: torch.Tensor, scales: torch.Tensor | None, weight: Fp8Weight) -> torch.Tensor:
    """A product per group: [T, G, w] · [G, r, w] → bf16 [T, G, r].

    Args:
        values: e4m3, or bf16 that is quantised here; any strides.
        scales: fp32 [T, G, w/128] of e4m3 values, any strides; else None.
        weight: of all groups, contiguous.
    """
    tokens = len(values)
    blocks = _blocks(values.unflatten(-1, (-1, BLOCK)))
    if scales is None and tokens > FUSED_TOKENS:
        values, scales = quantise_activations(blocks)
        values, scales = values[:tokens], scales[:tokens]
        blocks = values.unflatten(-1, (-1, BLOCK))
    alone = Fp8Weight(weight.values[0], weight.scales[0])
    if (
        scales is None
        or tokens <= OWN_GROUPED_TOKENS
        or tokens % ROW_MULTIPLE
        or not (takes(alone) and has_block_scaled_gemm(values.device))
    ):
        return block_scaled_product(blocks, scales, weight)
    return torch.stack(
        [
            block_scaled_gemm(
                values[:, group].contiguous(),
                scales[:, group].t().contiguous().t(),
                Fp8Weight(weight.values[group], weight.scales[group]),
            )
            for group in range(len(weight.values))
        ],
        dim=1,
    )


def _blocks(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _grouped(weight: Fp8Weight) -> Fp8Weight:
    return Fp8Weight(weight.values[None], weight.scales[None])
