"""V3.2: rotate the rope key of every token, quantise its latent and store both as one cache entry.

An entry is 656 bytes in one piece: 512 e4m3, 4 fp32 scales (one per 128), 64 bf16. One program per token reads 1,152
bytes and writes 656; the bf16 form only rotates and copies.
"""

import torch
import triton
import triton.language as tl

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.triton.casts import pack_bf16, pack_fp8, unpack_bf16
from dsv4_kernels.triton.entries import page_arguments
from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton.pairs import as_words, block_maximum, load_tail_table, pair_index, rotate_tail
from dsv4_kernels.triton.scales import fp8_scale_byte, power_of_two, reciprocal_power_of_two

_AMAX_FLOOR = tl.constexpr(1e-4)
_BYTES = {"fp8": 656, "bf16": 1152}


@triton.jit
def _latent_insert(
    kv, rope, positions, slots, cos_sin, pages, kv_stride, rope_stride, table_stride, page_stride,
    ENTRIES: tl.constexpr, PRECISION: tl.constexpr, BYTES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    slot = tl.load(slots + row)
    kept = slot >= 0
    position = tl.load(positions + row)
    word = pair_index(4, 64)
    words = tl.load(kv + row[:, None, None] * kv_stride + word)
    rope_word = pair_index(1, 32)
    even, odd = unpack_bf16(tl.load(rope + row[:, None, None] * rope_stride + rope_word))
    cos, sin = load_tail_table(cos_sin + position * table_stride, kept, 1, 32)
    even, odd = rotate_tail(even, odd, cos, sin)
    record = pages + slot // ENTRIES * page_stride + slot % ENTRIES * BYTES
    if PRECISION == "fp8":
        latent_even, latent_odd = unpack_bf16(words)
        scale = fp8_scale_byte(block_maximum(latent_even, latent_odd), _AMAX_FLOOR)
        inverse = reciprocal_power_of_two(scale)[:, :, None]
        packed = pack_fp8(latent_even * inverse, latent_odd * inverse)
        tl.store(record.to(tl.pointer_type(tl.uint16))[:, None, None] + word, packed, mask=kept[:, None, None])
        scales = (record + 512).to(tl.pointer_type(tl.float32))[:, None] + tl.arange(0, 4)[None, :]
        tl.store(scales, power_of_two(scale), mask=kept[:, None])
        tail = record + 528
    else:
        tl.store(record.to(tl.pointer_type(tl.int32))[:, None, None] + word, words, mask=kept[:, None, None])
        tail = record + 1024
    target = tail.to(tl.pointer_type(tl.int32))[:, None, None] + rope_word
    tl.store(target, pack_bf16(even, odd), mask=kept[:, None, None])


def latent_insert(
    *,
    kv: torch.Tensor,
    qkv_latent: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    cache: PagedCache,
    slots: torch.Tensor,
) -> None:
    """Store ``[kv | RoPE(k_pe)]`` of every token.

    Args:
        kv: bf16 [T, 512], normalised, any row stride.
        qkv_latent: bf16 [T, ≥ 64]; k_pe is its last 64 columns.
        positions: int64 [T].
        cos_sin: fp32 [positions, 64].
        cache: ``latent`` entries, fp8 or bf16; written at ``slots``.
        slots: int64 [T]; −1 is skipped.

    Raises:
        ValueError: the cache has another format.
    """
    if cache.format.role != "latent" or cache.format.precision not in _BYTES:
        raise ValueError(f"latent_insert writes latent-fp8 or latent-bf16 entries, not {cache.format.name}")
    tokens = kv.shape[0]
    if tokens == 0:
        return
    kv, rope = as_words(kv), as_words(qkv_latent[:, -64:])
    _latent_insert[(tokens,)](
        kv, rope, positions, slots, cos_sin, kv_stride=kv.stride(0), rope_stride=rope.stride(0),
        table_stride=cos_sin.stride(0), BYTES=_BYTES[cache.format.precision], num_warps=1, **page_arguments(cache),
        **launch_options(tokens),
    )  # fmt: skip
