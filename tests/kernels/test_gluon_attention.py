import re
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")
import compile_report
from dsv4_kernels import reference
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import random_fill
from dsv4_kernels.formats import FORMATS
from dsv4_kernels.triton.sparse_attention import aligned_records, sparse_attention

MAIN = FORMATS["main-fp8"]
HOPPER_SHARED = 232_448


def meta_cache(stride: int, pages: int = 4, name: str = "main-fp8") -> PagedCache:
    size = FORMATS[name].page_bytes(64)
    storage = torch.empty((pages, stride), dtype=torch.uint8, device="meta")
    return PagedCache(storage[:, :size], FORMATS[name], 64)


def meta_queries(heads: int = 64) -> torch.Tensor:
    return torch.empty((1, heads, 512), dtype=torch.bfloat16, device="meta")


@pytest.mark.slow
def test_the_hopper_kernel_keeps_its_accumulators_in_registers_and_its_tiles_in_shared_memory():
    command = [sys.executable, compile_report.__file__, "--arch", "90", "--only", "sparse_attention main-fp8 H=64"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"\bsparse_attention_kernel +90 +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)", table)
    assert len(rows) == 2, table
    for warps, _, _, spills, shared in (map(int, row) for row in rows):
        assert warps == 12
        assert spills <= 80  # what only an item needs, around the loop over its tiles
        assert shared <= HOPPER_SHARED


@pytest.mark.parametrize(
    ("stride", "pages", "fits"),
    [
        (37_440, 4, True),
        (1_473_408, 4, True),
        (37_376 + 16, 4, True),
        (37_376 + 8, 4, False),
        (1_473_424, 90_000, True),
    ],
)
def test_pages_at_multiples_of_16_bytes_take_the_hopper_form_however_many(stride, pages, fits):
    assert aligned_records(meta_queries(), meta_cache(37_440), meta_cache(stride, pages)) == fits


def test_only_main_fp8_entries_take_this_hopper_form():
    cache = meta_cache(65_536, name="main-bf16")
    assert not aligned_records(meta_queries(), cache, cache)


def hopper_step(heads: int, tokens: int = 5) -> dict[str, object]:
    """A ragged step over both caches: lists that are empty, of one entry, of whole tiles and full, with holes."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs Hopper")
    torch.manual_seed(heads)
    caches = []
    for entries in (64, 2):
        pages = torch.full((1024 // entries, MAIN.page_bytes(entries)), 255, dtype=torch.uint8, device="cuda")
        caches.append(PagedCache(pages, MAIN, entries))
        random_fill(caches[-1])
    window_lens = torch.randint(0, 129, (tokens,), device="cuda").int()
    compressed_lens = torch.randint(0, 501, (tokens,), device="cuda").int()
    window_lens[:5] = torch.tensor([128, 0, 1, 64, 127])
    compressed_lens[:5] = torch.tensor([500, 0, 65, 1, 448])
    return {
        "q": torch.randn(tokens, heads, 512, device="cuda").bfloat16(), "window_cache": caches[0],
        "window_indices": torch.randint(0, 1024, (tokens, 128), device="cuda").int(), "window_lens": window_lens,
        "compressed_cache": caches[1],
        "compressed_indices": torch.randint(-1, 1024, (tokens, 500), device="cuda").int(),
        "compressed_lens": compressed_lens, "sink": torch.randn(heads, device="cuda"), "softmax_scale": 512**-0.5,
    }  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("heads", [8, 64, 128])
@pytest.mark.parametrize(("tokens", "splits"), [(5, 1), (5, 2), (5, 7), (150, 1), (150, 3)])
def test_every_element_of_the_hopper_form_agrees_with_the_reference(heads, tokens, splits):
    """To the rounding of bf16 and a fiftieth of its vector's size; 150 tokens are more than one item a program."""
    step = hopper_step(heads, tokens)
    ours, lse = sparse_attention(**step, splits=splits, form="gluon")
    want, want_lse = reference.sparse_attention(**(step | {"q": step["q"].float()}))
    size = want.square().mean(-1, keepdim=True).sqrt()
    assert ((ours.float() - want).abs() <= want.abs() / 256 + size / 50).all()
    torch.testing.assert_close(lse, want_lse, rtol=0, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("tokens", "splits"), [(5, 7), (150, 1), (150, 3)])
def test_the_hopper_form_gives_the_same_bits_every_time(tokens, splits):
    step = hopper_step(128, tokens)
    first = sparse_attention(**step, splits=splits, form="gluon")
    for _ in range(50):
        assert all(map(torch.equal, first, sparse_attention(**step, splits=splits, form="gluon")))
