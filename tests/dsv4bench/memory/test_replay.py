import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.memory.allocator import BlockAllocator, OutOfBlocksError
from dsv4bench.memory.layout import build_layout
from dsv4bench.memory.replay import RunAllocator
from dsv4bench.memory.runs import CHAIN_BITS
from dsv4bench.model.shape import V3_2, LayerKind

V4 = build_layout((LayerKind.C4A, LayerKind.C128A, LayerKind.SWA)).groups
DSA = build_layout(V3_2.layers[:2]).groups
SWA = build_layout((LayerKind.SWA, LayerKind.SWA)).groups


class Both:
    """The exact allocator and the fast one, given the same operations; what must agree is compared after each."""

    def __init__(self, groups: tuple, blocks: int, retention: int | None) -> None:  # type: ignore[type-arg]
        self.exact = BlockAllocator(groups, blocks, retention=retention)
        self.fast = RunAllocator(groups, blocks, retention=retention)
        self.groups = groups

    def admit(self, request: int, prompt: int, content: tuple[range, ...]) -> None:
        found = self.exact.admit(request, prompt, [number for part in content for number in part])
        assert self.fast.admit(request, prompt, content) == found

    def advance(self, request: int, tokens: int, *, rolling: bool) -> None:
        if rolling:
            for _ in range(tokens):
                self.exact.advance(request, 1)
        else:
            self.exact.advance(request, tokens)
        self.fast.advance(request, tokens, rolling=rolling)
        self.compare()

    def finish(self, request: int) -> None:
        self.exact.finish(request)
        self.fast.finish(request)
        self.compare()

    def compare(self) -> None:
        assert self.fast.free_blocks == self.exact.free_blocks
        assert self.fast.evicted == self.exact.evicted


def prefix(family: int, cut: int, branch: int) -> tuple[range, ...]:
    """Nine segments: those of a family up to ``cut``, then those of one of its branches there."""
    own = (1 + 100 * family + 10 * branch + cut) << CHAIN_BITS
    return tuple(part for part in (range(1000 * family, 1000 * family + cut), range(own + cut, own + 9)) if part)


prefixes = st.builds(prefix, st.integers(0, 1), st.sampled_from([0, 2, 3, 5, 9]), st.integers(0, 1))
steps = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), prefixes), max_size=16)


@settings(deadline=None, max_examples=150)
@given(steps, st.sampled_from([None, 0, 512]), st.sampled_from([V4, DSA, SWA]))
def test_in_whole_segments_the_fast_allocator_counts_as_the_exact_one(
    operations: list[tuple[int, int, tuple[range, ...]]],
    retention: int | None,
    groups: tuple,  # type: ignore[type-arg]
) -> None:
    both, live = Both(groups, 20_000, retention), {}
    for number, (slot, segments, content) in enumerate(operations):
        if slot in live:
            request, left = live[slot]
            if left:
                both.advance(request, 256, rolling=True)
                live[slot] = request, left - 1
            else:
                both.finish(request)
                del live[slot]
        else:
            both.admit(number, segments * 256, content)
            both.advance(number, segments * 256 - both.fast.computed(number), rolling=False)
            live[slot] = number, 2


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 1500), st.integers(0, 3)), max_size=10), st.sampled_from([None, 0]))
def test_unaligned_prompts_hold_at_most_one_tail_more_than_the_exact_allocator(
    prompts: list[tuple[int, int]], retention: int | None
) -> None:
    exact, fast = (kind(V4, 20_000, retention=retention) for kind in (BlockAllocator, RunAllocator))
    for number, (prompt, family) in enumerate(prompts):
        content = range(family * 1000, family * 1000 + 9)
        exact.admit(number, prompt, content)
        fast.admit(number, prompt, (content,))
        for pool in (exact, fast):
            pool.advance(number, prompt - pool.computed(number))
        assert fast.hit_tokens == exact.hit_tokens
        for pool in (exact, fast):
            pool.advance(number, 1)
        assert 0 <= exact.free_blocks - fast.free_blocks <= 22 * (number + 1)


def test_a_lone_request_holds_by_group_what_it_took_from_the_pool() -> None:
    fast = RunAllocator(V4, 5000)
    fast.admit(0, 3000, (range(20),))
    fast.advance(0, 3000)
    assert sum(fast.held) == 5000 - fast.free_blocks
    fast.advance(0, 72, rolling=True)
    assert dict(zip(fast.names, fast.held, strict=True)) == {
        "full": 12, "window0": 2, "window1": 2, "c4_state": 2, "c128_state": 16,
    }  # fmt: skip
    fast.finish(0)
    assert fast.held == [0] * 5
    assert fast.free_blocks == 5000


def test_a_full_block_that_two_requests_share_counts_once() -> None:
    fast = RunAllocator(V4, 5000)
    for request in (0, 1):
        fast.admit(request, 1025, (range(4),))
        fast.advance(request, 1025 - fast.computed(request))
    assert fast.held[0] == 4 + 1 + 1


def test_an_evicted_run_is_no_longer_reused() -> None:
    fast = RunAllocator(V4, 700)
    for request in range(4):
        fast.admit(request, 1024, (range(request * 10, request * 10 + 4),))
        fast.advance(request, 1024)
        fast.finish(request)
    assert fast.evicted > 0
    assert fast.admit(9, 1024, (range(4),)) == 0


def test_a_prompt_of_less_than_a_segment_reuses_nothing_of_the_prefix_numbered_before_it() -> None:
    fast = RunAllocator(V4, 5000)
    fast.admit(0, 1024, (range(4),))
    fast.advance(0, 1024)
    assert fast.admit(1, 256, (range(4, 6),)) == 0
    assert fast.held == [4, 16, 16, 256, 128]


def test_too_few_blocks_is_an_error() -> None:
    fast = RunAllocator(V4, 10)
    fast.admit(0, 4096)
    with pytest.raises(OutOfBlocksError, match="10 of 10 free"):
        fast.advance(0, 4096)
