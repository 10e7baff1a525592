"""V3.2: layer norm, half-split RoPE, quantisation and insert of the indexer's key of every token, in one launch."""

import torch
import triton
import triton.language as tl

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.triton.casts import unpack_bf16
from dsv4_kernels.triton.entries import page_arguments, store_indexer_entries
from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton.pairs import as_words, pair_index


@triton.jit
def _normed(words, mean, factor, weight, bias, word):
    """Even and odd elements of layer-normed words."""
    even, odd = unpack_bf16(words)
    even = (even - mean) * factor * tl.load(weight + 2 * word) + tl.load(bias + 2 * word)
    odd = (odd - mean) * factor * tl.load(weight + 2 * word + 1) + tl.load(bias + 2 * word + 1)
    return even, odd


@triton.jit
def _indexer_key_insert(
    index_k, weight, bias, positions, slots, cos_sin, pages, eps, k_stride, table_stride, page_stride,
    ENTRIES: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    slot = tl.load(slots + row)
    table = cos_sin + tl.load(positions + row)[:, None, None] * table_stride
    start = index_k + row[:, None, None] * k_stride
    word = pair_index(4, 16)
    words = tl.load(start + word)
    even, odd = unpack_bf16(words)
    mean = tl.sum(tl.sum(even + odd, axis=2), axis=1) / 128
    even -= mean[:, None, None]
    odd -= mean[:, None, None]
    variance = tl.sum(tl.sum(even * even + odd * odd, axis=2), axis=1) / 128
    factor = tl.rsqrt(variance + eps)[:, None, None]
    mean = mean[:, None, None]
    even, odd = _normed(words, mean, factor, weight, bias, word)
    # pairs are (p, p + 32): a word's partner is 16 words further within the first 64 dims
    rotated = word < 32
    partner = tl.where(rotated, word ^ 16, word)
    even_partner, odd_partner = _normed(tl.load(start + partner), mean, factor, weight, bias, partner)
    sign = tl.where(word < 16, -1.0, 1.0)
    angle = table + word % 16 * 2
    even = even * tl.load(angle, mask=rotated, other=1.0) + even_partner * (
        tl.load(angle + 32, mask=rotated, other=0.0) * sign
    )
    odd = odd * tl.load(angle + 1, mask=rotated, other=1.0) + odd_partner * (
        tl.load(angle + 33, mask=rotated, other=0.0) * sign
    )
    store_indexer_entries(even, odd, slot, pages, page_stride, ENTRIES, PRECISION)


def indexer_key_insert(
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
    """Normalise, rotate, quantise and store the index key of every token.

    Args:
        index_k: bf16 [T, 128], any row stride.
        norm_weight: fp32 [128].
        norm_bias: fp32 [128].
        positions: int64 [T].
        cos_sin: fp32 [positions, 64].
        cache: ``indexer`` entries of any precision; written at ``slots``.
        slots: int64 [T]; −1 is skipped.
        eps: added to the variance.
    """
    tokens = index_k.shape[0]
    if tokens == 0:
        return
    words = as_words(index_k)
    _indexer_key_insert[(tokens,)](
        words, norm_weight, norm_bias, positions, slots, cos_sin, eps=eps, k_stride=words.stride(0),
        table_stride=cos_sin.stride(0), num_warps=1, **page_arguments(cache), **launch_options(tokens),
    )  # fmt: skip
