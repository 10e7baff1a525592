"""The eager baseline: every stage as unfused, batched torch ops in the cache's own dtypes.

It stands for what a competent author writes before fusing anything: vectorised over tokens, entries gathered by slot,
dequantised, multiplied; no loop over tokens or requests, no host synchronisation (so a CUDA graph can capture it), and
temporaries bounded by ``workspace``. Fusions are measured against it. It shares no code with the reference in
``dsv4_kernels``: each checks the other.

Matrix products, measured on torch 2.13 (2 cores of a Xeon; median of 5 with oneDNN at AMX, AVX-512 and AVX2):

* Products with a weight stay in bf16 on every device. On a CPU, widening a 1536 × 32768 weight per call takes 55 ms and
  the product 4–15 ms; the bf16 product takes 4–18 ms for 1–4 tokens at all three instruction sets.
* Products of activations with cache entries accumulate *and return* fp32. CUDA has bf16 operands with an fp32 result;
  CPUs lack that, so there the operands are widened: 1 ms for 4 × [64 × 512] · [512 × 640], where bf16 operands take
  0.3 ms with AMX but 2.5 ms with AVX-512 and 5 ms with AVX2, and round every score to 8 bits.
"""

from dsv4bench.providers.base import SUPPORTED, Need, Support
from dsv4bench.providers.eager import attention, compressor, indexer, projection, query

MAIN_PRECISIONS = ("fp8", "bf16", "fp32")
INDEXER_PRECISIONS = ("fp8", "fp4", "bf16", "fp32")


class EagerProvider:
    """Unfused torch ops for all stages of V4 and V3.2, on CPU and CUDA."""

    name = "eager"

    def supports(self, need: Need) -> Support:
        """CPU and CUDA, every cache precision except fp64."""
        if need.device not in ("cpu", "cuda"):
            return Support.no(f"provider eager runs on cpu and cuda, not on {need.device}")
        if need.main not in MAIN_PRECISIONS:
            return Support.no(f"provider eager has no {need.main} main cache; it has {', '.join(MAIN_PRECISIONS)}")
        if need.kind.has_indexer and need.indexer not in INDEXER_PRECISIONS:
            return Support.no(f"provider eager has no {need.indexer} indexer; it has {', '.join(INDEXER_PRECISIONS)}")
        return SUPPORTED

    input_projection = staticmethod(projection.project)
    indexer_weights_projection = staticmethod(projection.project)
    indexer_key_projection = staticmethod(projection.project)
    compressor_projection = staticmethod(projection.project_fp32)
    indexer_compressor_projection = staticmethod(projection.project_fp32)
    query_projection = staticmethod(projection.query_projection)
    indexer_query_projection = staticmethod(projection.indexer_query_projection)
    query_absorb = staticmethod(projection.query_absorb)
    value_up_projection = staticmethod(projection.value_up_projection)
    output_group_projection = staticmethod(projection.output_group_projection)
    output_projection = staticmethod(projection.output_projection)

    qkv_norm = staticmethod(query.qkv_norm)
    query_norm_rope_insert = staticmethod(query.query_norm_rope_insert)
    query_rope = staticmethod(query.query_rope)
    latent_insert = staticmethod(query.latent_insert)

    compressor_state_save = staticmethod(compressor.state_save)
    indexer_state_save = staticmethod(compressor.state_save)
    compress_norm_rope_insert = staticmethod(compressor.compress_norm_rope_insert)
    indexer_compress_insert = staticmethod(compressor.compress_norm_rope_insert)

    indexer_query_rope_quant = staticmethod(indexer.indexer_query_rope_quant)
    indexer_key_insert = staticmethod(indexer.indexer_key_insert)
    indexer_logits = staticmethod(indexer.indexer_logits)
    topk = staticmethod(indexer.topk)
    index_map = staticmethod(indexer.index_map)

    sparse_attention = staticmethod(attention.sparse_attention)
    inverse_rope_quant = staticmethod(attention.inverse_rope_quant)
