"""The semantics of every stage in plain torch: what kernels are compared with.

One function per stage, with the keyword parameters of ``docs/stages.md``. Everything is computed in fp32, or in float64
when the activations are float64, and rounded once on the way out, to the activations' dtype. Clarity and bounded memory
come before speed: long steps are cut into chunks, nothing is fused, and no kernel is used.
"""

from dsv4_kernels.reference.attention import inverse_rope_quant, sparse_attention
from dsv4_kernels.reference.compressor import (
    compress_norm_rope_insert,
    compressor_state_save,
    indexer_compress_insert,
    indexer_state_save,
)
from dsv4_kernels.reference.indexer import index_map, indexer_logits, indexer_query_rope_quant, topk
from dsv4_kernels.reference.latent import indexer_key_insert, latent_insert, query_rope
from dsv4_kernels.reference.norm import qkv_norm, query_norm_rope_insert
from dsv4_kernels.reference.projection import (
    compressor_projection,
    indexer_compressor_projection,
    indexer_key_projection,
    indexer_query_projection,
    indexer_weights_projection,
    input_projection,
    output_group_projection,
    output_projection,
    query_absorb,
    query_projection,
    value_up_projection,
)

__all__ = [
    "compress_norm_rope_insert",
    "compressor_projection",
    "compressor_state_save",
    "index_map",
    "indexer_compress_insert",
    "indexer_compressor_projection",
    "indexer_key_insert",
    "indexer_key_projection",
    "indexer_logits",
    "indexer_query_projection",
    "indexer_query_rope_quant",
    "indexer_state_save",
    "indexer_weights_projection",
    "input_projection",
    "inverse_rope_quant",
    "latent_insert",
    "output_group_projection",
    "output_projection",
    "qkv_norm",
    "query_absorb",
    "query_norm_rope_insert",
    "query_projection",
    "query_rope",
    "sparse_attention",
    "topk",
    "value_up_projection",
]
