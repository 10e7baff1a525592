"""The linear stages: one matrix product each, fp32 accumulation, one rounding.

An fp8 weight is dequantised; its activations are quantised and dequantised first, as they are part of the product.
"""

import torch

from dsv4_kernels.reference.precision import wide
from dsv4_kernels.weight import Fp8Weight, Weight, dense, quantized_activations


def _linear(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    x = wide(quantized_activations(x) if isinstance(weight, Fp8Weight) else x)
    return x @ dense(weight, x.dtype).T


def input_projection(*, x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Query latent and key/value (V3.2: and rope key) in one product: [T, h] → [T, rq + 512 (+ 64)]."""
    return _linear(x, weight).to(x.dtype)


def compressor_projection(*, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Compressor values and scores ``[kv | score]``: [T, h] → [T, 2·coff·512], fp32 even for bf16 activations."""
    return _linear(x, weight)


def indexer_compressor_projection(*, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The indexer's compressor values and scores: [T, h] → fp32 [T, 4·128]."""
    return _linear(x, weight)


def indexer_weights_projection(*, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Weight of each index head, before scaling: [T, h] → [T, HI]."""
    return _linear(x, weight).to(x.dtype)


def indexer_key_projection(*, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """V3.2's index key of each token, before norm and rotation: [T, h] → [T, 128]."""
    return _linear(x, weight).to(x.dtype)


def query_projection(*, q_latent: torch.Tensor, weight: Weight, head_dim: int) -> torch.Tensor:
    """Queries from the normed latent: [T, rq] → [T, H, head_dim]; 512, for V3.2 192."""
    return _heads(q_latent, weight, head_dim)


def indexer_query_projection(*, q_latent: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Indexer queries from the normed latent: [T, rq] → [T, HI, 128]."""
    return _heads(q_latent, weight, 128)


def _heads(x: torch.Tensor, weight: Weight, head_dim: int) -> torch.Tensor:
    return torch.unflatten(_linear(x, weight).to(x.dtype), -1, (-1, head_dim))


def query_absorb(*, q: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """V3.2: the first 128 dims of each head times its key up-projection: [T, H, 192] → [T, H, 512]."""
    nope = wide(q[..., : weight.shape[1]])
    return torch.einsum("thd,hdc->thc", nope, weight.to(nope.dtype)).to(q.dtype)


def value_up_projection(*, o: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """V3.2: attended latents to values, per head: [T, H, 512] → [T, H, 128]."""
    latent = wide(o)
    return torch.einsum("thc,hcd->thd", latent, weight.to(latent.dtype)).to(o.dtype)


def output_group_projection(*, o_values: torch.Tensor, o_scales: torch.Tensor | None, weight: Weight) -> torch.Tensor:
    """Grouped output projection: [T, G, w] × [G, ro, w] → [T, G, ro].

    Args:
        o_values: activations, or e4m3 values.
        o_scales: fp32 [T, G, w / 128] of the e4m3 values, else None.
        weight: [G, ro, w]; its dtype is that of the result when values are quantised (bf16 if the weight is too).
    """
    quantise = isinstance(weight, Fp8Weight) and o_scales is None
    values = wide(quantized_activations(o_values) if quantise else o_values)
    if o_scales is not None:
        values = (torch.unflatten(values, -1, (o_scales.shape[-1], -1)) * o_scales.unsqueeze(-1)).flatten(-2)
    out = torch.einsum("tgw,grw->tgr", values, dense(weight, values.dtype))
    quantised_dtype = torch.bfloat16 if isinstance(weight, Fp8Weight) else weight.dtype
    return out.to(o_values.dtype if o_scales is None else quantised_dtype)


def output_projection(*, o: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Back to the residual stream: [T, …] flattened per token → [T, h]."""
    return _linear(o.flatten(1), weight).to(o.dtype)
