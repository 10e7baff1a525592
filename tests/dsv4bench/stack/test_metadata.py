"""Positions, slots and visible sets, checked against plain loops over the definition."""

import pytest
import torch

from dsv4bench.model.shape import LayerKind
from dsv4bench.stack.metadata import BlockTables, step_metadata
from dsv4bench.stack.pages import FULL_BLOCK, STATE_BLOCK, WINDOW_BLOCK

LENGTHS = [1, 2, 3, 4, 5, 8, 126, 127, 128, 129, 130, 255, 256, 257, 511, 512, 513]


def tables(kind, lens, seed=0):
    """Shuffled pages, every table wide enough for every position."""
    generator = torch.Generator().manual_seed(seed)

    def table(block):
        width = -(-max(lens) // block)
        pages = torch.randperm(len(lens) * width, generator=generator) + 1
        return pages.view(len(lens), width).to(torch.int32)

    return BlockTables(
        full=table(FULL_BLOCK[kind]) if kind in FULL_BLOCK else None,
        window=None if kind is LayerKind.DSA else table(WINDOW_BLOCK),
        state=table(STATE_BLOCK[kind]) if kind in STATE_BLOCK else None,
    )


def slot(table, request, index, block):
    return int(table[request, index // block]) * block + index % block


@pytest.mark.parametrize("kind", [LayerKind.SWA, LayerKind.C4A, LayerKind.C128A])
def test_the_window_is_the_last_128_positions_with_the_token_itself(small_shape, kind):
    t = tables(kind, LENGTHS)
    values = step_metadata(small_shape(kind), kind, LENGTHS, [1] * len(LENGTHS), t)
    for row, n in enumerate(LENGTHS):
        visible = [slot(t.window, row, p, 64) for p in range(max(0, n - 128), n)]
        assert values["window_lens"][row] == len(visible)
        assert values["window_indices"][row].tolist() == visible + [-1] * (128 - len(visible))
        assert values["window_slots"][row] == visible[-1]


@pytest.mark.parametrize(("kind", "per_page"), [(LayerKind.C4A, 64), (LayerKind.C128A, 2), (LayerKind.DSA, 64)])
def test_an_entry_has_a_slot_exactly_where_a_token_completes_it(small_shape, kind, per_page):
    t = tables(kind, LENGTHS)
    values = step_metadata(small_shape(kind), kind, LENGTHS, LENGTHS, t)
    row = 0
    for request, n in enumerate(LENGTHS):
        for i in range(n):
            completes = (i + 1) % kind.ratio == 0
            expected = slot(t.full, request, i // kind.ratio, per_page) if completes else -1
            assert values["compressed_slots"][row] == expected
            assert values["candidate_lens"][row] == (i + 1) // kind.ratio
            assert values["positions"][row] == i
            assert values["token_to_request"][row] == request
            row += 1
    assert row == len(values["positions"])


def test_c128a_attends_to_every_entry_up_to_its_own(small_shape):
    lens = [1, 127, 128, 255, 256, 513]
    t = tables(LayerKind.C128A, lens)
    values = step_metadata(small_shape(LayerKind.C128A), LayerKind.C128A, lens, [1] * len(lens), t)
    for row, n in enumerate(lens):
        expected = [slot(t.full, row, j, 2) for j in range(n // 128)]
        assert values["compressed_lens"][row] == len(expected)
        assert values["compressed_indices"][row, : len(expected)].tolist() == expected
        assert (values["compressed_indices"][row, len(expected) :] == -1).all()
    assert values["compressed_indices"].shape[1] % 128 == 0


def test_several_query_tokens_are_the_last_positions_of_their_request(small_shape):
    kind = LayerKind.C4A
    values = step_metadata(small_shape(kind), kind, [10, 300], [3, 2], tables(kind, [10, 300]))
    assert values["positions"].tolist() == [7, 8, 9, 298, 299]
    assert values["query_start"].tolist() == [0, 3, 5]
    assert values["seq_lens"].tolist() == [10, 300]


def test_state_slots_follow_the_state_table(small_shape):
    for kind, block in STATE_BLOCK.items():
        t = tables(kind, LENGTHS)
        values = step_metadata(small_shape(kind), kind, LENGTHS, [1] * len(LENGTHS), t)
        assert values["state_slots"].tolist() == [slot(t.state, r, n - 1, block) for r, n in enumerate(LENGTHS)]
