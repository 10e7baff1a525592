"""What the sliding groups of one request hold, tabled: it depends on the position within a 256-token segment only."""

from collections.abc import Sequence

from dsv4bench.memory.allocator import tail_blocks
from dsv4bench.memory.counts import pack
from dsv4bench.memory.layout import Group
from dsv4bench.memory.page import BLOCK_TOKENS

Step = tuple[int, int, int, int, int]
"""What a step does to the blocks of a request: of the sliding groups those that stay of the ones before, those it takes
and keeps, those it takes and gives back; the compressed ones it takes; what each sliding group holds then, as a `pack`.
"""


class WindowTable:
    """Blocks of the sliding groups, by position.

    Args:
        groups: the sliding groups.
        full_tokens: tokens of a block of the group that keeps everything; 0 if there is none.
        others: groups before the sliding ones in a `pack`.
        drafts: see `BlockAllocator`.

    Attributes:
        names: of the groups.
        widest: positions of the widest window.
        tail: blocks of all groups that a prefix hit needs just before its end.
        between: blocks of all groups in a segment that belong to no tail.
        overlap: blocks of a tail that the window still reaches, by how far its token is behind the tail's boundary.
        steps: those worked out so far, by the arguments of `step`.
        at_boundary: what each group holds where the last computed token ends a segment, as a `pack`.
    """

    def __init__(self, groups: Sequence[Group], full_tokens: int, others: int, *, drafts: bool) -> None:
        self.names = [group.name for group in groups]
        self.widest = max((group.window for group in groups), default=0)
        if self.widest > BLOCK_TOKENS:
            raise ValueError(f"windows longer than {BLOCK_TOKENS} tokens are not tabled, got {self.widest}")
        self._full_tokens = full_tokens
        self._sizes = [(group.tokens, group.window) for group in groups]
        self._places = [pack([0] * (others + place) + [1]) for place in range(len(groups))]
        tails = [tail_blocks(group, drafts=drafts) for group in groups]
        self.tail = sum(tails)
        self.between = sum(BLOCK_TOKENS // tokens for tokens, _ in self._sizes) - self.tail
        self.overlap = [
            sum(
                max(0, min(tail, -(-(BLOCK_TOKENS - max(0, BLOCK_TOKENS + past - window + 1)) // tokens)))
                for (tokens, window), tail in zip(self._sizes, tails, strict=True)
            )
            for past in range(max(1, self.widest))
        ]
        held = [BLOCK_TOKENS // tokens - (BLOCK_TOKENS - window) // tokens for tokens, window in self._sizes]
        self.at_boundary = pack([0] * others + held)
        self.steps: dict[tuple[int, int, bool], Step] = {}

    def step(self, start: int, tokens: int, rolling: bool) -> Step:
        """Work out a step of ``tokens`` behind ``start``, and keep it in `steps`.

        Args:
            start: tokens before it; from 512 on as many as leave the same rest of 256, with 256 to 511.
            tokens: how many.
            rolling: whether the windows slide in between.
        """
        kept = fresh = churn = held = 0
        end = start + tokens
        for (size, window), place in zip(self._sizes, self._places, strict=True):
            before, after = -(-start // size), -(-end // size)
            passed = ((end if rolling else start + 1) - window) // size
            passed = passed if passed > 0 else 0
            if passed < before:
                kept += before - passed
                fresh += after - before
            else:
                churn += passed - before
                fresh += after - passed
            held += (after - passed) * place
        full = self._full_tokens and -(-end // self._full_tokens) - -(-start // self._full_tokens)
        found = self.steps[start, tokens, rolling] = kept, fresh, churn, full, held
        return found
