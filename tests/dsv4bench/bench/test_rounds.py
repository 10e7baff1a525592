"""Rounds: interleaved, in recorded random order, repeated when the card throttled, within a bound."""

import pytest

from dsv4bench.bench.rounds import order_of, run_rounds, seed_of


def rounds(sides, count, spoil=lambda turn: (), fail=lambda turn: False):
    turns = []

    def take(turn):
        turns.append(turn)
        return None if fail(turn) else (turn.round, spoil(turn))

    kept = run_rounds(sides, count, take, lambda result: result[1], base_seed=7, pair_id="p")
    return turns, kept


def test_every_side_runs_once_a_round():
    turns, kept = rounds(["a", "b", "c"], 10)
    for number in range(10):
        assert sorted(turn.side for turn in turns[3 * number : 3 * number + 3]) == ["a", "b", "c"]
    assert [len(one.results) for one in kept] == [10, 10, 10]


def test_the_order_is_random_and_the_same_for_the_same_seed():
    orders = [tuple(order_of(7, "p", number, 0, 3)) for number in range(20)]
    assert len(set(orders)) > 3
    assert orders == [tuple(order_of(7, "p", number, 0, 3)) for number in range(20)]
    assert orders != [tuple(order_of(8, "p", number, 0, 3)) for number in range(20)]


def test_sides_share_inputs_within_a_round_and_rounds_never_do():
    turns, _ = rounds(["a", "b"], 10)
    by_round = {}
    for turn in turns:
        by_round.setdefault(turn.round, set()).add(turn.seed)
    assert all(len(seeds) == 1 for seeds in by_round.values())
    assert len({seed for seeds in by_round.values() for seed in seeds}) == 10


def test_a_throttled_round_is_repeated_for_every_side_on_fresh_inputs():
    turns, kept = rounds(
        ["a", "b"],
        3,
        spoil=lambda turn: ("hw_slowdown",) if (turn.round, turn.attempt, turn.side) == (1, 0, "b") else (),
    )
    assert [(turn.round, turn.attempt) for turn in turns[::2]] == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert turns[2].seed != turns[4].seed
    assert [[result[0] for result in one.results] for one in kept] == [[0, 1, 2], [0, 1, 2]]
    assert all(one.repeated == 1 and not one.spoiled_by for one in kept)


def test_a_round_that_another_process_spoiled_is_repeated_here_as_well():
    heard, turns = [], []
    answers = iter([(), ("hw_slowdown",), (), ()])

    def agree(reasons):
        heard.append(reasons)
        return (*reasons, *next(answers))

    def take(turn):
        turns.append((turn.round, turn.attempt))
        return turn.round

    (kept,) = run_rounds(["a"], 3, take, lambda result: (), base_seed=7, pair_id="p", agree=agree)
    assert turns == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert heard == [()] * 4
    assert (kept.results, kept.repeated, kept.spoiled_by) == ((0, 1, 2), 1, ())


def test_repetitions_are_bounded_by_the_rounds_asked_for():
    turns, kept = rounds(["a"], 5, spoil=lambda turn: ("sw_thermal_slowdown",))
    assert len(turns) == 1 + 5
    assert kept[0].results == ()
    assert kept[0].spoiled_by == ("sw_thermal_slowdown",)


def test_a_side_that_fails_drops_out_and_the_others_go_on():
    turns, kept = rounds(["a", "b"], 4, fail=lambda turn: turn.side == "a" and turn.round == 2)
    assert len(kept[0].results) == 2
    assert len(kept[1].results) == 4
    assert [turn.side for turn in turns].count("a") == 3


def test_nothing_runs_on_when_every_side_has_failed():
    turns, kept = rounds(["a", "b"], 4, fail=lambda turn: True)
    assert len(turns) == 2
    assert all(one.results == () for one in kept)


@pytest.mark.parametrize("parts", [("x",), ("x", 1), ("y",), (1, "x")])
def test_seeds_are_stable_and_below_two_to_the_32(parts):
    assert seed_of(0, *parts) == seed_of(0, *parts)
    assert 0 <= seed_of(0, *parts) < 2**32
    assert seed_of(0, *parts) != seed_of(1, *parts)
