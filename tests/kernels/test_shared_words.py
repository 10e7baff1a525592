import pytest

pytest.importorskip("triton")
from dsv4_kernels.triton import row_selection, shared_words, topk


def test_the_array_in_shared_memory_has_room_for_all_words():
    assert f"dsv4_words[{4 * shared_words.WORDS.value}]" in shared_words._DECLARE.value


def test_top_k_keeps_its_places_apart_and_within_the_words():
    counters = 4 * 32 * max(warps for warps, _ in topk._SHAPES.values())
    listed = row_selection._LIST.value + 2 * row_selection._LISTED.value
    assert counters <= row_selection._LIST.value
    assert listed <= row_selection._BOUNDS.value
    assert row_selection._BOUNDS.value + 4 <= row_selection._FOUND.value
    assert row_selection._FOUND.value + 4 <= shared_words.WORDS.value
