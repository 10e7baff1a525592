"""Runs against the same rules segment by segment."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.memory.runs import CHAIN_BITS, FreeQueue, RunIndex

Segment = tuple[str, int]


class OneByOne:
    """What `FreeQueue` and two of `RunIndex` do, a segment at a time."""

    def __init__(self, blocks: int, weights: dict[str, int], *, unused_first: bool) -> None:
        self.free, self.front, self.evicted = blocks, blocks, 0
        self.weights = weights
        self.unused_first = unused_first
        self.queue: deque[Segment | int] = deque()
        self.refs: dict[Segment, int] = {}

    def give_unused(self, count: int) -> None:
        self.free += count
        if self.unused_first:
            self.front += count
        else:
            self.queue.append(count)

    def take_blocks(self, count: int) -> None:
        self.free -= count
        while count > self.front:
            item = self.queue.popleft()
            if isinstance(item, int):
                self.front += item
            else:
                del self.refs[item]
                self.front += self.weights[item[0]]
                self.evicted += self.weights[item[0]]
        self.front -= count

    def add(self, index: str, start: int, stop: int, most: int) -> int:
        new = [(index, number) for number in range(start, stop) if (index, number) not in self.refs][:most]
        self.refs.update(dict.fromkeys(new, 1))
        return len(new)

    def take(self, index: str, start: int, stop: int) -> None:
        for number in range(start, stop):
            if not self.refs[index, number]:
                self.queue.remove((index, number))
                self.free -= self.weights[index]
            self.refs[index, number] += 1

    def give_back(self, index: str, numbers: list[int], gap: int) -> None:
        for number in numbers:
            self.give_unused(gap)
            self.refs[index, number] -= 1
            if not self.refs[index, number]:
                self.queue.append((index, number))
                self.free += self.weights[index]


def compare(plain: OneByOne, queue: FreeQueue, runs: dict[str, RunIndex]) -> None:
    assert (queue.free, queue.evicted) == (plain.free, plain.evicted)
    for name, index in runs.items():
        expected = sorted(number for owner, number in plain.refs if owner == name)
        numbers = [(chain << CHAIN_BITS) + number for chain in range(2) for number in range(20)]
        assert [number for number in numbers if index.known_to(number, number + 1) > number] == expected
        assert index.last_known(0, 20) == max((number for number in expected if number < 20), default=None)


places = st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(1, 10))
operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "take", "take blocks", "give back", "give back"]), st.sampled_from(["full", "tail"]),
        places, st.integers(0, 60), st.integers(0, 3),
    ), max_size=40,
)  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(operations, st.booleans())
def test_runs_do_what_segments_would_one_by_one(
    steps: list[tuple[str, str, tuple[int, int, int], int, int]], unused_first: bool
) -> None:
    weights = {"full": 1, "tail": 4}
    plain = OneByOne(200, weights, unused_first=unused_first)
    queue = FreeQueue(200, unused_first=unused_first)
    runs = {name: RunIndex(queue, weight, rising=name == "tail") for name, weight in weights.items()}
    held: list[tuple[str, int, int]] = []
    for what, name, (chain, first, size), number, gap in steps:
        start = (chain << CHAIN_BITS) + first
        stop = start + size
        if what == "add" and queue.free >= size * weights[name]:
            queue.take(size * weights[name])
            plain.take_blocks(size * weights[name])
            added = runs[name].add(start, stop, number)
            held += [(name, low, high) for low, high in added]
            count = sum(high - low for low, high in added)
            assert count == plain.add(name, start, stop, number)
            queue.give_unused((size - count) * weights[name])
            plain.give_unused((size - count) * weights[name])
        elif what == "take" and (stop := runs[name].known_to(start, stop)) > start:
            runs[name].take(start, stop)
            plain.take(name, start, stop)
            held.append((name, start, stop))
        elif what == "take blocks":
            queue.take(min(number, queue.free))
            plain.take_blocks(min(number, plain.free))
        elif what == "give back" and held:
            name, start, stop = held.pop(number % len(held))
            gap = 0 if unused_first or name == "full" else gap
            plain.give_back(name, list(range(start, stop))[:: 1 if name == "tail" else -1], gap)
            runs[name].give_back(start, stop, gap)
        compare(plain, queue, runs)
    while queue.free:  # in what order the rest is evicted
        count = min(3, queue.free)
        queue.take(count)
        plain.take_blocks(count)
        compare(plain, queue, runs)


def test_a_prefix_of_any_length_is_one_run_until_a_part_of_it_is_held_alone() -> None:
    queue = FreeQueue(1000, unused_first=True)
    index = RunIndex(queue, 1, rising=False)
    queue.take(900)
    assert index.add(0, 500, 500) == [(0, 500)]
    assert index.add(400, 900, 500) == [(500, 900)]
    assert len(index._chains[0]) == 1
    assert index.give_back(300, 900) == 600
    assert [(run.start, run.stop, run.refs) for run in index._chains[0]] == [(0, 300, 1), (300, 900, 0)]


def test_the_last_segments_of_a_prefix_are_evicted_first() -> None:
    queue = FreeQueue(10, unused_first=False)
    index = RunIndex(queue, 1, rising=False)
    queue.take(10)
    index.add(0, 10, 10)
    index.give_back(0, 10)
    queue.take(4)
    assert (index.known_to(0, 10), queue.evicted) == (6, 4)


@pytest.mark.parametrize("gaps", [(2, 2), (2, 5), (0, 3), (3, 0)])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 3), (3, 1), (2, 2)])
@pytest.mark.parametrize("between", [0, 2])
def test_neighbours_that_are_given_back_one_after_the_other_keep_their_order(
    gaps: tuple[int, int], sizes: tuple[int, int], between: int
) -> None:
    plain, queue = OneByOne(50, {"tail": 4}, unused_first=False), FreeQueue(50, unused_first=False)
    runs = {"tail": RunIndex(queue, 4, rising=True)}
    queue.take(50)
    plain.take_blocks(50)
    runs["tail"].add(0, sum(sizes), sum(sizes))
    plain.add("tail", 0, sum(sizes), sum(sizes))
    start = 0
    for size, gap in zip(sizes, gaps, strict=True):
        runs["tail"].give_back(start, start + size, gap)
        plain.give_back("tail", list(range(start, start + size)), gap)
        queue.give_unused(between)
        plain.give_unused(between)
        start += size
    while queue.free:
        queue.take(1)
        plain.take_blocks(1)
        compare(plain, queue, runs)
