import re
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")
import compile_report
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import quantize_fp8, random_fill
from dsv4_kernels.formats import FORMATS
from dsv4_kernels.gluon.indexer_logits import LONG_PAIRS, SINGLE
from dsv4_kernels.triton.indexer_logits import gluon_applies, indexer_logits

HOPPER_SHARED = 233_472
RESERVED = 1024
NEEDS_HOPPER = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU"
)


def takes_gluon(
    name: str = "indexer-fp8", stride: int = 8_640, entries: int = 64, heads: int = 64, arch: int = 90,
    weights: torch.dtype = torch.float32,
):  # fmt: skip
    """Whether the Gluon form takes a step of this shape."""
    storage = torch.empty((4, stride), dtype=torch.uint8, device="meta")
    cache = PagedCache(storage[:, : FORMATS[name].page_bytes(entries)], FORMATS[name], entries)
    queries = torch.empty((1, heads, 128), dtype=torch.float8_e4m3fn, device="meta")
    with compile_report.compiled_kernels(arch):
        return gluon_applies(queries, torch.empty((1, heads), dtype=weights, device="meta"), cache)


@pytest.mark.slow
def test_the_hopper_kernel_fits_a_multiprocessor_as_often_as_it_is_launched_for():
    command = [sys.executable, compile_report.__file__, "--arch", "90", "--only", "indexer_logits"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"\bindexer_logits_kernel +90 +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)", table)
    assert len(rows) == 8, table
    for warps, registers, _, spills, shared in (map(int, row) for row in rows):
        shape = SINGLE if warps == 12 else LONG_PAIRS
        assert registers == shape.registers
        assert spills == 0
        assert registers * 32 * warps * shape.programs <= 65536
        assert (shared + RESERVED) * shape.programs <= HOPPER_SHARED


def test_fp8_keys_in_aligned_pages_of_64_take_the_hopper_form():
    assert takes_gluon()
    assert takes_gluon(heads=32)
    assert not takes_gluon(weights=torch.bfloat16)


@pytest.mark.parametrize(
    "other",
    [{"arch": 100}, {"name": "indexer-bf16", "stride": 16_384}, {"stride": 8_648}, {"entries": 32}, {"heads": 16}],
)
def test_other_cards_formats_pages_and_heads_take_the_plain_form(other):
    assert not takes_gluon(**other)


def test_asking_for_a_form_that_does_not_apply_is_an_error():
    cache = PagedCache(torch.zeros((1, 16 * 256), dtype=torch.uint8), FORMATS["indexer-bf16"], 16)
    lens = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="Gluon form"):
        indexer_logits(
            index_q_values=torch.zeros(1, 64, 128).bfloat16(), index_q_scales=None, index_weights=torch.zeros(1, 64),
            indexer_cache=cache, block_table=lens[None], token_to_request=lens, candidate_lens=lens, max_candidates=8,
            form="gluon",
        )  # fmt: skip


@pytest.mark.gpu
@NEEDS_HOPPER
@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize(
    ("tokens", "heads", "requests", "longest"),
    [
        (1, 64, 1, 700),
        (1, 64, 1, 64),
        (5, 64, 3, 1000),
        (37, 32, 5, 3000),
        (400, 32, 7, 900),
        (601, 64, 9, 500),
        (4096, 64, 1, 4000),
        (9001, 64, 3, 300),
        (61, 64, 5, 20_000),
        (6, 64, 2, 200_000),
    ],
)
def test_the_hopper_form_agrees_with_the_plain_one(tokens, heads, requests, longest, neighbours):
    """Ragged: empty, one page less an entry, one page, and anything up to the longest.

    Neighbours of one request are scored in groups from 2,048 steps on, so in the last six cases; from 8,192 entries on
    they take the shape for long rows. 9,001 tokens need two launches; the last step goes round every ring several
    times.
    """
    pages = -(-longest // 64)
    cache = PagedCache(
        torch.full((pages * requests, 8_640), 255, dtype=torch.uint8, device="cuda"), FORMATS["indexer-fp8"], 64
    )
    random_fill(cache)
    lens = torch.randint(0, longest + 1, (tokens,)).int()
    lens[: min(tokens, 4)] = torch.tensor([longest, 0, 63, 64], dtype=torch.int32)[: min(tokens, 4)]
    token = torch.arange(tokens, device="cuda")
    owners = token * requests // tokens if neighbours else token % requests
    step = {
        "index_q_values": quantize_fp8(torch.randn(tokens, heads, 128, device="cuda"), 128)[0], "index_q_scales": None,
        "index_weights": torch.randn(tokens, heads, device="cuda"), "indexer_cache": cache,
        "block_table": torch.randperm(pages * requests, device="cuda").view(requests, pages).int(),
        "token_to_request": owners.int(), "candidate_lens": lens.cuda(), "max_candidates": longest,
    }  # fmt: skip
    ours, plain = (indexer_logits(**step, form=form) for form in ("gluon", "plain"))
    visible = torch.arange(longest, device="cuda") < step["candidate_lens"][:, None]
    # sums over heads of both signs: what is left of them may be far smaller than what went in
    largest = plain[visible].abs().max().item()
    torch.testing.assert_close(ours[visible], plain[visible], rtol=1e-4, atol=1e-4 * largest)
