"""Rounds: every side of a comparison once, in random order, interleaved; a round that throttled is repeated."""

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Side = TypeVar("Side")
Result = TypeVar("Result")

Agree = Callable[[tuple[str, ...]], tuple[str, ...]]
"""From why a round doesn't count on the sides of this process to why it doesn't count on any side."""


@dataclass(frozen=True)
class Turn(Generic[Side]):
    """One side's part of one round.

    Attributes:
        round: number of the round, from 0; a repeated round keeps it.
        attempt: 0, or how often it was repeated.
        seed: seed of the inputs, the same for every side of the round.
        side: whose turn it is.
    """

    round: int
    attempt: int
    seed: int
    side: Side


@dataclass(frozen=True)
class Kept(Generic[Result]):
    """Results of one side.

    Attributes:
        results: one per round that counted.
        repeated: rounds that throttled and were done again.
        spoiled_by: why rounds are still missing when the bound was reached; empty if none is.
    """

    results: tuple[Result, ...]
    repeated: int = 0
    spoiled_by: tuple[str, ...] = ()


def seed_of(base: int, *parts: object) -> int:
    """A seed below 2³² that differs with any of its parts and is the same on every machine."""
    text = ":".join(str(part) for part in (base, *parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def order_of(base: int, pair_id: str, round_: int, attempt: int, sides: int) -> list[int]:
    """The order in which the sides of a round run."""
    order = list(range(sides))
    random.Random(seed_of(base, pair_id, "order", round_, attempt)).shuffle(order)
    return order


def run_rounds(
    sides: Sequence[Side],
    rounds: int,
    take_turn: Callable[[Turn[Side]], Result | None],
    spoiled_by: Callable[[Result], tuple[str, ...]],
    *,
    base_seed: int,
    pair_id: str,
    first: int = 0,
    agree: Agree | None = None,
) -> list[Kept[Result]]:
    """Interleave the sides until each has its rounds.

    A round in which any side throttled is repeated for all of them, in a new order and on new inputs: a comparison is
    within a round. At most ``rounds`` repetitions are made in all. Processes that measure a side each agree on which
    rounds those are, and so repeat the same ones.

    Args:
        sides: what is compared.
        rounds: rounds that have to count.
        take_turn: measures one side once; ``None`` says that this side has failed and takes no further part.
        spoiled_by: reasons for which a result doesn't count.
        base_seed: recorded seed of the run.
        pair_id: what the sides share; part of every seed.
        first: number of the first round, when earlier ones were measured before.
        agree: asks the sides in other processes after every round; None where there are none.

    Returns:
        one ``Kept`` a side, in the order given; a side that failed keeps what it had.
    """
    kept: list[list[Result]] = [[] for _ in sides]
    failed: set[int] = set()
    repeated, done, attempt = 0, first, 0
    end = first + rounds
    reasons: tuple[str, ...] = ()
    while done < end and len(failed) < len(sides):
        seed = seed_of(base_seed, pair_id, "inputs", done, attempt)
        results: dict[int, Result] = {}
        for index in order_of(base_seed, pair_id, done, attempt, len(sides)):
            if index in failed:
                continue
            result = take_turn(Turn(done, attempt, seed, sides[index]))
            if result is None:
                failed.add(index)
            else:
                results[index] = result
        reasons = tuple(dict.fromkeys(reason for result in results.values() for reason in spoiled_by(result)))
        if agree is not None and results:
            reasons = agree(reasons)
        if reasons and repeated < rounds:
            repeated, attempt = repeated + 1, attempt + 1
            continue
        if reasons:
            break
        for index, result in results.items():
            kept[index].append(result)
        done, attempt = done + 1, 0
    missing = reasons if done < end else ()
    return [Kept(tuple(results), repeated, missing) for results in kept]
