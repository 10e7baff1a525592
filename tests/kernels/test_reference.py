import math

import pytest
import torch
from dsv4_kernels import reference
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import random_fill, read_entries, write_entries
from dsv4_kernels.formats import FORMATS
from hypothesis import given, settings
from hypothesis import strategies as st

UNROTATED = torch.cat((torch.ones(4096, 32), torch.zeros(4096, 32)), dim=1)


def cache(name, pages=4, entries=4):
    format = FORMATS[name]
    return PagedCache(torch.zeros(pages, format.page_bytes(entries), dtype=torch.uint8), format, entries)


def filled(name, **sizes):
    made = cache(name, **sizes)
    random_fill(made, torch.Generator().manual_seed(0))
    return made


def attend(q, entries, sink=None, lens=None, indices=None):
    tokens = len(q)
    count = entries.num_slots
    indices = torch.arange(count, dtype=torch.int32).expand(tokens, -1) if indices is None else indices
    lens = torch.full((tokens,), count, dtype=torch.int32) if lens is None else lens
    return reference.sparse_attention(
        q=q,
        window_cache=entries,
        window_indices=indices,
        window_lens=lens,
        compressed_cache=None,
        compressed_indices=None,
        compressed_lens=None,
        sink=sink,
        softmax_scale=512**-0.5,
    )


def test_attention_is_the_softmax_with_the_sink_in_its_denominator():
    entries, q, sink = filled("main-fp32"), torch.randn(3, 2, 512), torch.randn(2)
    keys = read_entries(entries, torch.arange(16)).double()
    scores = torch.cat((q.double() @ keys.T * 512**-0.5, sink.double().view(1, 2, 1).expand(3, 2, 1)), dim=-1)
    expected = scores.softmax(-1)[..., :-1] @ keys
    out, lse = attend(q, entries, sink)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse.double(), scores[..., :-1].logsumexp(-1), rtol=1e-6, atol=1e-6)


def test_the_order_of_indices_is_free():
    entries, q = filled("main-fp8"), torch.randn(1, 2, 512)
    shuffled = torch.randperm(16, dtype=torch.int32)[None]
    for a, b in zip(attend(q, entries), attend(q, entries, indices=shuffled), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sink", [None, torch.zeros(2), torch.full((2,), -math.inf)])
def test_nothing_selected_gives_zeros_and_an_lse_of_minus_infinity(sink):
    q = torch.randn(2, 2, 512)
    for given_ in ({"lens": torch.zeros(2).int()}, {"indices": torch.full((2, 5), -1).int()}):
        out, lse = attend(q, filled("main-fp8"), sink, **given_)
        assert torch.equal(out, torch.zeros_like(out))
        assert (lse == -math.inf).all()


def test_what_is_masked_may_be_nan():
    entries = filled("main-bf16")
    entries.pages[0] = 0xFF
    out, lse = attend(
        torch.randn(1, 2, 512), entries, indices=torch.tensor([[-1, 5, 6, 0]]).int(), lens=torch.tensor([3])
    )
    assert out.isfinite().all()
    assert lse.isfinite().all()


def test_a_step_without_tokens_runs_through_attention():
    out, lse = attend(torch.randn(0, 2, 512), filled("main-fp8"))
    assert (out.shape, lse.shape) == ((0, 2, 512), (0, 2))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 30), st.integers(0, 1000))
def test_topk_selects_the_best_of_the_visible_once_each_and_then_minus_one(lens, k, seed):
    logits = torch.randn(len(lens), 40, generator=torch.Generator().manual_seed(seed))
    chosen = reference.topk(logits=logits, candidate_lens=torch.tensor(lens, dtype=torch.int32), k=k)
    assert chosen.dtype == torch.int32
    for row, n in enumerate(lens):
        count = min(n, k)
        best = sorted(range(n), key=lambda i: -logits[row, i].item())[:count]
        assert sorted(chosen[row, :count].tolist()) == sorted(best)
        assert chosen[row, count:].eq(-1).all()


def test_garbage_beyond_the_candidates_is_never_selected():
    logits = torch.tensor([[1.0, 2.0, math.nan, math.inf, 3e38]])
    chosen = reference.topk(logits=logits, candidate_lens=torch.tensor([2]), k=4)
    assert sorted(chosen[0].tolist()) == [-1, -1, 0, 1]


def test_negative_logits_are_selected_like_any_others():
    chosen = reference.topk(logits=torch.tensor([[-5.0, -1.0, -3.0, 0.0]]), candidate_lens=torch.tensor([3]), k=2)
    assert sorted(chosen[0].tolist()) == [1, 2]


def test_indices_become_slots_by_way_of_the_block_table():
    slots, lens = reference.index_map(
        topk_indices=torch.tensor([[5, 0, -1], [-1, -1, -1]], dtype=torch.int32),
        token_to_request=torch.tensor([1, 0], dtype=torch.int32),
        block_table=torch.tensor([[9, 9], [7, 3]], dtype=torch.int32),
        entries=4,
    )
    assert slots.tolist() == [[13, 28, -1], [-1, -1, -1]]
    assert lens.tolist() == [2, 0]


def test_logits_are_weighted_sums_of_what_relu_leaves():
    keys = filled("indexer-fp8", pages=3)
    queries, weights = torch.randn(2, 8, 128), torch.randn(2, 8)
    lens = torch.tensor([9, 4], dtype=torch.int32)
    logits = reference.indexer_logits(
        index_q_values=queries,
        index_q_scales=None,
        index_weights=weights,
        indexer_cache=keys,
        block_table=torch.tensor([[2, 0, 1]], dtype=torch.int32),
        token_to_request=torch.zeros(2, dtype=torch.int32),
        candidate_lens=lens,
        max_candidates=12,
    )
    order = torch.tensor([8, 9, 10, 11, 0, 1, 2, 3, 4])
    expected = torch.einsum("th,thn->tn", weights, (queries @ read_entries(keys, order).T).relu())
    torch.testing.assert_close(logits[0, :9], expected[0], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(logits[1, :4], expected[1, :4], rtol=1e-4, atol=1e-3)
    assert (logits[0, 9:] == -math.inf).all()
    assert (logits[1, 4:] == -math.inf).all()


@pytest.mark.parametrize("precision", ["fp8", "fp4", "bf16"])
def test_quantised_queries_stand_for_the_same_product(precision):
    index_q, weights = torch.randn(3, 8, 128).bfloat16(), torch.randn(3, 8).bfloat16()
    arguments = {
        "head_weights": weights,
        "positions": torch.tensor([0, 5, 77]),
        "cos_sin": UNROTATED,
        "rope_style": "interleaved",
    }
    keys = filled("indexer-bf16", pages=2, entries=8)

    def logits(precision):
        values, scales, folded = reference.indexer_query_rope_quant(index_q=index_q, precision=precision, **arguments)
        assert folded.dtype == torch.float32
        return reference.indexer_logits(
            index_q_values=values,
            index_q_scales=scales,
            index_weights=folded,
            indexer_cache=keys,
            block_table=torch.tensor([[0, 1]]).int(),
            token_to_request=torch.zeros(3).int(),
            candidate_lens=torch.full((3,), 16).int(),
            max_candidates=16,
        )

    error = (logits(precision) - logits("fp32")).norm() / logits("fp32").norm()
    assert error < {"fp8": 0.05, "fp4": 0.2, "bf16": 0.005}[precision]


def test_rotating_back_undoes_the_rotation():
    positions = torch.tensor([3, 900])
    table = torch.randn(1000, 32)
    table = torch.cat((table.cos(), table.sin()), dim=1)
    q = torch.randn(2, 8, 512)
    rotated = reference.query_norm_rope_insert(
        q=q,
        kv=torch.randn(2, 512),
        positions=positions,
        cos_sin=table,
        window_cache=cache("main-fp32"),
        window_slots=torch.tensor([-1, -1]),
        eps=0.0,
    )
    back, scales = reference.inverse_rope_quant(
        o=rotated, positions=positions, cos_sin=table, groups=1, precision="bf16"
    )
    assert scales is None
    normed = q / q.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(back, normed.flatten(1)[:, None], rtol=1e-5, atol=1e-5)


def compress(rows, positions, *, ratio, dim=128, name="indexer-fp32", order=None):
    """Entries that the tokens at ``positions`` complete, from state rows of one request."""
    block = 4 if ratio == 4 else 8
    pages = -(-len(rows) // block)
    order = torch.randperm(pages) if order is None else order
    state = torch.full((pages, block, rows.shape[1]), math.nan)
    flat = torch.cat((rows, torch.full((pages * block - len(rows), rows.shape[1]), math.nan))).view(pages, block, -1)
    state[order] = flat
    made = cache(name, pages=len(positions), entries=1)
    slots = torch.arange(len(positions))
    reference.compress_norm_rope_insert(
        state_cache=state,
        state_block_table=order.int()[None],
        token_to_request=torch.zeros(len(positions)).int(),
        positions=positions,
        compressed_slots=torch.where((positions + 1) % ratio == 0, slots, -1),
        norm_weight=torch.ones(dim),
        cos_sin=UNROTATED,
        cache=made,
        ratio=ratio,
        eps=1e-6,
    )
    return read_entries(made, slots)


def normed(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def test_an_entry_of_128_tokens_is_their_softmax_per_channel():
    rows = torch.randn(256, 256)
    kv, score = rows.chunk(2, dim=1)
    expected = (score[128:].softmax(0) * kv[128:]).sum(0)
    entries = compress(rows, torch.tensor([200, 255]), ratio=128)
    torch.testing.assert_close(entries[1], normed(expected), rtol=1e-5, atol=1e-6)
    assert entries[0].eq(0).all(), "token 200 completes nothing"


def test_an_entry_of_4_tokens_mixes_half_of_each_window_and_the_first_excludes_what_is_missing():
    rows = torch.randn(8, 512)
    kv, score = rows.chunk(2, dim=1)
    first, second = compress(rows, torch.tensor([3, 7]), ratio=4)
    expected = (score[:4, 128:].softmax(0) * kv[:4, 128:]).sum(0)
    torch.testing.assert_close(first, normed(expected), rtol=1e-5, atol=1e-6)
    both_kv = torch.cat((kv[:4, :128], kv[4:, 128:]))
    both_score = torch.cat((score[:4, :128], score[4:, 128:]))
    torch.testing.assert_close(second, normed((both_score.softmax(0) * both_kv).sum(0)), rtol=1e-5, atol=1e-6)


def test_a_state_row_has_ape_on_its_score_alone():
    state = torch.zeros(3, 4, 512)
    kv_score, ape = torch.randn(2, 512), torch.randn(4, 256)
    reference.compressor_state_save(
        kv_score=kv_score, ape=ape, positions=torch.tensor([6, 7]), state_cache=state, state_slots=torch.tensor([9, -1])
    )
    expected = torch.cat((kv_score[0, :256], kv_score[0, 256:] + ape[2]))
    assert torch.equal(state[2, 1], expected)
    assert state.count_nonzero() == 512


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_activations_come_back_in_the_dtype_they_came_in(dtype):
    x, weight = torch.randn(2, 64, dtype=dtype), torch.randn(512 + 96, 64, dtype=dtype)
    latent = reference.input_projection(x=x, weight=weight)
    q, kv = reference.qkv_norm(
        qkv_latent=latent,
        q_norm_weight=torch.ones(96, dtype=dtype),
        kv_norm_weight=torch.ones(512, dtype=dtype),
        eps=1e-6,
    )
    assert {latent.dtype, q.dtype, kv.dtype} == {dtype}
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert reference.compressor_projection(x=x, weight=weight).dtype == wide


def test_quantised_output_stands_for_the_same_product():
    o, weight = torch.randn(3, 16, 512).bfloat16(), torch.randn(2, 32, 4096).bfloat16()
    positions = torch.zeros(3, dtype=torch.long)
    results = []
    for precision in ("fp8", "bf16"):
        values, scales = reference.inverse_rope_quant(
            o=o, positions=positions, cos_sin=UNROTATED, groups=2, precision=precision
        )
        results.append(reference.output_group_projection(o_values=values, o_scales=scales, weight=weight))
    assert results[0].dtype == torch.bfloat16
    assert (results[0].float() - results[1].float()).norm() / results[1].float().norm() < 0.04


def test_the_index_key_of_v32_is_layer_normed_and_rotated_in_halves():
    made = cache("indexer-fp32")
    keys, weight, bias = torch.randn(1, 128), torch.randn(128), torch.randn(128)
    angle = torch.rand(32)
    table = torch.cat((angle.cos(), angle.sin()))[None]
    reference.indexer_key_insert(
        index_k=keys,
        norm_weight=weight,
        norm_bias=bias,
        positions=torch.tensor([0]),
        cos_sin=table,
        cache=made,
        slots=torch.tensor([2]),
        eps=1e-6,
    )
    normal = (keys - keys.mean()) / (keys.var(unbiased=False) + 1e-6).sqrt() * weight + bias
    a, b, rest = normal[0, :32], normal[0, 32:64], normal[0, 64:]
    expected = torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos(), rest))
    torch.testing.assert_close(read_entries(made, torch.tensor([2]))[0], expected, rtol=1e-5, atol=1e-5)


def test_writes_of_one_stage_are_reads_of_the_next():
    window = cache("main-fp8")
    kv = torch.randn(2, 512)
    write_entries(window, torch.tensor([1, 6]), kv)
    out, _ = attend(torch.randn(1, 1, 512), window, indices=torch.tensor([[6]]).int(), lens=torch.tensor([1]))
    torch.testing.assert_close(out[0, 0], read_entries(window, torch.tensor([6]))[0])
