"""The stages of an attention layer: names, what each reads and writes, in execution order.

The tensor names here are the vocabulary that providers, the stack, schedules and profiles share. A stage is a
method of a provider: its parameters are ``Stage.inputs``' keys and its result is ``Stage.outputs`` (one tensor, or
a tuple in that order). Tensors in ``Stage.updates`` are caches that it writes in place.
"""

from dataclasses import dataclass

from dsv4bench.model.shape import LayerKind


@dataclass(frozen=True)
class Stage:
    """One named step of a layer.

    Attributes:
        name: stage name, also the provider's method name.
        inputs: parameter name → tensor name, in the order of the method's (keyword) parameters.
        outputs: names of the tensors it returns.
        updates: names of the caches it writes in place; always among the inputs' tensors.
    """

    name: str
    inputs: dict[str, str]
    outputs: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()

    @property
    def reads(self) -> frozenset[str]:
        """Tensor names it reads (caches that it only appends to are read as well)."""
        return frozenset(self.inputs.values())

    @property
    def writes(self) -> frozenset[str]:
        """Tensor names it produces or changes."""
        return frozenset(self.outputs) | frozenset(self.updates)


def _stage(name: str, inputs: str, outputs: str = "", updates: str = "") -> Stage:
    """Build a stage from words; ``parameter=tensor`` renames, a bare word is both."""
    pairs = (word.partition("=") for word in inputs.split())
    return Stage(name, {key: tensor or key for key, _, tensor in pairs}, tuple(outputs.split()), tuple(updates.split()))


# V4 ------------------------------------------------------------------------------------------------------------------
_INPUT_PROJECTION = _stage("input_projection", "x weight=w_qkv", "qkv_latent")
_COMPRESSOR_PROJECTION = _stage("compressor_projection", "x weight=w_compressor", "compressor_kv_score")
_INDEXER_WEIGHTS_PROJECTION = _stage("indexer_weights_projection", "x weight=w_indexer_weights", "indexer_head_weights")
_INDEXER_COMPRESSOR_PROJECTION = _stage(
    "indexer_compressor_projection", "x weight=w_indexer_compressor", "indexer_kv_score"
)
_QKV_NORM = _stage("qkv_norm", "qkv_latent q_norm_weight kv_norm_weight eps", "q_latent kv")
_QUERY_PROJECTION = _stage("query_projection", "q_latent weight=w_q head_dim", "q")
_QUERY_NORM_ROPE_INSERT = _stage(
    "query_norm_rope_insert", "q kv positions cos_sin window_cache window_slots eps", "q_rotated", "window_cache"
)
_COMPRESSOR_STATE_SAVE = _stage(
    "compressor_state_save",
    "kv_score=compressor_kv_score ape=compressor_ape positions state_cache=compressor_state state_slots",
    updates="compressor_state",
)
_COMPRESS_NORM_ROPE_INSERT = _stage(
    "compress_norm_rope_insert",
    "state_cache=compressor_state state_block_table token_to_request positions compressed_slots "
    "norm_weight=compressor_norm_weight cos_sin cache=compressed_cache ratio eps",
    updates="compressed_cache",
)
_INDEXER_QUERY_PROJECTION = _stage("indexer_query_projection", "q_latent weight=w_indexer_q", "index_q")
_INDEXER_QUERY_ROPE_QUANT = _stage(
    "indexer_query_rope_quant",
    "index_q head_weights=indexer_head_weights positions cos_sin precision=indexer_precision rope_style",
    "index_q_values index_q_scales index_weights",
)
_INDEXER_STATE_SAVE = _stage(
    "indexer_state_save",
    "kv_score=indexer_kv_score ape=indexer_ape positions state_cache=indexer_state state_slots",
    updates="indexer_state",
)
_INDEXER_COMPRESS_INSERT = _stage(
    "indexer_compress_insert",
    "state_cache=indexer_state state_block_table token_to_request positions compressed_slots "
    "norm_weight=indexer_norm_weight cos_sin cache=indexer_cache ratio eps",
    updates="indexer_cache",
)
_INDEXER_LOGITS = _stage(
    "indexer_logits",
    "index_q_values index_q_scales index_weights indexer_cache block_table token_to_request candidate_lens "
    "max_candidates",
    "logits",
)
_TOPK = _stage("topk", "logits candidate_lens k=index_topk", "topk_indices")
_INDEX_MAP = _stage(
    "index_map", "topk_indices token_to_request block_table entries=compressed_entries",
    "compressed_indices compressed_lens",
)  # fmt: skip
_SPARSE_ATTENTION = _stage(
    "sparse_attention",
    "q=q_rotated window_cache window_indices window_lens compressed_cache compressed_indices compressed_lens "
    "sink softmax_scale",
    "attention_out lse",
)
_INVERSE_ROPE_QUANT = _stage(
    "inverse_rope_quant", "o=attention_out positions cos_sin groups=o_groups precision=o_precision", "o_values o_scales"
)
_OUTPUT_GROUP_PROJECTION = _stage("output_group_projection", "o_values o_scales weight=w_o_a", "o_latent")
_OUTPUT_PROJECTION = _stage("output_projection", "o=o_latent weight=w_o_b", "y")

# V3.2 ----------------------------------------------------------------------------------------------------------------
_INDEXER_KEY_PROJECTION = _stage("indexer_key_projection", "x weight=w_indexer_k", "index_k")
_QUERY_ABSORB = _stage("query_absorb", "q weight=w_uk", "q_absorbed")
_QUERY_ROPE = _stage("query_rope", "q q_absorbed positions cos_sin", "q_rotated")
_LATENT_INSERT = _stage(
    "latent_insert", "kv qkv_latent positions cos_sin cache=compressed_cache slots=compressed_slots",
    updates="compressed_cache",
)  # fmt: skip
_INDEXER_KEY_INSERT = _stage(
    "indexer_key_insert",
    "index_k norm_weight=indexer_norm_weight norm_bias=indexer_norm_bias positions cos_sin cache=indexer_cache "
    "slots=compressed_slots eps",
    updates="indexer_cache",
)
_VALUE_UP_PROJECTION = _stage("value_up_projection", "o=attention_out weight=w_uv", "o_latent")

_INDEXER_TAIL = (_INDEXER_LOGITS, _TOPK, _INDEX_MAP)
_OUTPUT = (_INVERSE_ROPE_QUANT, _OUTPUT_GROUP_PROJECTION, _OUTPUT_PROJECTION)

STAGES: dict[LayerKind, tuple[Stage, ...]] = {
    LayerKind.SWA: (
        _INPUT_PROJECTION, _QKV_NORM, _QUERY_PROJECTION, _QUERY_NORM_ROPE_INSERT, _SPARSE_ATTENTION, *_OUTPUT,
    ),
    LayerKind.C128A: (
        _INPUT_PROJECTION, _COMPRESSOR_PROJECTION, _QKV_NORM, _QUERY_PROJECTION, _QUERY_NORM_ROPE_INSERT,
        _COMPRESSOR_STATE_SAVE, _COMPRESS_NORM_ROPE_INSERT, _SPARSE_ATTENTION, *_OUTPUT,
    ),
    LayerKind.C4A: (
        _INPUT_PROJECTION, _COMPRESSOR_PROJECTION, _INDEXER_WEIGHTS_PROJECTION, _INDEXER_COMPRESSOR_PROJECTION,
        _QKV_NORM, _QUERY_PROJECTION, _QUERY_NORM_ROPE_INSERT, _COMPRESSOR_STATE_SAVE, _COMPRESS_NORM_ROPE_INSERT,
        _INDEXER_QUERY_PROJECTION, _INDEXER_QUERY_ROPE_QUANT, _INDEXER_STATE_SAVE, _INDEXER_COMPRESS_INSERT,
        *_INDEXER_TAIL, _SPARSE_ATTENTION, *_OUTPUT,
    ),
    LayerKind.DSA: (
        _INPUT_PROJECTION, _INDEXER_WEIGHTS_PROJECTION, _INDEXER_KEY_PROJECTION, _QKV_NORM, _QUERY_PROJECTION,
        _QUERY_ABSORB, _QUERY_ROPE, _LATENT_INSERT, _INDEXER_KEY_INSERT, _INDEXER_QUERY_PROJECTION,
        _INDEXER_QUERY_ROPE_QUANT, *_INDEXER_TAIL, _SPARSE_ATTENTION, _VALUE_UP_PROJECTION, _OUTPUT_PROJECTION,
    ),
}  # fmt: skip
"""The stages of each layer kind, in serial execution order."""

STAGE_NAMES: tuple[str, ...] = tuple(dict.fromkeys(stage.name for stages in STAGES.values() for stage in stages))
"""Every stage name once."""
