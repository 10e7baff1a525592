from dataclasses import replace

import pytest

from dsv4bench.model.shape import LayerKind
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.verify.accuracy import format_accuracy
from dsv4bench.verify.sequences import small_shape


def figures(kind, main, indexer, **changes):
    shape = replace(small_shape(kind), **changes)
    return format_accuracy({}, shape, kind, CachePrecision(main, indexer), context=4096)


@pytest.mark.parametrize("kind", [LayerKind.C4A, LayerKind.DSA])
def test_recall_falls_with_the_bits_of_the_indexer(kind):
    recall = [figures(kind, "fp8", bits)["topk"]["recall"] for bits in ("fp4", "fp8", "bf16")]
    assert recall == sorted(recall)
    assert recall[0] > 0.6
    assert recall[2] > 0.98


def test_an_fp32_cache_loses_nothing():
    found = figures(LayerKind.C4A, "fp32", "fp32")
    assert found["topk"]["recall"] == 1
    assert found["sparse_attention"]["lse_error_fp32"] == 0
    assert found["compress_norm_rope_insert"]["snr_db"] == 200


def test_everything_is_recalled_where_everything_is_selected():
    assert figures(LayerKind.C4A, "fp8", "fp4", index_topk=2048)["topk"]["recall"] == 1


@pytest.mark.parametrize("kind", LayerKind)
def test_fp8_entries_have_about_32_decibels_and_bf16_about_55(kind):
    for main, low, high in (("fp8", 30, 34), ("bf16", 53, 58)):
        snr = [numbers["snr_db"] for numbers in figures(kind, main, "bf16").values() if "snr_db" in numbers]
        assert any(low < value < high for value in snr)
