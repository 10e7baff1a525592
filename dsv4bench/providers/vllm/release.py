"""What changed between vLLM releases at the functions that the stages call: one table, read by everything here.

The functions are internal to vLLM and move between releases. Each is listed once per form it had, with where it is and
the parameters we pass, as read in the releases named. A form's signature is checked before it is trusted, so a release
that nobody has read yet still runs whatever it kept.
"""

from dataclasses import dataclass

V026 = "0.26"
V033 = "0.33"
KNOWN = (V026, V033)
"""Releases whose sources the table was read from, oldest first."""
BOTH = KNOWN


@dataclass(frozen=True)
class Form:
    """Where a function is in some releases, and how it is called there.

    Attributes:
        target: ``module:attribute``, or ``torch.ops:library.operator``.
        takes: parameters that we pass by name (an operator's: in this order).
        releases: releases that have it in this form.
    """

    target: str
    takes: tuple[str, ...]
    releases: tuple[str, ...] = BOTH


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_OPS = "vllm.models.deepseek_v4.common.ops"
_CUTE = "vllm.models.deepseek_v4.nvidia.ops.sparse_attn_compress_cutedsl"
_DEEP_GEMM = "vllm.utils.deep_gemm"
_FLASHMLA = "vllm.v1.attention.ops.flashmla"
_CUSTOM = "vllm._custom_ops"

_COMPRESS = _names(
    "state_cache num_actual token_to_req_indices positions slot_mapping block_table block_size state_width "
    "cos_sin_cache kv_cache k_cache_metadata pdl_kwargs head_dim rope_head_dim compress_ratio overlap use_fp4_cache "
    "rms_norm_weight rms_norm_eps quant_block token_stride scale_dim"
)
_SAVE = _names("kv score ape positions state_cache slot_mapping block_size state_width compress_ratio pdl_kwargs")
_INDEXER_Q = _names(
    "positions index_q index_q_cos_sin_cache index_weights index_weights_softmax_scale index_weights_head_scale use_fp4"
)
_DECODE = _names(
    "q k_cache block_table cache_seqlens head_dim_v tile_scheduler_metadata softmax_scale is_fp8_kvcache indices "
    "attn_sink extra_k_cache extra_indices_in_kvcache topk_length extra_topk_length out"
)
_PAGED = ("q", "kv_cache", "weights", "context_lens", "block_tables", "schedule_metadata", "max_model_len")
_RAGGED = ("q", "kv", "weights", "cu_seqlen_ks", "cu_seqlen_ke")
_FUSED_Q = _names(
    "positions q_pe q_pe_cos_sin_cache index_q index_q_cos_sin_cache ql_nope q_scale index_weights "
    "index_weights_softmax_scale index_weights_head_scale has_indexer quantize_mqa"
)
_NORM_ROPE = _names(
    "positions q_c q_rms_norm_w q_rms_eps kv_c kv_rms_norm_w kv_rms_eps k_pe k_rope_cos_sin_cache index_k "
    "index_k_layer_norm_w index_k_layer_norm_bias index_k_layer_norm_eps index_k_rope_cos_sin_cache "
    "topk_indices_buffer slot_mapping indexer_k_cache has_indexer index_rope_interleave q_c_out"
)
_TOPK = ("logits", "lengths", "output", "workspace", "k", "max_seq_len")

FORMS: dict[str, tuple[Form, ...]] = {
    "qkv_norm": (
        Form(f"{_OPS}:fused_q_kv_rmsnorm", ("qr", "kv", "q_weight", "kv_weight", "eps"), (V026,)),
        Form(
            "vllm.models.common.ops.fused_qk_rmsnorm:fused_q_kv_rmsnorm",
            ("qr", "kv", "q_weight", "kv_weight", "eps"),
            (V033,),
        ),
    ),
    "query_norm_rope_insert": (
        Form(
            "torch.ops:_C.fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert",
            (
                "q_in", "kv", "k_cache", "slot_mapping", "position_ids", "cos_sin_cache", "q_head_padded", "eps",
                "cache_block_size",
            ),
        ),
    ),
    "state_save": (
        Form(f"{_OPS}.save_partial_states:save_partial_states", _SAVE, (V026,)),
        Form(f"{_OPS}.save_partial_states:_SAVE_PARTIAL_STATES_KERNEL", _SAVE, (V033,)),
    ),
    "compress_cute": (
        Form(f"{_CUTE}:compress_norm_rope_store_cutedsl", _COMPRESS, (V026,)),
        Form(f"{_CUTE}:_SPARSE_ATTN_COMPRESSOR_CUTEDSL_KERNEL", _COMPRESS, (V033,)),
    ),
    "compress_triton": (Form(f"{_OPS}.fused_compress_quant_cache:compress_norm_rope_store_triton", _COMPRESS),),
    "indexer_query": (Form(f"{_OPS}.fused_indexer_q:fused_indexer_q_rope_quant", _INDEXER_Q),),
    "paged_schedule": (
        Form(f"{_DEEP_GEMM}:get_paged_mqa_logits_metadata", ("context_lens", "block_size", "num_sms")),
    ),
    "paged_logits": (
        Form(f"{_DEEP_GEMM}:fp8_fp4_paged_mqa_logits", (*_PAGED, "clean_logits"), (V026,)),
        Form(f"{_DEEP_GEMM}:fp8_fp4_paged_mqa_logits", _PAGED, (V033,)),
    ),
    "ragged_logits": (
        Form(f"{_DEEP_GEMM}:fp8_fp4_mqa_logits", (*_RAGGED, "clean_logits"), (V026,)),
        Form(f"{_DEEP_GEMM}:fp8_fp4_mqa_logits", (*_RAGGED, "max_seqlen_k"), (V033,)),
    ),
    "gather_index_keys": (
        Form(
            f"{_CUSTOM}:cp_gather_indexer_k_quant_cache",
            ("kv_cache", "dst_k", "dst_scale", "block_table", "cu_seq_lens"),
        ),
    ),
    "cooperative_topk": (Form("torch.ops:_C.cooperative_topk", _TOPK),),
    "persistent_topk": (Form("torch.ops:_C.persistent_topk", _TOPK),),
    "row_topk_decode": (
        Form(
            f"{_CUSTOM}:top_k_per_row_decode",
            ("logits", "next_n", "seq_lens", "raw_topk_indices", "num_rows", "stride0", "stride1", "topk_tokens"),
        ),
    ),
    "row_topk_prefill": (
        Form(
            f"{_CUSTOM}:top_k_per_row_prefill",
            (
                "logits", "cu_seqlen_ks", "cu_seqlen_ke", "raw_topk_indices", "num_rows", "stride0", "stride1",
                "topk_tokens",
            ),
        ),
    ),
    "global_topk": (
        Form(
            f"{_OPS}:compute_global_topk_indices_and_lens",
            ("topk_indices", "token_to_req_indices", "block_table", "block_size", "is_valid_token"),
        ),
    ),
    "sparse_decode": (Form(f"{_FLASHMLA}:flash_mla_with_kvcache", _DECODE),),
    "decode_plan": (Form(f"{_FLASHMLA}:get_mla_metadata", ()),),
    "sparse_prefill": (
        Form(
            f"{_FLASHMLA}:flash_mla_sparse_fwd",
            ("q", "kv", "indices", "sm_scale", "attn_sink", "topk_length", "out"),
        ),
    ),
    "gather_entries": (
        Form(
            f"{_OPS}.cache_utils:dequantize_and_gather_k_cache",
            ("out", "k_cache", "seq_lens", "gather_lens", "block_table", "block_size", "offset"),
        ),
    ),
    "combine_indices": (
        Form(
            f"{_OPS}:combine_topk_swa_indices",
            (
                "topk_indices", "query_start_loc", "seq_lens", "gather_lens", "window_size", "compress_ratio", "topk",
                "M", "N",
            ),
        ),
    ),
    "inverse_rope_quant": (
        Form(
            f"{_OPS}:fused_inv_rope_fp8_quant",
            ("o", "positions", "cos_sin_cache", "n_groups", "heads_per_group", "tma_aligned_scales"),
        ),
    ),
    "quantise_activations": (
        Form(
            "vllm.model_executor.layers.quantization.utils.fp8_utils:per_token_group_quant_fp8",
            ("x", "group_size", "column_major_scales", "tma_aligned_scales", "use_ue8m0"),
        ),
    ),
    "fp8_product": (Form(f"{_DEEP_GEMM}:fp8_gemm_nt", ()),),
    "fp8_einsum": (Form(f"{_DEEP_GEMM}:fp8_einsum", ()),),
    "latent_query": (
        Form("vllm.models.deepseek_v32.nvidia.kernels:fused_q", _FUSED_Q, (V026,)),
        Form("vllm.models.deepseek_v32.common.kernels:fused_q", _FUSED_Q, (V033,)),
    ),
    "concat_query": (Form(f"{_CUSTOM}:concat_mla_q", ("ql_nope", "q_pe", "q_out")),),
    "latent_insert": (
        Form(
            f"{_CUSTOM}:concat_and_cache_mla",
            ("kv_c", "k_pe", "kv_cache", "slot_mapping", "kv_cache_dtype", "scale"),
        ),
    ),
    "index_key_insert": (
        Form("vllm.models.deepseek_v32.nvidia.kernels:fused_norm_rope", _NORM_ROPE, (V026,)),
        Form(
            "vllm.models.deepseek_v32.common.kernels:fused_norm_rope", (*_NORM_ROPE, "indexer_slot_mapping"), (V033,)
        ),
    ),
    "latent_indexer_query": (
        Form(
            "vllm.model_executor.layers.sparse_attn_indexer:fused_indexer_q_rope_quant",
            ("positions", "q", "cos_sin_cache", "weights", "softmax_scale", "head_scale", "is_neox"),
        ),
    ),
    "latent_global_topk": (
        Form(
            "vllm.v1.attention.backends.mla.sparse_utils:triton_convert_req_index_to_global_index",
            ("req_id", "block_table", "token_indices", "BLOCK_SIZE", "NUM_TOPK_TOKENS", "return_valid_counts"),
        ),
    ),
}  # fmt: skip
"""Every function of vLLM that a stage calls, in the forms it had, oldest first."""

COOPERATIVE_ROWS = {V026: 32, V033: 64}
"""Rows up to which a decode step takes the cooperative top-k."""
BOUND_BY_TOKENS = {V026: ("cooperative_topk",), V033: ("cooperative_topk", "persistent_topk")}
"""Selections that are told the longest sequence in tokens; the others are told the width of the logits."""
NATIVE_DRAFTS = {V026: (1, 2), V033: (1, 2, 4)}
"""Query tokens per request that paged logits take without one row per token, on compute capability 9.0."""


def release_of(version: str) -> str:
    """The known release that an installed version is of, or the empty string.

    Args:
        version: as in ``vllm.__version__``, for example ``0.26.0`` or ``0.33.1+cu130``.
    """
    parts = version.split("+")[0].split(".")
    minor = ".".join(parts[:2])
    return minor if minor in KNOWN else ""


def forms_for(name: str, release: str) -> tuple[Form, ...]:
    """Forms of a function to try: those of the release, or for an unknown one all of them, newest first."""
    forms = FORMS[name]
    if release:
        return tuple(form for form in forms if release in form.releases)
    return tuple(reversed(forms))
