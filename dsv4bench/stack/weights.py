"""Seeded random weights of one layer, by the tensor names of the stage graph."""

import zlib

import torch
from dsv4_kernels.weight import Weight, quantize_weight

from dsv4bench.model.shape import LayerKind, ModelShape

SMALL_FP32 = ("compressor_ape", "indexer_ape", "sink", "indexer_norm_bias")
"""Weights that are fp32 in every model."""
FP8_WEIGHTS = ("w_qkv", "w_q", "w_indexer_q", "w_o_a", "w_o_b")
"""Projections that checkpoints hold in fp8; compressors, head weights and V3.2's absorbed products stay bf16."""
_NORMS = ("q_norm_weight", "kv_norm_weight", "compressor_norm_weight", "indexer_norm_weight")


def weight_shapes(shape: ModelShape, kind: LayerKind) -> dict[str, tuple[int, ...]]:
    """Dimensions of every weight of a layer, in the [out, in] order of a linear."""
    h, heads, rank = shape.hidden_size, shape.num_heads, shape.q_lora_rank
    shapes: dict[str, tuple[int, ...]] = {
        "w_qkv": (rank + shape.kv_dim, h),
        "q_norm_weight": (rank,),
        "kv_norm_weight": (512,),
        "w_q": (heads * shape.head_dim, rank),
    }
    if kind is LayerKind.DSA:
        nope = shape.head_dim - shape.rope_dim
        shapes |= {
            "w_uk": (heads, nope, shape.value_dim),
            "w_uv": (heads, shape.value_dim, shape.v_head_dim),
            "w_indexer_k": (shape.index_dim, h),
            "indexer_norm_bias": (shape.index_dim,),
            "w_o_b": (h, heads * shape.v_head_dim),
        }
    else:
        group = heads // shape.o_groups * shape.value_dim
        shapes |= {
            "sink": (heads,),
            "w_o_a": (shape.o_groups, shape.o_lora_rank, group),
            "w_o_b": (h, shape.o_groups * shape.o_lora_rank),
        }
    if kind.compresses:
        width = (2 if kind is LayerKind.C4A else 1) * shape.kv_dim
        shapes |= {
            "w_compressor": (2 * width, h),
            "compressor_ape": (kind.ratio, width),
            "compressor_norm_weight": (shape.kv_dim,),
        }
    if kind is LayerKind.C4A:
        width = 2 * shape.index_dim
        shapes |= {"w_indexer_compressor": (2 * width, h), "indexer_ape": (kind.ratio, width)}
    if kind.has_indexer:
        shapes |= {
            "w_indexer_weights": (shape.index_heads, h),
            "w_indexer_q": (shape.index_heads * shape.index_dim, rank),
            "indexer_norm_weight": (shape.index_dim,),
        }
    return shapes


def make_weights(
    shape: ModelShape,
    kind: LayerKind,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    seed: int = 0,
    precision: str = "bf16",
) -> dict[str, Weight]:
    """Random weights that keep activations near unit variance.

    Linears are normal with standard deviation fan_in ** -0.5, norm weights lie around 1, ape and sinks are fp32
    (float64 where ``dtype`` is). Each tensor has a seed of its own, so a weight doesn't change because another
    was added. With ``precision`` ``fp8`` the large projections are quantised by blocks of 128 × 128.
    """
    weights: dict[str, Weight] = {}
    for name, dims in weight_shapes(shape, kind).items():
        drawn = _draw(name, dims, device, dtype, seed)
        weights[name] = quantize_weight(drawn) if precision == "fp8" and name in FP8_WEIGHTS else drawn
    return weights


def _draw(name: str, dims: tuple[int, ...], device: torch.device | str, dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed * 1_000_003 + zlib.crc32(name.encode()))
    kept = torch.float32 if name in SMALL_FP32 and dtype is not torch.float64 else dtype
    draw_dtype = torch.float32 if dtype is torch.bfloat16 else dtype
    values = torch.randn(dims, generator=generator, device=device, dtype=draw_dtype)
    if name in _NORMS:
        values = 1 + 0.1 * values
    elif name not in SMALL_FP32:
        fan_in = dims[1] if name == "w_uv" else dims[-1]
        values *= (dims[-2] if name == "w_uk" else fan_in) ** -0.5
    return values.to(kept)
