"""V3.2's own stages: query rotation, and the inserts of latents and index keys."""

import torch
from dsv4_kernels.cache import PagedCache

from dsv4bench.providers.step import once
from dsv4bench.providers.vllm.library import Library
from dsv4bench.providers.vllm.pages import by_entry, require_dense

LATENT = 512
NOPE = 128
"""Dims of V3.2's query heads before the rotated 64."""


def query_rope(
    library: Library,
    *,
    q: torch.Tensor,
    q_absorbed: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
) -> torch.Tensor:
    """Rotate the queries' last dims (Triton) and put them behind the absorbed ones (CUDA), as vLLM's decode does.

    In vLLM the first kernel quantises the indexer's queries as well; here it leaves them out.
    """
    if not len(positions):
        return q_absorbed.new_empty((0, q.shape[1], LATENT + q.shape[2] - NOPE))
    rotated = _rotate(library, q[..., NOPE:], q_absorbed, positions, cos_sin)
    out = q_absorbed.new_empty((*q.shape[:2], LATENT + rotated.shape[-1]))
    library.function("concat_query")(q_absorbed, rotated, out)
    return out


def latent_insert(
    library: Library,
    *,
    kv: torch.Tensor,
    qkv_latent: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: PagedCache,
    slots: torch.Tensor,
) -> None:
    """Rotate k_pe with the query kernel (as one head), then concatenate, quantise and insert (CUDA).

    vLLM norms, rotates and inserts in one Triton kernel; our stages cut that in two, so its older insert stands in.
    Both store scales amax / 448 as they are, where our contract rounds them up to powers of two.
    """
    if not len(positions):
        return
    k_pe = qkv_latent[:, -cos_sin.shape[1] :].unsqueeze(1)
    rotated = _rotate(library, k_pe, kv.unsqueeze(1), positions, cos_sin)
    library.function("latent_insert")(
        kv_c=kv,
        k_pe=rotated.squeeze(1),
        kv_cache=by_entry(cache),
        slot_mapping=slots,
        kv_cache_dtype="fp8_ds_mla",
        scale=_one(kv.device),
    )


def index_key_insert(
    library: Library,
    *,
    index_k: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_bias: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: PagedCache,
    slots: torch.Tensor,
    eps: float,
) -> None:
    """LayerNorm, rotation, quantisation and insert of index keys: one of the four programs of vLLM's fused kernel.

    The other three (query norm, latent insert, clearing the top-k) get rows of zeros to work on and a cache of no size,
    so their cost is small, but not nothing.

    Raises:
        NotImplementedError: pages in a slab; the kernel computes a page's address from its number.
    """
    require_dense(cache, "index key insert")
    tokens = len(positions)
    if not tokens:
        return
    idle = once("idle", (slots,), lambda: torch.zeros(1, LATENT, dtype=index_k.dtype, device=index_k.device))
    rows = idle.expand(tokens, LATENT)
    scratch = once("scratch", (slots,), lambda: torch.zeros(1, 16, dtype=torch.int32, device=index_k.device))
    maps = {"slot_mapping": slots}
    if library.takes("index_key_insert", "indexer_slot_mapping"):
        maps["indexer_slot_mapping"] = slots
    library.function("index_key_insert")(
        positions=positions,
        q_c=rows[:, :16],
        q_rms_norm_w=idle[0, :16],
        q_rms_eps=eps,
        kv_c=rows,
        kv_rms_norm_w=idle[0],
        kv_rms_eps=eps,
        k_pe=rows[:, : cos_sin.shape[1]],
        k_rope_cos_sin_cache=cos_sin,
        index_k=index_k,
        index_k_layer_norm_w=norm_weight,
        index_k_layer_norm_bias=norm_bias,
        index_k_layer_norm_eps=eps,
        index_k_rope_cos_sin_cache=cos_sin,
        topk_indices_buffer=scratch.expand(tokens, 16),
        indexer_k_cache=by_entry(cache),
        has_indexer=True,
        index_rope_interleave=False,
        q_c_out=rows[:, :16],
        **maps,
    )


def _rotate(
    library: Library, tail: torch.Tensor, absorbed: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> torch.Tensor:
    """RoPE of [T, heads, 64] in interleaved pairs, by the bf16 form of vLLM's fused query kernel without an indexer."""
    _, _, rotated = library.function("latent_query")(
        positions=positions,
        q_pe=tail,
        q_pe_cos_sin_cache=cos_sin,
        index_q=None,
        index_q_cos_sin_cache=None,
        ql_nope=absorbed,
        q_scale=_one(tail.device),
        index_weights=None,
        index_weights_softmax_scale=0.0,
        index_weights_head_scale=0.0,
        has_indexer=False,
        quantize_mqa=False,
    )
    found: torch.Tensor = rotated
    return found


_ONES: dict[torch.device, torch.Tensor] = {}


def _one(device: torch.device) -> torch.Tensor:
    """fp32 [1] holding 1, kept so that graphs may point at it."""
    if device not in _ONES:
        _ONES[device] = torch.ones(1, dtype=torch.float32, device=device)
    return _ONES[device]
