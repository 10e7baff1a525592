"""What a stage must move and compute at least: bytes of device memory and FLOPs, as formulas.

The formulas are those of the V4 attention design (one per stage, weights counted once per step), extended to V3.2's
stages, to bf16 weights and to every cache format. Bytes are compulsory traffic: inputs read once, outputs written once.
Not counted, because they are small beside the rest: index lists and block tables, rotary rows (except in
``query_norm_rope_insert``, ``query_rope`` and the V3.2 inserts), norm weights, ape, and the log-sum-exp.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dsv4bench.model.shape import LayerKind, ModelShape
from dsv4bench.model.stage import STAGES
from dsv4bench.model.step import LayerStep

ACTIVATION = 2
"""Bytes of a bf16 activation."""
FP32 = 4
ROPE_ROW = 64 * FP32
"""Bytes of a row of the rotary table."""

MatrixUnit = Literal["bf16", "fp8"]


@dataclass(frozen=True)
class Cost:
    """Least work of a stage.

    Attributes:
        bytes: device memory traffic, reads plus writes.
        flops: floating-point operations; a multiply-add is two.
        unit: precision of the matrix unit that does them.
    """

    bytes: int
    flops: int
    unit: MatrixUnit = "bf16"


def stage_cost(stage: str, step: LayerStep) -> Cost:
    """Least bytes and FLOPs of a stage.

    Raises:
        KeyError: the layer kind has no such stage.
    """
    if all(stage != known.name for known in STAGES[step.kind]):
        raise KeyError(f"layer kind {step.kind} has no stage {stage!r}")
    return _COSTS[stage](step)


def layer_costs(step: LayerStep) -> dict[str, Cost]:
    """Cost of every stage of the layer, by name, in execution order."""
    return {stage.name: stage_cost(stage.name, step) for stage in STAGES[step.kind]}


def _product(rows: int, depth: int, columns: int, weight: int, activation: int, output: int = ACTIVATION) -> Cost:
    """[rows, depth] · [depth, columns], with the bytes of a weight, activation and output element."""
    traffic = weight * depth * columns + activation * rows * depth + output * rows * columns
    return Cost(traffic, 2 * rows * depth * columns, "fp8" if weight == 1 else "bf16")


def _projection(
    depth: Callable[[ModelShape], int], columns: Callable[[ModelShape], int]
) -> Callable[[LayerStep], Cost]:
    """Cost of a large projection from its dimensions."""

    def cost(step: LayerStep) -> Cost:
        operand = step.weight_bytes
        return _product(step.tokens, depth(step.shape), columns(step.shape), operand, operand)

    return cost


def _compressor_width(step: LayerStep, dim: int) -> int:
    """Channels of a token's compressor row: doubled where windows overlap."""
    return dim * (2 if step.kind is LayerKind.C4A else 1)


def _compressor_projection(dim: int) -> Callable[[LayerStep], Cost]:
    def cost(step: LayerStep) -> Cost:
        width = 2 * _compressor_width(step, dim)
        return _product(step.tokens, step.shape.hidden_size, width, ACTIVATION, ACTIVATION, FP32)

    return cost


def _state_save(dim: int) -> Callable[[LayerStep], Cost]:
    def cost(step: LayerStep) -> Cost:
        width = _compressor_width(step, dim)
        return Cost(step.tokens * 4 * width * FP32, step.tokens * width)

    return cost


def _compress(dim: int, entry: Callable[[LayerStep], int]) -> Callable[[LayerStep], Cost]:
    def cost(step: LayerStep) -> Cost:
        rows = 8 if step.kind is LayerKind.C4A else step.kind.ratio
        read = rows * dim * 2 * FP32
        return Cost(step.completed * (read + entry(step)), step.completed * rows * dim * 8)

    return cost


def _indexer_weights_projection(step: LayerStep) -> Cost:
    return _product(step.tokens, step.shape.hidden_size, step.shape.index_heads, ACTIVATION, ACTIVATION)


def _indexer_key_projection(step: LayerStep) -> Cost:
    return _product(step.tokens, step.shape.hidden_size, step.shape.index_dim, ACTIVATION, ACTIVATION)


def _qkv_norm(step: LayerStep) -> Cost:
    elements = step.tokens * (step.shape.q_lora_rank + step.shape.value_dim)
    return Cost(2 * ACTIVATION * elements, 4 * elements)


def _query_norm_rope_insert(step: LayerStep) -> Cost:
    shape, heads = step.shape, step.shape.num_heads
    per_token = 2 * ACTIVATION * heads * shape.head_dim + ACTIVATION * shape.kv_dim + step.main_entry + ROPE_ROW
    flops = 4 * heads * shape.head_dim + 6 * (heads + 1) * shape.rope_dim // 2
    return Cost(step.tokens * per_token, step.tokens * flops)


def _indexer_query_rope_quant(step: LayerStep) -> Cost:
    elements = step.shape.index_heads * step.shape.index_dim
    weights = step.shape.index_heads * (ACTIVATION + FP32)
    return Cost(step.tokens * (ACTIVATION * elements + _query_bytes(step) + weights), step.tokens * 6 * elements)


def _query_bytes(step: LayerStep) -> int:
    """Bytes of a token's quantised index queries. The fp8 scale is folded into the weights, the fp4 ones are stored."""
    folded = FP32 if step.indexer == "fp8" else 0
    return step.shape.index_heads * (step.indexer_entry - folded)


def _indexer_logits(step: LayerStep) -> Cost:
    shape = step.shape
    queries = step.tokens * (_query_bytes(step) + FP32 * shape.index_heads)
    traffic = step.distinct_candidates * step.indexer_entry + FP32 * step.candidates + queries
    flops = step.candidates * 2 * shape.index_heads * (shape.index_dim + 1)
    return Cost(traffic, flops, "fp8" if step.indexer in ("fp8", "fp4") else "bf16")


def _topk(step: LayerStep) -> Cost:
    return Cost(4 * step.candidates + 4 * step.tokens * step.shape.index_topk, 0)


def _index_map(step: LayerStep) -> Cost:
    return Cost(8 * step.tokens * step.shape.index_topk, 0)


def _sparse_attention(step: LayerStep) -> Cost:
    shape = step.shape
    query_dim = shape.value_dim if shape.is_v4 else shape.kv_dim
    activations = step.tokens * shape.num_heads * (query_dim + shape.value_dim) * ACTIVATION
    flops = 2 * shape.num_heads * step.attended * (query_dim + shape.value_dim)
    return Cost(step.distinct_attended * step.main_entry + activations, flops)


def _inverse_rope_quant(step: LayerStep) -> Cost:
    elements = step.tokens * step.shape.num_heads * step.shape.value_dim
    written = elements + elements // 128 * FP32 if step.main == "fp8" else ACTIVATION * elements
    return Cost(ACTIVATION * elements + written, 10 * elements)


def _output_group_projection(step: LayerStep) -> Cost:
    shape, tokens = step.shape, step.tokens
    columns = shape.o_groups * shape.o_lora_rank
    depth = shape.num_heads * shape.value_dim // shape.o_groups
    value = 1 if step.main == "fp8" else ACTIVATION
    traffic = (
        step.weight_bytes * depth * columns + value * tokens * depth * shape.o_groups + ACTIVATION * tokens * columns
    )
    return Cost(traffic, 2 * tokens * depth * columns, "fp8" if step.weight_bytes == value == 1 else "bf16")


def _output_projection(step: LayerStep) -> Cost:
    shape = step.shape
    depth = shape.o_groups * shape.o_lora_rank if shape.is_v4 else shape.num_heads * shape.v_head_dim
    return _product(step.tokens, depth, shape.hidden_size, step.weight_bytes, step.weight_bytes)


def _per_head(depth: Callable[[ModelShape], int], columns: Callable[[ModelShape], int]) -> Callable[[LayerStep], Cost]:
    """A product of its own weight per head; always bf16, since it is absorbed from a dequantised weight."""

    def cost(step: LayerStep) -> Cost:
        heads, k, n = step.shape.num_heads, depth(step.shape), columns(step.shape)
        one = _product(step.tokens, k, n, ACTIVATION, ACTIVATION)
        return Cost(heads * one.bytes, heads * one.flops)

    return cost


def _query_rope(step: LayerStep) -> Cost:
    shape = step.shape
    moved = shape.num_heads * ACTIVATION * (shape.rope_dim + shape.value_dim + shape.kv_dim)
    return Cost(step.tokens * (moved + ROPE_ROW), step.tokens * 6 * shape.num_heads * shape.rope_dim // 2)


def _latent_insert(step: LayerStep) -> Cost:
    shape = step.shape
    per_token = ACTIVATION * shape.kv_dim + ROPE_ROW + step.main_entry
    return Cost(step.tokens * per_token, step.tokens * (3 * shape.rope_dim + 3 * shape.value_dim))


def _indexer_key_insert(step: LayerStep) -> Cost:
    dim = step.shape.index_dim
    per_token = ACTIVATION * dim + ROPE_ROW + step.indexer_entry
    return Cost(step.tokens * per_token, step.tokens * 11 * dim)


_COSTS: dict[str, Callable[[LayerStep], Cost]] = {
    "input_projection": _projection(lambda s: s.hidden_size, lambda s: s.q_lora_rank + s.kv_dim),
    "compressor_projection": _compressor_projection(512),
    "indexer_compressor_projection": _compressor_projection(128),
    "indexer_weights_projection": _indexer_weights_projection,
    "indexer_key_projection": _indexer_key_projection,
    "qkv_norm": _qkv_norm,
    "query_projection": _projection(lambda s: s.q_lora_rank, lambda s: s.num_heads * s.head_dim),
    "query_norm_rope_insert": _query_norm_rope_insert,
    "compressor_state_save": _state_save(512),
    "indexer_state_save": _state_save(128),
    "compress_norm_rope_insert": _compress(512, lambda step: step.main_entry),
    "indexer_compress_insert": _compress(128, lambda step: step.indexer_entry),
    "indexer_query_projection": _projection(lambda s: s.q_lora_rank, lambda s: s.index_heads * s.index_dim),
    "indexer_query_rope_quant": _indexer_query_rope_quant,
    "indexer_logits": _indexer_logits,
    "topk": _topk,
    "index_map": _index_map,
    "sparse_attention": _sparse_attention,
    "inverse_rope_quant": _inverse_rope_quant,
    "output_group_projection": _output_group_projection,
    "output_projection": _output_projection,
    "query_absorb": _per_head(lambda s: s.head_dim - s.rope_dim, lambda s: s.value_dim),
    "query_rope": _query_rope,
    "latent_insert": _latent_insert,
    "indexer_key_insert": _indexer_key_insert,
    "value_up_projection": _per_head(lambda s: s.value_dim, lambda s: s.v_head_dim),
}
