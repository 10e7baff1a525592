"""The fused stages taken apart: one Triton kernel per step, intermediate tensors in device memory.

The competent baseline that a fusion has to beat. Each step reads and writes once, with the tiles, wide accesses and
launch options of the fused kernels; what it lacks is only the fusion. bf16 intermediates round once more per step, as
any unfused implementation's do; the compressor's stay fp32.
"""

from dsv4_kernels.triton_unfused.stages import (
    compress_norm_rope_insert,
    compressor_state_save,
    index_map,
    indexer_compress_insert,
    indexer_query_rope_quant,
    indexer_state_save,
    inverse_rope_quant,
    qkv_norm,
    query_norm_rope_insert,
)

__all__ = [
    "compress_norm_rope_insert",
    "compressor_state_save",
    "index_map",
    "indexer_compress_insert",
    "indexer_query_rope_quant",
    "indexer_state_save",
    "inverse_rope_quant",
    "qkv_norm",
    "query_norm_rope_insert",
]
