"""Checks of logits, attention and V3.2's own kernels against the reference.

``test_triton_attention`` runs them as a script of its own process: on a GPU, or without one in Triton's interpreter
with small shapes.
"""

# ruff: noqa: C408

import pytest
import torch
from checks import DEVICE, INTERPRETED, check, integers, main, randn
from dsv4_kernels import reference
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import quantize_fp4, quantize_fp8, random_fill, read_entries, ue8m0
from dsv4_kernels.formats import FORMATS
from dsv4_kernels.reference import latent as reference_latent
from dsv4_kernels.rope import cos_sin_table
from dsv4_kernels.triton.gather_dequant import gather_dequant
from dsv4_kernels.triton.indexer_key_insert import indexer_key_insert
from dsv4_kernels.triton.indexer_logits import indexer_logits
from dsv4_kernels.triton.latent_insert import latent_insert
from dsv4_kernels.triton.query_rope import query_rope
from dsv4_kernels.triton.sparse_attention import sparse_attention


def poisoned(name: str, entries: int, slots: int, padding: int = 64) -> PagedCache:
    """Random entries in pages with a tail, the tail and every unused slot full of NaN bytes (0xFF)."""
    size = FORMATS[name].page_bytes(entries) + padding
    pages = torch.full((-(-slots // entries), size), 255, dtype=torch.uint8, device=DEVICE)
    cache = PagedCache(pages, FORMATS[name], entries)
    random_fill(cache)
    return cache


# attention -----------------------------------------------------------------------------------------------------------


def attention_step(name: str, heads: int, widths: tuple[int, int]) -> dict[str, object]:
    """A ragged step: empty, one-entry, tile-sized and full lists, with holes; both caches, or latents alone."""
    latent = name.startswith("latent")
    window_width, width = widths
    window, cache = poisoned(name, 8, 64), poisoned(name, 8 if latent else 2, 96)
    edge = 16 if INTERPRETED else 64
    lens = integers([width, 0, 1, edge - 1, edge, edge + 1, 0])
    tokens = len(lens)
    indices = torch.randint(0, cache.num_slots, (tokens, width), device=DEVICE).int()
    indices[torch.rand(indices.shape, device=DEVICE) < 0.1] = -1
    return {
        "q": randn(tokens, heads, 576 if latent else 512).bfloat16(), "window_cache": None if latent else window,
        "window_indices": None if latent else torch.randint(0, 64, (tokens, window_width), device=DEVICE).int(),
        "window_lens": None if latent else integers([window_width, 0, 0, 1, 3, window_width, window_width - 1]),
        "compressed_cache": cache, "compressed_indices": indices, "compressed_lens": lens,
        "sink": None if latent else randn(heads), "softmax_scale": (576 if latent else 512) ** -0.5,
    }  # fmt: skip


def assert_attention(result: tuple[torch.Tensor, torch.Tensor], step: dict[str, object]) -> None:
    """Vectors within 1 % (bf16), LSE within 2e-3; rows that see nothing exactly 0 and −inf."""
    (out, lse), (want, want_lse) = result, reference.sparse_attention(**{**step, "q": step["q"].float()})
    nothing = want_lse == float("-inf")
    assert torch.equal(lse == float("-inf"), nothing)
    assert not out[nothing].any()
    error = (out.float() - want)[~nothing].norm(dim=-1) / want[~nothing].norm(dim=-1)
    assert error.numel()
    assert error.max() < 1e-2, f"vectors up to {error.max():.1e} off"
    torch.testing.assert_close(lse[~nothing], want_lse[~nothing], rtol=0, atol=2e-3)


def attention_agrees(name: str, heads: int, splits: int, form: str) -> None:
    step = attention_step(name, heads, (20, 40) if INTERPRETED else (128, 700))
    result = sparse_attention(**step, splits=splits, form=form)
    assert_attention(result, step)
    assert all(map(torch.equal, result, sparse_attention(**step, splits=splits, form=form)))


for name, heads in (("main-fp8", 8), ("main-bf16", 16), ("latent-fp8", 16), ("latent-bf16", 8)):
    for splits in (1, 3):
        check(attention_agrees, name=name, heads=heads, splits=splits, form="plain")
if not INTERPRETED:
    for heads in (8, 16, 32, 64, 128):
        for splits in (1, 2, 3, 12):
            check(attention_agrees, name="main-fp8", heads=heads, splits=splits, form="gluon")
        check(attention_agrees, name="main-fp8", heads=heads, splits=2, form="plain")
        check(attention_agrees, name="main-bf16", heads=heads, splits=2, form="gluon")


def attention_over_a_window_alone() -> None:
    step = attention_step("main-fp8", 8, (20, 40))
    step |= {"compressed_cache": None, "compressed_indices": None, "compressed_lens": None}
    assert_attention(sparse_attention(**step), step)


check(attention_over_a_window_alone)


def attention_without_anything_to_see(sink: bool) -> None:
    step = attention_step("main-fp8", 8, (20, 40))
    nothing = torch.zeros_like(step["compressed_lens"])
    step |= {"window_lens": nothing, "compressed_lens": nothing, "sink": step["sink"] if sink else None}
    out, lse = sparse_attention(**step, splits=2)
    assert not out.any()
    assert (lse == float("-inf")).all()


check(attention_without_anything_to_see, sink=True)
check(attention_without_anything_to_see, sink=False)


def attention_of_no_tokens_is_empty() -> None:
    step = attention_step("main-fp8", 8, (20, 40))
    for key in ("q", "window_indices", "window_lens", "compressed_indices", "compressed_lens"):
        step[key] = step[key][:0]
    out, lse = sparse_attention(**step)
    assert out.shape == (0, 8, 512)
    assert lse.shape == (0, 8)


check(attention_of_no_tokens_is_empty)


def identical_tokens_have_identical_rows() -> None:
    step = attention_step("main-fp8", 8, (20, 40))
    for key in ("q", "window_indices", "window_lens", "compressed_indices", "compressed_lens"):
        step[key] = step[key][:1].repeat(5, *(1,) * (step[key].dim() - 1))
    out, lse = sparse_attention(**step)
    assert (out == out[0]).all()
    assert (lse == lse[0]).all()


check(identical_tokens_have_identical_rows)


def page_strides_beyond_the_page_change_nothing() -> None:
    step = attention_step("main-fp8", 8, (20, 40))
    spread = {}
    for key in ("window_cache", "compressed_cache"):
        cache = step[key]
        slab = torch.full((cache.num_pages, 3, cache.pages.shape[1] + 64), 255, dtype=torch.uint8, device=DEVICE)
        slab[:, 1, : cache.pages.shape[1]] = cache.pages
        spread[key] = PagedCache(slab[:, 1, : cache.pages.shape[1]], cache.format, cache.entries)
    assert all(map(torch.equal, sparse_attention(**step), sparse_attention(**(step | spread))))


check(page_strides_beyond_the_page_change_nothing)


def attention_names_what_it_cannot_read() -> None:
    step = attention_step("main-fp8", 8, (20, 40))
    with pytest.raises(ValueError, match="main-fp32"):
        sparse_attention(**(step | {"compressed_cache": poisoned("main-fp32", 2, 96)}))


check(attention_names_what_it_cannot_read)


# logits --------------------------------------------------------------------------------------------------------------


def logits_agree(precision: str) -> None:
    entries, pages, heads = 16, 48, 16
    cache = poisoned(f"indexer-{precision}", entries, entries * pages)
    lens = integers([0, 1, 15, 16, 17, 33, 90, 91, 160])
    tokens = len(lens)
    queries, scales = randn(tokens, heads, 128), None
    if precision == "fp8":
        values = quantize_fp8(queries, 128)[0]
    elif precision == "fp4":
        values, exponents = quantize_fp4(queries)
        scales = ue8m0(exponents)
    else:
        values = queries.bfloat16()
    step = {
        "index_q_values": values, "index_q_scales": scales, "index_weights": randn(tokens, heads),
        "indexer_cache": cache, "block_table": torch.randperm(pages, device=DEVICE)[:40].view(4, 10).int(),
        "token_to_request": integers([0, 0, 1, 1, 1, 2, 2, 3, 3]), "candidate_lens": lens, "max_candidates": 160,
    }  # fmt: skip
    got, want = indexer_logits(**step), reference.indexer_logits(**step)
    for row, length in enumerate(lens.tolist()):
        if length:
            error = (got[row, :length] - want[row, :length]).norm() / want[row, :length].norm()
            assert error < (1e-5 if INTERPRETED else 2e-3), f"row {row}: {error:.1e}"


for precision in ("fp8", "fp4", "bf16"):
    check(logits_agree, precision=precision)


def logits_write_nothing_past_a_length() -> None:
    cache = poisoned("indexer-fp8", 16, 16 * 8)
    step = {
        "index_q_values": quantize_fp8(randn(2, 16, 128), 128)[0], "index_q_scales": None,
        "index_weights": randn(2, 16), "indexer_cache": cache, "block_table": integers([[0, 1, 2, 3], [4, 5, 6, 7]]),
        "token_to_request": integers([0, 1]), "candidate_lens": integers([5, 50]), "max_candidates": 64,
    }  # fmt: skip
    original = torch.empty
    torch.empty = lambda *shape, **options: original(*shape, **options).fill_(7.0)
    try:
        got = indexer_logits(**step)
    finally:
        torch.empty = original
    assert (got[0, 5:] == 7).all()
    assert (got[1, 50:] == 7).all()
    assert (got[1, :50] != 7).all()


check(logits_write_nothing_past_a_length)


def logits_of_empty_requests_fault_nowhere(tokens: int) -> None:
    cache = poisoned("indexer-fp8", 16, 64)
    got = indexer_logits(
        index_q_values=quantize_fp8(randn(tokens, 16, 128), 128)[0], index_q_scales=None,
        index_weights=randn(tokens, 16), indexer_cache=cache,
        block_table=torch.full((tokens, 4), 1 << 20, dtype=torch.int32, device=DEVICE),
        token_to_request=torch.arange(tokens, device=DEVICE).int(),
        candidate_lens=torch.zeros(tokens, dtype=torch.int32, device=DEVICE), max_candidates=64,
    )  # fmt: skip
    assert got.shape == (tokens, 64)


for tokens in (1, 31, 32, 64):
    check(logits_of_empty_requests_fault_nowhere, tokens=tokens)


# V3.2 and prefill ----------------------------------------------------------------------------------------------------


def latents_are_stored_byte_for_byte(precision: str) -> None:
    table = cos_sin_table(4096, 10000.0, 40.0, 4096).to(DEVICE)
    positions = torch.tensor([0, 1, 77, 4000, 5], device=DEVICE)
    slots = torch.tensor([3, -1, 0, 9, 10], device=DEVICE)
    kv, latent = randn(5, 512).bfloat16(), randn(5, 700).bfloat16()
    ours, right = (
        PagedCache(torch.full((3, FORMATS[f"latent-{precision}"].page_bytes(4) + 24), 170, dtype=torch.uint8,
                              device=DEVICE), FORMATS[f"latent-{precision}"], 4)
        for _ in range(2)
    )  # fmt: skip
    common = dict(kv=kv, qkv_latent=latent, positions=positions, cos_sin=table, slots=slots)
    latent_insert(cache=ours, **common)
    reference_latent.latent_insert(cache=right, **common)
    assert (ours.pages != right.pages).float().mean() <= (0 if INTERPRETED else 1e-3)


def index_keys_are_stored_byte_for_byte(precision: str) -> None:
    table = cos_sin_table(4096, 10000.0, 40.0, 4096).to(DEVICE)
    common = dict(
        index_k=randn(5, 128).bfloat16(), norm_weight=randn(128), norm_bias=randn(128), cos_sin=table, eps=1e-6,
        positions=torch.tensor([0, 1, 77, 4000, 5], device=DEVICE),
        slots=torch.tensor([3, -1, 0, 9, 10], device=DEVICE),
    )  # fmt: skip
    ours, right = (
        PagedCache(torch.full((3, FORMATS[f"indexer-{precision}"].page_bytes(4) + 24), 170, dtype=torch.uint8,
                              device=DEVICE), FORMATS[f"indexer-{precision}"], 4)
        for _ in range(2)
    )  # fmt: skip
    indexer_key_insert(cache=ours, **common)
    reference_latent.indexer_key_insert(cache=right, **common)
    assert (ours.pages != right.pages).float().mean() <= (0 if INTERPRETED else 1e-2)


for precision in ("fp8", "bf16"):
    check(latents_are_stored_byte_for_byte, precision=precision)
for precision in ("fp8", "fp4", "bf16"):
    check(index_keys_are_stored_byte_for_byte, precision=precision)


def latent_queries_are_absorbed_then_rotated() -> None:
    table = cos_sin_table(4096, 10000.0, 40.0, 4096).to(DEVICE)
    step = dict(
        q=randn(5, 3, 192).bfloat16(), q_absorbed=randn(5, 3, 512).bfloat16(), cos_sin=table,
        positions=torch.tensor([0, 1, 77, 4000, 5], device=DEVICE),
    )  # fmt: skip
    torch.testing.assert_close(query_rope(**step), reference_latent.query_rope(**step), rtol=2**-7, atol=1e-6)


check(latent_queries_are_absorbed_then_rotated)


def gathered_entries_are_exact(precision: str) -> None:
    cache = poisoned(f"main-{precision}", 4, 48)
    table = torch.randperm(12, device=DEVICE).view(3, 4).int()
    firsts, lens = integers([0, 3, 5]), integers([16, 7, 0])
    out = torch.full((3, 24, 512), 7.0, device=DEVICE).bfloat16()
    gather_dequant(cache=cache, block_table=table, firsts=firsts, lens=lens, max_len=16, out=out, offset=2)
    for request, (first, length) in enumerate(zip(firsts.tolist(), lens.tolist(), strict=True)):
        index = first + torch.arange(length, device=DEVICE)
        want = read_entries(cache, table[request].long()[index // 4] * 4 + index % 4)
        assert torch.equal(out[request, 2 : 2 + length].float(), want)
        assert (out[request, 2 + length :] == 7).all()


for precision in ("fp8", "bf16"):
    check(gathered_entries_are_exact, precision=precision)


if __name__ == "__main__":
    main()
