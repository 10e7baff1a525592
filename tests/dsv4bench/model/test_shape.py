import pytest

from dsv4bench.errors import UserError
from dsv4bench.model.shape import PRESETS, V3_2, V4_FLASH, V4_PRO, LayerKind


def test_pro_has_the_published_layer_order():
    kinds = [128, 128] + [4, 128] * 29 + [4]
    assert [kind.ratio for kind in V4_PRO.layers] == kinds
    assert V4_PRO.count(LayerKind.C4A) == 30
    assert V4_PRO.count(LayerKind.C128A) == 31


def test_flash_starts_with_two_window_only_layers():
    assert [kind.ratio for kind in V4_FLASH.layers] == [0, 0] + [4, 128] * 20 + [4]
    assert V4_FLASH.count(LayerKind.SWA) == 2
    assert V4_FLASH.count(LayerKind.SWA, mtp=True) == 3


def test_top_k_is_1024_for_pro_and_512_for_flash():
    assert (V4_PRO.index_topk, V4_FLASH.index_topk, V3_2.index_topk) == (1024, 512, 2048)


def test_v4_softmax_scale_has_no_yarn_magnitude_and_v32_has_it():
    assert V4_PRO.softmax_scale == pytest.approx(0.0441942, abs=1e-7)
    assert V3_2.softmax_scale == pytest.approx(0.13523, abs=1e-5)


def test_compressed_layers_rotate_with_yarn_and_window_layers_without():
    assert V4_FLASH.rope_of(LayerKind.SWA).theta == 10000
    assert V4_FLASH.rope_of(LayerKind.SWA).factor == 1
    assert V4_FLASH.rope_of(LayerKind.C4A) == V4_FLASH.rope_of(LayerKind.C128A)
    assert (V4_FLASH.rope_of(LayerKind.C4A).theta, V4_FLASH.rope_of(LayerKind.C4A).factor) == (160000, 16)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_a_shard_divides_heads_and_output_groups_and_nothing_else(tp):
    for shape in PRESETS.values():
        shard = shape.shard(tp)
        assert shard.num_heads * tp == shape.num_heads
        assert shard.o_groups * tp == shape.o_groups
        assert (shard.kv_dim, shard.index_heads, shard.layers) == (shape.kv_dim, shape.index_heads, shape.layers)


def test_a_tensor_parallel_size_that_does_not_divide_is_refused():
    with pytest.raises(UserError, match="tp 3 does not divide 64 heads .* of v4-flash; use 8 or a divisor of it$"):
        V4_FLASH.shard(3)
    with pytest.raises(UserError, match="tp 32 does not divide 128 heads .* of v4-pro; use 16 or a divisor of it$"):
        V4_PRO.shard(32)
    with pytest.raises(UserError, match="use 128 or a divisor of it$"):
        V3_2.shard(0)
    assert V3_2.shard(128).num_heads == 1


@pytest.mark.parametrize(("context", "c4a", "c128a"), [(3, 0, 0), (4, 1, 0), (127, 31, 0), (128, 32, 1), (257, 64, 2)])
def test_entries_round_down(context, c4a, c128a):
    assert V4_PRO.entries(LayerKind.C4A, context) == c4a
    assert V4_PRO.entries(LayerKind.C128A, context) == c128a
    assert V4_PRO.entries(LayerKind.SWA, context) == 0
    assert V3_2.entries(LayerKind.DSA, context) == context
