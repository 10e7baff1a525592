"""Checks of logits, top-k, attention and V3.2's own kernels against the reference.

``test_triton_attention`` runs them as a script of its own process: on a GPU, or without one in Triton's interpreter
with small shapes.
"""

# ruff: noqa: C408
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from checks import check, main
from dsv4_kernels import reference
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import quantize_fp4, quantize_fp8, random_fill, read_entries, ue8m0
from dsv4_kernels.formats import FORMATS
from dsv4_kernels.reference import latent as reference_latent
from dsv4_kernels.rope import cos_sin_table
from dsv4_kernels.triton import topk as topk_module
from dsv4_kernels.triton.gather_dequant import gather_dequant
from dsv4_kernels.triton.indexer_key_insert import indexer_key_insert
from dsv4_kernels.triton.indexer_logits import indexer_logits
from dsv4_kernels.triton.latent_insert import latent_insert
from dsv4_kernels.triton.query_rope import query_rope
from dsv4_kernels.triton.sparse_attention import sparse_attention
from dsv4_kernels.triton.streaming_selection import select_streaming
from dsv4_kernels.triton.topk import topk

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE)


def integers(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


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


# top-k ---------------------------------------------------------------------------------------------------------------


def logits_of(kind: str, rows: int, width: int) -> torch.Tensor:
    column = torch.arange(width, device=DEVICE).float().repeat(rows, 1)
    return {
        "normal": lambda: randn(rows, width),
        "ties": lambda: torch.randint(-9, 9, (rows, width), device=DEVICE).float(),
        "equal": lambda: torch.zeros(rows, width, device=DEVICE),
        "ascending": lambda: column - width / 2,
        "cluster": lambda: randn(rows, width) + 9.0 * (column < 200),
        "infinite": lambda: torch.where(column % 3 == 0, float("-inf"), randn(rows, width)),
        "outliers": lambda: randn(rows, width) + 1e30 * (column % 400 == 7),
        "close": lambda: 1e6 + (torch.randint(0, 99, (rows, width), device=DEVICE) + (column > 300)) * 0.0625,
    }[kind]()


def assert_topk(chosen: torch.Tensor, logits: torch.Tensor, lens: torch.Tensor, k: int) -> None:
    """As a set the k best, without duplicates, then −1."""
    for row, length, got in zip(logits, lens.tolist(), chosen, strict=True):
        count = min(length, k)
        valid = got[:count].long()
        assert (got[count:] == -1).all()
        if count:
            assert 0 <= valid.min() <= valid.max() < length
            assert len(valid.unique()) == count
            assert torch.equal(row[valid].sort().values, torch.topk(row[:length], count).values.sort().values)


def topk_selects_the_best(rows: int, width: int, k: int, kind: str) -> None:
    logits = logits_of(kind, rows, width)
    lens = torch.randint(1, width + 1, (rows,), device=DEVICE).int()
    lens[: min(rows, 4)] = integers([width, 0, min(k + 1, width), min(k, width)])[: min(rows, 4)]
    for row, length in enumerate(lens.tolist()):
        logits[row, length:] = float("nan") if row % 2 else 3e38
    chosen = topk(logits=logits, candidate_lens=lens, k=k)
    assert_topk(chosen, logits, lens, k)
    assert torch.equal(chosen, topk(logits=logits, candidate_lens=lens, k=k))


SHAPES = [(4, 1025, 64), (3, 700, 512), (2, 4097, 64)]
if not INTERPRETED:
    SHAPES += [
        (5, 2048, 1024),
        (5, 8193, 512),
        (3, 16385, 1024),
        (8, 262144, 512),
        (1, 1048576, 2048),
        (70, 40000, 2048),
        (33, 70000, 512),
        (300, 40000, 512),
        (260, 70001, 1024),
        (512, 12000, 512),
    ]
for rows, width, k in SHAPES:
    for kind in ("normal", "ties", "equal", "ascending", "cluster", "infinite", "outliers", "close"):
        check(topk_selects_the_best, rows=rows, width=width, k=k, kind=kind)


def topk_shares_a_row(kind: str) -> None:
    """The path of long rows, on a row that the interpreter can walk through."""
    saved = topk_module._ONE_PROGRAM
    topk_module._ONE_PROGRAM = 4096
    try:
        topk_selects_the_best(2, 9000, 64, kind)
    finally:
        topk_module._ONE_PROGRAM = saved


for kind in ("normal", "equal", "cluster", "infinite", "outliers"):
    check(topk_shares_a_row, kind=kind)


def a_run_of_the_best_leaves_few_to_select_from(begins: int) -> None:
    """A run as long as a program's columns is sampled too, wherever it begins: the whole row need not be searched."""
    k, width = 512, 9000
    logits = randn(1, width)
    logits[:, begins : begins + 2560] += 9
    saved = topk_module._ONE_PROGRAM, topk_module.select_streaming

    def searched(*_: object) -> None:
        raise AssertionError("the whole row is searched")

    topk_module._ONE_PROGRAM, topk_module.select_streaming = 4096, searched
    try:
        lens = integers([width])
        assert_topk(topk(logits=logits, candidate_lens=lens, k=k), logits, lens, k)
    finally:
        topk_module._ONE_PROGRAM, topk_module.select_streaming = saved


if INTERPRETED:
    for begins in (0, 2560, 5120):
        check(a_run_of_the_best_leaves_few_to_select_from, begins=begins)


@contextmanager
def a_program_for_each_row(**constants: object) -> Iterator[None]:
    """The path of many long rows, on a few that the interpreter can walk through."""
    constants = {"_ONE_PROGRAM": 1024, "_MOST_SHARED": 0, **constants}
    saved = {name: getattr(topk_module, name) for name in constants}
    for name, value in constants.items():
        setattr(topk_module, name, value)
    try:
        yield
    finally:
        for name, value in saved.items():
            setattr(topk_module, name, value)


def topk_reads_a_row_once(kind: str, width: int) -> None:
    with a_program_for_each_row(_MANY=1):
        topk_selects_the_best(4 if kind == "normal" else 2, width, 64, kind)


for kind in ("normal", "ties", "equal", "ascending", "cluster", "infinite", "outliers", "close"):
    check(topk_reads_a_row_once, kind=kind, width=9000)
check(topk_reads_a_row_once, kind="normal", width=9001)
check(topk_reads_a_row_once, kind="ties", width=9001)
check(topk_reads_a_row_once, kind="normal", width=1000)
check(topk_reads_a_row_once, kind="normal", width=70000)


def topk_ranks_nan_in_a_row_read_once() -> None:
    with a_program_for_each_row():
        topk_ranks_nan_with_the_lowest(9000, 64)
        topk_ranks_nan_with_the_lowest(9000, 1024)


def an_unlucky_sample_costs_time_only(unlucky: str) -> None:
    """Sampled candidates are worse than all others, or better, or the best are few segments: still the k best."""
    k, width = 64, 17000
    column = torch.arange(width, device=DEVICE)
    segment = column // 32
    sampled = segment // topk_module._SAMPLED % 8 == segment % topk_module._SAMPLED
    searched = []

    def search(*arguments: object) -> None:
        searched.append(unlucky)
        select_streaming(*arguments)

    logits = {
        "worse": lambda: randn(1, width) - 50 * sampled,
        "mostly worse": lambda: randn(1, width) - 50 * (sampled & (segment >= 20)),
        "better": lambda: randn(1, width) + 50 * sampled,
        "one segment": lambda: randn(1, width) + 50 * (segment == 9),
        "a run": lambda: randn(1, width) + 50 * (column > 900) * (column < 3200),
        "descending": lambda: width - column[None].float(),
    }[unlucky]()
    lens = integers([width])
    with a_program_for_each_row(select_streaming=search if INTERPRETED else select_streaming):
        assert_topk(topk(logits=logits, candidate_lens=lens, k=k), logits, lens, k)
    assert bool(searched) == (unlucky == "worse" and INTERPRETED)


check(topk_ranks_nan_in_a_row_read_once)
for unlucky in ("worse", "mostly worse", "better", "one segment", "a run", "descending"):
    check(an_unlucky_sample_costs_time_only, unlucky=unlucky)


def a_row_read_once_selects_the_same_wherever_it_stands() -> None:
    k, width = 200, 9000
    logits = (3 * randn(5, width)).round()
    logits[4] = logits[1]
    lens = integers([width, 8500, 100, width, 8500])
    with a_program_for_each_row():
        chosen = topk(logits=logits, candidate_lens=lens, k=k)
        alone = topk(logits=logits[1:2].clone(), candidate_lens=lens[1:2], k=k)
    assert torch.equal(chosen[1], chosen[4])
    assert torch.equal(chosen[1], alone[0])


check(a_row_read_once_selects_the_same_wherever_it_stands)


def topk_ranks_nan_with_the_lowest(width: int, k: int) -> None:
    logits = randn(3, width)
    logits[:, ::3] = float("nan")
    logits[1, 40:] = float("nan")
    logits[2] = float("-inf")
    logits[2, 5::97] = float("inf")
    lens = integers([width, width, width - 1])
    numbers = torch.where(logits.isnan(), float("-inf"), logits)
    assert_topk(topk(logits=logits, candidate_lens=lens, k=k), numbers, lens, k)


def the_whole_row_search_ranks_nan_with_the_lowest() -> None:
    saved = topk_module._ONE_PROGRAM
    topk_module._ONE_PROGRAM = 4096
    try:
        logits = torch.where(torch.rand(1, 9000, device=DEVICE) < 0.9, float("nan"), randn(1, 9000))
        lens = integers([9000])
        numbers = torch.where(logits.isnan(), float("-inf"), logits)
        assert_topk(topk(logits=logits, candidate_lens=lens, k=1024), numbers, lens, 1024)
    finally:
        topk_module._ONE_PROGRAM = saved


check(the_whole_row_search_ranks_nan_with_the_lowest)
check(topk_ranks_nan_with_the_lowest, width=700, k=64)
if not INTERPRETED:
    check(topk_ranks_nan_with_the_lowest, width=16384, k=1024)
    check(topk_ranks_nan_with_the_lowest, width=70000, k=512)


def topk_refuses_more_than_it_can_rank() -> None:
    with pytest.raises(ValueError, match="4096"):
        topk(logits=randn(1, 9000), candidate_lens=integers([9000]), k=5000)


check(topk_refuses_more_than_it_can_rank)


def equal_rows_select_equally() -> None:
    logits = logits_of("ties", 1, 3000).repeat(6, 1)
    chosen = topk(logits=logits, candidate_lens=integers([3000] * 6), k=64)
    assert (chosen == chosen[0]).all()


check(equal_rows_select_equally)


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
