import re
import subprocess

import pytest
import torch

pytest.importorskip("triton")
import compile_report
from compile_cases import CASES
from dsv4_kernels import reference
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import random_fill
from dsv4_kernels.formats import FORMATS
from dsv4_kernels.triton.gather_dequant import gather_dequant
from dsv4_kernels.triton.sparse_attention import aligned_rows, sparse_attention

ROWS = FORMATS["main-bf16"]
HOPPER_SHARED = 232_448
POISONED = 768
"""Slots from here to 1,023 hold NaN and are listed only where nothing may read."""


def meta_cache(stride: int, name: str = "main-bf16") -> PagedCache:
    size = FORMATS[name].page_bytes(16)
    return PagedCache(torch.empty((4, stride), dtype=torch.uint8, device="meta")[:, :size], FORMATS[name], 16)


@pytest.mark.parametrize(
    ("stride", "width", "fits"),
    [(16_384, 512, True), (16_384 + 16, 520, True), (16_384 + 8, 512, False), (16_384, 516, False)],
)
def test_pages_and_queries_at_multiples_of_16_bytes_take_the_hopper_form(stride, width, fits):
    q = torch.empty((2, 8, width), dtype=torch.bfloat16, device="meta")[..., :512]
    assert aligned_rows(q, meta_cache(16_384), meta_cache(stride)) == fits


def test_other_entries_do_not():
    q = torch.empty((2, 8, 512), dtype=torch.bfloat16, device="meta")
    assert not aligned_rows(q, meta_cache(16_384), meta_cache(65_536, "main-fp8"))


def test_elsewhere_bf16_entries_take_the_plain_form():
    with compile_report.compiled_kernels(100) as kernels:
        CASES["sparse_attention main-bf16 H=64 splits=1"].launch()
    assert [found.name for found in kernels] == ["_sparse_attention_kernel"]


@pytest.mark.parametrize("splits", [1, 4])
def test_tiles_are_kept_in_shared_memory_and_nothing_is_reloaded_between_matrix_products(splits, tmp_path):
    with compile_report.compiled_kernels(90) as kernels:
        CASES[f"sparse_attention main-bf16 H=64 splits={splits}"].launch()
    kernel = kernels[0]
    assert kernel.name == "rows_attention_kernel"
    took = compile_report.resources(kernel, 90)
    assert took.warps == 12
    assert took.spills <= 16  # what only an item needs, around the loop over its tiles
    assert took.shared <= HOPPER_SHARED
    binary = tmp_path / "kernel.cubin"
    binary.write_bytes(kernel.asm["cubin"])
    command = [compile_report._CUOBJDUMP, "-sass", binary]
    loops = tile_loops(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert len(loops) == 3, "the producer's and both consumers'"
    assert not any("LDL" in text or "STL" in text for loop in loops for text in loop)


def tile_loops(sass: str) -> list[list[str]]:
    """Instructions of the innermost loops that copy rows or multiply; waits for a barrier are no loops of theirs."""
    lines = re.findall(r"/\*([0-9a-f]{4,5})\*/ +(.*?);", sass)
    index = {int(place, 16): number for number, (place, _) in enumerate(lines)}
    loops = []
    for last, (_, text) in enumerate(lines):
        # a condition closes a loop; waits that failed at first stand at the end and jump back without one
        back = re.match(r"@!?U?P\d+ BRA.* 0x([0-9a-f]+)", text)
        first = index[int(back[1], 16)] if back else last
        body = [text for _, text in lines[first : last + 1]]
        if first < last and any("HGMMA" in text or "LDGSTS" in text for text in body):
            loops.append((first, last))
    inner = [(a, b) for a, b in loops if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)]
    return [[text for _, text in lines[first : last + 1]] for first, last in inner]


def ragged_step(heads: int, tokens: int, workspace: bool = False) -> dict[str, object]:
    """Lists empty, of one entry, of whole tiles and full, with holes; beyond its length a list names poisoned slots."""
    torch.manual_seed(heads + tokens)
    caches, lists = [], []
    window_lens = torch.randint(0, 129, (tokens,), device="cuda").int()
    compressed_lens = torch.randint(0, 501, (tokens,), device="cuda").int()
    window_lens[:5] = torch.tensor([128, 0, 1, 64, 127])
    compressed_lens[:5] = torch.tensor([500, 0, 65, 1, 448])
    for entries, width, lens in ((64, 128, window_lens), (2, 500, compressed_lens)):
        entries = 1024 if workspace else entries
        size = ROWS.page_bytes(entries) + 64
        pages = torch.full((1024 // entries, size), 255, dtype=torch.uint8, device="cuda")
        cache = PagedCache(pages, ROWS, entries)
        random_fill(cache)
        slot = torch.arange(1024, device="cuda").view(-1, entries)
        cache.pages[:, : entries * 1024].unflatten(1, (entries, 1024))[slot >= POISONED] = 255
        indices = torch.randint(0, POISONED, (tokens, width), device="cuda").int()
        indices[torch.rand(tokens, width, device="cuda") < 0.05] = -1
        beyond = torch.arange(width, device="cuda") >= lens[:, None]
        indices[beyond] = POISONED
        caches.append(cache)
        lists.append(indices)
    return {
        "q": torch.randn(tokens, heads, 512, device="cuda").bfloat16(), "window_cache": caches[0],
        "window_indices": lists[0], "window_lens": window_lens, "compressed_cache": caches[1],
        "compressed_indices": lists[1], "compressed_lens": compressed_lens,
        "sink": torch.randn(heads, device="cuda"), "softmax_scale": 512**-0.5,
    }  # fmt: skip


def assert_agrees(step: dict[str, object], result: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Every element to the rounding of bf16 and a fiftieth of its vector's size; vectors within 1 %."""
    (out, lse), (want, want_lse) = result, reference.sparse_attention(**(step | {"q": step["q"].float()}))
    nothing = want_lse == float("-inf")
    assert torch.equal(lse == float("-inf"), nothing)
    assert not out[nothing].any()
    size = want.square().mean(-1, keepdim=True).sqrt()
    assert ((out.float() - want).abs() <= want.abs() / 256 + size / 50).all()
    error = ((out.float() - want).norm(dim=-1) / want.norm(dim=-1))[~nothing]
    assert error.max() < 1e-2
    torch.testing.assert_close(lse[~nothing], want_lse[~nothing], rtol=0, atol=1e-3)


@pytest.fixture
def hopper():
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs Hopper")


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [8, 64, 128])
@pytest.mark.parametrize(("tokens", "splits"), [(5, 1), (5, 2), (5, 7), (150, 1), (150, 3), (700, 1)])
def test_every_element_of_the_hopper_form_agrees_with_the_reference(hopper, heads, tokens, splits):
    """150 tokens and more are more than one item a program."""
    step = ragged_step(heads, tokens)
    assert_agrees(step, sparse_attention(**step, splits=splits, form="gluon"))


@pytest.mark.gpu
def test_a_workspace_is_attended_like_pages(hopper):
    step = ragged_step(64, 150, workspace=True)
    assert_agrees(step, sparse_attention(**step, splits=1, form="gluon"))


@pytest.mark.gpu
def test_a_window_alone_without_sinks_is_attended(hopper):
    step = ragged_step(64, 150) | dict.fromkeys(("compressed_cache", "compressed_indices", "compressed_lens", "sink"))
    assert_agrees(step, sparse_attention(**step, splits=1, form="gluon"))


@pytest.mark.gpu
def test_bf16_entries_take_the_hopper_form_by_themselves(hopper):
    step = ragged_step(64, 5)
    assert all(map(torch.equal, sparse_attention(**step), sparse_attention(**step, form="gluon")))


@pytest.mark.gpu
@pytest.mark.parametrize(("tokens", "splits"), [(5, 7), (150, 1), (150, 3)])
def test_the_hopper_form_gives_the_same_bits_every_time(hopper, tokens, splits):
    step = ragged_step(128, tokens)
    first = sparse_attention(**step, splits=splits, form="gluon")
    for _ in range(20):
        assert all(map(torch.equal, first, sparse_attention(**step, splits=splits, form="gluon")))


@pytest.mark.gpu
def test_gathered_rows_are_attended_like_the_fp8_pages_they_come_from(hopper):
    """One request of 640 entries in pages of 64 in disorder; the workspace has pages of 64 rows too."""
    torch.manual_seed(0)
    size = FORMATS["main-fp8"].page_bytes(64)
    pages = PagedCache(torch.zeros((10, size), dtype=torch.uint8, device="cuda"), FORMATS["main-fp8"], 64)
    random_fill(pages)
    table = torch.randperm(10, device="cuda").int()
    rows = torch.full((1, 640, 512), float("nan"), dtype=torch.bfloat16, device="cuda")
    zero, count = (torch.tensor([n], dtype=torch.int32, device="cuda") for n in (0, 640))
    gather_dequant(cache=pages, block_table=table[None], firsts=zero, lens=count, max_len=640, out=rows, offset=0)
    workspace = PagedCache(rows.view(torch.uint8).view(10, -1), ROWS, 64)
    local = torch.rand(40, 640, device="cuda").topk(200).indices.int()
    rest = {
        "q": torch.randn(40, 64, 512, device="cuda").bfloat16(), "sink": torch.randn(64, device="cuda"),
        "softmax_scale": 512**-0.5, "window_cache": None, "window_indices": None, "window_lens": None,
        "compressed_lens": torch.full((40,), 200, dtype=torch.int32, device="cuda"),
    }  # fmt: skip
    ours = sparse_attention(**rest, compressed_cache=workspace, compressed_indices=local, form="gluon")
    slots = (table[local // 64] * 64 + local % 64).int()
    theirs = sparse_attention(**rest, compressed_cache=pages, compressed_indices=slots, form="gluon")
    error = (ours[0].float() - theirs[0].float()).norm(dim=-1) / theirs[0].float().norm(dim=-1)
    assert error.max() < 1e-2
    torch.testing.assert_close(ours[1], theirs[1], rtol=0, atol=2e-3)
