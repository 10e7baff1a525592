import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4bench.errors import UserError
from dsv4bench.model.config import load_shape, shape_from_config
from dsv4bench.model.shape import PRESETS, V3_2, V4_FLASH, V4_PRO, LayerKind, ModelShape

CONFIGS = Path(__file__).parents[2] / "data" / "configs"


def read(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((CONFIGS / name).read_text())
    return config


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_loaded_by_name(name: str) -> None:
    assert load_shape(name) is PRESETS[name]


@pytest.mark.parametrize(
    ("name", "preset"),
    [("deepseek-ai/DeepSeek-V4-Flash", V4_FLASH), ("DeepSeek-V3.2", V3_2), ("V4-Pro", V4_PRO)],
)
def test_a_published_name_is_a_presets(name: str, preset: ModelShape) -> None:
    assert load_shape(name) is preset


def test_a_folder_goes_before_a_published_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "DeepSeek-V4-Flash").mkdir()
    (tmp_path / "DeepSeek-V4-Flash" / "config.json").write_text((CONFIGS / "v4_pro.json").read_text())
    assert load_shape("DeepSeek-V4-Flash").layers == V4_PRO.layers


@pytest.mark.parametrize(
    ("file", "preset"), [("v4_pro.json", V4_PRO), ("v4_flash.json", V4_FLASH), ("v3_2.json", V3_2)]
)
def test_a_published_config_reads_as_its_preset(file: str, preset: ModelShape) -> None:
    path = str(CONFIGS / file)
    assert load_shape(path) == replace(preset, name=path)


def test_a_folder_with_a_config_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((CONFIGS / "v4_flash.json").read_text())
    assert load_shape(str(tmp_path)).layers == V4_FLASH.layers


@pytest.mark.parametrize(("file", "preset"), [("v4_pro.json", V4_PRO), ("v4_flash.json", V4_FLASH)])
def test_a_v4_config_written_by_transformers_reads_as_its_preset(file: str, preset: ModelShape) -> None:
    configuration = pytest.importorskip("transformers.models.deepseek_v4")
    written = json.loads(configuration.DeepseekV4Config(**read(file)).to_json_string())
    assert "compress_ratios" not in written
    assert replace(shape_from_config(written, "x"), name=preset.name) == preset


def test_a_v32_config_written_by_transformers_reads_as_its_preset() -> None:
    configuration = pytest.importorskip("transformers.models.deepseek_v32")
    written = json.loads(configuration.DeepseekV32Config(**read("v3_2.json")).to_json_string())
    assert replace(shape_from_config(written, "x"), name="v3.2") == V3_2


def test_layers_beyond_num_hidden_layers_are_mtp_layers() -> None:
    config = read("v4_flash.json") | {"num_nextn_predict_layers": 3}
    config["compress_ratios"] += [4]
    shape = shape_from_config(config, "x")
    assert shape.layers == V4_FLASH.layers
    assert shape.mtp_layers == (LayerKind.SWA, LayerKind.C4A, LayerKind.SWA)


def test_ratio_1_is_a_window_layer_as_vllm_stores_it() -> None:
    config = read("v4_flash.json")
    config["compress_ratios"][:2] = [1, 1]
    assert shape_from_config(config, "x").layers == V4_FLASH.layers


V4_FIELDS = [
    "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "qk_rope_head_dim",
    "q_lora_rank", "o_lora_rank", "o_groups", "sliding_window", "compress_ratios", "index_n_heads", "index_head_dim",
    "index_topk", "max_position_embeddings", "rms_norm_eps", "rope_theta", "compress_rope_theta",
]  # fmt: skip
V32_FIELDS = [
    "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "q_lora_rank", "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_n_heads", "index_head_dim", "index_topk",
    "max_position_embeddings", "rms_norm_eps", "rope_theta",
]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "field"),
    [("v4_flash.json", field) for field in V4_FIELDS] + [("v3_2.json", field) for field in V32_FIELDS],
)
def test_a_missing_field_is_an_error_that_names_file_and_field(file: str, field: str) -> None:
    config = read(file)
    del config[field]
    with pytest.raises(UserError, match=rf"^some/config\.json: {field} is missing"):
        shape_from_config(config, "some/config.json")


def put(field: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config.update({field: value})


def put_in(outer: str, field: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda config: config[outer].__setitem__(field, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("model_type", "llama"), "model_type is 'llama'; known are deepseek_v4, deepseek_v32"),
        (put_in("compress_ratios", 7, 64), r"compress_ratios\[7\] must be 0, 1, 4 or 128, got 64"),
        (put_in("compress_ratios", 0, True), r"compress_ratios\[0\] must be 0, 1, 4 or 128, got True"),
        (put("compress_ratios", 4), "compress_ratios must be a list, got 4"),
        (put("num_hidden_layers", 40), "compress_ratios has 44 entries; num_hidden_layers is 40"),
        (put("num_hidden_layers", 45), "compress_ratios has 44 entries; num_hidden_layers is 45"),
        (put("head_dim", 256), "head_dim must be 512"),
        (put("qk_rope_head_dim", 32), "qk_rope_head_dim must be 64"),
        (put("index_head_dim", 64), "index_head_dim must be 128"),
        (put("o_groups", 7), r"o_groups must divide num_attention_heads \(64\), got 7"),
        (put("sliding_window", 0), "sliding_window must be an integer of at least 1, got 0"),
        (put("hidden_size", "4096"), "hidden_size must be an integer of at least 1, got '4096'"),
        (put("num_key_value_heads", 2), "num_key_value_heads must be 1, got 2"),
        (put("rms_norm_eps", 0), "rms_norm_eps must be a number above 0, got 0"),
        (put("rope_scaling", 3), "rope_scaling must be an object, got 3"),
        (put_in("rope_scaling", "type", "linear"), "rope_scaling.rope_type must be yarn or default, got 'linear'"),
        (put_in("rope_scaling", "factor", -1), "rope_scaling.factor must be a number above 0, got -1"),
    ],
)
def test_an_impossible_field_is_an_error_that_names_it(change: Callable[[dict[str, Any]], None], message: str) -> None:
    config = read("v4_flash.json")
    change(config)
    with pytest.raises(UserError, match=message):
        shape_from_config(config, "x")


def written_by_transformers(**changes: Any) -> dict[str, Any]:
    config = read("v4_flash.json")
    names = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    config["layer_types"] = [names[ratio] for ratio in config.pop("compress_ratios")[:-1]]
    config["compress_rates"] = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    return config | changes


def test_layer_types_with_compress_rates_list_the_layers() -> None:
    shape = shape_from_config(written_by_transformers(), "x")
    assert (shape.layers, shape.mtp_layers) == (V4_FLASH.layers, V4_FLASH.mtp_layers)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_rates": None}, "compress_ratios is missing, and so are layer_types with compress_rates"),
        (
            {"compress_rates": {"compressed_sparse_attention": 4}},
            "compress_rates.heavily_compressed_attention is missing",
        ),
        (
            {"compress_rates": {"compressed_sparse_attention": 8, "heavily_compressed_attention": 128}},
            "compress_rates.compressed_sparse_attention must be 4, got 8",
        ),
        ({"layer_types": ["full_attention"] * 43}, r"layer_types\[0\] must be one of sliding_attention, .* got 'full"),
    ],
)
def test_wrong_layer_types_or_rates_are_errors_that_name_them(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        shape_from_config(written_by_transformers(**changes), "x")


def test_an_unknown_model_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(
        UserError, match=r"unknown model 'v4-por': did you mean v4-pro\? known models are v4-pro, v4-fl"
    ):
        load_shape("v4-por")


def test_no_name_is_no_model_even_beside_a_config_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text((CONFIGS / "v4_flash.json").read_text())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="unknown model ''"):
        load_shape("")


def test_a_folder_without_a_config_json_is_said_to_lack_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r": the folder has no config\.json"):
        load_shape(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{\n 'a'", r"config\.json:2: not valid JSON"), ("[]", "is one JSON object, this is a list"), ("\xff", "JSON")],
)
def test_a_file_that_is_no_config_is_a_user_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_shape(str(path))
