"""Weights from small checkpoints made here, under DeepSeek's names and transformers', bf16 and fp8."""

import json
from dataclasses import replace

import pytest
import torch
from dsv4_kernels.weight import Fp8Weight, dense, quantize_weight
from safetensors.torch import save_file

from dsv4bench.errors import UserError
from dsv4bench.model.shape import V3_2, V4_FLASH, LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.registry import load_provider
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.scenario.workload import Workload
from dsv4bench.stack.checkpoint import load_weights
from dsv4bench.stack.layer import prepare, run_layer
from dsv4bench.stack.weights import FP8_WEIGHTS, make_weights, weight_shapes

SMALL = replace(V4_FLASH, hidden_size=256, num_heads=16, o_groups=2, q_lora_rank=128, o_lora_rank=128, index_topk=64)
SMALL_V3 = replace(V3_2, hidden_size=256, num_heads=4, q_lora_rank=128, index_topk=64)
TRANSFORMERS = {
    "wq_a": "q_a_proj", "wkv": "kv_proj", "q_norm": "q_a_norm", "wq_b": "q_b_proj", "wo_a": "o_a_proj",
    "wo_b": "o_b_proj", "attn_sink": "sinks",
}  # fmt: skip


def published(weights, kind):
    """A V4 layer's weights by DeepSeek's names."""
    rank = SMALL.q_lora_rank
    named = {
        "wq_a.weight": weights["w_qkv"][:rank], "wkv.weight": weights["w_qkv"][rank:],
        "q_norm.weight": weights["q_norm_weight"], "kv_norm.weight": weights["kv_norm_weight"],
        "wq_b.weight": weights["w_q"], "attn_sink": weights["sink"],
        "wo_a.weight": weights["w_o_a"].flatten(0, 1), "wo_b.weight": weights["w_o_b"],
    }  # fmt: skip
    if kind.compresses:
        half = len(weights["w_compressor"]) // 2
        named |= {
            "compressor.wkv.weight": weights["w_compressor"][:half],
            "compressor.wgate.weight": weights["w_compressor"][half:],
            "compressor.ape": weights["compressor_ape"], "compressor.norm.weight": weights["compressor_norm_weight"],
        }  # fmt: skip
    if kind is LayerKind.C4A:
        half = len(weights["w_indexer_compressor"]) // 2
        named |= {
            "indexer.compressor.wkv.weight": weights["w_indexer_compressor"][:half],
            "indexer.compressor.wgate.weight": weights["w_indexer_compressor"][half:],
            "indexer.compressor.ape": weights["indexer_ape"],
            "indexer.compressor.norm.weight": weights["indexer_norm_weight"],
            "indexer.wq_b.weight": weights["w_indexer_q"],
            "indexer.weights_proj.weight": weights["w_indexer_weights"],
        }  # fmt: skip
    return named


def transformers(named):
    """DeepSeek's names as transformers renames them."""
    renamed = {}
    for name, tensor in named.items():
        indexer = name.startswith("indexer.")
        name = name.removeprefix("indexer.")
        if "compressor." in name or indexer:
            for old, new in (("wkv", "kv_proj"), ("wgate", "gate_proj"), ("ape", "position_bias"), ("norm", "kv_norm")):
                name = name.replace(f"compressor.{old}", f"compressor.{new}")
            name = name.replace("wq_b", "compressor.q_b_proj").replace("weights_proj", "compressor.scorer.weights_proj")
            name = name.replace("compressor.", "compressor.indexer.") if indexer else name
        else:
            stem, _, rest = name.partition(".")
            name = TRANSFORMERS.get(stem, stem) + (f".{rest}" if rest else "")
        renamed[name] = tensor
    return renamed


def save(path, named, prefix, *, fp8=False, shards=1):
    """Write tensors (contiguous, with e8m0 scales where quantised) into one file or several with an index."""
    tensors = {}
    for name, tensor in named.items():
        projection = name.split(".")[-2:-1] in (["wq_a"], ["wkv"], ["wq_b"], ["wo_a"], ["wo_b"])
        if fp8 and projection and not name.startswith(("compressor.", "indexer.compressor.")):
            weight = quantize_weight(tensor)
            tensors[prefix + name] = weight.values
            tensors[prefix + name.removesuffix("weight") + "scale"] = weight.scales.to(torch.float8_e8m0fnu)
        else:
            tensors[prefix + name] = tensor.contiguous()
    names = sorted(tensors)
    parts = [names[number::shards] for number in range(shards)]
    files = [f"model-{number:05}.safetensors" for number in range(shards)]
    for file, part in zip(files, parts, strict=True):
        save_file({name: tensors[name] for name in part}, path / file)
    if shards > 1:
        where = {name: file for file, part in zip(files, parts, strict=True) for name in part}
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def same(a, b):
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


@pytest.mark.parametrize("kind", [LayerKind.SWA, LayerKind.C4A, LayerKind.C128A])
@pytest.mark.parametrize("names", ["published", "transformers"])
def test_a_v4_layer_comes_back_under_either_naming(tmp_path, kind, names):
    weights = make_weights(SMALL, kind, seed=1)
    named = published(weights, kind)
    if names == "published":
        save(tmp_path, named, "layers.7.attn.", shards=3)
    else:
        save(tmp_path, transformers(named), "model.layers.7.self_attn.")
    assert same(load_weights(tmp_path, 7, SMALL, kind), weights)


def test_transformers_own_state_dict_is_read(tmp_path):
    modeling = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
    configuration = pytest.importorskip("transformers.models.deepseek_v4.configuration_deepseek_v4")
    config = configuration.DeepseekV4Config(
        hidden_size=256, num_attention_heads=16, q_lora_rank=128, o_groups=2, o_lora_rank=128, num_hidden_layers=2,
        vocab_size=32, moe_intermediate_size=8, n_routed_experts=2, num_experts_per_tok=1, index_topk=64,
        layer_types=["heavily_compressed_attention", "compressed_sparse_attention"],
    )  # fmt: skip
    state = modeling.DeepseekV4Model(config).state_dict()
    save_file({name: tensor for name, tensor in state.items() if "self_attn" in name}, tmp_path / "m.safetensors")
    for layer, kind in ((0, LayerKind.C128A), (1, LayerKind.C4A)):
        found = load_weights(tmp_path, layer, SMALL, kind, dtype=torch.float32)
        assert {name: tuple(weight.shape) for name, weight in found.items()} == weight_shapes(SMALL, kind)
        assert torch.equal(found["w_q"], state[f"layers.{layer}.self_attn.q_b_proj.weight"])


def test_fp8_weights_stay_as_they_are_or_are_dequantised(tmp_path):
    kind = LayerKind.C4A
    weights = make_weights(SMALL, kind, seed=2)
    save(tmp_path, published(weights, kind), "layers.2.attn.", fp8=True)
    kept = load_weights(tmp_path, 2, SMALL, kind, precision="fp8")
    assert {name for name, weight in kept.items() if isinstance(weight, Fp8Weight)} == set(FP8_WEIGHTS)
    expected = make_weights(SMALL, kind, seed=2, precision="fp8")
    for name in FP8_WEIGHTS:
        assert torch.equal(kept[name].values.float(), expected[name].values.float())
        assert torch.equal(kept[name].scales, expected[name].scales)
    plain = load_weights(tmp_path, 2, SMALL, kind)
    assert all(torch.equal(plain[name], dense(expected[name], torch.bfloat16)) for name in FP8_WEIGHTS)


def test_a_bf16_checkpoint_is_quantised_where_fp8_is_asked_for(tmp_path):
    weights = make_weights(SMALL, LayerKind.SWA, seed=3)
    save(tmp_path, published(weights, LayerKind.SWA), "layers.0.attn.")
    found = load_weights(tmp_path, 0, SMALL, LayerKind.SWA, precision="fp8")
    assert torch.equal(found["w_q"].scales, quantize_weight(weights["w_q"]).scales)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_the_first_rank_takes_its_heads_groups_and_columns(tmp_path, precision):
    weights = make_weights(SMALL, LayerKind.SWA, seed=4)
    save(tmp_path, published(weights, LayerKind.SWA), "layers.0.attn.", fp8=precision == "fp8")
    rank = SMALL.shard(2)
    found = load_weights(tmp_path, 0, rank, LayerKind.SWA, precision=precision, tp=2)
    assert {name: tuple(w.shape) for name, w in found.items()} == weight_shapes(rank, LayerKind.SWA)
    if precision == "bf16":
        assert torch.equal(found["w_q"], weights["w_q"][: 8 * 512])
        assert torch.equal(found["w_o_b"], weights["w_o_b"][:, :128])
        assert torch.equal(found["sink"], weights["sink"][:8])


def test_a_v32_layer_is_read_with_its_absorbed_products(tmp_path):
    weights = make_weights(SMALL_V3, LayerKind.DSA, seed=5)
    both = torch.cat((weights["w_uk"], weights["w_uv"].transpose(1, 2)), dim=1)
    rank = SMALL_V3.q_lora_rank
    named = {
        "q_a_proj.weight": weights["w_qkv"][:rank], "kv_a_proj_with_mqa.weight": weights["w_qkv"][rank:],
        "q_a_layernorm.weight": weights["q_norm_weight"], "kv_a_layernorm.weight": weights["kv_norm_weight"],
        "q_b_proj.weight": weights["w_q"], "kv_b_proj.weight": both.flatten(0, 1), "o_proj.weight": weights["w_o_b"],
        "indexer.wk.weight": weights["w_indexer_k"], "indexer.wq_b.weight": weights["w_indexer_q"],
        "indexer.k_norm.weight": weights["indexer_norm_weight"], "indexer.k_norm.bias": weights["indexer_norm_bias"],
        "indexer.weights_proj.weight": weights["w_indexer_weights"],
    }  # fmt: skip
    save(tmp_path, named, "model.layers.3.self_attn.")
    assert same(load_weights(tmp_path, 3, SMALL_V3, LayerKind.DSA), weights)


@pytest.mark.parametrize("kind", list(LayerKind))
def test_eager_and_reference_agree_over_a_whole_layer_of_fp8_weights(kind):
    shape = SMALL_V3 if kind is LayerKind.DSA else SMALL
    workload = Workload("decode", 2, 200, 1, "all")
    weights = make_weights(shape, kind, precision="fp8")
    results = []
    for name in ("eager", "reference"):
        layer = prepare(shape, kind, CachePrecision(), [workload], weights=weights)
        values = layer.draw(workload, 1)
        run_layer(STAGES[kind], dict.fromkeys((stage.name for stage in STAGES[kind]), load_provider(name)), values)
        results.append(values["y"].float())
    assert float((results[0] - results[1]).norm() / results[1].norm()) < 0.05


def test_what_is_missing_is_named(tmp_path):
    kind = LayerKind.C128A
    with pytest.raises(UserError, match="is not a directory"):
        load_weights(tmp_path / "none", 0, SMALL, kind)
    with pytest.raises(UserError, match=r"holds no \.safetensors file"):
        load_weights(tmp_path, 0, SMALL, kind)
    save(tmp_path, published(make_weights(SMALL, LayerKind.SWA), LayerKind.SWA), "layers.0.attn.")
    with pytest.raises(UserError, match="holds no attention weights of layer 4"):
        load_weights(tmp_path, 4, SMALL, LayerKind.SWA)
    with pytest.raises(UserError, match=r"has no layers.0.attn.compressor.wkv.weight or .* of another kind"):
        load_weights(tmp_path, 0, SMALL, kind)
    with pytest.raises(UserError, match=r"w_q is \[8192, 128\], v4-flash has \[32768, 128\]"):
        load_weights(tmp_path, 0, replace(SMALL, num_heads=64), LayerKind.SWA)


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match=r"model.safetensors can't be read"):
        load_weights(tmp_path, 0, SMALL, LayerKind.SWA)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UserError, match="no readable weight_map"):
        load_weights(tmp_path, 0, SMALL, LayerKind.SWA)
    values = torch.zeros(256, 256).to(torch.float8_e4m3fn)
    (tmp_path / "model.safetensors.index.json").unlink()
    save_file({"layers.0.attn.wq_a.weight": values}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"wq_a.weight is e4m3 but has no scale or weight_scale_inv beside it"):
        load_weights(tmp_path, 0, SMALL, LayerKind.SWA)
