"""A fast allocator for long traces: the rules of `BlockAllocator`, counted in runs of blocks instead of block by block.

Blocks that are freed together and can only be reused together form a run: the compressed blocks of a 256-token segment,
and the window and state blocks at its end. Everything else is a number. While all requests advance in whole segments
its counts equal those of `BlockAllocator`; in between, the window blocks of the last boundary are held until all of
them have passed, at most one tail a request, and a run is evicted as a whole.

How many blocks a window holds depends on the position within 256 tokens only, so it is tabled once.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from dsv4bench.memory.allocator import OutOfBlocksError, retains, tail_blocks
from dsv4bench.memory.layout import Group
from dsv4bench.memory.page import BLOCK_TOKENS


class _Run:
    """Blocks that live and die together.

    ``index`` is where the run can be found by its content, None if nowhere; ``stale`` counts entries in the queue that
    a reuse has made void.
    """

    __slots__ = ("content", "index", "refs", "stale", "weight")

    def __init__(self, weight: int, content: int, index: "dict[int, _Run] | None") -> None:
        self.weight = weight
        self.content = content
        self.index = index
        self.refs = 1
        self.stale = 0


class _Request:
    __slots__ = ("computed", "content", "full", "loose", "partial", "prompt", "tails", "window")

    def __init__(self, prompt: int, content: Sequence[int], window: tuple[int, ...]) -> None:
        self.prompt = prompt
        self.content = content
        self.computed = 0
        self.full: list[_Run] = []
        self.partial = 0
        self.loose = 0
        self.tails: list[tuple[int, _Run]] = []
        self.window = window


class _Step(NamedTuple):
    """What a step does to the sliding groups: blocks that stay of the ones before, new ones, and what is held then."""

    kept: int
    fresh: int
    churn: int
    held: tuple[int, ...]


class _Windows:
    """Tables of what the sliding groups hold, by position within a segment."""

    def __init__(self, groups: Sequence[Group], *, drafts: bool) -> None:
        self.sizes = [(group.tokens, group.window, tail_blocks(group, drafts=drafts)) for group in groups]
        self.names = [group.name for group in groups]
        self.widest = max((group.window for group in groups), default=0)
        if self.widest > BLOCK_TOKENS:
            raise ValueError(f"windows longer than {BLOCK_TOKENS} tokens are not tabled, got {self.widest}")
        self.tail = sum(tail for _, _, tail in self.sizes)
        self.between = sum(BLOCK_TOKENS // tokens for tokens, _, _ in self.sizes) - self.tail
        self._overlap = [
            sum(max(0, min(tail, -(-(256 - max(0, 256 + d - w + 1)) // t))) for t, w, tail in self.sizes)
            for d in range(max(1, self.widest))
        ]
        self._nothing = (0,) * len(self.sizes)
        self._at_boundary = tuple(BLOCK_TOKENS // t - (BLOCK_TOKENS - w) // t for t, w, _ in self.sizes)
        self._steps: dict[tuple[int, int, bool], _Step] = {}

    def held(self, computed: int) -> tuple[int, ...]:
        """Blocks by group that the window of the last computed token reaches, at a multiple of 256."""
        return self._at_boundary if computed else self._nothing

    def overlap(self, position: int, tails: Sequence[tuple[int, _Run]]) -> int:
        """Blocks of the given tails that the window of the token at ``position`` still reaches."""
        return sum(self._overlap[position - boundary] for boundary, _ in tails)

    def step(self, start: int, tokens: int, *, rolling: bool) -> _Step:
        """A step of ``tokens`` after ``start``; ``rolling`` slides the windows in between."""
        key = (start if start < BLOCK_TOKENS else BLOCK_TOKENS + start % BLOCK_TOKENS, tokens, rolling)
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._step(key[0], key[0] + tokens, rolling=rolling)
        return found

    def _step(self, start: int, end: int, *, rolling: bool) -> _Step:
        kept, fresh, churn, held = 0, 0, 0, []
        for t, w, _ in self.sizes:
            before, after = -(-start // t), -(-end // t)
            passed = max(0, (end - 1 if rolling else start) - w + 1) // t
            kept += max(0, before - passed)
            fresh += after - before
            churn += max(0, min(after, passed) - before) if rolling else 0
            held.append(after - passed)
        return _Step(kept, fresh, churn, tuple(held))


class RunAllocator:
    """Counts blocks of one pool over many requests.

    Args:
        groups: the block groups of a `CacheLayout`.
        num_blocks: size of the pool.
        retention: see `BlockAllocator`.
        drafts: see `BlockAllocator`.
    """

    def __init__(
        self, groups: Sequence[Group], num_blocks: int, *, retention: int | None = None, drafts: bool = False
    ) -> None:
        full = [group for group in groups if not group.window]
        self.num_blocks = num_blocks
        self.free_blocks = num_blocks
        self.retention = retention
        self.hit_tokens = 0
        self.evicted = 0
        self._windows = _Windows([group for group in groups if group.window], drafts=drafts)
        self._full_tokens = full[0].tokens if full else 0
        self._per_segment = BLOCK_TOKENS // full[0].tokens if full else 0
        self.names = [group.name for group in full] + self._windows.names
        self._full_held = 0
        self._window_held = [0] * len(self._windows.names)
        self._front = num_blocks
        self._queue: deque[_Run | int] = deque()
        self._full: dict[int, _Run] = {}
        self._tail: dict[int, _Run] = {}
        self._requests: dict[int, _Request] = {}

    @property
    def held(self) -> list[int]:
        """Blocks in use by group, in the order of `names`; a window block that two requests share counts for both."""
        return [self._full_held, *self._window_held] if self._per_segment else list(self._window_held)

    def computed(self, request: int) -> int:
        """Tokens of a request that are in the cache."""
        return self._requests[request].computed

    def admit(self, request: int, prompt: int, content: Sequence[int] = ()) -> int:
        """Take a request in; see `BlockAllocator.admit`."""
        owner = _Request(prompt, content, self._windows.held(0))
        self._requests[request] = owner
        known, limit = 0, min(len(content), (prompt - 1) // BLOCK_TOKENS)
        full, tail = self._full, self._tail
        while known < limit and (not self._per_segment or content[known] in full):
            known += 1
        while known and self._windows.tail and content[known - 1] not in tail:
            known -= 1
        if not known:
            return 0
        for index in range(known if self._per_segment else 0):
            run = full[content[index]]
            if run.refs == 0:
                self._full_held += run.weight
            self._take(run)
            owner.full.append(run)
        if self._windows.tail:
            run = tail[content[known - 1]]
            self._take(run)
            owner.tails.append((known * BLOCK_TOKENS, run))
        owner.computed = known * BLOCK_TOKENS
        self.hit_tokens += owner.computed
        self._count_window(owner, self._windows.held(owner.computed))
        return owner.computed

    def advance(self, request: int, tokens: int, *, rolling: bool = False) -> None:
        """Compute ``tokens`` more; see `BlockAllocator.advance`.

        Args:
            request: its id.
            tokens: how many.
            rolling: one after another, as decoding does, so that windows slide in between; must not cross a multiple
                of 256, only end on one.

        Raises:
            OutOfBlocksError: too few free blocks.
        """
        owner = self._requests[request]
        start = owner.computed
        end = start + tokens
        kept, fresh, churn, held = self._windows.step(start, tokens, rolling=rolling)
        self._slide(owner, end - 1 if rolling else start, kept)
        size = self._full_tokens
        new_full = -(-end // size) - -(-start // size) if size else 0
        need = fresh - churn + new_full
        if need > self.free_blocks:
            raise OutOfBlocksError(f"{need} blocks needed, {self.free_blocks} of {self.num_blocks} free")
        if churn:
            turned = min(churn, self.free_blocks)
            self._pop(turned)
            self._give_unused(turned)
        self._pop(need)
        owner.partial += new_full
        self._full_held += new_full
        owner.loose += fresh - churn
        owner.computed = end
        if end // BLOCK_TOKENS > start // BLOCK_TOKENS:
            self._remember(owner, start, end)
        self._count_window(owner, held)

    def finish(self, request: int) -> None:
        """Give back every block of a request; the last ones are used again first."""
        owner = self._requests.pop(request)
        self._give_unused(owner.loose + owner.partial)
        self._full_held -= owner.partial
        tails = dict(owner.tails)
        boundary = len(owner.full) * BLOCK_TOKENS
        for run in reversed(owner.full):
            if tails and (tail := tails.pop(boundary, None)) is not None:
                self._drop(tail)
            self._drop(run)
            if run.refs == 0:
                self._full_held -= run.weight
            boundary -= BLOCK_TOKENS
        for run in tails.values():
            self._drop(run)
        self._count_window(owner, self._windows.held(0))

    def _count_window(self, owner: _Request, now: tuple[int, ...]) -> None:
        if now != owner.window:
            held = self._window_held
            for position, (then, count) in enumerate(zip(owner.window, now, strict=True)):
                held[position] += count - then
            owner.window = now

    def _slide(self, owner: _Request, position: int, kept: int) -> None:
        """Give back what the window of the token at ``position`` has passed; ``kept`` blocks stay, tails included."""
        tails = owner.tails
        limit = position - self._windows.widest + 1
        passed = 0
        while passed < len(tails) and tails[passed][0] <= limit:
            passed += 1
        left = tails[passed:]
        loose = kept - (self._windows.overlap(position, left) if left else 0)
        unused, owner.loose, owner.tails = owner.loose - loose, loose, left
        between = self._windows.between
        for _, run in tails[:passed]:
            if unused > 0:
                self._give_unused(between if between < unused else unused)
                unused -= between
            self._drop(run)
        if unused > 0:
            self._give_unused(unused)

    def _remember(self, owner: _Request, start: int, end: int) -> None:
        """Make newly completed segments reusable, and their windows where they are kept."""
        per, weight, retention, loose = self._per_segment, self._windows.tail, self.retention, owner.loose
        full, tail = self._full, self._tail
        first, last = start // BLOCK_TOKENS, end // BLOCK_TOKENS
        known = owner.content[first:last]
        boundary = first * BLOCK_TOKENS
        for key in known:
            boundary += BLOCK_TOKENS
            if per:
                run = _Run(per, key, None if key in full else full)
                if run.index is not None:
                    full[key] = run
                owner.full.append(run)
            if (
                loose >= weight > 0
                and key not in tail
                and (retention is None or retains(boundary, owner.prompt, retention))
            ):
                run = tail[key] = _Run(weight, key, tail)
                owner.tails.append((boundary, run))
                loose -= weight
        owner.loose = loose
        if per:
            owner.full.extend(_Run(per, -1, None) for _ in range(last - first - len(known)))
            owner.partial -= per * (last - first)

    def _take(self, run: _Run) -> None:
        if run.refs == 0:
            run.stale += 1
            self.free_blocks -= run.weight
        run.refs += 1

    def _drop(self, run: _Run) -> None:
        run.refs -= 1
        if run.refs == 0:
            if run.index is None:
                self._give_unused(run.weight)
            else:
                self.free_blocks += run.weight
                self._queue.append(run)

    def _give_unused(self, weight: int) -> None:
        """Blocks without reusable content: to the front with retention, to the back without."""
        self.free_blocks += weight
        if self.retention is None:
            self._queue.append(weight)
        else:
            self._front += weight

    def _pop(self, count: int) -> None:
        self.free_blocks -= count
        front, take = self._front, self._queue.popleft
        while count > front:
            item = take()
            if isinstance(item, int):
                front += item
            elif item.stale:
                item.stale -= 1
            else:
                del item.index[item.content]  # type: ignore[union-attr]
                self.evicted += item.weight
                front += item.weight
        self._front = front - count
