"""Which functions and parts of vLLM each stage needs, and why a case can't be run where something is missing."""

from collections.abc import Callable, Iterator

import torch

from dsv4bench.model.shape import LayerKind
from dsv4bench.providers.base import Need
from dsv4bench.providers.vllm.library import Library, MissingError, describe
from dsv4bench.providers.vllm.query import FLASHMLA_HEADS
from dsv4bench.providers.vllm.release import V026

PRODUCTS = (
    "input_projection", "query_projection", "indexer_query_projection", "output_group_projection", "output_projection",
)  # fmt: skip
"""Products that DeepGEMM computes where the weights are fp8, and torch where they are not."""

FUNCTIONS: dict[str, tuple[str, ...]] = {
    "qkv_norm": ("qkv_norm",),
    "query_norm_rope_insert": ("query_norm_rope_insert",),
    "compressor_state_save": ("state_save",),
    "indexer_state_save": ("state_save",),
    "compress_norm_rope_insert": (),
    "indexer_compress_insert": ("compress_triton",),
    "indexer_query_rope_quant": (),
    "indexer_logits": ("paged_schedule", "paged_logits", "ragged_logits", "gather_index_keys"),
    "topk": ("cooperative_topk", "persistent_topk", "row_topk_decode", "row_topk_prefill"),
    "index_map": (),
    "sparse_attention": ("sparse_decode", "decode_plan"),
    "inverse_rope_quant": ("inverse_rope_quant",),
    **dict.fromkeys(PRODUCTS, ()),
    "query_rope": ("latent_query", "concat_query"),
    "latent_insert": ("latent_query", "latent_insert"),
    "indexer_key_insert": ("index_key_insert",),
}
"""Functions (``release.FORMS``) that a stage always needs."""

PARTS: dict[str, tuple[str, ...]] = {"indexer_logits": ("DeepGEMM",), "sparse_attention": ("FlashMLA",)}
"""Parts of vLLM that may be missing although its functions are there."""

MX_STAGES = ("indexer_query_rope_quant", "indexer_compress_insert", "indexer_key_insert", "indexer_logits")
"""Stages whose bytes changed after 0.26 on compute capability 10.0."""


def functions_of(stage: str, kind: LayerKind, variant: str, phase: str, weights: str = "bf16") -> tuple[str, ...]:
    """Functions of vLLM that a stage needs in a case."""
    latent = kind is LayerKind.DSA
    if stage in PRODUCTS and weights == "fp8":
        return ("fp8_einsum",) if stage == "output_group_projection" else ("quantise_activations", "fp8_product")
    if stage == "compress_norm_rope_insert":
        return (compressor_function(variant),)
    if stage == "indexer_query_rope_quant":
        return ("latent_indexer_query",) if latent else ("indexer_query",)
    if stage == "index_map":
        return ("latent_global_topk",) if latent else ("global_topk",)
    if stage == "sparse_attention" and phase == "prefill":
        return ("sparse_prefill", "gather_entries", "combine_indices")
    return FUNCTIONS[stage]


def compressor_function(variant: str) -> str:
    """The function that compresses main entries: on CUDA vLLM always takes the CuTe DSL."""
    return "compress_triton" if variant == "triton" else "compress_cute"


def problems(library: Library, need: Need, variant: str) -> Iterator[str]:
    """What the installed vLLM, or this card, lacks for a case that it could run in principle.

    Raises:
        MissingError: there is no vLLM at all.
    """
    version = library.version
    major, minor = capability()
    if major not in (9, 10):
        yield f"vLLM's kernels for these models need compute capability 9.0 or 10.0, this card has {major}.{minor}"
        return
    if major == 10 and library.release != V026 and (changed := sorted(set(need.stages) & set(MX_STAGES))):
        yield f"vLLM {version} has other indexer scales on this card than our cache: {', '.join(changed)}"
    if major == 10 and need.weights == "fp8" and (products := sorted(set(need.stages) & set(PRODUCTS))):
        yield f"the adapter covers vLLM's fp8 products on compute capability 9.0 only: {', '.join(products)}"
    for stage in need.stages:
        if stage not in FUNCTIONS:
            continue
        reasons = dict.fromkeys(_missing(library, stage, need, variant))
        if reasons:
            yield f"{stage}: {'; '.join(reasons)}"


def capability() -> tuple[int, int]:
    """Compute capability of the present card; 0.0 without one."""
    return torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)


def case_problems(need: Need) -> Iterator[str]:
    """Why vLLM can't run a case whatever is installed, a sentence each; nothing if it can."""
    if need.device != "cuda":
        yield f"vLLM's kernels run on cuda, not on {need.device}"
    if need.main != "fp8":
        yield f"vLLM's FlashMLA caches are fp8, not {need.main}"
    if need.kind.has_indexer and need.indexer != "fp8":
        yield f"the adapter covers vLLM's fp8 indexer cache, not {need.indexer}"
    if need.num_heads > max(FLASHMLA_HEADS):
        yield f"FlashMLA takes up to {max(FLASHMLA_HEADS)} query heads, not {need.num_heads}"
    if need.kind is LayerKind.DSA and need.phase == "prefill" and "sparse_attention" in need.stages:
        yield "the adapter covers V3.2's FlashMLA decode, not its prefill"


def _missing(library: Library, stage: str, need: Need, variant: str) -> Iterator[str]:
    for name in functions_of(stage, need.kind, variant, need.phase, need.weights):
        try:
            library.function(name)
        except MissingError as error:
            yield str(error)
    wanted = PARTS.get(stage, ())
    if stage in PRODUCTS and need.weights == "fp8":
        wanted = ("DeepGEMM",)
    if variant == "cute" and stage in ("compress_norm_rope_insert", "indexer_query_rope_quant"):
        wanted = (*wanted, "the CuTe DSL")
    for part in wanted:
        reason = library.part(part, _CHECKS[part])
        if reason:
            yield f"{part} of vLLM {library.version} is missing: {reason}"


def _deep_gemm(library: Library) -> str:
    module = library.module("vllm.utils.deep_gemm")
    module.get_num_sms()  # raises unless DeepGEMM can be imported and starts
    return ""


def _flashmla(library: Library) -> str:
    supported, reason = library.module("vllm.v1.attention.ops.flashmla").is_flashmla_sparse_supported()
    return "" if supported else str(reason)


def _cute(library: Library) -> str:
    if not library.module("vllm.utils.import_utils").has_cutedsl():
        return "no package cutlass"
    library.module("vllm.models.deepseek_v4.nvidia.ops.fused_indexer_q_cutedsl")
    return ""


def guarded(check: Callable[[Library], str]) -> Callable[[Library], str]:
    """A check that returns what it raises."""

    def run(library: Library) -> str:
        try:
            return check(library)
        except Exception as error:  # vLLM's optional parts fail in their own ways
            return describe(error)

    return run


_CHECKS = {"DeepGEMM": guarded(_deep_gemm), "FlashMLA": guarded(_flashmla), "the CuTe DSL": guarded(_cute)}
