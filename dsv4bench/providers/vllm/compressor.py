"""The compressor: saving state rows, and turning them into cache entries, with Triton or the CuTe DSL."""

from types import SimpleNamespace

import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import ROPE_DIM

from dsv4bench.providers.vllm.library import Library
from dsv4bench.providers.vllm.pages import by_entry

NO_PDL = {"launch_pdl": False}
"""vLLM launches neither kernel ahead of its predecessor: the second reads rows that the first has just written."""


def state_save(
    library: Library,
    *,
    kv_score: torch.Tensor,
    ape: torch.Tensor,
    positions: torch.Tensor,
    state_cache: torch.Tensor,
    state_slots: torch.Tensor,
) -> None:
    """Append a state row per token (Triton)."""
    if not len(state_slots):
        return
    width = ape.shape[1]
    library.function("state_save")(
        kv=kv_score[:, :width],
        score=kv_score[:, width:],
        ape=ape,
        positions=positions,
        state_cache=state_cache,
        slot_mapping=state_slots,
        block_size=state_cache.shape[1],
        state_width=width,
        compress_ratio=len(ape),
        pdl_kwargs=NO_PDL,
    )


def compress_insert(
    library: Library,
    function: str,
    *,
    state_cache: torch.Tensor,
    state_block_table: torch.Tensor,
    token_to_request: torch.Tensor,
    positions: torch.Tensor,
    compressed_slots: torch.Tensor,
    norm_weight: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: PagedCache,
    ratio: int,
    eps: float,
) -> None:
    """Compress, norm, rotate, quantise and insert.

    vLLM hands over the tokens' state slots as well, only to skip padding; the slots of the entries say the same, so
    they stand in. A program per token is launched either way and ends early where no entry is completed.

    Args:
        library: vLLM.
        function: ``compress_triton`` or ``compress_cute``.
    """
    if not len(positions):
        return
    format, dim = cache.format, len(norm_weight)
    library.function(function)(
        state_cache=state_cache,
        num_actual=len(positions),
        token_to_req_indices=token_to_request,
        positions=positions,
        slot_mapping=compressed_slots,
        block_table=state_block_table,
        block_size=state_cache.shape[1],
        state_width=state_cache.shape[2] // 2,
        cos_sin_cache=cos_sin,
        kv_cache=by_entry(cache),
        k_cache_metadata=SimpleNamespace(slot_mapping=compressed_slots),
        pdl_kwargs=NO_PDL,
        head_dim=dim,
        rope_head_dim=ROPE_DIM,
        compress_ratio=ratio,
        overlap=ratio == 4,
        use_fp4_cache=False,
        rms_norm_weight=norm_weight,
        rms_norm_eps=eps,
        quant_block=format.quant_block,
        token_stride=format.record_bytes,
        scale_dim=format.scale_bytes,
    )
