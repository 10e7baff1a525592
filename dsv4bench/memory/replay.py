"""A fast allocator for long traces: the rules of `BlockAllocator`, counted by segments instead of block by block.

Blocks that are freed together and can only be reused together count as one: the compressed blocks of a 256-token
segment, and its *tail*, the window and state blocks at its end. Segments that follow one another are handled together,
as a `Run`, and everything else is a number. While all requests advance in whole segments the counts equal those of
`BlockAllocator`; in between, the blocks of the last tail are held until all of them have passed, at most one tail a
request, and they are evicted together.
"""

from collections.abc import Sequence

from dsv4bench.memory.allocator import OutOfBlocksError, retains
from dsv4bench.memory.counts import unpack
from dsv4bench.memory.layout import Group
from dsv4bench.memory.page import BLOCK_TOKENS
from dsv4bench.memory.runs import FreeQueue, RunIndex
from dsv4bench.memory.windows import WindowTable

_Part = tuple[int, int, int]
"""Segments of a request with numbers in one chain: the first, one more than the last, what to add for the number."""


class _Request:
    """A live request.

    Attributes:
        prompt: its prompt tokens.
        parts: its segments that have numbers, in order.
        computed: tokens in the cache.
        private: completed ones of these segments that cannot be found, since others have the same content.
        partial: compressed blocks of the segment that is not complete.
        loose: blocks of the sliding groups that belong to no tail.
        tails: the tails it holds, by the segments they end: first segment, its number, and how many follow one another.
        window: blocks it holds of each sliding group, as a `pack`.
    """

    __slots__ = ("computed", "loose", "partial", "parts", "private", "prompt", "tails", "window")

    def __init__(self, prompt: int, content: Sequence[range]) -> None:
        self.prompt = prompt
        self.parts: list[_Part] = []
        first = 0
        for part in content:
            last = first + part.stop - part.start
            self.parts.append((first, last, part.start - first))
            first = last
        self.computed = 0
        self.private: list[tuple[int, int]] = []
        self.partial = 0
        self.loose = 0
        self.tails: list[tuple[int, int, int]] = []
        self.window = 0


class RunAllocator:
    """Counts blocks of one pool over many requests.

    Args:
        groups: the block groups of a `CacheLayout`.
        num_blocks: size of the pool.
        retention: see `BlockAllocator`.
        drafts: see `BlockAllocator`.

    Attributes:
        names: of the groups.
        packed: blocks in use by group, as a `pack`; a window block that two requests share counts for both.
        hit_tokens: prompt tokens found in the cache.
    """

    def __init__(
        self, groups: Sequence[Group], num_blocks: int, *, retention: int | None = None, drafts: bool = False
    ) -> None:
        full = [group for group in groups if not group.window]
        self.num_blocks = num_blocks
        self.retention = retention
        self.hit_tokens = 0
        tokens = full[0].tokens if full else 0
        self._per_segment = BLOCK_TOKENS // tokens if full else 0
        self._windows = WindowTable([group for group in groups if group.window], tokens, len(full), drafts=drafts)
        self._steps = self._windows.steps
        self.names = [group.name for group in full] + self._windows.names
        self.packed = 0
        self._queue = FreeQueue(num_blocks, unused_first=retention is not None)
        self._full = RunIndex(self._queue, self._per_segment, rising=False)
        self._tail = RunIndex(self._queue, self._windows.tail, rising=True)
        self._requests: dict[int, _Request] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks no live request holds, those with reusable content included."""
        return self._queue.free

    @property
    def evicted(self) -> int:
        """Blocks with reusable content that were overwritten."""
        return self._queue.evicted

    @property
    def held(self) -> list[int]:
        """Blocks in use by group, in the order of `names`."""
        return unpack(self.packed, len(self.names))

    def computed(self, request: int) -> int:
        """Tokens of a request that are in the cache."""
        return self._requests[request].computed

    def admit(self, request: int, prompt: int, content: Sequence[range] = ()) -> int:
        """Take a request in; see `BlockAllocator.admit`.

        Args:
            request: its id.
            prompt: prompt tokens; at least the last one is computed anew.
            content: numbers of the segments it will complete, output included; each range within one chain (`Run`).

        Returns:
            Tokens found in the cache, a multiple of 256.
        """
        owner = self._requests[request] = _Request(prompt, content)
        hit = self._longest_hit(owner, (prompt - 1) // BLOCK_TOKENS)
        if not hit:
            return 0
        _, end, shift = hit[-1]
        owner.computed = end * BLOCK_TOKENS
        self.hit_tokens += owner.computed
        if self._per_segment:
            for first, last, to_number in hit:
                self.packed += self._per_segment * self._full.take(first + to_number, last + to_number)
        if self._windows.tail:
            self._tail.take(end - 1 + shift, end + shift)
            owner.tails.append((end - 1, end - 1 + shift, 1))
        owner.window = self._windows.at_boundary
        self.packed += owner.window
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
        owner, queue = self._requests[request], self._queue
        start = owner.computed
        end = start + tokens
        key = (start if start < BLOCK_TOKENS else BLOCK_TOKENS + start % BLOCK_TOKENS, tokens, rolling)
        kept, fresh, churn, full, held = self._steps.get(key) or self._windows.step(*key)
        if owner.tails:
            self._slide(owner, end - 1 if rolling else start, kept)
        elif owner.loose > kept:
            queue.give_unused(owner.loose - kept)
            owner.loose = kept
        need = fresh + full
        if need > queue.free:
            raise OutOfBlocksError(f"{need} blocks needed, {queue.free} of {self.num_blocks} free")
        if churn:
            turned = churn if churn < queue.free else queue.free
            queue.take(turned)
            queue.give_unused(turned)
        queue.take(need)
        owner.computed = end
        owner.loose += fresh
        if full:
            owner.partial += full
            self.packed += full
        first, last = start // BLOCK_TOKENS, end // BLOCK_TOKENS
        if first < last:
            self._remember(owner, first, last)
        self.packed += held - owner.window
        owner.window = held

    def finish(self, request: int) -> None:
        """Give back every block of a request; the last ones are used again first, a tail before its segment."""
        owner, per = self._requests.pop(request), self._per_segment
        self._queue.give_unused(owner.loose + owner.partial)
        self.packed -= owner.partial + owner.window
        if per:
            done = owner.computed // BLOCK_TOKENS
            for first, number, count in reversed(owner.tails):
                for segment in reversed(range(first, first + count)):
                    if segment + 1 < done:
                        self._give_back_full(owner, segment + 1, done)
                    self._tail.give_back(number + segment - first, number + segment - first + 1)
                    done = segment + 1
            self._give_back_full(owner, 0, done)
        else:
            for _, number, count in owner.tails:
                self._tail.give_back(number, number + count)

    def _longest_hit(self, owner: _Request, limit: int) -> list[_Part]:
        """The longest known prefix, at most ``limit`` segments, that ends on a known tail."""
        hit = _within(owner.parts, 0, limit)
        if self._per_segment:
            for place, (first, last, shift) in enumerate(hit):
                end = self._full.known_to(first + shift, last + shift) - shift
                if end < last:
                    hit[place:] = [(first, end, shift)] if first < end else []
                    break
        while hit and self._windows.tail:
            first, last, shift = hit.pop()
            number = self._tail.last_known(first + shift, last + shift)
            if number is not None:
                return [*hit, (first, number - shift + 1, shift)]
        return hit

    def _slide(self, owner: _Request, position: int, kept: int) -> None:
        """Give back what the window of the token at ``position`` has passed; ``kept`` blocks stay, tails included.

        Only the last tail can be within a window. The blocks between two tails stay in their order: before the second.
        """
        passed = owner.tails
        first, number, count = passed.pop()
        past = position - (first + count) * BLOCK_TOKENS
        if past < self._windows.widest - 1:
            count -= 1
            kept -= self._windows.overlap[past]
            owner.tails = [(first + count, number + count, 1)]
        else:
            owner.tails = []
        if count:
            passed.append((first, number, count))
        unused, owner.loose = owner.loose - kept, kept
        gap = self._windows.between if self.retention is None else 0
        for _, number, count in passed:
            spaced = count if unused >= gap * count else unused // gap
            if spaced:
                self._tail.give_back(number, number + spaced, gap)
                unused -= spaced * gap
            for late in range(number + spaced, number + count):
                self._queue.give_unused(unused)
                self._tail.give_back(late, late + 1)
                unused = 0
        if unused:
            self._queue.give_unused(unused)

    def _remember(self, owner: _Request, first: int, last: int) -> None:
        """Make the segments completed, ``first`` to before ``last``, reusable, and their tails where they are kept."""
        per, weight, parts = self._per_segment, self._windows.tail, _within(owner.parts, first, last)
        if per:
            owner.partial -= per * (last - first)
            for begin, end, shift in parts:
                for low, high in self._full.add(begin + shift, end + shift, end - begin):
                    if low - shift > begin:
                        owner.private.append((begin, low - shift))
                    begin = high - shift
                if begin < end:
                    owner.private.append((begin, end))
        if owner.loose < weight or not weight:
            return
        if self.retention is not None:
            parts = self._kept(owner, first, last)
        for begin, end, shift in parts:
            for low, high in self._tail.add(begin + shift, end + shift, owner.loose // weight):
                owner.loose -= (high - low) * weight
                _append(owner.tails, low - shift, low, high - low)

    def _kept(self, owner: _Request, first: int, last: int) -> list[_Part]:
        """The segments from ``first`` to before ``last`` whose tails are kept with retention, one by one."""
        if not self.retention:
            final = owner.prompt // BLOCK_TOKENS - 1
            return _within(owner.parts, final, final + 1) if first <= final < last else []
        return [
            part
            for segment in range(first, last)
            if retains((segment + 1) * BLOCK_TOKENS, owner.prompt, self.retention)
            for part in _within(owner.parts, segment, segment + 1)
        ]

    def _give_back_full(self, owner: _Request, first: int, last: int) -> None:
        """Give back the compressed blocks of the segments from ``first`` to before ``last``, the last ones first."""
        for begin, end, shift in reversed(_pieces(owner, first, last)):
            if shift is None:
                freed = end - begin
                self._queue.give_unused(self._per_segment * freed)
            else:
                freed = self._full.give_back(begin + shift, end + shift)
            self.packed -= self._per_segment * freed


def _within(parts: list[_Part], first: int, last: int) -> list[_Part]:
    """The parts of a request that lie in its segments from ``first`` to before ``last``."""
    if parts and parts[-1][0] <= first < last <= parts[-1][1]:  # as mostly
        return [(first, last, parts[-1][2])]
    found = []
    for begin, end, shift in parts:
        if begin >= last:
            break
        if end > first:
            found.append((max(begin, first), min(end, last), shift))
    return found


def _pieces(owner: _Request, first: int, last: int) -> list[tuple[int, int, int | None]]:
    """As `_within`, with None for the number of segments that cannot be found."""
    pieces: list[tuple[int, int, int | None]] = []
    for begin, end, shift in _within(owner.parts, first, last):
        for low, high in owner.private:
            if begin < high and low < end:
                if begin < low:
                    pieces.append((begin, low, shift))
                pieces.append((max(begin, low), min(end, high), None))
                begin = high
        if begin < end:
            pieces.append((begin, end, shift))
        first = end
    if first < last:
        pieces.append((first, last, None))
    return pieces


def _append(tails: list[tuple[int, int, int]], first: int, number: int, count: int) -> None:
    """Append tails to those of a request, joined with the last ones where they follow them."""
    if tails:
        before, its_number, size = tails[-1]
        if before + size == first and its_number + size == number:
            tails[-1] = (before, its_number, size + count)
            return
    tails.append((first, number, count))
