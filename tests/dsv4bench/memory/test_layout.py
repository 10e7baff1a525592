from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.errors import UserError
from dsv4bench.memory.layout import GENERATIONS, CacheLayout, build_layout
from dsv4bench.memory.page import CACHES, CacheKind
from dsv4bench.model.shape import V3_2, V4_FLASH, V4_PRO, LayerKind

FLASH, PRO = V4_FLASH.layers, V4_PRO.layers


def test_pages_have_the_entries_and_bytes_of_the_published_table() -> None:
    layout = build_layout(PRO)
    assert {page.kind.value: (page.entries, page.raw_bytes, page.page_bytes) for page in layout.pages} == {
        "c4a_main": (64, 37_376, 37_440),
        "window": (64, 37_376, 37_440),
        "c4a_indexer": (64, 8_448, 8_640),
        "c128a_main": (2, 1_168, 1_728),
        "c4a_state": (4, 32_768, 32_832),
        "c4a_indexer_state": (4, 8_192, 8_640),
        "c128a_state": (8, 32_768, 32_832),
    }


def test_bucketed_pages_have_three_sizes() -> None:
    sizes = {(page.bucket, page.page_bytes) for page in build_layout(FLASH, generation="bucketed").pages}
    assert sizes == {("large", 37_440), ("middle", 8_640), ("small", 1_728)}


def test_an_fp4_indexer_page_shrinks_only_in_the_packed_generation() -> None:
    pages = {g: build_layout(FLASH, indexer="fp4", generation=g).page(CacheKind.C4A_INDEXER) for g in GENERATIONS}
    assert {g: (page.raw_bytes, page.page_bytes) for g, page in pages.items()} == {
        "tuple": (4_352, 8_640),
        "bucketed": (4_352, 8_640),
        "packed": (4_352, 4_608),
    }


@pytest.mark.parametrize(
    ("layers", "options", "size"),
    [
        (FLASH, {"generation": "tuple"}, 1_051_776),
        (FLASH, {"generation": "tuple", "indexer": "fp4"}, 1_051_776),
        (PRO, {"generation": "tuple"}, 1_482_048),
        (FLASH, {"generation": "bucketed"}, 1_039_680),
        (FLASH, {"generation": "bucketed", "indexer": "fp4"}, 1_039_680),
        (PRO, {"generation": "bucketed"}, 1_473_408),
        (PRO, {"generation": "bucketed", "backend": "flashinfer", "indexer": "fp4"}, 1_308_672),
        (FLASH, {}, 1_002_240),
        (FLASH, {"indexer": "fp4"}, 917_568),
        (PRO, {}, 1_435_968),
        (PRO, {"indexer": "fp4"}, 1_315_008),
        (PRO, {"backend": "flashinfer", "indexer": "fp4"}, 1_228_800),
        (V3_2.layers, {}, 61 * (64 * 656 + 64 * 132)),
        (V3_2.layers, {"main": "bf16"}, 61 * (64 * 1152 + 64 * 132)),
    ],
)
def test_bytes_per_block_are_those_of_the_allocator(
    layers: tuple[LayerKind, ...], options: dict[str, str], size: int
) -> None:
    assert build_layout(layers, **options).bytes_per_block == size  # type: ignore[arg-type]


def test_the_state_group_bounds_the_packed_flashinfer_fp4_block() -> None:
    layout = build_layout(PRO, backend="flashinfer", indexer="fp4")
    assert layout.group("c4_state").bytes == layout.bytes_per_block == max(layout.group_bytes)


def test_bf16_main_pages_are_twice_a_512_byte_row() -> None:
    layout = build_layout(PRO, main="bf16", backend="flashinfer")
    assert layout.page(CacheKind.C4A_MAIN).page_bytes == 65_536
    assert layout.page(CacheKind.C128A_MAIN).page_bytes == 2_048
    assert layout.page(CacheKind.C4A_INDEXER).page_bytes == 8_704


def test_a_pipeline_stage_keeps_the_groups_but_only_its_own_pages() -> None:
    whole = build_layout(FLASH)
    parts = [build_layout(FLASH, stage=range(22)), build_layout(FLASH, stage=range(22, 43))]
    for group in whole.groups:
        assert sum(part.group(group.name).bytes for part in parts) == group.bytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "triton"}, "unknown layout 'triton'; known are flashmla, flashinfer, plain"),
        ({"generation": "old"}, "unknown layout generation 'old'; known are tuple, bucketed, packed"),
        ({"main": "bf16"}, "layout flashmla has no main 'bf16', only fp8; bf16 needs layout flashinfer$"),
        ({"indexer": "int4"}, "layout flashmla has no indexer 'int4', only fp8, fp4"),
    ],
)
def test_an_unknown_layout_or_precision_lists_what_is_known(options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_layout(FLASH, **options)  # type: ignore[arg-type]


def test_v4_and_v32_layers_do_not_mix() -> None:
    with pytest.raises(UserError, match="cannot share"):
        build_layout((LayerKind.C4A, LayerKind.DSA))


v4_layers = st.lists(st.sampled_from([LayerKind.SWA, LayerKind.C4A, LayerKind.C128A]), min_size=1, max_size=12)


@st.composite
def layouts(draw: st.DrawFn) -> CacheLayout:
    backend = draw(st.sampled_from(["flashmla", "flashinfer", "plain"]))
    return build_layout(
        draw(v4_layers),
        backend=backend,
        main="fp8" if backend == "flashmla" else draw(st.sampled_from(["fp8", "bf16"])),
        indexer=draw(st.sampled_from(["fp8", "fp4"])),
        generation=draw(st.sampled_from(GENERATIONS)),
    )


@given(layouts())
def test_pages_of_a_group_never_overlap_and_stay_inside_the_slab(layout: CacheLayout) -> None:
    for group in layout.groups:
        spans = sorted((place.offset, place.offset + layout.page(place.kind).page_bytes) for place in group.placements)
        assert spans[-1][1] <= layout.bytes_per_block
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


@given(layouts())
def test_every_cache_of_every_layer_has_exactly_one_page(layout: CacheLayout) -> None:
    placed = [(place.layer, place.kind) for group in layout.groups for place in group.placements]
    assert len(placed) == len(set(placed))
    assert set(placed) == {(index, kind) for index, layer in enumerate(layout.layers) for kind in CACHES[layer]}


@given(layouts())
def test_offsets_keep_the_alignment_of_the_backend(layout: CacheLayout) -> None:
    alignment = {"flashmla": 576, "flashinfer": 512, "plain": 128}[layout.backend]
    assert all(place.offset % alignment == 0 for group in layout.groups for place in group.placements)


@given(v4_layers)
def test_a_newer_generation_never_needs_a_larger_block(layers: list[LayerKind]) -> None:
    sizes = [build_layout(layers, generation=generation).bytes_per_block for generation in GENERATIONS]
    assert sizes == sorted(sizes, reverse=True)
