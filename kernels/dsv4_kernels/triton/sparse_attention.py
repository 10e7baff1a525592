"""Sparse attention over two paged caches in one pass: any head count, fp8 and bf16 entries, V4 and V3.2 formats.

A token's entries (window, then compressed) form tiles; a program takes one token, a block of heads and a share of the
tiles. With more than one share the outputs are partial and a second kernel joins them. On Hopper, main entries and fp8
latents go to Gluon kernels, one for each format; everything else, the interpreter included, to the one here.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl

from dsv4_kernels.cache import PagedCache
from dsv4_kernels.triton.join_shares import join_shares
from dsv4_kernels.triton.launch import begin, launch_options
from dsv4_kernels.triton.splits import TILE, Gpu, plan_splits

_SMALL_TILE = 16
_VALUE = tl.constexpr(512)
_LOG2E = tl.constexpr(1.4426950408889634)
_LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _decode_e4m3(byte):
    """e4m3 bytes to their values times 2^-120, fp32: exact, and the cast that some GPUs and the interpreter lack."""
    bits = byte.to(tl.int32)
    return (((bits & 0x80) << 24) | ((bits & 0x7F) << 20)).to(tl.float32, bitcast=True)


@triton.jit
def load_entries(page, entry, scales, found, FORMAT: tl.constexpr):
    """A tile's entries as bf16 [TILE, 512] and [TILE, 64], zero where not found.

    For main entries the first part holds dims 0..447 (fp8) or everything (bf16) and the second dims 448..511 (fp8) or
    nothing; for latent entries the value and the rope key.
    """
    TILE: tl.constexpr = entry.shape[0]
    column = tl.arange(0, 512)[None, :]
    tail = tl.arange(0, 64)[None, :]
    seen = found[:, None]
    if FORMAT == "main-fp8" or FORMAT == "latent-fp8":
        block = tl.arange(0, 8)
        within = tl.arange(0, 64)
        if FORMAT == "main-fp8":
            record = page + entry * 576
            held = seen & (block < 7)[None, :]
            exponent = tl.load(scales[:, None] + block[None, :], mask=held, other=127).to(tl.int32)
            scale = tl.where(exponent > 0, exponent << 23, 0x400000).to(tl.float32, bitcast=True)
            rope = record + 448
        else:
            record = page + entry * 656
            held = seen & (block < 8)[None, :]
            scale = tl.load(
                (record + 512).to(tl.pointer_type(tl.float32))[:, None] + (block // 2)[None, :], mask=held, other=0.0
            )
            rope = record + 528
        byte = tl.load(
            record[:, None, None] + (block * 64)[None, :, None] + within[None, None, :], mask=held[:, :, None], other=0
        )
        value = _decode_e4m3(byte) * (2.0**120) * scale[:, :, None]
        main = tl.reshape(value.to(tl.bfloat16), [TILE, 512])
        second = tl.load(rope.to(tl.pointer_type(tl.bfloat16))[:, None] + tail, mask=seen, other=0.0)
    else:
        WIDTH: tl.constexpr = 512 if FORMAT == "main-bf16" else 576
        record = (page + entry * (WIDTH * 2)).to(tl.pointer_type(tl.bfloat16))
        main = tl.load(record[:, None] + column, mask=seen, other=0.0)
        if FORMAT == "main-bf16":
            second = tl.zeros([TILE, 64], tl.bfloat16)
        else:
            second = tl.load((record + 512)[:, None] + tail, mask=seen, other=0.0)
    return main, second


@triton.jit(do_not_specialize=["num_heads", "num_splits"])
def _sparse_attention_kernel(
    q, q_token_stride, q_head_stride,
    window_pages, window_stride, window_indices, window_indices_stride, window_lens,
    compressed_pages, compressed_stride, compressed_indices, compressed_indices_stride, compressed_lens,
    sink, softmax_scale, out, lse, partial, partial_lse, num_heads, num_splits,
    HAS_WINDOW: tl.constexpr, HAS_COMPRESSED: tl.constexpr, HAS_SINK: tl.constexpr, SPLIT: tl.constexpr,
    W_ENTRIES: tl.constexpr, C_ENTRIES: tl.constexpr, FORMAT: tl.constexpr, HEADS: tl.constexpr, TILE: tl.constexpr,
    DOT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    begin(PDL)
    head_blocks = tl.cdiv(num_heads, HEADS)
    split = tl.program_id(0) % num_splits
    first_head = (tl.program_id(0) // num_splits) % head_blocks * HEADS
    token = (tl.program_id(0) // num_splits // head_blocks).to(tl.int64)

    window_len = 0
    compressed_len = 0
    if HAS_WINDOW:
        window_len = tl.load(window_lens + token)
    if HAS_COMPRESSED:
        compressed_len = tl.load(compressed_lens + token)
    window_tiles = tl.cdiv(window_len, TILE)
    tiles = window_tiles + tl.cdiv(compressed_len, TILE)

    HAS_TAIL: tl.constexpr = FORMAT != "main-bf16"
    LATENT: tl.constexpr = FORMAT == "latent-fp8" or FORMAT == "latent-bf16"
    heads = first_head + tl.arange(0, HEADS)
    mine = (heads < num_heads)[:, None]
    column = tl.arange(0, 512)
    q_row = q + token * q_token_stride + heads[:, None] * q_head_stride
    if FORMAT == "main-fp8":
        query = tl.load(q_row + column[None, :], mask=mine & (column < 448)[None, :], other=0.0)
    else:
        query = tl.load(q_row + column[None, :], mask=mine, other=0.0)
    if HAS_TAIL:
        TAIL: tl.constexpr = 512 if LATENT else 448
        query_tail = tl.load(q_row + TAIL + tl.arange(0, 64)[None, :], mask=mine, other=0.0)

    acc = tl.zeros([HEADS, 512], tl.float32)
    acc_tail = tl.zeros([HEADS, 64], tl.float32)
    top = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    scale = softmax_scale * _LOG2E
    tile = split * tiles // num_splits
    end = (split + 1) * tiles // num_splits
    while tile < end:
        windowed = tile < window_tiles
        at = tl.where(windowed, tile, tile - window_tiles) * TILE + tl.arange(0, TILE)
        indices = tl.where(
            windowed, window_indices + token * window_indices_stride,
            compressed_indices + token * compressed_indices_stride,
        )  # fmt: skip
        slot = tl.load(indices + at, mask=at < tl.where(windowed, window_len, compressed_len), other=-1)
        found = slot >= 0
        slot = tl.where(found, slot, 0).to(tl.int64)
        entry = tl.where(windowed, slot % W_ENTRIES, slot % C_ENTRIES)
        page = tl.where(windowed, window_pages, compressed_pages) + (
            tl.where(windowed, slot // W_ENTRIES, slot // C_ENTRIES)
            * tl.where(windowed, window_stride, compressed_stride)
        )
        scales = page + tl.where(windowed, W_ENTRIES, C_ENTRIES) * 576 + entry * 8
        keys, keys_tail = load_entries(page, entry, scales, found, FORMAT)

        scores = tl.dot(query.to(DOT), tl.trans(keys.to(DOT)))
        if HAS_TAIL:
            scores = tl.dot(query_tail.to(DOT), tl.trans(keys_tail.to(DOT)), scores)
        scores = tl.where(found[None, :], scores * scale, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)
        weight = tl.exp2(scores - shift[:, None])
        keep = tl.exp2(top - shift)
        total = total * keep + tl.sum(weight, axis=1)
        acc = tl.dot(weight.to(DOT), keys.to(DOT), acc * keep[:, None])
        if FORMAT == "main-fp8":
            acc_tail = tl.dot(weight.to(DOT), keys_tail.to(DOT), acc_tail * keep[:, None])
        top = new_top
        tile += 1

    any_seen = total > 0
    natural = tl.where(any_seen, (top + tl.log2(tl.where(any_seen, total, 1.0))) * _LN2, float("-inf"))
    norm = tl.where(any_seen, 1.0 / tl.where(any_seen, total, 1.0), 0.0)
    if SPLIT:
        row = (token * num_splits + split) * num_heads + heads
        target = partial
        tl.store(partial_lse + row, natural, mask=heads < num_heads)
    else:
        row = token * num_heads + heads
        target = out
        tl.store(lse + row, natural, mask=heads < num_heads)
        if HAS_SINK:
            logit = tl.load(sink + heads, mask=heads < num_heads, other=0.0)
            norm = norm / (1.0 + tl.exp2((logit - tl.where(any_seen, natural, 0.0)) * _LOG2E))
    values = (acc * norm[:, None]).to(target.dtype.element_ty)
    place = target + row[:, None] * _VALUE
    if FORMAT == "main-fp8":
        tl.store(place + column[None, :], values, mask=mine & (column < 448)[None, :])
        tail = (acc_tail * norm[:, None]).to(target.dtype.element_ty)
        tl.store(place + 448 + tl.arange(0, 64)[None, :], tail, mask=mine)
    else:
        tl.store(place + column[None, :], values, mask=mine)


def sparse_attention(
    *,
    q: torch.Tensor,
    window_cache: PagedCache | None,
    window_indices: torch.Tensor | None,
    window_lens: torch.Tensor | None,
    compressed_cache: PagedCache | None,
    compressed_indices: torch.Tensor | None,
    compressed_lens: torch.Tensor | None,
    sink: torch.Tensor | None,
    softmax_scale: float,
    max_candidates: int | None = None,
    splits: int | None = None,
    form: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Multi-query attention of each token over the cache slots listed for it; keys are their own values.

    Args:
        q: bf16 [T, H, 512], or [T, H, 576] over latent entries.
        window_cache: fp8 or bf16 window entries, None for dsa.
        window_indices: int32 [T, n] slots; negative = nothing.
        window_lens: int32 [T], leading columns to scan.
        compressed_cache: compressed (dsa: per-token) entries, None for swa; the window's format.
        compressed_indices: int32 [T, Ke] slots; negative = nothing.
        compressed_lens: int32 [T], leading columns to scan.
        sink: fp32 [H], joins the denominator only; or None.
        softmax_scale: factor on q · k.
        max_candidates: most compressed entries that a token can see, where the host knows it: lists are padded for
            alignment, and their width alone would call for too many shares.
        splits: shares of a token's entries; None lets the launcher size them to the GPU.
        form: ``gluon`` or ``plain``; None takes the Gluon form wherever it applies.

    Returns:
        ``o`` bf16 [T, H, 512] and ``lse`` fp32 [T, H], natural log without the sink; 0 and −inf where nothing is seen.

    Raises:
        ValueError: the caches' formats differ or have no kernel, or ``form`` does not apply.
    """
    window = _Source.of(window_cache, window_indices, window_lens)
    compressed = _Source.of(compressed_cache, compressed_indices, compressed_lens)
    first, second = window or compressed, compressed or window
    if first is None or second is None:
        raise ValueError("sparse_attention needs a window cache, a compressed cache or both")
    name = first.cache.format.name
    if name not in _FORMATS or second.cache.format.name != name:
        raise ValueError(f"no attention kernel over {name} and {second.cache.format.name} caches; known: {_FORMATS}")
    tokens, heads, _ = q.shape
    out = torch.empty(tokens, heads, 512, dtype=q.dtype, device=q.device)
    lse = torch.empty(tokens, heads, dtype=torch.float32, device=q.device)
    if tokens == 0:
        return out, lse
    kernel = "plain" if form == "plain" else _kernel(q, window, compressed, sink)
    gluon = kernel != "plain"
    if form == "gluon" and not gluon:
        raise ValueError(
            "the Gluon attention kernels need Hopper, and rows of main-fp8, main-bf16 or latent-fp8 entries and of "
            "queries at multiples of 16 bytes"
        )
    heads_per_program = 64 if gluon else min(64, max(16, triton.next_power_of_2(heads)))
    tile = _SMALL_TILE if triton.knobs.runtime.interpret else TILE
    tiles = triton.cdiv(window.indices.shape[1], tile) if window else 0
    tiles += triton.cdiv(visible_entries(compressed.indices, max_candidates), tile) if compressed else 0
    blocks = tokens * triton.cdiv(heads, heads_per_program)
    gpu = gpu_of(q.device)
    if splits is None:
        splits = plan_splits(tokens, heads, tiles, heads_per_program, gpu, kernel)
    split = splits > 1
    shares = _SHARES[kernel]
    partial = torch.empty((tokens, splits, heads, 512) if split else (1,), dtype=shares, device=q.device)
    partial_lse = torch.empty((tokens, splits, heads) if split else (1,), dtype=torch.float32, device=q.device)
    arguments = (
        q, q.stride(0), q.stride(1), *first.arguments(), *second.arguments(),
        lse if sink is None else sink, softmax_scale, out, lse, partial, partial_lse, heads, splits,
    )  # fmt: skip
    constants = {
        "HAS_WINDOW": window is not None, "HAS_COMPRESSED": compressed is not None, "HAS_SINK": sink is not None,
        "SPLIT": split, "W_ENTRIES": first.cache.entries, "C_ENTRIES": second.cache.entries,
    }  # fmt: skip
    programs = min(blocks * splits, gpu.processors)
    if kernel == "latent":
        from dsv4_kernels.gluon import latent_attention

        latent_attention.latent_attention_kernel[(blocks * splits,)](
            q, q.stride(0), q.stride(1), *second.arguments(), softmax_scale, out, lse, partial, partial_lse, heads,
            splits, SPLIT=split, ENTRIES=second.cache.entries, num_warps=latent_attention.PRODUCER_WARPS,
            maxnreg=latent_attention.MAX_REGISTERS, **launch_options(blocks * splits),
        )  # fmt: skip
    elif kernel == "rows":
        from dsv4_kernels.gluon import rows_attention

        rows_attention.rows_attention_kernel[(programs,)](
            *arguments, blocks * splits, **constants, num_warps=rows_attention.PRODUCER_WARPS,
            maxnreg=rows_attention.MAX_REGISTERS, **launch_options(programs),
        )  # fmt: skip
    elif kernel == "gluon":
        from dsv4_kernels.gluon.sparse_attention import MAX_REGISTERS, PRODUCER_WARPS, sparse_attention_kernel

        sparse_attention_kernel[(programs,)](
            *arguments, blocks * splits, **constants,
            num_warps=PRODUCER_WARPS, maxnreg=MAX_REGISTERS, **launch_options(programs),
        )  # fmt: skip
    else:
        # numpy has no bf16 products: the interpreter multiplies in fp32
        dot = tl.float32 if triton.knobs.runtime.interpret else tl.bfloat16
        _sparse_attention_kernel[(blocks * splits,)](
            *arguments, **constants, FORMAT=name, HEADS=heads_per_program, TILE=tile, DOT=dot,
            num_warps=8, num_stages=1, **launch_options(blocks * splits),
        )  # fmt: skip
    if split:
        join_shares(partial, partial_lse, sink, out, lse, early=2 * blocks * splits <= gpu.processors)
    return out, lse


def visible_entries(indices: torch.Tensor, max_candidates: int | None) -> int:
    """Most entries of lists [T, n] that a token can attend: their padding, which no token sees, is no work to share."""
    width = indices.shape[1]
    return width if max_candidates is None else min(width, max_candidates)


_FORMATS = ("main-fp8", "main-bf16", "latent-fp8", "latent-bf16")
_SHARES = {
    "gluon": torch.float16,  # every fp16 key is in range, so is every average of keys
    "rows": torch.bfloat16,
    "latent": torch.float32,
    "plain": torch.float32,
}
"""Elements of shares by kernel."""


@dataclass(frozen=True)
class _Source:
    """One of the two lists of entries a token attends."""

    cache: PagedCache
    indices: torch.Tensor
    lens: torch.Tensor

    @staticmethod
    def of(cache: PagedCache | None, indices: torch.Tensor | None, lens: torch.Tensor | None) -> "_Source | None":
        return None if cache is None or indices is None or lens is None else _Source(cache, indices, lens)

    def arguments(self) -> tuple[object, ...]:
        return self.cache.pages, self.cache.pages.stride(0), self.indices, self.indices.stride(0), self.lens


def on_hopper() -> bool:
    """Whether launches go to a Hopper GPU, which the Gluon kernels are for."""
    if triton.knobs.runtime.interpret:
        return False
    target = triton.runtime.driver.active.get_current_target()
    return (target.backend, target.arch) == ("cuda", 90)


def _kernel(q: torch.Tensor, window: _Source | None, compressed: _Source | None, sink: torch.Tensor | None) -> str:
    """The fastest kernel that applies, a key of ``splits.COSTS``."""
    first, second = window or compressed, compressed or window
    assert first is not None
    assert second is not None
    if not on_hopper():
        return "plain"
    if aligned_rows(q, first.cache, second.cache):
        return "rows"
    if aligned_records(q, first.cache, second.cache):
        return "gluon"
    return "latent" if window is None and sink is None and aligned_latents(q, second.cache) else "plain"


def aligned_rows(q: torch.Tensor, *caches: PagedCache) -> bool:
    """Whether the Hopper form for main bf16 entries can copy queries and entries 16 bytes at a time."""
    places = [q.data_ptr(), 2 * q.stride(0), 2 * q.stride(1)]
    for cache in caches:
        places += [cache.pages.data_ptr(), cache.pages.stride(0)]
    return all(cache.format.name == "main-bf16" for cache in caches) and not any(place % 16 for place in places)


def aligned_latents(q: torch.Tensor, cache: PagedCache) -> bool:
    """Whether the Hopper form for latent fp8 entries can read queries and records 16 bytes at a time."""
    places = (cache.pages.data_ptr(), cache.pages.stride(0), q.data_ptr(), 2 * q.stride(0), 2 * q.stride(1))
    return cache.format.name == "latent-fp8" and not any(place % 16 for place in places)


def aligned_records(q: torch.Tensor, first: PagedCache, second: PagedCache) -> bool:
    """Whether the Hopper form for main fp8 entries can read queries and both caches' records 16 bytes at a time."""
    places = [2 * q.stride(0), 2 * q.stride(1), q.data_ptr()]
    places += [place for cache in (first, second) for place in (cache.pages.data_ptr(), cache.pages.stride(0))]
    return first.format.name == "main-fp8" and not any(place % 16 for place in places)


@lru_cache
def gpu_of(device: torch.device) -> Gpu:
    if device.type != "cuda":
        return Gpu(processors=2, cache_bytes=1 << 20)
    properties = torch.cuda.get_device_properties(device)
    return Gpu(properties.multi_processor_count, properties.L2_cache_size)
