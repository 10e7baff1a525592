from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dsv4bench.memory.allocator import BlockAllocator, OutOfBlocksError, retains, tail_blocks
from dsv4bench.memory.layout import build_layout
from dsv4bench.model.shape import V3_2, LayerKind

GROUPS = build_layout((LayerKind.C4A, LayerKind.C128A, LayerKind.SWA)).groups
NAMES = [group.name for group in GROUPS]


def allocator(num_blocks: int = 3000, *, retention: int | None = None) -> BlockAllocator:
    return BlockAllocator(GROUPS, num_blocks, retention=retention)


def test_a_hit_needs_2_window_2_c4_and_16_c128_blocks() -> None:
    tails = {group.name: tail_blocks(group) for group in GROUPS}
    assert tails == {"full": 0, "window0": 2, "window1": 2, "c4_state": 2, "c128_state": 16}
    assert tail_blocks(GROUPS[-1], drafts=True) == 17


def test_a_decoding_request_holds_what_the_engine_charges_for_one_token_in_flight() -> None:
    pool = allocator()
    pool.admit("a", 1024)
    pool.advance("a", 1024)
    most = Counter[str]()
    for _ in range(300):
        pool.advance("a", 1)
        for name in NAMES:
            most[name] = max(most[name], pool.held("a", name))
    assert most == {"full": 6, "window0": 3, "window1": 3, "c4_state": 3, "c128_state": 17}


def test_blocks_that_the_window_has_passed_go_back_to_the_pool() -> None:
    pool = allocator()
    pool.admit("a", 1024)
    pool.advance("a", 1024)
    before = pool.free_blocks
    pool.advance("a", 1)
    assert pool.free_blocks > before
    assert pool.table("a", "window0")[:14] == (None,) * 14


def test_a_prompt_is_reused_up_to_a_multiple_of_256_and_never_whole() -> None:
    pool = allocator()
    pool.admit("a", 1000, ["x0", "x1", "x2"])
    pool.advance("a", 1000)
    pool.finish("a")
    assert pool.admit("b", 1000, ["x0", "x1", "x2"]) == 768
    pool.finish("b")
    assert pool.admit("c", 768, ["x0", "x1", "x2"]) == 512


def test_reuse_ends_where_the_content_differs() -> None:
    pool = allocator()
    pool.admit("a", 1024, ["x0", "x1", "x2", "x3"])
    pool.advance("a", 1024)
    assert pool.admit("b", 1024, ["x0", "x1", "y2", "y3"]) == 512


def test_reuse_falls_back_to_a_boundary_whose_windows_are_all_there() -> None:
    pool = allocator(retention=0)
    pool.admit("a", 800, ["x0", "x1", "x2"])
    pool.advance("a", 800)
    pool.finish("a")
    assert pool.admit("b", 4096, ["x0", "x1", "x2"]) == 768
    pool.finish("b")
    assert pool.admit("c", 700, ["x0", "x1", "x2"]) == 0  # full blocks are there, the windows at 512 are not


def test_an_interval_keeps_the_windows_at_its_multiples() -> None:
    kept = [boundary for boundary in range(256, 2049, 256) if retains(boundary, 1900, 512)]
    assert kept == [512, 1024, 1536, 1792, 2048]
    assert [boundary for boundary in range(256, 2049, 256) if retains(boundary, 1900, 0)] == [1792]


def test_without_retention_the_churn_of_a_window_flushes_old_prefixes_and_with_it_they_stay() -> None:
    hits = {}
    for retention in (None, 0):
        pool = allocator(1500, retention=retention)
        pool.admit("old", 1000, ["x0", "x1", "x2"])
        pool.advance("old", 1000)
        pool.finish("old")
        for index in range(8):
            pool.admit(index, 1000, [f"{index}-{k}" for k in range(3)])
            pool.advance(index, 1000)
            pool.finish(index)
        hits[retention] = pool.admit("again", 1000, ["x0", "x1", "x2"])
    assert hits == {None: 0, 0: 768}


def test_too_few_blocks_is_an_error_that_changes_nothing() -> None:
    pool = allocator(50)
    pool.admit("a", 4096)
    with pytest.raises(OutOfBlocksError, match="blocks needed, 50 of 50 free"):
        pool.advance("a", 4096)
    assert (pool.free_blocks, pool.computed("a")) == (50, 0)


def test_the_one_group_of_v32_is_reused_in_pages_of_64() -> None:
    pool = BlockAllocator(build_layout(V3_2.layers).groups, 100)
    pool.admit("a", 600, ["x0", "x1"])
    pool.advance("a", 600)
    assert pool.admit("b", 600, ["x0", "x1"]) == 512
    assert pool.held("b", "full") == 8


class RandomOperations(RuleBasedStateMachine):
    """Admit, advance and finish requests at random; what must hold at every moment."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = allocator(700)
        self.count = 0
        self.live: list[int] = []

    @rule(prompt=st.integers(1, 1500), family=st.integers(0, 2), retention=st.sampled_from([None, 0, 512]))
    def admit(self, prompt: int, family: int, retention: int | None) -> None:
        self.pool.retention = retention
        self.count += 1
        self.pool.admit(self.count, prompt, [(family, k) for k in range(5)])
        self.live.append(self.count)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), tokens=st.integers(1, 600))
    def advance(self, data: st.DataObject, tokens: int) -> None:
        request = data.draw(st.sampled_from(self.live))
        before = self.pool.computed(request)
        try:
            self.pool.advance(request, tokens)
            assert self.pool.computed(request) == before + tokens
        except OutOfBlocksError:
            assert self.pool.computed(request) == before

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.live))
        self.pool.finish(request)
        self.live.remove(request)

    def tables(self) -> list[tuple[object, str, int, int]]:
        return [
            (request, group.name, index, block)
            for request in self.live
            for group in GROUPS
            for index, block in enumerate(self.pool.table(request, group.name))
            if block is not None
        ]

    @invariant()
    def a_block_is_free_or_held(self) -> None:
        assert len({block for _, _, _, block in self.tables()}) + self.pool.free_blocks == self.pool.num_blocks

    @invariant()
    def a_block_belongs_to_one_group(self) -> None:
        owners = {(block, name) for _, name, _, block in self.tables()}
        assert len(owners) == len({block for block, _ in owners})

    @invariant()
    def no_two_live_requests_share_a_writable_block(self) -> None:
        tokens = {group.name: group.tokens for group in GROUPS}
        holders = Counter(block for _, _, _, block in self.tables())
        writable = [
            block
            for request, name, index, block in self.tables()
            if (index + 1) * tokens[name] > self.pool.computed(request)
        ]
        assert all(holders[block] == 1 for block in writable)

    @invariant()
    def every_position_of_the_window_has_a_block(self) -> None:
        for request in self.live:
            computed = self.pool.computed(request)
            for group in GROUPS:
                first = max(0, computed - group.window + 1) // group.tokens if group.window else 0
                table = self.pool.table(request, group.name)
                assert None not in table[first : -(-computed // group.tokens)]


RandomOperations.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
test_random_operations_keep_the_pool_sound = RandomOperations.TestCase


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 1200), st.integers(1, 1200))
def test_a_prefix_computed_in_one_step_or_in_two_is_reused_alike(first: int, second: int) -> None:
    content = [("x", k) for k in range(10)]
    hits = []
    for steps in ([first, second], [first + second]):
        pool = allocator()
        pool.admit("a", first + second, content)
        for tokens in steps:
            pool.advance("a", tokens)
        pool.finish("a")
        hits.append(pool.admit("b", 2500, content))
    assert hits[0] == hits[1]
