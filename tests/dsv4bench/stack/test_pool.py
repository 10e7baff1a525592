import pytest
import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import random_fill

from dsv4bench.errors import UserError
from dsv4bench.memory.layout import GENERATIONS, build_layout
from dsv4bench.memory.page import CacheKind
from dsv4bench.model.shape import LayerKind
from dsv4bench.stack.measure import measure_request
from dsv4bench.stack.pool import BlockPool

LAYERS = (LayerKind.C4A, LayerKind.C128A, LayerKind.SWA)


def every_view(pool: BlockPool) -> dict[tuple[str, int, CacheKind], torch.Tensor]:
    views = {}
    for group in pool.layout.groups:
        for place in group.placements:
            view = pool.state if place.kind.is_state else pool.cache
            found = view(place.layer, place.kind)
            views[group.name, place.layer, place.kind] = found.pages if isinstance(found, PagedCache) else found
    return views


@pytest.mark.parametrize("generation", GENERATIONS)
def test_views_alias_one_slab_with_a_stride_of_a_whole_block(generation: str) -> None:
    pool = BlockPool(build_layout(LAYERS, generation=generation), 3)
    start, size = pool.slab.data_ptr(), pool.layout.bytes_per_block
    for view in every_view(pool).values():
        assert view.stride(0) * view.element_size() == size
        assert start <= view.data_ptr() < start + size


@pytest.mark.parametrize("generation", GENERATIONS)
def test_pages_of_one_group_never_overlap(generation: str) -> None:
    pool = BlockPool(build_layout(LAYERS, generation=generation), 2)
    for group in pool.layout.groups:
        pool.slab.zero_()
        views = [view for (name, _, _), view in every_view(pool).items() if name == group.name]
        for number, view in enumerate(views, start=1):
            view.view(torch.uint8 if view.dtype == torch.uint8 else torch.float32).fill_(number)
        for number, view in enumerate(views, start=1):
            assert (view == number).all()


def test_groups_alias_the_same_bytes_of_a_block() -> None:
    pool = BlockPool(build_layout(LAYERS), 1)
    pool.slab.zero_()
    pool.cache(0, CacheKind.WINDOW).pages.fill_(7)
    assert (pool.cache(0, CacheKind.C4A_MAIN).pages == 7).any()


def test_what_one_request_writes_another_never_sees() -> None:
    pool = BlockPool(build_layout(LAYERS), 1000)
    for request in ("a", "b"):
        pool.admit(request, 600)
        pool.advance(request, 600)
    for group, kind in (("full", CacheKind.C4A_MAIN), ("window0", CacheKind.WINDOW), ("c4_state", CacheKind.C4A_STATE)):
        mine, theirs = (pool.block_table([request], group)[0].long() for request in ("a", "b"))
        pages = pool.state(0, kind) if kind.is_state else pool.cache(0, kind).pages
        pages[mine] = 1
        pages[theirs] = 2
        assert (pages[mine] == 1).all()
        assert set(mine.tolist()).isdisjoint(theirs.tolist())


def test_a_reused_prefix_reads_the_bytes_the_first_request_wrote() -> None:
    pool = BlockPool(build_layout(LAYERS), 1000)
    content = ["x0", "x1", "x2", "x3"]
    pool.admit("a", 1000, content)
    pool.advance("a", 1000)
    cache = pool.cache(0, CacheKind.C4A_MAIN)
    random_fill(cache, torch.Generator().manual_seed(0))
    entries = list(range(192))
    written = cache.pages[pool.slots("a", CacheKind.C4A_MAIN, entries) // 64].clone()
    pool.finish("a")
    assert pool.admit("b", 1000, content) == 768
    assert torch.equal(cache.pages[pool.slots("b", CacheKind.C4A_MAIN, entries) // 64], written)


def test_slots_count_entries_of_the_page_and_freed_ones_are_minus_one() -> None:
    pool = BlockPool(build_layout(LAYERS), 1000)
    pool.admit("a", 1000)
    pool.advance("a", 1000)
    pool.advance("a", 1)
    table = pool.allocator.table("a", "full")
    assert pool.slots("a", CacheKind.C128A_MAIN, [0, 1, 2]).tolist() == [table[0] * 2, table[0] * 2 + 1, table[1] * 2]  # type: ignore[operator]
    assert pool.slots("a", CacheKind.WINDOW, [0]).tolist() == [-1]
    assert pool.slots("a", CacheKind.WINDOW, [1000]).item() >= 0


def test_a_kind_of_cache_is_asked_for_by_its_own_method() -> None:
    pool = BlockPool(build_layout(LAYERS), 1)
    with pytest.raises(KeyError, match="use state"):
        pool.cache(0, CacheKind.C4A_STATE)
    with pytest.raises(KeyError, match="use cache"):
        pool.state(0, CacheKind.WINDOW)


def test_offsets_beyond_two_gib_are_addressed() -> None:
    layout = build_layout((LayerKind.C4A,) * 21 + (LayerKind.C128A,) * 20)
    blocks = 2**31 // layout.bytes_per_block + 2
    pool = BlockPool(layout, blocks)  # virtual memory; only two pages are touched
    pages = pool.cache(0, CacheKind.C4A_MAIN).pages
    pages[blocks - 1] = 5
    pages[0] = 3
    assert pages[blocks - 1].eq(5).all()
    assert pages[0].eq(3).all()


def test_measuring_reports_what_the_cpu_gave() -> None:
    layout = build_layout(LAYERS)
    measured = measure_request(layout, 500, "cpu")
    assert measured == pytest.approx(500 * layout.bytes_per_block, rel=0.1)


def test_measuring_more_than_the_machine_has_is_refused() -> None:
    with pytest.raises(UserError, match="are free on cpu; lower --ctx"):
        measure_request(build_layout(LAYERS), 2**40, "cpu")


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(UserError, match="--device must be cpu or cuda, got 'tpu'"):
        measure_request(build_layout(LAYERS), 1, "tpu")


@pytest.mark.gpu
def test_measuring_reports_what_the_gpu_gave() -> None:
    layout = build_layout(LAYERS)
    assert measure_request(layout, 500, "cuda") == pytest.approx(500 * layout.bytes_per_block, rel=0.1)
