import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.verify.difference import describe, exact, row_difference, vector_difference, worst


def test_one_wrong_row_decides_however_many_are_right():
    expected = torch.randn(1024, 64, 8, generator=torch.Generator().manual_seed(0))
    actual = expected.clone()
    actual[700, 3] *= 1.05
    found = vector_difference("o", actual, expected, dims=("token", "head"))
    assert not found.ok
    assert found.where == "token 700, head 3"
    assert found.error == pytest.approx(0.05, rel=1e-3)


def test_a_failure_names_the_worst_element_both_values_and_how_far_its_like_reach():
    expected = torch.ones(3, 4, 512)
    actual = expected.clone()
    actual[2, 1, 448:] = 0.5
    actual[2, 1, 450] = -1.0
    found = vector_difference("o", actual, expected, dims=("token", "head"))
    assert found.sentence == (
        f"o off by {found.error:.3g} (allowed 0.01) at token 2, head 1: element 450 is -1, expected 1; "
        "64 of 512 elements differ, 448 to 511; 1 of 12 vectors are off"
    )
    assert vector_difference("o", expected, expected, dims=("token", "head")).detail == ""


def test_elements_within_the_scale_of_their_row_are_not_counted_as_off():
    expected = torch.full((1, 8), 0.01)
    actual = expected + 0.001
    actual[0, 3] = 0.5
    found = row_difference("logits", actual, expected, 1e-2, scale=torch.ones(1))
    assert found.sentence == "logits off by 0.49 (allowed 0.01) at token 0: element 3 is 0.5, expected 0.01"


def test_what_is_not_finite_is_shown_as_it_was_returned():
    expected = torch.ones(1, 4)
    found = row_difference("y", torch.tensor([[1.0, math.nan, 1.0, 1.0]]), expected, 1e-6)
    assert found.sentence == "y is wrong at token 0: element 1 is nan, expected 1"


def test_a_vector_within_the_tolerance_but_off_in_direction_fails_on_its_cosine():
    expected, actual = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.02]])
    assert vector_difference("o", actual, expected, tolerance=0.1, cosine=0.9999).error > 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_anything_not_finite_is_infinitely_wrong(bad):
    expected = torch.ones(3, 4)
    actual = expected.clone()
    actual[2, 1] = bad
    for compare in (lambda a, b: vector_difference("o", a, b), lambda a, b: row_difference("o", a, b, 1e-6)):
        found = compare(actual, expected)
        assert found.error == math.inf
        assert found.where == "token 2"


def test_a_vector_that_should_be_zero_must_be_exactly_zero():
    zero = torch.zeros(1, 4)
    assert vector_difference("o", zero, zero).ok
    assert vector_difference("o", zero + 1e-30, zero).error == math.inf


def test_tiny_vectors_are_compared_by_their_own_size():
    tiny = torch.full((1, 4), 1e-21)
    assert vector_difference("o", tiny, tiny).ok
    assert not vector_difference("o", tiny * 1.1, tiny).ok


def test_nothing_to_compare_is_right():
    empty = torch.zeros(0, 4, 8)
    assert vector_difference("o", empty, empty).ok
    assert row_difference("o", empty, empty, 1e-6).ok


def test_labels_rename_the_tokens():
    expected = torch.ones(2, 4)
    found = row_difference("o", torch.tensor([[1.0] * 4, [2.0] * 4]), expected, 0.1, labels=torch.tensor([5, 9]))
    assert found.where == "token 9"


def test_another_shape_is_an_error_that_names_both():
    with pytest.raises(ValueError, match=r"\(2, 3\), expected \(2, 4\)"):
        row_difference("o", torch.ones(2, 3), torch.ones(2, 4), 0.1)


def test_the_worst_difference_is_the_one_furthest_beyond_its_own_tolerance():
    a = row_difference("a", torch.tensor([[1.5]]), torch.tensor([[1.0]]), 1.0)
    b = row_difference("b", torch.tensor([[1.1]]), torch.tensor([[1.0]]), 0.01)
    assert worst([a, b]).what == "b"
    assert worst([a, exact("c", False, "gone")]).what == "c"


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.data())
def test_a_flat_index_is_described_by_the_indices_of_its_element(shape, data):
    flat = data.draw(st.integers(0, math.prod(shape) - 1))
    indices = np.unravel_index(flat, shape)
    names = ["token", "head", "dim"][: len(shape)]
    expected = ", ".join(f"{name} {int(i)}" for name, i in zip(names, indices, strict=True))
    assert describe(flat, shape, names) == expected
