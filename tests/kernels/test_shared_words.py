import pytest

pytest.importorskip("triton")
from dsv4_kernels.triton import shared_words, topk


def test_the_array_in_shared_memory_has_room_for_all_words():
    assert f"dsv4_words[{4 * shared_words.WORDS.value}]" in shared_words._DECLARE.value


def test_top_k_keeps_its_places_apart_and_within_the_words():
    counters = 4 * 32 * max(warps for warps, _ in topk._SHAPES.values())
    listed = topk._LIST.value + 2 * topk._LISTED.value
    assert counters <= topk._LIST.value
    assert listed <= topk._BOUNDS.value
    assert topk._BOUNDS.value + 4 <= topk._FOUND.value
    assert topk._FOUND.value + 4 <= shared_words.WORDS.value
