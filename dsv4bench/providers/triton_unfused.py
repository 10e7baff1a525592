"""The stages that fusions cover, as a Triton kernel per step with the tensors between them in device memory.

What a fusion saves is told from what a fast kernel saves: ``eager`` is the naive baseline, this is the competent one.
"""

import triton
from dsv4_kernels import triton_unfused

from dsv4bench.model.shape import LayerKind
from dsv4bench.providers.base import SUPPORTED, Need, Support
from dsv4bench.providers.triton import without_gpu

MAIN_PRECISIONS = ("fp8", "bf16")
INDEXER_PRECISIONS = ("fp8", "fp4")


class TritonUnfusedProvider:
    """A kernel per step on NVIDIA GPUs; V4's fused stages only."""

    name = "triton-unfused"

    unavailable = staticmethod(without_gpu)

    def supports(self, need: Need) -> Support:
        """CUDA (or Triton's interpreter), V4 layers, fp8 or bf16 main caches, fp8 or fp4 indexer."""
        if need.device != "cuda" and not triton.knobs.runtime.interpret:
            return Support.no(f"provider {self.name} runs on cuda, not on {need.device}")
        if need.kind is LayerKind.DSA:
            return Support.no(f"provider {self.name} takes V4's fused stages apart; it has none of V3.2's")
        if need.main not in MAIN_PRECISIONS:
            return Support.no(
                f"provider {self.name} has no {need.main} main cache; it has {', '.join(MAIN_PRECISIONS)}"
            )
        if need.kind.has_indexer and need.indexer not in INDEXER_PRECISIONS:
            return Support.no(
                f"provider {self.name} has no {need.indexer} indexer; it has {', '.join(INDEXER_PRECISIONS)}"
            )
        return SUPPORTED


for _stage in triton_unfused.__all__:
    setattr(TritonUnfusedProvider, _stage, staticmethod(getattr(triton_unfused, _stage)))
