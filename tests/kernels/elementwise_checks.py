"""Checks of the element-wise Triton kernels against the reference.

``test_triton_elementwise`` runs them as a script of its own process: on a GPU, or without one in Triton's interpreter.
"""

# ruff: noqa: C408

import torch
from checks import DEVICE, check, main
from dsv4_kernels import reference
from dsv4_kernels import triton_unfused as unfused
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.formats import FORMATS, state_row_floats
from dsv4_kernels.rope import cos_sin_table
from dsv4_kernels.triton import compress_norm_rope_insert as compress
from dsv4_kernels.triton import indexer_query_rope_quant as index_query
from dsv4_kernels.triton import inverse_rope_quant as inverse
from dsv4_kernels.triton import query_norm_rope_insert as query
from dsv4_kernels.triton.compressor_state_save import compressor_state_save
from dsv4_kernels.triton.index_map import index_map
from dsv4_kernels.triton.qkv_norm import qkv_norm

EPS = 1e-6
# comparisons ---------------------------------------------------------------------------------------------------------


def assert_codes(ours: torch.Tensor, right: torch.Tensor, *, exact: bool) -> None:
    """e4m3 bytes: equal, or at most one code apart in 1 of 500 places."""
    ours, right = ours.contiguous().view(torch.uint8).int(), right.contiguous().view(torch.uint8).int()
    sign_magnitude = [torch.where(x >= 128, 128 - x, x) for x in (ours, right)]
    apart = (sign_magnitude[0] - sign_magnitude[1]).abs()
    allowed = 0.0 if exact else 0.002
    assert apart.max() <= 1, f"codes up to {int(apart.max())} apart"
    assert (apart > 0).float().mean() <= allowed, f"{(apart > 0).float().mean():.2%} of the codes differ"


def assert_bf16(ours: torch.Tensor, right: torch.Tensor, *, exact: bool) -> None:
    """bf16 values: equal, or at most one unit in the last place apart in 1 of 200 places."""
    assert ours.dtype == right.dtype == torch.bfloat16
    assert ours.shape == right.shape
    differ = ours != right
    assert differ.float().mean() <= (0.0 if exact else 0.005), f"{differ.float().mean():.2%} differ"
    torch.testing.assert_close(ours.float(), right.float(), rtol=2**-7, atol=1e-6)


def assert_caches(ours: "Slab", right: "Slab", *, exact: bool) -> None:
    """Every byte of two slabs, padding included: scales and bf16 as they are, e4m3 as codes."""
    format, entries = ours.cache.format, ours.cache.entries
    a, b = ours.bytes.cpu(), right.bytes.cpu()
    if format.precision == "bf16":
        assert_bf16(a.view(torch.bfloat16), b.view(torch.bfloat16), exact=exact)
        return
    codes = torch.zeros_like(a, dtype=torch.bool)
    width = 448 if format.role == "main" else 128
    if format.precision == "fp8":
        for entry in range(entries):
            start = ours.offset + entry * format.record_bytes
            codes[:, start : start + width] = True
        assert_codes(a[codes], b[codes], exact=exact)
    rest = (a != b) & ~codes
    assert rest.float().mean() <= (0.0 if exact else 0.001), f"{int(rest.sum())} bytes outside the codes differ"


class Slab:
    """A cache whose pages lie apart in a larger allocation filled with a pattern."""

    def __init__(self, name: str, entries: int, pages: int = 5, gap: int = 64, offset: int = 32) -> None:
        size = FORMATS[name].page_bytes(entries)
        self.offset = offset
        self.bytes = torch.full((pages, size + gap), 0xA5, dtype=torch.uint8, device=DEVICE)
        self.cache = PagedCache(self.bytes[:, offset : offset + size], FORMATS[name], entries)


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def long(values: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def table(positions: int = 4096) -> torch.Tensor:
    return cos_sin_table(positions, 160000.0, 16.0, 65536).to(DEVICE)


# queries -------------------------------------------------------------------------------------------------------------


def queries_are_normed_and_rotated_and_window_entries_inserted(cache: str, rows: int) -> None:
    tokens, heads = 3, 6
    q = randn(tokens, 2 * heads, 640)[:, ::2, :512] * 3
    kv = randn(tokens, 1536 + 512)[:, 1536:]
    arguments = dict(
        q=q, kv=kv, positions=long([4000, 0, 77]), cos_sin=table(), window_slots=long([11, -1, 2]), eps=EPS
    )
    ours, right = Slab(cache, 4), Slab(cache, 4)
    out = query.query_norm_rope_insert(**arguments, window_cache=ours.cache, tile=query.Tile(rows, 1))
    expected = reference.query_norm_rope_insert(**arguments, window_cache=right.cache)
    assert_bf16(out, expected, exact=False)
    assert_caches(ours, right, exact=cache == "main-bf16")


for _cache in ("main-fp8", "main-bf16"):
    for _rows in (1, 4):
        check(queries_are_normed_and_rotated_and_window_entries_inserted, cache=_cache, rows=_rows)


def pages_beyond_two_gibibytes_are_addressed() -> None:
    stride = (1 << 30) + 64
    memory = torch.empty(3 * stride, dtype=torch.uint8, device=DEVICE)
    far = PagedCache(memory.as_strided((3, 4 * 584), (stride, 1)), FORMATS["main-fp8"], 4)
    near = Slab("main-fp8", 4, pages=3)
    near.bytes.zero_()
    far.pages[2].zero_()
    arguments = dict(q=randn(1, 1, 512), kv=randn(1, 512), positions=long([9]), cos_sin=table(), eps=EPS)
    query.query_norm_rope_insert(**arguments, window_cache=far, window_slots=long([10]))
    query.query_norm_rope_insert(**arguments, window_cache=near.cache, window_slots=long([10]))
    assert torch.equal(far.pages[2], near.cache.pages[2])
    assert far.pages[2].any()


check(pages_beyond_two_gibibytes_are_addressed)


def both_latents_are_normed(rank: int) -> None:
    arguments = dict(
        qkv_latent=randn(3, rank + 512 + 64), q_norm_weight=randn(rank), kv_norm_weight=randn(512).float(), eps=EPS
    )
    for ours, right in zip(qkv_norm(**arguments), reference.qkv_norm(**arguments), strict=True):
        assert_bf16(ours, right, exact=False)


check(both_latents_are_normed, rank=1024)
check(both_latents_are_normed, rank=96)


# output --------------------------------------------------------------------------------------------------------------


def output_is_rotated_back_and_quantised(scale_format: str, tokens: int, tile: tuple[int, int]) -> None:
    heads = 8
    o = randn(tokens, heads + 1, 512)[:, 1:]
    o[0, 1] = 0
    arguments = dict(o=o, positions=long([7 * t for t in range(tokens)]), cos_sin=table(), groups=2)
    values, scales = inverse.inverse_rope_quant(
        **arguments, precision="fp8", scale_format=scale_format, tile=inverse.Tile(*tile, 1)
    )
    right, right_scales = reference.inverse_rope_quant(**arguments, precision="fp8")
    assert values.shape == right.shape
    assert_codes(values, right, exact=True)
    if scale_format == "ue8m0":
        exponents = scales.contiguous().view(torch.uint8).view(tokens, 2, 16).int() - 127
        scales = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents)
    assert torch.equal(scales, right_scales)


def padding_columns_of_the_scales_are_zero() -> None:
    o = randn(5, 4, 512)
    _, scales = inverse.inverse_rope_quant(
        o=o, positions=long([0] * 5), cos_sin=table(), groups=1, precision="fp8", tile=inverse.Tile(4, 1, 1)
    )
    assert scales.stride(2) == 8
    assert torch.equal(scales.as_strided((3, 1, 16), scales.stride(), 5), torch.zeros(3, 1, 16, device=DEVICE))


def exact_output_is_quantised_without_an_error() -> None:
    """Multiples of a power of two that e4m3 holds, at positions where the rotation is none: bytes must agree."""
    codes = torch.randint(-15, 16, (2, 4, 512), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    o = (codes * 2.0**-3).bfloat16()
    o[:, 0, 0] = 448 * 2.0**-5  # the block's maximum sits exactly on the scale's limit
    arguments = dict(o=o, positions=long([0, 0]), cos_sin=table(), groups=2, precision="fp8")
    values, scales = inverse.inverse_rope_quant(**arguments)
    right, right_scales = reference.inverse_rope_quant(**arguments)
    assert torch.equal(values.contiguous().view(torch.uint8), right.view(torch.uint8))
    assert torch.equal(scales, right_scales)


def output_is_rotated_back_in_bf16() -> None:
    arguments = dict(o=randn(3, 4, 512), positions=long([5, 4095, 0]), cos_sin=table(), groups=2, precision="bf16")
    values, scales = inverse.inverse_rope_quant(**arguments)
    assert scales is None
    assert_bf16(values, reference.inverse_rope_quant(**arguments)[0], exact=True)


for _scales in ("fp32", "ue8m0"):
    check(output_is_rotated_back_and_quantised, scale_format=_scales, tokens=3, tile=(1, 1))
    check(output_is_rotated_back_and_quantised, scale_format=_scales, tokens=5, tile=(4, 1))
    check(output_is_rotated_back_and_quantised, scale_format=_scales, tokens=2, tile=(2, 4))
check(padding_columns_of_the_scales_are_zero)
check(exact_output_is_quantised_without_an_error)
check(output_is_rotated_back_in_bf16)


# indexer -------------------------------------------------------------------------------------------------------------


def indexer_queries_are_rotated_and_quantised(precision: str, rope_style: str) -> None:
    tokens, heads = 3, 16
    index_q = randn(tokens, heads, 192)[..., :128]
    arguments = dict(
        index_q=index_q, head_weights=randn(tokens, heads + 8)[:, :heads], positions=long([3, 0, 4000]),
        cos_sin=table(), precision=precision, rope_style=rope_style,
    )  # fmt: skip
    values, scales, weights = index_query.indexer_query_rope_quant(**arguments)
    right, right_scales, right_weights = reference.indexer_query_rope_quant(**arguments)
    assert values.dtype == right.dtype
    assert torch.equal(weights, right_weights)
    if precision == "fp8":
        assert_codes(values, right, exact=True)
    else:
        assert torch.equal(values, right)
    assert (scales is None) == (right_scales is None)
    if scales is not None:
        assert torch.equal(scales, right_scales)


for _precision in ("fp8", "fp4", "bf16", "fp32"):
    for _style in ("interleaved", "half"):
        check(indexer_queries_are_rotated_and_quantised, precision=_precision, rope_style=_style)


def indices_become_slots() -> None:
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(0, 300, (4, 24), generator=generator, dtype=torch.int32)
    for token, valid in enumerate((24, 0, 7, 1)):
        indices[token, valid:] = -1
    arguments = dict(
        topk_indices=indices.to(DEVICE), token_to_request=long([1, 0, 1, 0], torch.int32),
        block_table=torch.randint(0, 99, (2, 5), generator=generator, dtype=torch.int32).to(DEVICE), entries=64,
    )  # fmt: skip
    for ours, right in zip(index_map(**arguments), reference.index_map(**arguments), strict=True):
        assert torch.equal(ours, right)


check(indices_become_slots)


# compressor ----------------------------------------------------------------------------------------------------------


def state_rows_are_saved(dim: int, ratio: int) -> None:
    tokens, row, block = 5, state_row_floats(dim, ratio), 4 if ratio == 4 else 8
    kv_score = randn(tokens, row + 32, dtype=torch.float32)[:, :row]
    arguments = dict(
        kv_score=kv_score, ape=randn(ratio, row // 2, dtype=torch.float32), positions=long([1, 2, 3, 4, 259]),
        state_slots=long([0, 17, -1, 9, 3]),
    )  # fmt: skip
    ours, right = (torch.full((5, block, row + 64), 7.0, device=DEVICE) for _ in range(2))
    compressor_state_save(**arguments, state_cache=ours[:, :, :row])
    reference.compressor_state_save(**arguments, state_cache=right[:, :, :row])
    assert torch.equal(ours, right)


for _dim, _ratio in ((512, 4), (128, 4), (512, 128)):
    check(state_rows_are_saved, dim=_dim, ratio=_ratio)


def entries_are_compressed(cache: str, ratio: int, tile: tuple[int, ...]) -> None:
    """Entries of two requests: the first window, a later one, tokens that complete nothing, in shuffled pages."""
    dim, block = FORMATS[cache].dim, 4 if ratio == 4 else 8
    row = state_row_floats(dim, ratio)
    span = 3 * ratio
    pages = -(-2 * span // block)
    state = randn(pages + 3, block, row + 16, dtype=torch.float32)[:, :, :row]
    state[:, :, row // 2 :] *= 4
    block_table = torch.randperm(pages, generator=torch.Generator().manual_seed(3)).view(2, -1).int().to(DEVICE)
    arguments = dict(
        state_cache=state, state_block_table=block_table, token_to_request=long([0, 1, 1, 0, 1], torch.int32),
        positions=long([ratio - 1, 2 * ratio - 1, 2 * ratio, 3 * ratio - 1, ratio - 1]),
        compressed_slots=long([5, 0, -1, 7, 2]), norm_weight=randn(dim), cos_sin=table(), ratio=ratio, eps=EPS,
    )  # fmt: skip
    ours, right = Slab(cache, 2), Slab(cache, 2)
    kind = compress.OverlapTile if ratio == 4 else compress.SplitTile
    for _ in range(2):  # a second time: a launch must leave its counters as it found them
        compress.compress_norm_rope_insert(**arguments, cache=ours.cache, tile=kind(*tile))
    reference.compress_norm_rope_insert(**arguments, cache=right.cache)
    assert_caches(ours, right, exact=False)


for _cache in ("main-fp8", "main-bf16", "indexer-fp8", "indexer-fp4", "indexer-bf16"):
    check(entries_are_compressed, cache=_cache, ratio=4, tile=(1, 4))
check(entries_are_compressed, cache="main-fp8", ratio=4, tile=(4, 4))
for _tokens in (1, 2, 4, 16, 32):  # alone; shared or dealt out in groups, rows split or not
    check(entries_are_compressed, cache="main-fp8", ratio=128, tile=(_tokens, 64, 64, 4, 3))
check(entries_are_compressed, cache="main-bf16", ratio=128, tile=(8, 256, 16, 8, 2))
check(entries_are_compressed, cache="main-bf16", ratio=128, tile=(1, 512, 8, 4, 2))


def entries_beyond_the_counters_are_compressed() -> None:
    """More tokens than one launch has tickets for: the entry of the very last one is written."""
    tokens = compress.CAPACITY + 3
    state = randn(16, 8, 1024, dtype=torch.float32)
    slots = torch.full((tokens,), -1, device=DEVICE)
    slots[-1] = 1
    arguments = dict(
        state_cache=state, state_block_table=torch.arange(16, device=DEVICE).int()[None],
        token_to_request=torch.zeros(tokens, dtype=torch.int32, device=DEVICE),
        positions=torch.full((tokens,), 127, device=DEVICE), compressed_slots=slots, norm_weight=randn(512),
        cos_sin=table(), ratio=128, eps=EPS,
    )  # fmt: skip
    ours, right = Slab("main-bf16", 2), Slab("main-bf16", 2)
    compress.compress_norm_rope_insert(**arguments, cache=ours.cache, tile=compress.SplitTile(1024, 512, 8, 4, 2))
    reference.compress_norm_rope_insert(**arguments, cache=right.cache)
    assert_caches(ours, right, exact=False)


check(entries_beyond_the_counters_are_compressed)


# the same stages, a kernel per step -----------------------------------------------------------------------------------


def decoded(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (values.float().unflatten(-1, (scales.shape[-1], -1)) * scales.unsqueeze(-1)).flatten(-2)


def unfused_output_and_queries_are_near_the_reference() -> None:
    """Their bf16 intermediates round once more, so values are compared, not bytes."""
    positions = long([5, 4000, 0])
    rope = dict(positions=positions, cos_sin=table())
    o = dict(o=randn(3, 8, 512), groups=2, precision="fp8", **rope)
    ours, right = (decoded(*f(**o)) for f in (unfused.inverse_rope_quant, reference.inverse_rope_quant))
    assert (ours - right).norm() / right.norm() < 0.01
    for precision in ("fp8", "fp4"):
        q = dict(
            index_q=randn(3, 64, 128), head_weights=randn(3, 64), precision=precision, rope_style="interleaved", **rope
        )
        values, scales, weights = unfused.indexer_query_rope_quant(**q)
        right_values, right_scales, right_weights = reference.indexer_query_rope_quant(**q)
        assert torch.equal(weights, right_weights)
        assert (values.view(torch.uint8) != right_values.view(torch.uint8)).float().mean() < 0.01
        assert (scales is None and right_scales is None) or torch.equal(scales, right_scales)
    ours, right = Slab("main-fp8", 4), Slab("main-fp8", 4)
    q = dict(q=randn(3, 4, 512), kv=randn(3, 512), window_slots=long([3, -1, 0]), eps=EPS, **rope)
    out = unfused.query_norm_rope_insert(**q, window_cache=ours.cache)
    expected = reference.query_norm_rope_insert(**q, window_cache=right.cache)
    assert_caches(ours, right, exact=True)
    torch.testing.assert_close(out.float(), expected.float(), rtol=2**-6, atol=2**-6)


def unfused_compression_is_near_the_reference(cache: str, ratio: int) -> None:
    dim, block = FORMATS[cache].dim, 4 if ratio == 4 else 8
    row, tokens = state_row_floats(dim, ratio), 3
    ours, right = (torch.zeros(2 * ratio // block, block, row, device=DEVICE) for _ in range(2))
    saved = dict(
        kv_score=randn(2 * ratio, row, dtype=torch.float32), ape=randn(ratio, row // 2, dtype=torch.float32),
        positions=torch.arange(2 * ratio, device=DEVICE), state_slots=torch.arange(2 * ratio, device=DEVICE),
    )  # fmt: skip
    unfused.compressor_state_save(**saved, state_cache=ours)
    reference.compressor_state_save(**saved, state_cache=right)
    assert torch.equal(ours, right)
    arguments = dict(
        state_cache=ours, state_block_table=torch.arange(2 * ratio // block, device=DEVICE).int()[None],
        token_to_request=long([0] * tokens, torch.int32), positions=long([ratio - 1, ratio, 2 * ratio - 1]),
        compressed_slots=long([1, -1, 2]), norm_weight=randn(dim), cos_sin=table(), ratio=ratio, eps=EPS,
    )  # fmt: skip
    slab, right_slab = Slab(cache, 2), Slab(cache, 2)
    unfused.compress_norm_rope_insert(**arguments, cache=slab.cache)
    reference.compress_norm_rope_insert(**arguments, cache=right_slab.cache)
    assert_caches(slab, right_slab, exact=False)


def unfused_norms_and_slots_agree() -> None:
    norm = dict(qkv_latent=randn(3, 1024 + 512), q_norm_weight=randn(1024), kv_norm_weight=randn(512), eps=EPS)
    for ours, right in zip(unfused.qkv_norm(**norm), reference.qkv_norm(**norm), strict=True):
        assert_bf16(ours, right, exact=False)
    slots = dict(
        topk_indices=long([[5, 1, -1], [-1, -1, -1]], torch.int32), token_to_request=long([0, 0], torch.int32),
        block_table=long([[3, 9]], torch.int32), entries=4,
    )  # fmt: skip
    for ours, right in zip(unfused.index_map(**slots), reference.index_map(**slots), strict=True):
        assert torch.equal(ours, right)


check(unfused_output_and_queries_are_near_the_reference)
for _cache, _ratio in (("main-fp8", 4), ("indexer-fp8", 4), ("indexer-fp4", 4), ("main-fp8", 128)):
    check(unfused_compression_is_near_the_reference, cache=_cache, ratio=_ratio)
check(unfused_norms_and_slots_agree)


# every launcher ------------------------------------------------------------------------------------------------------


def nothing_happens_without_tokens() -> None:
    none, slab = long([]), Slab("main-fp8", 4)
    empty = dict(positions=none, cos_sin=table())
    before = slab.bytes.clone()
    q = query.query_norm_rope_insert(
        q=randn(0, 8, 512), kv=randn(0, 512), window_cache=slab.cache, window_slots=none, eps=EPS, **empty
    )
    values, scales = inverse.inverse_rope_quant(o=randn(0, 8, 512), groups=2, precision="fp8", **empty)
    index = index_query.indexer_query_rope_quant(
        index_q=randn(0, 64, 128), head_weights=randn(0, 64), precision="fp4", rope_style="interleaved", **empty
    )
    latents = qkv_norm(qkv_latent=randn(0, 608), q_norm_weight=randn(96), kv_norm_weight=randn(512), eps=EPS)
    slots, lens = index_map(
        topk_indices=randn(0, 8).int(), token_to_request=none.int(), block_table=randn(1, 4).int(), entries=64
    )
    state = randn(1, 4, 2048, dtype=torch.float32)
    saved = state.clone()
    compressor_state_save(
        kv_score=randn(0, 2048, dtype=torch.float32), ape=randn(4, 1024), positions=none, state_cache=state,
        state_slots=none,
    )  # fmt: skip
    compress.compress_norm_rope_insert(
        state_cache=state, state_block_table=randn(1, 1).int(), token_to_request=none.int(), compressed_slots=none,
        norm_weight=randn(512), cache=slab.cache, ratio=4, eps=EPS, **empty,
    )  # fmt: skip
    assert [tuple(x.shape) for x in (q, values, scales, *index, *latents, slots, lens)] == [
        (0, 8, 512), (0, 2, 2048), (0, 2, 16), (0, 64, 64), (0, 64, 4), (0, 64), (0, 96), (0, 512), (0, 8), (0,),
    ]  # fmt: skip
    assert torch.equal(slab.bytes, before)
    assert torch.equal(state, saved)


check(nothing_happens_without_tokens)


if __name__ == "__main__":
    main()
