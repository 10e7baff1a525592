"""Our own kernels as a provider: one method per stage, a launcher of ``dsv4_kernels``, a projection or attention."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import triton

from dsv4bench.providers import triton_projection as projection
from dsv4bench.providers.base import SUPPORTED, Need, Support
from dsv4bench.providers.triton_attention import sparse_attention

LAUNCHERS = {
    "qkv_norm": "qkv_norm",
    "query_norm_rope_insert": "query_norm_rope_insert",
    "compressor_state_save": "compressor_state_save",
    "compress_norm_rope_insert": "compress_norm_rope_insert",
    "indexer_query_rope_quant": "indexer_query_rope_quant",
    "indexer_state_save": "compressor_state_save",
    "indexer_compress_insert": "compress_norm_rope_insert",
    "indexer_logits": "indexer_logits",
    "topk": "topk",
    "index_map": "index_map",
    "inverse_rope_quant": "inverse_rope_quant",
    "query_rope": "query_rope",
    "latent_insert": "latent_insert",
    "indexer_key_insert": "indexer_key_insert",
}
"""Stage → module of ``dsv4_kernels.triton`` that holds its launcher, a function named like the stage."""
MAIN_PRECISIONS = ("fp8", "bf16")
INDEXER_PRECISIONS = ("fp8", "fp4", "bf16")


def without_gpu() -> str:
    """Why Triton's kernels run nowhere on this machine, if so."""
    ready = torch.cuda.is_available() or triton.knobs.runtime.interpret
    return "" if ready else "torch sees no NVIDIA GPU here"


class TritonProvider:
    """Fused Triton kernels on NVIDIA GPUs, over fp8 and bf16 caches."""

    name = "triton"

    unavailable = staticmethod(without_gpu)

    def supports(self, need: Need) -> Support:
        """CUDA (or Triton's interpreter), bf16 activations, fp8 or bf16 caches, fp4 for the indexer."""
        if need.device != "cuda" and not triton.knobs.runtime.interpret:
            return Support.no(f"provider {self.name} runs on cuda, not on {need.device}")
        if need.main not in MAIN_PRECISIONS:
            return Support.no(
                f"provider {self.name} has no {need.main} main cache; it has {', '.join(MAIN_PRECISIONS)}"
            )
        if need.kind.has_indexer and need.indexer not in INDEXER_PRECISIONS:
            return Support.no(
                f"provider {self.name} has no {need.indexer} indexer; it has {', '.join(INDEXER_PRECISIONS)}"
            )
        return SUPPORTED

    input_projection = staticmethod(projection.project)
    query_projection = staticmethod(projection.query_projection)
    indexer_query_projection = staticmethod(projection.indexer_query_projection)
    output_group_projection = staticmethod(projection.output_group_projection)
    output_projection = staticmethod(projection.output_projection)
    sparse_attention = staticmethod(sparse_attention)


def _launcher(stage: str, module: str) -> Callable[..., Any]:
    launcher: Callable[..., Any] = getattr(import_module(f"dsv4_kernels.triton.{module}"), stage)
    return launcher


for _stage, _module in LAUNCHERS.items():
    setattr(TritonProvider, _stage, staticmethod(_launcher(_stage, _module)))
