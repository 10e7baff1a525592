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
from dsv4_kernels.triton.sparse_attention import aligned_latents, sparse_attention

LATENT = FORMATS["latent-fp8"]
HOPPER_SHARED = 232_448
PAGE = 64 * LATENT.record_bytes


def meta_cache(stride: int, name: str = "latent-fp8") -> PagedCache:
    size = FORMATS[name].page_bytes(16)
    return PagedCache(torch.empty((4, stride), dtype=torch.uint8, device="meta")[:, :size], FORMATS[name], 16)


@pytest.mark.slow
def test_the_hopper_kernel_keeps_its_accumulators_in_registers_and_its_tiles_in_shared_memory():
    command = [sys.executable, compile_report.__file__, "--arch", "90", "--only", "sparse_attention latent-fp8"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"\blatent_attention_kernel +90 +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)", table)
    assert len(rows) == 2, table
    for warps, _, _, spills, shared in (map(int, row) for row in rows):
        assert warps == 16
        assert spills <= 16
        assert shared <= HOPPER_SHARED


@pytest.mark.parametrize(
    ("stride", "width", "fits"),
    [(16 * 656, 576, True), (16 * 656 + 16, 576, True), (16 * 656 + 8, 576, False), (16 * 656, 580, False)],
)
def test_pages_and_queries_at_multiples_of_16_bytes_take_the_hopper_form(stride, width, fits):
    q = torch.empty((2, 8, width), dtype=torch.bfloat16, device="meta")[..., :576]
    assert aligned_latents(q, meta_cache(stride)) == fits


@pytest.mark.parametrize("name", ["latent-bf16", "latent-fp32", "main-fp8"])
def test_other_entries_do_not(name):
    q = torch.empty((2, 8, 576), dtype=torch.bfloat16, device="meta")
    assert not aligned_latents(q, meta_cache(65_536, name))


def ragged_step(heads: int) -> dict[str, object]:
    """Full, empty, one-entry and tile-sized lists with holes, over pages whose unused bytes are NaN."""
    pages = torch.full((32, PAGE + 64), 255, dtype=torch.uint8, device="cuda")
    cache = PagedCache(pages, LATENT, 64)
    random_fill(cache)
    listed = torch.randint(0, cache.num_slots // 2, (7, 2048), device="cuda").int()
    pages[16:] = 255
    lens = torch.tensor([2048, 0, 1, 63, 64, 65, 700], device="cuda").int()
    listed[torch.rand(listed.shape, device="cuda") < 0.1] = -1
    listed[6] = -1
    return {
        "q": torch.randn(7, heads, 576, device="cuda").bfloat16(), "window_cache": None, "window_indices": None,
        "window_lens": None, "compressed_cache": cache, "compressed_indices": listed, "compressed_lens": lens,
        "sink": None, "softmax_scale": 576**-0.5,
    }  # fmt: skip


@pytest.fixture
def hopper():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs Hopper")


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [8, 16, 32, 64, 128])
@pytest.mark.parametrize("splits", [None, 1, 2, 7, 32])
def test_the_hopper_form_agrees_with_the_reference_and_the_plain_form(hopper, heads, splits):
    step = ragged_step(heads)
    out, lse = sparse_attention(**step, splits=splits, form="gluon")
    plain, plain_lse = sparse_attention(**step, splits=splits, form="plain")
    want, want_lse = reference.sparse_attention(**{**step, "q": step["q"].float()})
    seen = want_lse > float("-inf")
    assert torch.equal(lse > float("-inf"), seen)
    assert not out[~seen].any()
    error, plain_error = ((found.float() - want)[seen].norm(dim=-1) / want[seen].norm(dim=-1) for found in (out, plain))
    assert error.max() < 8e-3
    assert error.mean() <= 1.1 * plain_error.mean()
    torch.testing.assert_close(lse[seen], want_lse[seen], rtol=0, atol=2e-3)
    torch.testing.assert_close(lse[seen], plain_lse[seen], rtol=0, atol=4e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("splits", [1, 5])
def test_equal_tokens_have_equal_rows_time_after_time(hopper, splits):
    step = ragged_step(128)
    for name in ("q", "compressed_indices", "compressed_lens"):
        step[name] = step[name][:1].repeat(40, *(1,) * (step[name].dim() - 1))
    first, first_lse = sparse_attention(**step, splits=splits, form="gluon")
    assert (first == first[0]).all()
    assert (first_lse == first_lse[0]).all()
    for _ in range(5):
        assert all(map(torch.equal, (first, first_lse), sparse_attention(**step, splits=splits, form="gluon")))


@pytest.mark.gpu
def test_latents_take_the_hopper_form_by_themselves(hopper):
    step = ragged_step(64)
    assert all(map(torch.equal, sparse_attention(**step), sparse_attention(**step, form="gluon")))
