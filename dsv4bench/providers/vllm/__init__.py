"""vLLM's own kernels, run over our caches: the same stages, the same bytes, the same checks.

vLLM needs no server and no configuration for this: its functions are called as its layers call them, with views of our
tensors. ``release`` says where each function is in which release, ``library`` imports them without a word, ``needs``
says what a stage needs, and the other modules translate, one group of stages each. What vLLM works out once per step
rather than per layer is kept by ``step`` and not timed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from dsv4bench.errors import UserError
from dsv4bench.providers.base import SUPPORTED, Need, Support
from dsv4bench.providers.vllm import attention, compressor, indexer, latent, projection, query, selection
from dsv4bench.providers.vllm.choice import VARIANTS
from dsv4bench.providers.vllm.library import ABSENT, Library, MissingError, is_installed, shared
from dsv4bench.providers.vllm.needs import case_problems, compressor_function, problems

PADDED = ("query_norm_rope_insert", "sparse_attention")
"""Stages that vLLM runs with padded query heads."""


class VllmProvider:
    """vLLM's kernels for every stage but products that are always bf16; a method per stage, as docs/stages.md has them.

    Attributes:
        name: ``vllm``, ``vllm:triton`` or ``vllm:cute``.
    """

    def __init__(self, variant: str = "", library: Library | None = None) -> None:
        """Bind the stages; nothing of vLLM is imported before one is asked for or called.

        Args:
            variant: ``triton`` or ``cute`` where vLLM has both; by default what it takes itself.
            library: to call instead of the installed vLLM.

        Raises:
            UserError: another variant.
        """
        if variant not in VARIANTS:
            known = ", ".join(f"vllm:{name}" for name in VARIANTS if name)
            raise UserError(f"provider vllm has no variant {variant!r}; known: vllm, {known}")
        self.name = f"vllm:{variant}" if variant else "vllm"
        self._variant, self._library = variant, library or shared()
        for name, run in self._stages().items():
            setattr(self, name, run)

    def unavailable(self) -> str:
        """Why nothing runs on this machine, as far as can be told without importing vLLM."""
        if not is_installed():
            return ABSENT
        return "" if torch.cuda.is_available() else "torch sees no NVIDIA GPU here"

    def supports(self, need: Need) -> Support:
        """CUDA with fp8 caches, where the installed vLLM has what the stages need."""
        reasons = list(case_problems(need))
        if not reasons:
            try:
                reasons = list(problems(self._library, need, self._variant))
            except MissingError as error:
                reasons = [str(error)]
        return Support.no("; ".join(reasons)) if reasons else SUPPORTED

    def run_heads(self, stage: str, num_heads: int) -> int:
        """Query heads that a stage computes for, padding included."""
        return query.padded_heads(num_heads) if stage in PADDED else num_heads

    def _stages(self) -> dict[str, Callable[..., Any]]:
        """Stage name → what runs it."""
        library, variant = self._library, self._variant
        save = partial(compressor.state_save, library)
        compress = partial(compressor.compress_insert, library)
        return {
            "qkv_norm": partial(query.qkv_norm, library),
            "query_norm_rope_insert": partial(query.query_norm_rope_insert, library),
            "compressor_state_save": save,
            "compress_norm_rope_insert": partial(compress, compressor_function(variant)),
            "indexer_query_rope_quant": partial(indexer.query_rope_quant, library, variant),
            "indexer_state_save": save,
            "indexer_compress_insert": partial(compress, "compress_triton"),
            "indexer_logits": partial(indexer.logits, library),
            "topk": partial(selection.topk, library),
            "index_map": partial(selection.index_map, library),
            "sparse_attention": partial(attention.sparse_attention, library, variant),
            "inverse_rope_quant": partial(query.inverse_rope_quant, library),
            "input_projection": partial(projection.project, library),
            "query_projection": partial(projection.query_projection, library),
            "indexer_query_projection": partial(projection.indexer_query_projection, library),
            "output_group_projection": partial(projection.output_group_projection, library),
            "output_projection": partial(projection.output_projection, library),
            "query_rope": partial(latent.query_rope, library),
            "latent_insert": partial(latent.latent_insert, library),
            "indexer_key_insert": partial(latent.index_key_insert, library),
        }
