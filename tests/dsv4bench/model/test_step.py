"""Counts of a step against counting token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.model.shape import V3_2, V4_FLASH, V4_PRO, LayerKind, ModelShape
from dsv4bench.model.step import LayerStep

KINDS = [(V4_PRO, LayerKind.C4A), (V4_FLASH, LayerKind.C128A), (V4_FLASH, LayerKind.SWA), (V3_2, LayerKind.DSA)]
REQUESTS = st.lists(
    st.integers(1, 9000).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, min(n, 600)))), max_size=4
)


def attended_by(shape: ModelShape, kind: LayerKind, position: int) -> tuple[int, int]:
    """Window and compressed entries that one token attends."""
    entries = (position + 1) // kind.ratio if kind.ratio else 0
    return min(position + 1, shape.sliding_window), min(entries, shape.index_topk) if kind.has_indexer else entries


@pytest.mark.parametrize(("shape", "kind"), KINDS)
@given(requests=REQUESTS)
def test_closed_forms_equal_counting_every_token(
    shape: ModelShape, kind: LayerKind, requests: list[tuple[int, int]]
) -> None:
    step = LayerStep(shape, kind, tuple(n for n, _ in requests), tuple(q for _, q in requests))
    tokens = [(n, i) for n, q in requests for i in range(n - q, n)]
    ratio = kind.ratio
    assert step.tokens == len(tokens)
    assert step.candidates == sum((i + 1) // ratio for _, i in tokens if ratio)
    assert step.completed == sum((i + 1) % ratio == 0 for _, i in tokens if ratio)
    assert step.attended == sum(sum(attended_by(shape, kind, i)) for _, i in tokens)


@pytest.mark.parametrize(("shape", "kind"), KINDS)
@given(lens=st.lists(st.integers(1, 2_000_000), max_size=5))
def test_with_one_query_token_nothing_is_shared(shape: ModelShape, kind: LayerKind, lens: list[int]) -> None:
    step = LayerStep(shape, kind, tuple(lens), (1,) * len(lens))
    assert step.distinct_attended == step.attended
    assert step.distinct_candidates == step.candidates


@pytest.mark.parametrize(("shape", "kind"), KINDS)
@given(requests=REQUESTS)
def test_what_tokens_share_is_read_once(shape: ModelShape, kind: LayerKind, requests: list[tuple[int, int]]) -> None:
    step = LayerStep(shape, kind, tuple(n for n, _ in requests), tuple(q for _, q in requests))
    assert step.distinct_attended <= step.attended
    assert step.distinct_attended <= sum(n + shape.entries(kind, n) for n, _ in requests)


def test_a_step_of_more_query_tokens_than_the_sequence_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="query"):
        LayerStep(V4_PRO, LayerKind.C4A, (4, 4), (1, 5))
