"""Selections judged by logits: complete rows, near ties, and which of two right layers' selections counts."""

import pytest
import torch

from dsv4bench.verify.difference import LAYER_TOLERANCE
from dsv4bench.verify.rows.lengths import _settled
from dsv4bench.verify.selection import judge_selection

LOGITS = torch.tensor([[4.0, 3.0, 2.0, 1.0], [-4.0, -3.0, -2.0, float("nan")], [1.0, 1.0, 1.0, 1.0]])
LENS = torch.tensor([4, 3, 1], dtype=torch.int32)


def test_the_best_candidates_are_beaten_by_none():
    selection = judge_selection(torch.tensor([[1, 0], [2, 1], [0, -1]]), LOGITS, LENS)
    assert selection.complete.all()
    assert selection.beaten.tolist() == [0, 0, 0]


def test_a_worse_candidate_is_beaten_by_what_was_left_out_for_it_relative_to_the_rows_largest():
    selection = judge_selection(torch.tensor([[3, 0], [0, 1], [0, -1]]), LOGITS, LENS)
    assert selection.beaten.tolist() == [(3 - 1) / 4, (4 - 2) / 4, 0]
    assert (int(selection.left_out[0].argmax()), int(selection.taken[0].argmin())) == (1, 3)


@pytest.mark.parametrize("row", [[0, 0], [0, -1], [0, 4], [-1, 0], [0, -2]])
def test_rows_with_an_index_twice_missing_or_out_of_range_are_incomplete(row):
    assert not judge_selection(torch.tensor([row]), LOGITS[:1], LENS[:1]).complete


def test_no_candidates_at_all_are_selected_by_nothing():
    selection = judge_selection(torch.full((2, 2), -1), torch.zeros(2, 0), torch.zeros(2, dtype=torch.int32))
    assert selection.complete.all()
    assert selection.beaten.tolist() == [0, 0]


def test_another_right_layers_selection_counts_where_it_differs_by_rounding_alone():
    near = 4.0 * (1 - 0.9 * LAYER_TOLERANCE)
    far = 4.0 * (1 - 1.1 * LAYER_TOLERANCE)
    logits = torch.tensor([[4.0, near], [4.0, far], [4.0, near]])
    own = {"logits": logits, "candidate_lens": torch.full((3,), 2), "topk_indices": torch.tensor([[0], [0], [0]])}
    assert _settled({"topk_indices": torch.tensor([[1], [1], [7]])}, own).tolist() == [[1], [0], [0]]
