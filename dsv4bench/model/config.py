"""Reading a Hugging Face ``config.json`` into a `ModelShape`, so that no model has to be known in advance.

Three spellings of a V4 model are read: ``compress_ratios`` (the published checkpoints), ``layer_types`` with
``compress_rates`` (what transformers and vLLM 0.33 write), and for both the rotary parameters either flat
(``rope_theta``, ``compress_rope_theta``, ``rope_scaling``) or nested (``rope_parameters``). ``deepseek_v32`` is read by
its own fields.
"""

import json
import sys
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dsv4_kernels.formats import HEAD_DIM, INDEX_DIM, ROPE_DIM

from dsv4bench.errors import UserError
from dsv4bench.model.shape import KIND_OF_RATIO, PRESETS, LayerKind, ModelShape, Rope

LAYER_TYPES = {
    "sliding_attention": LayerKind.SWA,
    "compressed_sparse_attention": LayerKind.C4A,
    "heavily_compressed_attention": LayerKind.C128A,
}
"""Layer kind by transformers' ``layer_types`` value."""

MODEL_TYPES = ("deepseek_v4", "deepseek_v32")
"""The ``model_type`` values that can be read."""

MOST = 2**24
"""Dimensions and counts above this are taken for mistakes: no model comes near it."""
MOST_OF = {
    "num_hidden_layers": 2**12, "num_nextn_predict_layers": 2**12,
    "max_position_embeddings": 2**40, "original_max_position_embeddings": 2**40,
}  # fmt: skip
"""The same for fields whose values are of another order."""


def load_shape(name_or_path: str) -> ModelShape:
    """The shape of a preset, or of the ``config.json`` at a path (the file or the folder that holds it).

    Where there is no such path, a published name is a preset's too: ``deepseek-ai/DeepSeek-V4-Flash``, ``V4-Flash``.

    Raises:
        UserError: neither a preset nor a readable config, or a field of it is missing or impossible.
    """
    if name_or_path in PRESETS:
        return PRESETS[name_or_path]
    path = Path(name_or_path)
    if name_or_path and path.is_dir():
        path = path / "config.json"
        if not path.exists():
            raise UserError(f"{name_or_path}: the folder has no config.json")
    if not path.is_file():
        if path.suffix == ".json":
            raise UserError(f"{name_or_path}: no such file; name a config.json, or one of {', '.join(PRESETS)}")
        published = name_or_path.rpartition("/")[2].lower().removeprefix("deepseek-")
        if published in PRESETS:
            return PRESETS[published]
        close = get_close_matches(published, PRESETS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        known = f"known models are {', '.join(PRESETS)}, or give the path of a config.json"
        raise UserError(f"unknown model {name_or_path!r}: {hint}{known}")
    return shape_from_config(_read_json(path), str(path))


def shape_from_config(config: dict[str, Any], where: str) -> ModelShape:
    """The shape a parsed ``config.json`` describes.

    Args:
        config: the parsed JSON object.
        where: its path; the name of the shape and the start of every error.

    Raises:
        UserError: a field is missing or impossible; the message names it.
    """
    fields = _Fields(config, where)
    model_type = fields.text("model_type")
    if model_type == "deepseek_v4":
        return _v4_shape(fields)
    if model_type == "deepseek_v32":
        return _v32_shape(fields)
    raise fields.error("model_type", f"is {model_type!r}; known are {', '.join(MODEL_TYPES)}")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not valid JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, a number of thousands of digits, or nested as deep
        raise UserError(f"{path}: cannot be read ({error})") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: a config.json is one JSON object, this is a {type(config).__name__}")
    return config


@dataclass(frozen=True)
class _Fields:
    """Typed access to a config's fields, whose errors name file and field."""

    config: dict[str, Any]
    where: str
    prefix: str = ""

    def error(self, name: str, problem: str) -> UserError:
        return UserError(f"{self.where}: {self.prefix}{name} {problem}")

    def has(self, name: str) -> bool:
        return self.config.get(name) is not None

    def get(self, name: str) -> Any:
        if not self.has(name):
            raise self.error(name, "is missing")
        return self.config[name]

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            raise self.error(name, f"must be a string, got {value!r}")
        return value

    def integer(self, name: str, *, least: int = 1, default: int | None = None) -> int:
        value = default if default is not None and not self.has(name) else self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(name, f"must be an integer of at least {least}, got {value!r}")
        most = MOST_OF.get(name, MOST)
        if value > most:
            raise self.error(name, f"must be an integer of at most {most:,}, got {value:,}")
        return value

    def exactly(self, name: str, expected: int) -> int:
        value = self.integer(name)
        if value != expected:
            raise self.error(name, f"must be {expected}, the size the cache formats are made for, got {value}")
        return value

    def number(self, name: str, *, default: float | None = None) -> float:
        value = default if default is not None and not self.has(name) else self.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
            raise self.error(name, f"must be a number above 0, got {value!r}")
        return float(value)

    def items(self, name: str) -> list[Any]:
        value = self.get(name)
        if not isinstance(value, list):
            raise self.error(name, f"must be a list, got {value!r}")
        return value

    def inner(self, name: str) -> "_Fields":
        value = self.get(name)
        if not isinstance(value, dict):
            raise self.error(name, f"must be an object, got {value!r}")
        return _Fields(value, self.where, f"{self.prefix}{name}.")


# --- V4 --------------------------------------------------------------------------------------------------------------
def _v4_shape(fields: _Fields) -> ModelShape:
    heads, groups = fields.integer("num_attention_heads"), fields.integer("o_groups")
    if heads % groups:
        raise fields.error("o_groups", f"must divide num_attention_heads ({heads}), got {groups}")
    if fields.integer("num_key_value_heads", default=1) != 1:
        raise fields.error("num_key_value_heads", f"must be 1, got {fields.config['num_key_value_heads']}")
    _check_rope_dim(fields)
    layers, mtp_layers = _v4_layers(fields)
    window_rope, compressed_rope = _v4_ropes(fields)
    return ModelShape(
        name=fields.where, family="v4", hidden_size=fields.integer("hidden_size"), num_heads=heads,
        head_dim=fields.exactly("head_dim", HEAD_DIM), rope_dim=ROPE_DIM, q_lora_rank=fields.integer("q_lora_rank"),
        kv_dim=HEAD_DIM, value_dim=HEAD_DIM, v_head_dim=0, o_groups=groups, o_lora_rank=fields.integer("o_lora_rank"),
        index_heads=fields.integer("index_n_heads"), index_dim=fields.exactly("index_head_dim", INDEX_DIM),
        index_topk=fields.integer("index_topk"), sliding_window=fields.integer("sliding_window"),
        max_positions=fields.integer("max_position_embeddings"), rms_norm_eps=fields.number("rms_norm_eps"),
        window_rope=window_rope, compressed_rope=compressed_rope, layers=layers, mtp_layers=mtp_layers,
    )  # fmt: skip


def _check_rope_dim(fields: _Fields) -> None:
    """Rotated dims come as ``qk_rope_head_dim``, or as the fraction of the head that transformers writes."""
    if fields.has("qk_rope_head_dim") or not fields.has("partial_rotary_factor"):
        fields.exactly("qk_rope_head_dim", ROPE_DIM)
        return
    factor = fields.number("partial_rotary_factor")
    if factor * HEAD_DIM != ROPE_DIM:
        raise fields.error("partial_rotary_factor", f"must be {ROPE_DIM}/{HEAD_DIM} = 0.125, got {factor}")


def _v4_layers(fields: _Fields) -> tuple[tuple[LayerKind, ...], tuple[LayerKind, ...]]:
    count = fields.integer("num_hidden_layers")
    if fields.has("compress_ratios"):
        name, kinds = "compress_ratios", _kinds_of_ratios(fields)
    elif fields.has("layer_types") and fields.has("compress_rates"):
        name, kinds = "layer_types", _kinds_of_types(fields)
    else:
        raise fields.error(
            "compress_ratios",
            "is missing, and so are layer_types with compress_rates: one of them must list the layers",
        )
    trailing = len(kinds) - count
    mtp = fields.integer("num_nextn_predict_layers", least=0, default=max(trailing, 0))
    if not 0 <= trailing <= max(mtp, 1):
        raise fields.error(
            name, f"has {len(kinds)} entries; num_hidden_layers is {count} and num_nextn_predict_layers {mtp}"
        )
    mtp_kinds = kinds[count : count + mtp]
    return kinds[:count], mtp_kinds + (LayerKind.SWA,) * (mtp - len(mtp_kinds))


def _kinds_of_ratios(fields: _Fields) -> tuple[LayerKind, ...]:
    kinds = []
    for index, ratio in enumerate(fields.items("compress_ratios")):
        if isinstance(ratio, bool) or not isinstance(ratio, int) or ratio not in KIND_OF_RATIO:
            raise fields.error(f"compress_ratios[{index}]", f"must be 0, 1, 4 or 128, got {ratio!r}")
        kinds.append(KIND_OF_RATIO[ratio])
    return tuple(kinds)


def _kinds_of_types(fields: _Fields) -> tuple[LayerKind, ...]:
    rates = fields.inner("compress_rates")
    kinds = []
    for index, layer_type in enumerate(fields.items("layer_types")):
        kind = LAYER_TYPES.get(layer_type) if isinstance(layer_type, str) else None
        if kind is None:
            raise fields.error(f"layer_types[{index}]", f"must be one of {', '.join(LAYER_TYPES)}, got {layer_type!r}")
        if kind.compresses and rates.integer(layer_type) != kind.ratio:
            raise rates.error(layer_type, f"must be {kind.ratio}, got {rates.config[layer_type]}")
        kinds.append(kind)
    return tuple(kinds)


def _v4_ropes(fields: _Fields) -> tuple[Rope, Rope]:
    """The table of swa layers (plain) and that of compressed layers (YaRN, whose magnitude V4 does not use)."""
    nested = fields.inner("rope_parameters") if fields.has("rope_parameters") else None
    if nested and nested.has("main") and nested.has("compress"):
        main, compress = nested.inner("main"), nested.inner("compress")
        return Rope(main.number("rope_theta")), _yarn(compress, compress.number("rope_theta"))
    scaling = nested or (fields.inner("rope_scaling") if fields.has("rope_scaling") else None)
    theta = fields.number("compress_rope_theta")
    return Rope(_flat_theta(fields, nested)), _yarn(scaling, theta) if scaling else Rope(theta)


# --- V3.2 ------------------------------------------------------------------------------------------------------------
def _v32_shape(fields: _Fields) -> ModelShape:
    nope = fields.integer("qk_nope_head_dim")
    rope_dim = fields.exactly("qk_rope_head_dim", ROPE_DIM)
    latent = fields.exactly("kv_lora_rank", HEAD_DIM)
    rope = _v32_rope(fields)
    return ModelShape(
        name=fields.where, family="v3.2", hidden_size=fields.integer("hidden_size"),
        num_heads=fields.integer("num_attention_heads"), head_dim=nope + rope_dim, rope_dim=rope_dim,
        q_lora_rank=fields.integer("q_lora_rank"), kv_dim=latent + rope_dim, value_dim=latent,
        v_head_dim=fields.integer("v_head_dim"), o_groups=0, o_lora_rank=0,
        index_heads=fields.integer("index_n_heads"), index_dim=fields.exactly("index_head_dim", INDEX_DIM),
        index_topk=fields.integer("index_topk"), sliding_window=0,
        max_positions=fields.integer("max_position_embeddings"), rms_norm_eps=fields.number("rms_norm_eps"),
        window_rope=rope, compressed_rope=rope, layers=(LayerKind.DSA,) * fields.integer("num_hidden_layers"),
        mtp_layers=(LayerKind.DSA,) * fields.integer("num_nextn_predict_layers", least=0, default=0),
    )  # fmt: skip


def _v32_rope(fields: _Fields) -> Rope:
    nested = fields.inner("rope_parameters") if fields.has("rope_parameters") else None
    scaling = nested or (fields.inner("rope_scaling") if fields.has("rope_scaling") else None)
    theta = _flat_theta(fields, nested)
    if scaling is None:
        return Rope(theta)
    magnitude = "mscale_all_dim" if scaling.has("mscale_all_dim") else "mscale"
    return _yarn(scaling, theta, mscale=scaling.number(magnitude, default=1.0))


def _flat_theta(fields: _Fields, nested: _Fields | None) -> float:
    """``rope_theta`` beside the other fields, or inside ``rope_parameters`` where transformers moves it."""
    return nested.number("rope_theta") if nested and nested.has("rope_theta") else fields.number("rope_theta")


def _yarn(scaling: _Fields, theta: float, *, mscale: float = 0.0) -> Rope:
    kind = scaling.text("rope_type" if scaling.has("rope_type") else "type")
    if kind == "default":
        return Rope(theta)
    if kind != "yarn":
        raise scaling.error("rope_type", f"must be yarn or default, got {kind!r}")
    return Rope(
        theta=theta,
        factor=scaling.number("factor"),
        original_positions=scaling.integer("original_max_position_embeddings"),
        beta_fast=scaling.number("beta_fast", default=32.0),
        beta_slow=scaling.number("beta_slow", default=1.0),
        mscale=mscale,
    )
