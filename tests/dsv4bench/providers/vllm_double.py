"""Small torch functions with the signatures that vLLM's have in 0.26, so that the translation can be tested on a CPU.

They compute with the reference, from the views they are handed, and so are as wrong as a wrong view makes them.
"""

from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from dsv4_kernels import reference
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import quantize_fp8, read_entries, record_view
from dsv4_kernels.formats import FORMATS
from dsv4_kernels.weight import Fp8Weight, dense

OPS = "vllm.models.deepseek_v4.common.ops"
BY_BYTES = {584: "main-fp8", 132: "indexer-fp8", 656: "latent-fp8"}


def paged(cache: torch.Tensor) -> PagedCache:
    """[pages, entries, (1,) bytes] as our cache again."""
    cache = cache.squeeze(2) if cache.dim() == 4 else cache
    return PagedCache(cache.flatten(1), FORMATS[BY_BYTES[cache.shape[2]]], cache.shape[1])


def fused_q_kv_rmsnorm(qr, kv, q_weight, kv_weight, eps):
    return reference.qkv_norm(
        qkv_latent=torch.cat((qr, kv), 1), q_norm_weight=q_weight, kv_norm_weight=kv_weight, eps=eps
    )


def fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert(
    q_in, kv, k_cache, slot_mapping, position_ids, cos_sin_cache, q_head_padded, eps, cache_block_size
):
    cache = PagedCache(k_cache, FORMATS["main-fp8"], cache_block_size)
    rotated = reference.query_norm_rope_insert(
        q=q_in, kv=kv, positions=position_ids, cos_sin=cos_sin_cache, window_cache=cache, window_slots=slot_mapping,
        eps=eps,
    )  # fmt: skip
    out = q_in.new_zeros((len(q_in), q_head_padded, q_in.shape[2]))
    out[:, : q_in.shape[1]] = rotated
    return out


def save_partial_states(
    kv, score, ape, positions, state_cache, slot_mapping, block_size, state_width, compress_ratio, pdl_kwargs=None
):
    assert (block_size, state_width, compress_ratio) == (state_cache.shape[1], ape.shape[1], len(ape))
    assert pdl_kwargs == {"launch_pdl": False}
    reference.compressor_state_save(
        kv_score=torch.cat((kv, score), 1), ape=ape, positions=positions, state_cache=state_cache,
        state_slots=slot_mapping,
    )  # fmt: skip


def compress_norm_rope_store_triton(
    state_cache, num_actual, token_to_req_indices, positions, slot_mapping, block_table, block_size, state_width,
    cos_sin_cache, kv_cache, k_cache_metadata, pdl_kwargs, head_dim, rope_head_dim, compress_ratio, overlap,
    use_fp4_cache, rms_norm_weight, rms_norm_eps, quant_block, token_stride, scale_dim,
):  # fmt: skip
    assert num_actual == len(positions)
    assert block_size == state_cache.shape[1]
    assert state_width == head_dim * (2 if overlap else 1)
    assert (quant_block, token_stride, scale_dim) == {512: (64, 576, 8), 128: (128, 128, 4)}[head_dim]
    assert not use_fp4_cache
    reference.compress_norm_rope_insert(
        state_cache=state_cache, state_block_table=block_table, token_to_request=token_to_req_indices,
        positions=positions, compressed_slots=torch.where(slot_mapping >= 0, k_cache_metadata.slot_mapping, -1),
        norm_weight=rms_norm_weight, cos_sin=cos_sin_cache, cache=paged(kv_cache), ratio=compress_ratio,
        eps=rms_norm_eps,
    )  # fmt: skip


def compress_norm_rope_store_cutedsl(
    state_cache, num_actual, token_to_req_indices, positions, slot_mapping, block_table, block_size, state_width,
    cos_sin_cache, kv_cache, k_cache_metadata, pdl_kwargs, head_dim, rope_head_dim, compress_ratio, overlap,
    use_fp4_cache, rms_norm_weight, rms_norm_eps, quant_block, token_stride, scale_dim, store_full_kv=False,
    store_full_fp8=False, fp8_scale=None,
):  # fmt: skip
    compress_norm_rope_store_triton(
        state_cache, num_actual, token_to_req_indices, positions, slot_mapping, block_table, block_size, state_width,
        cos_sin_cache, kv_cache, k_cache_metadata, pdl_kwargs, head_dim, rope_head_dim, compress_ratio, overlap,
        use_fp4_cache, rms_norm_weight, rms_norm_eps, quant_block, token_stride, scale_dim,
    )  # fmt: skip


def fused_indexer_q_rope_quant(
    positions, index_q, index_q_cos_sin_cache, index_weights, index_weights_softmax_scale, index_weights_head_scale,
    use_fp4=False,
):  # fmt: skip
    assert index_weights_softmax_scale * index_weights_head_scale == 128**-0.5 * index_q.shape[1] ** -0.5
    values, _, weights = _index_query(positions, index_q, index_q_cos_sin_cache, index_weights, "interleaved")
    return values, weights


def latent_indexer_q(positions, q, cos_sin_cache, weights, softmax_scale, head_scale, is_neox):
    assert is_neox
    values, _, out = _index_query(positions, q, cos_sin_cache, weights, "half")
    return values, out


def _index_query(positions, index_q, cos_sin, weights, style):
    return reference.indexer_query_rope_quant(
        index_q=index_q, head_weights=weights, positions=positions, cos_sin=cos_sin, precision="fp8", rope_style=style
    )


def get_paged_mqa_logits_metadata(context_lens, block_size, num_sms):
    assert context_lens.dim() == 2
    assert block_size == 64
    return torch.zeros(num_sms + 1, 2, dtype=torch.int32)


def fp8_fp4_paged_mqa_logits(
    q, kv_cache, weights, context_lens, block_tables, schedule_metadata, max_model_len, clean_logits
):
    values, scales = q
    batch, drafts = values.shape[:2]
    assert scales is None
    assert not clean_logits
    assert context_lens.shape == (batch, drafts)
    assert len(block_tables) == batch
    return reference.indexer_logits(
        index_q_values=values.flatten(0, 1), index_q_scales=None, index_weights=weights, indexer_cache=paged(kv_cache),
        block_table=block_tables, token_to_request=torch.arange(batch, dtype=torch.int32).repeat_interleave(drafts),
        candidate_lens=context_lens.flatten(), max_candidates=max_model_len,
    )  # fmt: skip


def fp8_fp4_mqa_logits(q, kv, weights, cu_seqlen_ks, cu_seqlen_ke, clean_logits):
    (values, _), (keys, scales) = q, kv
    scores = torch.einsum("mhd,nd->mhn", values.float(), keys.float()).relu()
    logits = torch.einsum("mhn,mh->mn", scores, weights) * scales
    column = torch.arange(len(keys))
    seen = (column >= cu_seqlen_ks[:, None]) & (column < cu_seqlen_ke[:, None])
    return torch.where(seen, logits, torch.nan)


def cp_gather_indexer_k_quant_cache(kv_cache, dst_k, dst_scale, block_table, cu_seq_lens):
    assert len(block_table) == 1
    pages, entries, _ = kv_cache.shape
    raw = kv_cache.flatten(1)
    count = int(cu_seq_lens[1])
    index = torch.arange(count)
    page, offset = block_table[0][index // entries].long(), index % entries
    values = raw[:, : entries * 128].reshape(pages, entries, 128)
    scales = raw[:, entries * 128 :].reshape(pages, entries, 4)
    dst_k.view(torch.uint8)[:count] = values[page, offset]
    dst_scale[:count] = scales[page, offset]


def _select(logits, lens, output, k):
    for row, length in enumerate(lens.flatten().tolist()):
        count = min(length, k)
        output[row, :count] = logits[row, :length].topk(count).indices.int()


def cooperative_topk(logits, lengths, output, workspace, k, max_seq_len):
    assert len(logits) <= 32
    assert max_seq_len >= int(lengths.max())
    _select(logits, lengths, output, k)


def persistent_topk(logits, lengths, output, workspace, k, max_seq_len):
    assert workspace.numel() == 1 << 20
    _select(logits, lengths, output, k)


def top_k_per_row_decode(logits, next_n, seq_lens, raw_topk_indices, num_rows, stride0, stride1, topk_tokens):
    _select(logits, seq_lens, raw_topk_indices, topk_tokens)


def top_k_per_row_prefill(
    logits, cu_seqlen_ks, cu_seqlen_ke, raw_topk_indices, num_rows, stride0, stride1, topk_tokens
):
    assert not cu_seqlen_ks.any()
    _select(logits, cu_seqlen_ke, raw_topk_indices, topk_tokens)


def compute_global_topk_indices_and_lens(topk_indices, token_to_req_indices, block_table, block_size, is_valid_token):
    assert is_valid_token.all()
    return reference.index_map(
        topk_indices=topk_indices, token_to_request=token_to_req_indices, block_table=block_table, entries=block_size
    )


def triton_convert_req_index_to_global_index(
    req_id, block_table, token_indices, BLOCK_SIZE=64, NUM_TOPK_TOKENS=2048, return_valid_counts=False
):
    assert token_indices.shape[1] == NUM_TOPK_TOKENS
    return reference.index_map(
        topk_indices=token_indices, token_to_request=req_id, block_table=block_table, entries=BLOCK_SIZE
    )


def get_mla_metadata(*args, **kwargs):
    return SimpleNamespace(shape=None), None


def flash_mla_with_kvcache(
    q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None, softmax_scale=None,
    causal=False, is_fp8_kvcache=False, indices=None, attn_sink=None, extra_k_cache=None,
    extra_indices_in_kvcache=None, topk_length=None, extra_topk_length=None, out=None,
):  # fmt: skip
    assert is_fp8_kvcache
    assert head_dim_v == 512
    assert q.shape[2] in (64, 128)
    assert indices.shape[2] % 128 == 0
    shape = (q.shape, None if extra_indices_in_kvcache is None else extra_indices_in_kvcache.shape)
    assert tile_scheduler_metadata.shape in (None, shape), "a plan is for one shape"
    tile_scheduler_metadata.shape = shape
    batch, tokens = q.shape[:2]
    q, indices = q.flatten(0, 1).unsqueeze(1), indices.flatten(0, 1).unsqueeze(1)
    extra = {"compressed_cache": None, "compressed_indices": None, "compressed_lens": None}
    window = {"window_cache": None, "window_indices": None, "window_lens": None}
    if q.shape[3] == 576:
        assert topk_length is None, "V3.2 has no lengths"
        lens = torch.full((len(q),), indices.shape[2], dtype=torch.int32)
        extra = {"compressed_cache": paged(k_cache), "compressed_indices": indices[:, 0], "compressed_lens": lens}
    else:
        window = {"window_cache": paged(k_cache), "window_indices": indices[:, 0], "window_lens": topk_length}
    if extra_k_cache is not None:
        assert extra_indices_in_kvcache.shape[2] % 128 == 0
        extra = {
            "compressed_cache": paged(extra_k_cache),
            "compressed_indices": extra_indices_in_kvcache[:, 0],
            "compressed_lens": extra_topk_length,
        }
    o, lse = reference.sparse_attention(q=q[:, 0], **window, **extra, sink=attn_sink, softmax_scale=softmax_scale)
    nothing = lse == -torch.inf
    lse = lse.masked_fill(nothing, torch.inf)  # FlashMLA's mark of a token that sees nothing
    if window["window_cache"] is None:
        o, lse = o.masked_fill(nothing[..., None], 7.0), lse.masked_fill(nothing, 7.0)  # in V3.2 anything may come out
    if out is None:
        return o.unflatten(0, (batch, tokens)), lse.unflatten(0, (batch, tokens)).transpose(1, 2)
    assert tokens == 1
    out[:, 0] = o
    return out, lse.unsqueeze(-1)


def dequantize_and_gather_k_cache(out, k_cache, seq_lens, gather_lens, block_table, block_size, offset, use_fnuz=False):
    cache = paged(k_cache)
    assert block_size == cache.entries
    for row, length in enumerate(seq_lens.tolist()):
        count = length if gather_lens is None else int(gather_lens[row])
        index = torch.arange(length - count, length)
        slots = block_table[row][index // block_size].long() * block_size + index % block_size
        out[row, offset : offset + count] = read_entries(cache, slots).to(out.dtype)


def combine_topk_swa_indices(
    topk_indices, query_start_loc, seq_lens, gather_lens, window_size, compress_ratio, topk, M, N
):
    width = -(-(topk + window_size) // 128) * 128
    combined = torch.full((len(topk_indices), width), -1, dtype=torch.int32)
    lens = torch.zeros(len(topk_indices), dtype=torch.int32)
    starts = (query_start_loc - query_start_loc[0]).tolist()
    for row, seq_len in enumerate(seq_lens.tolist()):
        first, last = starts[row], starts[row + 1]
        for token in range(first, last):
            position = seq_len - (last - first) + token - first
            selected = min((position + 1) // compress_ratio, topk)
            window = min(position + 1, window_size)
            begin = seq_len - int(gather_lens[row])
            combined[token, :selected] = topk_indices[token, :selected] + M * row
            near = torch.arange(position - window + 1, position + 1) - begin
            combined[token, selected : selected + window] = (M * row + N + near).int()
            lens[token] = selected + window
    return combined, lens


def flash_mla_sparse_fwd(q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, out=None):
    assert indices.shape[2] % 128 == 0
    assert len(q), "the kernel builds a TMA descriptor over the queries, which may not be empty"
    rows, listed = kv[:, 0].float(), indices[:, 0].long()
    seen = (torch.arange(listed.shape[1]) < topk_length[:, None]) & (listed >= 0)
    keys = torch.where(seen[..., None], rows[listed.clamp_min(0)], 0.0)  # the workspace is not initialised
    scores = (torch.einsum("thd,tkd->thk", q.float(), keys) * sm_scale).masked_fill(~seen[:, None], -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp()
    if attn_sink is not None:
        weights = weights * torch.sigmoid(lse - attn_sink)[..., None]
    out[:] = torch.einsum("thk,tkd->thd", weights, keys).to(out.dtype)
    return out, scores.amax(-1), lse


def fused_inv_rope_fp8_quant(
    o, positions, cos_sin_cache, n_groups, heads_per_group, nope_dim=448, rope_dim=64, quant_group_size=128,
    tma_aligned_scales=False,
):  # fmt: skip
    assert not tma_aligned_scales
    assert heads_per_group * n_groups == o.shape[1]
    return reference.inverse_rope_quant(
        o=o, positions=positions, cos_sin=cos_sin_cache, groups=n_groups, precision="fp8"
    )


def fused_q(
    positions, q_pe, q_pe_cos_sin_cache, index_q, index_q_cos_sin_cache, ql_nope, q_scale, index_weights,
    index_weights_softmax_scale, index_weights_head_scale, has_indexer=True, index_rope_interleave=False,
    quantize_mqa=True,
):  # fmt: skip
    assert not has_indexer
    assert not quantize_mqa
    whole = torch.cat((q_pe.new_zeros((*q_pe.shape[:2], 128)), q_pe), -1)
    rotated = reference.query_rope(q=whole, q_absorbed=ql_nope, positions=positions, cos_sin=q_pe_cos_sin_cache)
    return None, None, rotated[..., -64:].contiguous()


def concat_mla_q(ql_nope, q_pe, q_out):
    q_out[:] = torch.cat((ql_nope, q_pe), -1)


def concat_and_cache_mla(kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, scale):
    assert kv_cache_dtype == "fp8_ds_mla"
    still = torch.tensor([[1.0] * 32 + [0.0] * 32])  # k_pe comes rotated
    cache = paged(kv_cache)
    reference.latent_insert(
        kv=kv_c, qkv_latent=k_pe, positions=torch.zeros(len(kv_c), dtype=torch.int64), cos_sin=still,
        cache=cache, slots=slot_mapping,
    )  # fmt: skip
    latents = kv_c.float().unflatten(1, (4, 128))
    scales = (latents.abs().amax(-1, keepdim=True) / 448).clamp_min(torch.finfo(torch.float32).tiny)
    codes = (latents / scales).clamp(-448, 448).to(torch.float8_e4m3fn)
    records = record_view(cache)
    for row, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        record = records[slot // cache.entries, slot % cache.entries]
        record[:512] = codes[row].flatten().view(torch.uint8)
        record[512:528] = scales[row].flatten().view(torch.uint8)


def fused_norm_rope(
    positions, q_c, q_rms_norm_w, q_rms_eps, kv_c, kv_rms_norm_w, kv_rms_eps, k_pe, k_rope_cos_sin_cache, index_k,
    index_k_layer_norm_w, index_k_layer_norm_bias, index_k_layer_norm_eps, index_k_rope_cos_sin_cache,
    topk_indices_buffer, slot_mapping=None, indexer_k_cache=None, mla_kv_cache=None, mla_kv_cache_dtype="auto",
    mla_k_scale=None, has_indexer=True, index_rope_interleave=False, q_c_out=None,
):  # fmt: skip
    assert mla_kv_cache is None
    assert len(q_c) == len(kv_c) == len(k_pe) == len(topk_indices_buffer) == len(positions)
    reference.indexer_key_insert(
        index_k=index_k, norm_weight=index_k_layer_norm_w, norm_bias=index_k_layer_norm_bias, positions=positions,
        cos_sin=index_k_rope_cos_sin_cache, cache=paged(indexer_k_cache), slots=slot_mapping,
        eps=index_k_layer_norm_eps,
    )  # fmt: skip


def per_token_group_quant_fp8(
    x, group_size, eps=1e-10, dtype=None, column_major_scales=False, tma_aligned_scales=False, out_q=None,
    use_ue8m0=None,
):  # fmt: skip
    assert x.is_contiguous()
    assert group_size == 128
    assert column_major_scales
    assert tma_aligned_scales
    assert use_ue8m0
    values, exponents = quantize_fp8(x, group_size, floor=eps)
    laid = torch.empty_strided(exponents.shape, (1, -(-len(x) // 4) * 4))
    return values, laid.copy_(exponents.float().exp2())


def fp8_gemm_nt(*args, **kwargs):
    (values, scales), (weight, weight_scales), out = args
    assert kwargs == {"is_deep_gemm_e8m0_used": True}
    assert scales.stride() == (1, -(-len(values) // 4) * 4)
    assert weight.is_contiguous()
    x = (values.float().unflatten(1, (-1, 128)) * scales.unsqueeze(-1)).flatten(1)
    out.copy_(x @ dense(Fp8Weight(weight, weight_scales), torch.float32).T)


def fp8_einsum(*args, **kwargs):
    equation, (values, scales), (weight, weight_scales), out = args
    tokens, _, width = values.shape
    padded = -(-tokens // 4) * 4
    assert equation == "bhr,hdr->bhd"
    assert kwargs == {"recipe": (1, 128, 128)}
    assert values.stride()[1:] == (tokens * width, 1)
    assert scales.stride()[1:] == (width // 128 * padded, padded)
    x = (values.float().unflatten(2, (-1, 128)) * scales.unsqueeze(-1)).flatten(2)
    out.copy_(torch.einsum("bhr,hdr->bhd", x, dense(Fp8Weight(weight, weight_scales), torch.float32)))


def has_cutedsl():
    return True


def modules() -> dict[str, Any]:
    """Module name → stand-in, for the modules of vLLM 0.26 that the provider asks for."""
    operators = SimpleNamespace(
        cooperative_topk=cooperative_topk,
        persistent_topk=persistent_topk,
        fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert=fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert,
    )
    table = {
        OPS: (fused_q_kv_rmsnorm, compute_global_topk_indices_and_lens, combine_topk_swa_indices,
              fused_inv_rope_fp8_quant),
        f"{OPS}.save_partial_states": (save_partial_states,),
        f"{OPS}.fused_compress_quant_cache": (compress_norm_rope_store_triton,),
        f"{OPS}.fused_indexer_q": (fused_indexer_q_rope_quant, has_cutedsl),
        f"{OPS}.cache_utils": (dequantize_and_gather_k_cache, has_cutedsl),
        "vllm.models.deepseek_v4.nvidia.ops.sparse_attn_compress_cutedsl": (compress_norm_rope_store_cutedsl,),
        "vllm.utils.deep_gemm": (get_paged_mqa_logits_metadata, fp8_fp4_paged_mqa_logits, fp8_fp4_mqa_logits,
                                 fp8_gemm_nt, fp8_einsum),
        "vllm.model_executor.layers.quantization.utils.fp8_utils": (per_token_group_quant_fp8,),
        "vllm.v1.attention.ops.flashmla": (flash_mla_with_kvcache, get_mla_metadata, flash_mla_sparse_fwd),
        "vllm._custom_ops": (cp_gather_indexer_k_quant_cache, top_k_per_row_decode, top_k_per_row_prefill,
                             concat_mla_q, concat_and_cache_mla),
        "vllm.models.deepseek_v32.nvidia.kernels": (fused_q, fused_norm_rope),
        "vllm.v1.attention.backends.mla.sparse_utils": (triton_convert_req_index_to_global_index,),
    }  # fmt: skip
    found: dict[str, Any] = {"torch": SimpleNamespace(ops=SimpleNamespace(_C=operators))}
    for name, functions in table.items():
        found[name] = ModuleType(name)
        for function in functions:
            setattr(found[name], function.__name__, function)
    indexer = ModuleType("vllm.model_executor.layers.sparse_attn_indexer")
    indexer.fused_indexer_q_rope_quant = latent_indexer_q
    return found | {indexer.__name__: indexer}
