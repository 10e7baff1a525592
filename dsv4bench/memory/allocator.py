"""The block allocator of an engine, exact to the block: one pool, many groups, prefix reuse, windows that slide.

Every request has a block table per group. Blocks of a sliding group (window, compressor states) are given back as soon
as they lie wholly before the window, and the compressor state is treated like window entries: reuse of a prefix that
ends at P needs every compressed block before P *and* the last blocks of each sliding group, 2 of the window (per window
group), 2 of the c4 states and 16 of the c128 states. P is a multiple of 256 tokens.

Semantics follow vLLM: free blocks wait in a queue and keep their content until they are used again. Without retention
all of them queue up at the back, so the churn of a sliding window flushes old prefixes out (vllm#43447); with
retention, blocks that hold nothing reusable are used first, and only selected boundaries keep their windows.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from dsv4bench.memory.layout import Group
from dsv4bench.memory.page import BLOCK_TOKENS

Key = tuple[str, Hashable, int]
"""Content of a block: group, prefix up to the end of its 256-token segment, index within the segment."""


class OutOfBlocksError(Exception):
    """The pool has too few free blocks; nothing was allocated."""


@dataclass
class _Request:
    content: Sequence[Hashable]
    prompt: int
    computed: int = 0
    tables: dict[str, list[int | None]] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)


class BlockAllocator:
    """Hands out block ids of one pool to the groups of many requests.

    Args:
        groups: the block groups of a `CacheLayout`.
        num_blocks: size of the pool.
        retention: None keeps the window of every boundary, without protection; N keeps those at multiples of N tokens
            and the last one of each prompt; 0 keeps the last one of each prompt only.
        drafts: whether draft tokens are made; a hit then needs one more block of each sliding group.
    """

    def __init__(
        self, groups: Sequence[Group], num_blocks: int, *, retention: int | None = None, drafts: bool = False
    ) -> None:
        self.groups = tuple(groups)
        self.num_blocks = num_blocks
        self.retention = retention
        self.hit_tokens = 0
        self.evicted = 0
        self._tails = {group.name: tail_blocks(group, drafts=drafts) for group in groups}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._refs = [0] * num_blocks
        self._key: list[Key | None] = [None] * num_blocks
        self._cached: dict[Key, int] = {}
        self._requests: dict[Hashable, _Request] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks no live request holds, those with reusable content included."""
        return len(self._free)

    def computed(self, request: Hashable) -> int:
        """Tokens of a request that are in the cache."""
        return self._requests[request].computed

    def table(self, request: Hashable, group: str) -> tuple[int | None, ...]:
        """Block ids of a request in a group, by block index; None where the window has passed."""
        return tuple(self._requests[request].tables[group])

    def held(self, request: Hashable, group: str) -> int:
        """Blocks a request holds in a group."""
        owner = self._requests[request]
        return len(owner.tables[group]) - owner.first[group]

    def admit(self, request: Hashable, prompt: int, content: Sequence[Hashable] = ()) -> int:
        """Take a request in, reusing the longest cached prefix.

        Args:
            request: its id.
            prompt: prompt tokens; at least the last one is computed anew.
            content: for each 256-token segment it will complete, output included, what identifies all tokens up to its
                end. Empty: nothing of it is reused or reusable.

        Returns:
            Tokens found in the cache, a multiple of 256.
        """
        if request in self._requests:
            raise ValueError(f"request {request!r} is live already")
        owner = _Request(content, prompt)
        hit = self._longest_hit(owner)
        for group in self.groups:
            count = hit // group.tokens
            first = max(0, count - self._tails[group.name]) if group.window else 0
            blocks = [self._cached[self._key_of(owner, group, index)] for index in range(first, count)]
            for block in blocks:
                self._take(block)
            owner.tables[group.name] = [None] * first + blocks
            owner.first[group.name] = first
        owner.computed = hit
        self.hit_tokens += hit
        self._requests[request] = owner
        return hit

    def advance(self, request: Hashable, tokens: int) -> None:
        """Compute ``tokens`` more in one step: give back what the window has passed, then make room for all of them.

        Raises:
            OutOfBlocksError: too few free blocks; the request stays as it was, less what its window has passed.
        """
        owner = self._requests[request]
        self._slide(owner)
        end = owner.computed + tokens
        need = {group.name: -(-end // group.tokens) - len(owner.tables[group.name]) for group in self.groups}
        if sum(need.values()) > len(self._free):
            raise OutOfBlocksError(f"{sum(need.values())} blocks needed, {len(self._free)} of {self.num_blocks} free")
        for group in self.groups:
            owner.tables[group.name].extend(self._pop() for _ in range(need[group.name]))
        before, owner.computed = owner.computed, end
        self._remember(owner, before)

    def finish(self, request: Hashable) -> None:
        """Give back every block of a request; the last ones are used again first."""
        owner = self._requests.pop(request)
        released = []
        for group in self.groups:
            for index, block in enumerate(owner.tables[group.name]):
                if block is not None:
                    segment = index * group.tokens // BLOCK_TOKENS
                    released.append((-segment, self._key[block] is not None, block))
        self._release([block for _, _, block in sorted(released)])

    def _longest_hit(self, owner: _Request) -> int:
        limit = min(len(owner.content), max(0, owner.prompt - 1) // BLOCK_TOKENS)
        full = [group for group in self.groups if not group.window]
        known = 0
        while known < limit and all(self._has(owner, group, known, known + 1) for group in full):
            known += 1
        sliding = [group for group in self.groups if group.window]
        while known and not all(self._has_tail(owner, group, known) for group in sliding):
            known -= 1
        return known * BLOCK_TOKENS

    def _has(self, owner: _Request, group: Group, start: int, end: int) -> bool:
        per = BLOCK_TOKENS // group.tokens
        return all(self._key_of(owner, group, index) in self._cached for index in range(start * per, end * per))

    def _has_tail(self, owner: _Request, group: Group, segments: int) -> bool:
        end = segments * BLOCK_TOKENS // group.tokens
        return all(
            self._key_of(owner, group, index) in self._cached for index in range(end - self._tails[group.name], end)
        )

    def _key_of(self, owner: _Request, group: Group, index: int) -> Key:
        per = BLOCK_TOKENS // group.tokens
        return (group.name, owner.content[index // per], index % per)

    def _slide(self, owner: _Request) -> None:
        """Give back the blocks that lie wholly before the window of the next token."""
        released: list[tuple[int, int]] = []
        for group in self.groups:
            if not group.window:
                continue
            table, start = owner.tables[group.name], owner.first[group.name]
            passed = min(len(table), max(0, owner.computed - group.window + 1) // group.tokens)
            for index in range(start, passed):
                block = table[index]
                assert block is not None
                released.append((index * group.tokens // BLOCK_TOKENS, block))
                table[index] = None
            owner.first[group.name] = max(start, passed)
        released.sort(key=lambda item: (item[0], self._key[item[1]] is not None))
        self._release([block for _, block in released])

    def _remember(self, owner: _Request, before: int) -> None:
        """Make newly filled blocks reusable, where a hit may need them."""
        for group in self.groups:
            per = BLOCK_TOKENS // group.tokens
            needed = self._tails[group.name] if group.window else per
            for index in range(before // group.tokens, min(owner.computed // group.tokens, len(owner.content) * per)):
                boundary = (index // per + 1) * BLOCK_TOKENS
                if index % per < per - needed:
                    continue
                if group.window and not retains(boundary, owner.prompt, self.retention):
                    continue
                block, key = owner.tables[group.name][index], self._key_of(owner, group, index)
                if block is not None and self._key[block] is None and key not in self._cached:
                    self._key[block], self._cached[key] = key, block

    def _take(self, block: int) -> None:
        if self._refs[block] == 0:
            del self._free[block]
        self._refs[block] += 1

    def _pop(self) -> int:
        block, _ = self._free.popitem(last=False)
        key = self._key[block]
        if key is not None:
            del self._cached[key]
            self._key[block] = None
            self.evicted += 1
        self._refs[block] = 1
        return block

    def _release(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free[block] = None
                if self.retention is not None and self._key[block] is None:
                    self._free.move_to_end(block, last=False)


def tail_blocks(group: Group, *, drafts: bool = False) -> int:
    """Blocks of a sliding group that a prefix hit needs just before its end; 0 for a group that keeps everything."""
    return -(-(group.window - 1) // group.tokens) + drafts if group.window else 0


def retains(boundary: int, prompt: int, retention: int | None) -> bool:
    """Whether the windows that end at a boundary stay reusable; see `BlockAllocator`."""
    if retention is None or boundary == prompt // BLOCK_TOKENS * BLOCK_TOKENS:
        return True
    return retention > 0 and boundary % retention == 0
