"""The reference against the attention modules of transformers, an implementation by others."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import EntryFormat
from dsv4_kernels.rope import inverse_frequencies

from dsv4bench.model.shape import LayerKind, ModelShape
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.reference import ReferenceProvider
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.stack.layer import run_layer
from dsv4bench.verify.sequences import Sequences, small_shape

transformers = pytest.importorskip("transformers")
from transformers.cache_utils import DynamicCache  # noqa: E402
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4  # noqa: E402
from transformers.models.deepseek_v32 import modeling_deepseek_v32 as v32  # noqa: E402

LAYER_TYPES = {
    LayerKind.SWA: "sliding_attention",
    LayerKind.C4A: "compressed_sparse_attention",
    LayerKind.C128A: "heavily_compressed_attention",
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class _WidenedTorch:
    """The torch module, with float64 where a caller asks for float32."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.fixture
def widened(monkeypatch):
    """Compute in float64 wherever transformers narrows to fp32; rotary tables stay: they are fp32 by definition."""
    narrow = torch.Tensor.float
    for module, name in ((v4, "DeepseekV4RotaryEmbedding"), (v32, "DeepseekV32RotaryEmbedding")):
        rotary = getattr(module, name)
        forward = rotary.forward

        def fp32_tables(self, *args, _forward=forward, **kwargs):
            torch.Tensor.float, widen = narrow, torch.Tensor.float
            try:
                return _forward(self, *args, **kwargs)
            finally:
                torch.Tensor.float = widen

        monkeypatch.setattr(rotary, "forward", fp32_tables)
        monkeypatch.setattr(module, "torch", _WidenedTorch())
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def oracle_shape(kind: LayerKind) -> ModelShape:
    return replace(small_shape(kind), hidden_size=64, q_lora_rank=32, index_topk=8)


def reference_run(
    shape: ModelShape, kind: LayerKind, chunks: list[int], dtype: torch.dtype
) -> tuple[Sequences, torch.Tensor]:
    """Sequences of one request, and the layer's outputs over the chunks: [tokens, hidden]."""
    precision = CachePrecision("bf16", "bf16") if dtype == torch.bfloat16 else CachePrecision("fp32", "fp32")
    seqs = Sequences(shape, kind, precision, requests=1, limit=max(sum(chunks), 1), dtype=dtype, poison=0xFF)
    if dtype == torch.float64:
        seqs.caches = {name: fp64(cache) for name, cache in seqs.caches.items()}
    provider = ReferenceProvider()
    outputs = []
    for chunk in chunks:
        values = seqs.step([chunk])
        run_layer(STAGES[kind], dict.fromkeys((s.name for s in STAGES[kind]), provider), values)
        outputs.append(values["y"])
    return seqs, torch.cat(outputs)


def fp64(cache: PagedCache | torch.Tensor) -> PagedCache | torch.Tensor:
    if not isinstance(cache, PagedCache):
        return cache.double()
    role, dim = cache.format.role, cache.format.dim
    wide = EntryFormat(f"{role}-fp64", role, "fp64", dim, 8 * dim)
    pages = torch.full((cache.num_pages, wide.page_bytes(cache.entries)), 0xFF, dtype=torch.uint8)
    return PagedCache(pages, wide, cache.entries)


def v4_module(shape: ModelShape, kind: LayerKind, weights: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    config = v4.DeepseekV4Config(
        hidden_size=shape.hidden_size,
        num_hidden_layers=1,
        num_attention_heads=shape.num_heads,
        q_lora_rank=shape.q_lora_rank,
        o_groups=shape.o_groups,
        o_lora_rank=shape.o_lora_rank,
        index_n_heads=shape.index_heads,
        index_topk=shape.index_topk,
        layer_types=[LAYER_TYPES[kind]],
        mlp_layer_types=["moe"],
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 65536,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
    )
    config._attn_implementation = "eager"
    module = v4.DeepseekV4Attention(config, 0)
    rank = shape.q_lora_rank
    state = {
        "sinks": weights["sink"],
        "q_a_proj.weight": weights["w_qkv"][:rank],
        "kv_proj.weight": weights["w_qkv"][rank:],
        "q_a_norm.weight": weights["q_norm_weight"],
        "kv_norm.weight": weights["kv_norm_weight"],
        "q_b_proj.weight": weights["w_q"],
        "o_a_proj.weight": weights["w_o_a"].flatten(0, 1),
        "o_b_proj.weight": weights["w_o_b"],
    }
    if kind.compresses:
        state |= compressor_state("compressor.", weights, "compressor")
    if kind is LayerKind.C4A:
        state |= compressor_state("compressor.indexer.", weights, "indexer")
        state["compressor.indexer.q_b_proj.weight"] = weights["w_indexer_q"]
        state["compressor.indexer.scorer.weights_proj.weight"] = weights["w_indexer_weights"]
    return with_weights(module, state), v4.DeepseekV4RotaryEmbedding(config)


def compressor_state(prefix: str, weights: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    projection = weights["w_compressor" if name == "compressor" else "w_indexer_compressor"]
    kv, gate = projection.chunk(2)
    return {
        f"{prefix}kv_proj.weight": kv,
        f"{prefix}gate_proj.weight": gate,
        f"{prefix}position_bias": weights[f"{name}_ape"],
        f"{prefix}kv_norm.weight": weights[f"{name}_norm_weight"],
    }


def with_weights(module: torch.nn.Module, state: dict[str, torch.Tensor]) -> torch.nn.Module:
    buffers = {name for name, _ in module.named_buffers()}
    assert set(state) == set(module.state_dict()) - buffers, "every parameter gets the reference's weight"
    dtype = state[next(iter(n for n in state if n.endswith("proj.weight")))].dtype
    module.to(dtype)
    module.load_state_dict(state, strict=False)
    return module


def keep_frequencies_fp32(module: torch.nn.Module) -> None:
    """Undo what a cast of the module did to the rotary buffers inside it: they are fp32 by definition."""
    for inner in module.modules():
        for name in ("main_inv_freq", "compress_inv_freq"):
            if hasattr(inner, name):
                label = name.removesuffix("_inv_freq")
                kind = inner.rope_type[label]
                init = inner.compute_default_rope_parameters if kind == "default" else v4.ROPE_INIT_FUNCTIONS[kind]
                setattr(inner, name, init(inner.config, "cpu", layer_type=label)[0])


@torch.no_grad()
def v4_run(module: Any, rotary: Any, x: torch.Tensor, chunks: list[int]) -> torch.Tensor:
    keep_frequencies_fp32(module)
    cache, done, outputs = DynamicCache(config=module.config), 0, []
    for chunk in chunks:
        ids = torch.arange(done, done + chunk)[None]
        tables = {label: rotary(x, ids, layer_type=label) for label in ("main", "compress")}
        first_key = max(done - 127, 0)
        keys = torch.arange(first_key, done + chunk)
        query = ids[0][:, None]
        hidden = (keys > query) | (keys <= query - 128)
        mask = torch.zeros(hidden.shape, dtype=x.dtype).masked_fill(hidden, float("-inf"))[None, None]
        outputs.append(module(x[None, done : done + chunk], tables, ids, mask, cache)[0][0])
        done += chunk
    return torch.cat(outputs)


def v32_module(shape: ModelShape, weights: dict[str, torch.Tensor]) -> tuple[Any, Any]:
    config = v32.DeepseekV32Config(
        hidden_size=shape.hidden_size,
        num_hidden_layers=1,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_heads,
        q_lora_rank=shape.q_lora_rank,
        index_n_heads=shape.index_heads,
        index_topk=shape.index_topk,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    )
    config._attn_implementation = "eager"
    rank = shape.q_lora_rank
    kv_b = torch.cat((weights["w_uk"], weights["w_uv"].transpose(1, 2)), dim=1).flatten(0, 1)
    state = {
        "q_a_proj.weight": weights["w_qkv"][:rank],
        "kv_a_proj_with_mqa.weight": weights["w_qkv"][rank:],
        "q_a_layernorm.weight": weights["q_norm_weight"],
        "kv_a_layernorm.weight": weights["kv_norm_weight"],
        "q_b_proj.weight": weights["w_q"],
        "kv_b_proj.weight": kv_b,
        "o_proj.weight": weights["w_o_b"],
        "indexer.wq_b.weight": weights["w_indexer_q"],
        "indexer.wk.weight": weights["w_indexer_k"],
        "indexer.k_norm.weight": weights["indexer_norm_weight"],
        "indexer.k_norm.bias": weights["indexer_norm_bias"],
        "indexer.weights_proj.weight": weights["w_indexer_weights"],
    }
    rotary = v32.DeepseekV32RotaryEmbedding(config)
    rope = shape.window_rope
    ours = inverse_frequencies(rope.theta, rope.factor, rope.original_positions)
    # transformers divides by 40 p in one step, DeepSeek's code by p and then by 40: half an ulp apart
    torch.testing.assert_close(rotary.inv_freq, ours, rtol=2e-7, atol=0)
    rotary.inv_freq = ours
    return with_weights(v32.DeepseekV32Attention(config, 0), state), rotary


@torch.no_grad()
def v32_run(module: Any, rotary: Any, x: torch.Tensor, chunks: list[int]) -> torch.Tensor:
    cache, done, outputs = DynamicCache(config=module.config), 0, []
    for chunk in chunks:
        ids = torch.arange(done, done + chunk)[None]
        hidden = torch.arange(done + chunk) > ids[0][:, None]
        mask = torch.zeros(hidden.shape, dtype=x.dtype).masked_fill(hidden, float("-inf"))[None, None]
        outputs.append(module(x[None, done : done + chunk], rotary(x, ids), mask, cache, position_ids=ids)[0][0])
        done += chunk
    return torch.cat(outputs)


def compare(kind: LayerKind, chunks: list[int], dtype: torch.dtype, topk: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Our rows and transformers', [tokens, hidden] each."""
    shape = replace(oracle_shape(kind), index_topk=topk)
    seqs, ours = reference_run(shape, kind, chunks, dtype)
    module, rotary = v32_module(shape, seqs.weights) if kind is LayerKind.DSA else v4_module(shape, kind, seqs.weights)
    run = v32_run if kind is LayerKind.DSA else v4_run
    return ours, run(module, rotary, seqs.x[0], chunks)


def worst_row(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest error relative to its row's maximum."""
    return ((ours - theirs).abs().amax(-1) / theirs.abs().amax(-1)).max().item()


# V3.2 is absorbed here and expanded there, so its sums differ in order; in float64 both agree to 1e-12
FP32_TOLERANCE = dict.fromkeys(LayerKind, 2e-6) | {LayerKind.DSA: 4e-6}

SPLITS = {
    "prefill-300": [300],
    "prefill-131": [131],
    "chunks": [5, 122, 2, 1, 70, 57],
    "chunks-at-boundaries": [4, 124, 128, 4],
    "decode-9": [1] * 9,
    "decode-across-128": [125] + [1] * 8,
    "decode-across-256": [253] + [1] * 6,
    "speculative-steps": [126, 3, 3, 3],
    "long-chunks": [900, 250, 1],
}


@pytest.mark.parametrize("kind", LayerKind)
@pytest.mark.parametrize("chunks", SPLITS.values(), ids=SPLITS)
def test_a_layer_agrees_with_transformers_in_fp32(kind, chunks):
    assert worst_row(*compare(kind, chunks, torch.float32)) <= FP32_TOLERANCE[kind]


@pytest.mark.parametrize("kind", LayerKind)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 6, 7, 8, 9, 126, 127, 128, 129, 130, 255, 256, 257])
def test_every_boundary_length_agrees_with_transformers_in_fp32(kind, length):
    assert worst_row(*compare(kind, [length], torch.float32)) <= FP32_TOLERANCE[kind]


@pytest.mark.parametrize("kind", LayerKind)
def test_a_layer_agrees_with_transformers_in_float64(kind, widened):
    assert worst_row(*compare(kind, [130, 7, 1, 1], torch.float64)) <= 1e-12


@pytest.mark.parametrize("kind", LayerKind)
def test_a_bf16_layer_lies_within_3_percent_of_the_bf16_transformers_layer(kind):
    # top-k as large as the context: among near ties the two roundings would select different entries
    ours, theirs = (y.float() for y in compare(kind, [140], torch.bfloat16, topk=140))
    assert ((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1)).max() <= 3e-2
    assert torch.nn.functional.cosine_similarity(ours, theirs).min() >= 0.9995


@pytest.mark.parametrize("kind", [k for k in LayerKind if k is not LayerKind.DSA])
def test_rotary_tables_are_bitwise_those_of_transformers(kind):
    shape = oracle_shape(kind)
    seqs = Sequences(shape, kind, CachePrecision("fp32", "fp32"), requests=1, limit=5000, dtype=torch.float32)
    _, rotary = v4_module(shape, kind, seqs.weights)
    label = "compress" if kind.compresses else "main"
    cos, sin = rotary(seqs.x, torch.arange(5000)[None], layer_type=label)
    assert torch.equal(seqs.cos_sin, torch.cat((cos[0], sin[0]), dim=-1))
