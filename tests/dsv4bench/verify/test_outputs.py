"""How outputs are compared where an element-wise tolerance says too little: logits, whose heads cancel."""

import pytest
import torch
from dsv4_kernels import reference
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import quantize_fp8, read_entries, write_entries
from dsv4_kernels.formats import FORMATS

from dsv4bench.verify.stage_check import compare

HEADS = 64


def logits_case(tokens: int, entries: int) -> dict:
    """Arguments of ``indexer_logits``: one request, fp8 queries and keys, every entry visible."""
    generator = torch.Generator().manual_seed(entries)
    format = FORMATS["indexer-fp8"]
    pages = -(-entries // 64)
    cache = PagedCache(torch.zeros(pages, format.page_bytes(64), dtype=torch.uint8), format, 64)
    write_entries(cache, torch.arange(entries), torch.randn(entries, 128, generator=generator))
    values, _ = quantize_fp8(torch.randn(tokens, HEADS, 128, generator=generator), 128)
    return {
        "index_q_values": values,
        "index_q_scales": None,
        "index_weights": torch.randn(tokens, HEADS, generator=generator),
        "indexer_cache": cache,
        "block_table": torch.arange(pages, dtype=torch.int32)[None],
        "token_to_request": torch.zeros(tokens, dtype=torch.int32),
        "candidate_lens": torch.full((tokens,), entries, dtype=torch.int32),
        "max_candidates": entries,
    }


def check(arguments: dict, logits: torch.Tensor) -> bool:
    return compare("indexer_logits", arguments, (logits,)).ok


def from_dots(arguments: dict, accumulate) -> torch.Tensor:
    """Logits of a kernel that sums the products of queries and keys [T, HI, N, 128] in its own way."""
    keys = read_entries(arguments["indexer_cache"], torch.arange(arguments["max_candidates"]))
    products = arguments["index_q_values"].double()[:, :, None] * keys.double()
    scores = torch.relu(accumulate(products))
    return torch.einsum("th,thn->tn", arguments["index_weights"].double(), scores).float()


def fourteen_bits(products: torch.Tensor) -> torch.Tensor:
    """Sums as Hopper's fp8 tensor cores form them: 32 products at a time, cut 13 bits below the largest addend."""
    total = products.new_zeros(products.shape[:-1])
    for group in products.split(32, dim=-1):
        addends = torch.cat((group, total.unsqueeze(-1)), dim=-1)
        _, exponent = torch.frexp(addends.abs().amax(-1, keepdim=True))
        step = torch.ldexp(torch.ones_like(addends[..., :1]), exponent - 1 - 13)
        total = ((addends / step).trunc() * step).sum(-1)
    return total


def test_a_logit_whose_heads_cancel_may_be_off_by_a_little_of_its_terms() -> None:
    arguments = logits_case(1, 1)
    adding = (torch.arange(HEADS) < HEADS // 2).float()[None]
    plus, minus = (reference.indexer_logits(**(arguments | {"index_weights": w})) for w in (adding, 1 - adding))
    arguments["index_weights"] = adding - (1 - adding) * 0.999 * plus / minus
    logit, terms = reference.indexer_logits(**arguments), 1.999 * plus
    assert float(logit / terms) == pytest.approx(1 / 1999, rel=0.01)
    assert check(arguments, logit + terms * 2.0**-13)
    assert not check(arguments, logit + terms * 2.0**-10)


@pytest.mark.parametrize("entries", [1, 2, 300])
def test_the_accumulation_of_fp8_tensor_cores_is_right(entries: int) -> None:
    arguments = logits_case(8, entries)
    assert check(arguments, from_dots(arguments, fourteen_bits))


def test_products_or_weights_rounded_to_bf16_are_wrong() -> None:
    arguments = logits_case(8, 300)
    assert not check(arguments, from_dots(arguments, lambda products: products.sum(-1).bfloat16().double()))
    weights = arguments["index_weights"].bfloat16().float()
    assert not check(arguments, reference.indexer_logits(**(arguments | {"index_weights": weights})))


def test_a_head_or_a_dimension_left_out_is_wrong() -> None:
    arguments = logits_case(8, 300)
    assert not check(arguments, from_dots(arguments, lambda products: products[..., :-1].sum(-1)))
    weights = arguments["index_weights"].clone()
    weights[:, -1] = 0
    assert not check(arguments, reference.indexer_logits(**(arguments | {"index_weights": weights})))


def topk_sentence(change) -> str:
    """What is said of a top-k of 3 whose first row sees 5 candidates and second row 2, after a change."""
    logits = torch.tensor([[1.0, 5.0, 3.0, 4.0, 2.0], [1.0, 2.0, 9.0, 9.0, 9.0]])
    arguments = {"logits": logits, "candidate_lens": torch.tensor([5, 2], dtype=torch.int32), "k": 3}
    indices = reference.topk(**arguments).sort(dim=1, descending=True).values
    change(indices)
    return compare("topk", arguments, (indices,)).sentence


@pytest.mark.parametrize(
    ("place", "index", "sentence"),
    [
        ((0, 1), 3, "token 0: indices[1] is 3, as is indices[0]; expected 3 of its 5 candidates, each once; 1 of 2"),
        ((1, 0), 2, "token 1: indices[0] is 2; expected 2 of its 2 candidates, each once, then -1; 1 of 2 tokens"),
        ((1, 2), 0, "token 1: indices[2] is 0; expected 2 of its 2 candidates, each once, then -1; 1 of 2 tokens"),
        ((0, 2), 0, "selection off by 0.8 (allowed 0.000977) at token 0: index 1 (logit 5) was left out for index 0"),
    ],
)
def test_a_wrong_selection_is_told_by_index_and_what_is_due(place, index, sentence) -> None:
    def change(indices: torch.Tensor) -> None:
        indices[place] = index

    assert topk_sentence(lambda indices: None) == "topk: indices: "
    assert sentence in topk_sentence(change)


def test_a_wrong_slot_is_told_with_the_one_that_is_missing() -> None:
    arguments = {
        "topk_indices": torch.tensor([[0, 70, -1]], dtype=torch.int32),
        "token_to_request": torch.zeros(1, dtype=torch.int32),
        "block_table": torch.tensor([[5, 3]], dtype=torch.int32),
        "entries": 64,
    }
    slots, lens = reference.index_map(**arguments)
    assert compare("index_map", arguments, (slots, lens)).ok
    slots[slots == 3 * 64 + 6] = 7
    sentence = compare("index_map", arguments, (slots, lens)).sentence
    assert "token 0: expected the slots of its 2 indices within the first " in sentence
    assert "; 198 missing; 7 none of them" in sentence
