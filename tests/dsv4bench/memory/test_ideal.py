from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.errors import UserError
from dsv4bench.memory.ideal import bytes_per_token, entry_bytes, fixed_bytes, ideal_usage, layer_bytes, state_bytes
from dsv4bench.model.shape import PRESETS, V3_2, V4_FLASH, V4_PRO, LayerKind, ModelShape

MILLION = 1_048_576


@pytest.mark.parametrize(
    ("shape", "main", "indexer", "expected"),
    [
        (V4_PRO, "bf16", "bf16", 10_334_371_840),
        (V4_PRO, "fp8", "fp8", 5_783_720_960),
        (V4_PRO, "fp8", "fp4", 5_280_404_480),
        (V4_FLASH, "bf16", "bf16", 7_219_838_976),
        (V4_FLASH, "fp8", "fp8", 4_040_494_080),
        (V4_FLASH, "fp8", "fp4", 3_688_172_544),
        (V3_2, "bf16", "bf16", 90_060_095_488),
        (V3_2, "fp8", "fp8", 50_402_951_168),
    ],
)
def test_totals_at_a_million_tokens_are_the_anchors(shape: ModelShape, main: str, indexer: str, expected: int) -> None:
    assert ideal_usage(shape, MILLION, entry_bytes(shape, main, indexer)).total == expected


@pytest.mark.parametrize(("kind", "mib"), [(LayerKind.C4A, 320.125), (LayerKind.C128A, 8.125), (LayerKind.SWA, 0.125)])
def test_a_bf16_layer_at_a_million_tokens_is_the_anchor(kind: LayerKind, mib: float) -> None:
    assert layer_bytes(0, kind, MILLION, entry_bytes(V4_PRO, "bf16", "bf16"), 128).total / 2**20 == mib


def test_the_mtp_layer_is_counted_where_it_is_served() -> None:
    layers = V4_PRO.layers + V4_PRO.mtp_layers
    assert ideal_usage(V4_PRO, MILLION, entry_bytes(V4_PRO, "bf16", "bf16"), layers).total == 10_334_502_912


def test_pro_costs_9848_bytes_a_token_and_7_63_mib() -> None:
    entry = entry_bytes(V4_PRO, "bf16", "bf16")
    assert bytes_per_token(V4_PRO.layers, entry) == 9848
    assert fixed_bytes(V4_PRO, entry) == 61 * 128 * 1024


@pytest.mark.parametrize(("shape", "mib"), [(V4_PRO, 17.84), (V4_FLASH, 11.64), (V3_2, 0)])
def test_the_compressor_state_is_constant(shape: ModelShape, mib: float) -> None:
    assert round(state_bytes(shape.layers) / 2**20, 2) == mib


@pytest.mark.parametrize(
    ("context", "c4a", "c128a"),
    [
        (0, 0, 0), (1, 1024, 1024), (3, 3 * 1024, 3 * 1024), (4, 4 * 1024 + 1280, 4 * 1024),
        (127, 127 * 1024 + 31 * 1280, 127 * 1024), (128, 128 * 1024 + 32 * 1280, 129 * 1024),
        (129, 128 * 1024 + 32 * 1280, 129 * 1024),
    ],
)  # fmt: skip
def test_short_and_odd_contexts_are_exact(context: int, c4a: int, c128a: int) -> None:
    entry = entry_bytes(V4_PRO, "bf16", "bf16")
    assert layer_bytes(0, LayerKind.C4A, context, entry, 128).total == c4a
    assert layer_bytes(0, LayerKind.C128A, context, entry, 128).total == c128a


@pytest.mark.parametrize(
    ("shape", "main", "indexer", "message"),
    [
        (V4_PRO, "fp4", "fp8", "--main must be bf16 or fp8, got 'fp4'"),
        (V4_PRO, "fp8", "int8", "--indexer of v4-pro must be one of bf16, fp8, fp4, got 'int8'"),
        (V3_2, "fp8", "fp4", "--indexer of v3.2 must be one of bf16, fp8, got 'fp4'"),
    ],
)
def test_an_unknown_precision_lists_the_known_ones(shape: ModelShape, main: str, indexer: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        entry_bytes(shape, main, indexer)


@given(st.sampled_from(list(PRESETS.values())), st.integers(128, 2**21), st.integers(0, 2**16))
def test_bytes_are_fixed_plus_slope_at_multiples_of_128(shape: ModelShape, start: int, more: int) -> None:
    entry = entry_bytes(shape, "bf16", "bf16")
    context = (start + more) // 128 * 128
    line = fixed_bytes(shape, entry) + context * bytes_per_token(shape.layers, entry)
    assert ideal_usage(shape, context, entry).total == line


@given(st.sampled_from(list(PRESETS.values())), st.integers(0, 2**21), st.integers(0, 5000))
def test_a_longer_context_never_needs_less(shape: ModelShape, context: int, more: int) -> None:
    entry = entry_bytes(shape, "fp8", "fp8")
    assert ideal_usage(shape, context + more, entry).total >= ideal_usage(shape, context, entry).total


def test_entry_bytes_are_those_of_the_formats() -> None:
    assert entry_bytes(V4_PRO, "fp8", "fp4") == type(entry_bytes(V4_PRO, "fp8", "fp4"))(Fraction(584), Fraction(68))
