"""Weights of one layer from a checkpoint's safetensors, by the names of DeepSeek's files or of transformers."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from dsv4_kernels.weight import BLOCK, Fp8Weight, Weight, dense, quantize_weight

from dsv4bench.errors import UserError
from dsv4bench.model.shape import LayerKind, ModelShape
from dsv4bench.stack.weights import FP8_WEIGHTS, SMALL_FP32, weight_shapes

PREFIXES = ("layers.{layer}.attn.", "model.layers.{layer}.self_attn.", "layers.{layer}.self_attn.")
"""How a layer's attention tensors begin: DeepSeek's V4 files, Hugging Face's, a bare transformers model."""
SCALES = ("scale", "weight_scale_inv")
"""What stands for ``weight`` in the name of an fp8 weight's block scales."""

_V4: dict[str, tuple[tuple[str, ...], ...]] = {
    "w_qkv": (("wq_a.weight", "q_a_proj.weight"), ("wkv.weight", "kv_proj.weight")),
    "q_norm_weight": (("q_norm.weight", "q_a_norm.weight"),),
    "kv_norm_weight": (("kv_norm.weight",),),
    "w_q": (("wq_b.weight", "q_b_proj.weight"),),
    "sink": (("attn_sink", "sinks"),),
    "w_o_a": (("wo_a.weight", "o_a_proj.weight"),),
    "w_o_b": (("wo_b.weight", "o_b_proj.weight"),),
    "w_compressor": (
        ("compressor.wkv.weight", "compressor.kv_proj.weight"),
        ("compressor.wgate.weight", "compressor.gate_proj.weight"),
    ),
    "compressor_ape": (("compressor.ape", "compressor.position_bias"),),
    "compressor_norm_weight": (("compressor.norm.weight", "compressor.kv_norm.weight"),),
    "w_indexer_compressor": (
        ("indexer.compressor.wkv.weight", "compressor.indexer.kv_proj.weight"),
        ("indexer.compressor.wgate.weight", "compressor.indexer.gate_proj.weight"),
    ),
    "indexer_ape": (("indexer.compressor.ape", "compressor.indexer.position_bias"),),
    "indexer_norm_weight": (("indexer.compressor.norm.weight", "compressor.indexer.kv_norm.weight"),),
    "w_indexer_q": (("indexer.wq_b.weight", "compressor.indexer.q_b_proj.weight"),),
    "w_indexer_weights": (
        (
            "indexer.weights_proj.weight",
            "compressor.indexer.scorer.weights_proj.weight",
            "compressor.indexer.weights_proj.weight",
        ),
    ),
}
_V3_2: dict[str, tuple[tuple[str, ...], ...]] = {
    "w_qkv": (("q_a_proj.weight",), ("kv_a_proj_with_mqa.weight",)),
    "q_norm_weight": (("q_a_layernorm.weight",),),
    "kv_norm_weight": (("kv_a_layernorm.weight",),),
    "w_q": (("q_b_proj.weight",),),
    "w_uk": (("kv_b_proj.weight",),),
    "w_uv": (("kv_b_proj.weight",),),
    "w_indexer_k": (("indexer.wk.weight",),),
    "indexer_norm_weight": (("indexer.k_norm.weight",),),
    "indexer_norm_bias": (("indexer.k_norm.bias",),),
    "w_indexer_q": (("indexer.wq_b.weight",),),
    "w_indexer_weights": (("indexer.weights_proj.weight",),),
    "w_o_b": (("o_proj.weight",),),
}
"""Tensor of the stage graph → its parts in order of rows, each under any of several names."""


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a directory by name, read one at a time."""

    directory: Path
    files: dict[str, Path]

    @classmethod
    def open(cls, directory: Path) -> "Checkpoint":
        """Find which file holds which tensor.

        Raises:
            UserError: no such directory, no safetensors in it, or an unreadable one.
        """
        if not directory.is_dir():
            raise UserError(f"weights: {directory} is not a directory")
        index = directory / "model.safetensors.index.json"
        if index.is_file():
            try:
                names = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"weights: {index} has no readable weight_map") from error
            return cls(directory, {name: directory / file for name, file in names.items()})
        files = sorted(directory.glob("*.safetensors"))
        if not files:
            raise UserError(f"weights: {directory} holds no .safetensors file")
        return cls(directory, {name: path for path in files for name in _with_file(path, lambda f: list(f.keys()))})

    def read(self, name: str) -> Weight:
        """A tensor; an e4m3 one together with its block scales.

        Raises:
            UserError: its file or its scales are missing, or unreadable.
        """
        values = self._tensor(name)
        if values.dtype != torch.float8_e4m3fn:
            return values
        stem = name.removesuffix("weight")
        found = next((stem + scale for scale in SCALES if stem + scale in self.files), None)
        if found is None:
            raise UserError(f"weights: {self.directory}: {name} is e4m3 but has no {' or '.join(SCALES)} beside it")
        try:
            return Fp8Weight(values, self._tensor(found).float())
        except ValueError as error:
            raise UserError(f"weights: {self.directory}: {name}: {error}") from error

    def _tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = _with_file(self.files[name], lambda file: file.get_tensor(name))
        return tensor


def load_weights(
    directory: Path,
    layer: int,
    shape: ModelShape,
    kind: LayerKind,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    precision: str = "bf16",
    tp: int = 1,
) -> dict[str, Weight]:
    """Weights of a layer by the tensor names of the stage graph, as ``make_weights`` gives random ones.

    Args:
        directory: holds the safetensors.
        layer: index of the layer in the model.
        shape: what they have to fit, of one rank.
        kind: kind of that layer.
        device: where they go.
        dtype: of bf16 weights and norms.
        precision: ``fp8`` keeps or makes block-scaled weights of the large projections, ``bf16`` dequantises them.
        tp: tensor-parallel size; the first rank's share is taken.

    Raises:
        UserError: a tensor is missing or doesn't fit; the message names it.
    """
    checkpoint = Checkpoint.open(directory)
    prefix = _prefix_of(checkpoint, layer)
    table = _V3_2 if kind is LayerKind.DSA else _V4
    weights: dict[str, Weight] = {}
    for name, dims in weight_shapes(shape, kind).items():
        parts = [checkpoint.read(_found(checkpoint, prefix, names)) for names in table[name]]
        weight = _arranged(name, _stacked(parts), shape, kind)
        if tp > 1:
            weight = _narrowed(weight, dims)
        if tuple(weight.shape) != dims:
            where = f"{directory}: layer {layer}"
            raise UserError(f"weights: {where}: {name} is {list(weight.shape)}, {shape.name} has {list(dims)}")
        weights[name] = _converted(name, weight, device, dtype, precision)
    return weights


def _with_file(path: Path, read: Callable[[Any], Any]) -> Any:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise UserError("weights from a checkpoint need the package safetensors; pip install safetensors") from error
    try:
        with safe_open(path, framework="pt") as file:
            return read(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"weights: {path} can't be read: {error}") from error


def _prefix_of(checkpoint: Checkpoint, layer: int) -> str:
    for prefix in (template.format(layer=layer) for template in PREFIXES):
        if any(name.startswith(prefix) for name in checkpoint.files):
            return prefix
    raise UserError(f"weights: {checkpoint.directory} holds no attention weights of layer {layer}")


def _found(checkpoint: Checkpoint, prefix: str, names: tuple[str, ...]) -> str:
    for name in names:
        if prefix + name in checkpoint.files:
            return prefix + name
    raise UserError(
        f"weights: {checkpoint.directory} has no {prefix}{' or '.join(names)}; is the layer of another kind?"
    )


def _stacked(parts: list[Weight]) -> Weight:
    """Parts one below the other; as fp8 where all are and block boundaries meet."""
    if len(parts) == 1:
        return parts[0]
    quantised = [part for part in parts if isinstance(part, Fp8Weight)]
    if len(quantised) == len(parts) and all(part.shape[0] % BLOCK == 0 for part in parts[:-1]):
        return Fp8Weight(torch.cat([part.values for part in quantised]), torch.cat([part.scales for part in quantised]))
    return torch.cat([dense(part, torch.bfloat16) if isinstance(part, Fp8Weight) else part for part in parts])


def _arranged(name: str, weight: Weight, shape: ModelShape, kind: LayerKind) -> Weight:
    """From a checkpoint's two dimensions to the stage's."""
    if name == "w_o_a":
        group, rank = weight.shape[-1], shape.o_lora_rank
        if isinstance(weight, Fp8Weight) and rank % BLOCK == 0:
            blocks = (-1, rank // BLOCK, group // BLOCK)
            return Fp8Weight(weight.values.view(-1, rank, group), weight.scales.view(blocks))
        return (weight if isinstance(weight, torch.Tensor) else dense(weight, torch.bfloat16)).view(-1, rank, group)
    if name in ("w_uk", "w_uv"):
        nope = shape.head_dim - shape.rope_dim
        heads = dense(weight, torch.bfloat16).view(-1, nope + shape.v_head_dim, shape.value_dim)
        return heads[:, :nope] if name == "w_uk" else heads[:, nope:].transpose(1, 2)
    return weight


def _narrowed(weight: Weight, dims: tuple[int, ...]) -> Weight:
    """The first rank's rows, groups or columns."""
    if isinstance(weight, Fp8Weight):
        blocks = (*dims[:-2], -(-dims[-2] // BLOCK), dims[-1] // BLOCK)
        return Fp8Weight(_first(weight.values, dims).contiguous(), _first(weight.scales, blocks).contiguous())
    return _first(weight, dims)


def _first(tensor: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    return tensor[tuple(slice(size) for size in dims)]


def _converted(name: str, weight: Weight, device: torch.device | str, dtype: torch.dtype, precision: str) -> Weight:
    if precision == "fp8" and name in FP8_WEIGHTS:
        if isinstance(weight, torch.Tensor):
            return quantize_weight(weight.to(device))
        return Fp8Weight(weight.values.to(device), weight.scales.to(device))
    kept = torch.float32 if name in SMALL_FP32 and dtype is not torch.float64 else dtype
    return dense(weight, kept).to(device).contiguous()
