"""Runs: consecutive segments of a prefix whose blocks are in the same state, so that one step handles all of them.

A segment is 256 tokens and known by a number, equal in two requests exactly where all their tokens up to its end are
equal. Along one prefix the numbers count up, so the segments of a prompt are a range or two, however long it is. A
`RunIndex` says which segments can be found, as runs; where requests hold different parts of a run, it is cut. The runs
that no request holds wait in a `FreeQueue`, together with the blocks that hold nothing reusable.
"""

from bisect import bisect_right
from operator import attrgetter

CHAIN_BITS = 24
"""Numbers that agree above these bits belong to one chain: prefixes that continue one another."""
_STOP = attrgetter("stop")


class Run:
    """Segments ``start`` to ``stop`` of a chain: all held by the same number of requests, or all in the queue.

    Attributes:
        index: what it belongs to.
        chain: the runs of its chain, in order.
        start: number of its first segment.
        stop: one more than that of its last.
        refs: requests that hold it; it is in the queue where there are none.
        gap: in the queue, unused blocks between two segments of it.
        rest: in the queue, unused blocks behind it.
        before: its neighbour in the queue.
        after: likewise.
    """

    __slots__ = ("after", "before", "chain", "gap", "index", "refs", "rest", "start", "stop")
    before: "Run"
    after: "Run"

    def __init__(self, index: "RunIndex", chain: "list[Run]", start: int, stop: int, refs: int) -> None:
        self.index = index
        self.chain = chain
        self.start = start
        self.stop = stop
        self.refs = refs
        self.gap = 0
        self.rest = 0


class FreeQueue:
    """Free blocks in the order in which they are used again: unused ones in front, then runs, with more between them.

    Args:
        blocks: of the pool, all of them free and unused.
        unused_first: whether blocks that hold nothing reusable go to the front; else to the back, like all others.

    Attributes:
        free: blocks in the queue.
        evicted: blocks of runs that were used again.
    """

    def __init__(self, blocks: int, *, unused_first: bool) -> None:
        self.free = blocks
        self.evicted = 0
        self._unused_first = unused_first
        self._ends = Run(RunIndex(self, 0, rising=True), [], 0, 0, 0)  # closes the ring; its rest is what is in front
        self._ends.rest = blocks
        self._ends.before = self._ends.after = self._ends

    def give_unused(self, count: int) -> None:
        """Take in blocks without reusable content."""
        self.free += count
        (self._ends if self._unused_first else self._ends.before).rest += count

    def append(self, run: Run, gap: int) -> None:
        """Take in a run that no request holds any more, and ``gap`` unused blocks before each segment of it.

        It becomes part of the run before it where it continues that.
        """
        ends, index = self._ends, run.index
        last = ends.before
        self.free += (run.stop - run.start) * (index.weight + gap)
        last.rest += gap
        if (
            last.chain is run.chain
            and last.rest == gap
            and (last.stop == run.start if index.rising else last.start == run.stop)
            and (last.gap == gap or last.stop - last.start == 1)
        ):
            last.gap, last.rest = gap, 0
            if index.rising:
                last.stop = run.stop
            else:
                last.start = run.start
            run.chain.remove(run)
            return
        run.gap, run.before, run.after = gap, last, ends
        last.after = ends.before = run

    def remove(self, run: Run) -> None:
        """Let a request hold a run again; the unused blocks around its segments stay."""
        size = run.stop - run.start
        self.free -= size * run.index.weight
        run.before.rest += (size - 1) * run.gap + run.rest
        run.gap = run.rest = 0
        self._unlink(run)

    def cut(self, low: Run, high: Run) -> None:
        """Put ``high``, the upper part of ``low`` until now, beside it."""
        high.gap = low.gap
        if low.index.rising:
            high.rest, low.rest = low.rest, low.gap
            high.before, high.after = low, low.after
        else:
            high.rest = low.gap
            high.before, high.after = low.before, low
        high.before.after = high.after.before = high

    def take(self, count: int) -> None:
        """Use ``count`` of the free blocks; if those in front do not do, segments of the next runs are forgotten."""
        self.free -= count
        ends = self._ends
        unused = ends.rest
        while count > unused:
            run = ends.after
            size, each = run.stop - run.start, run.index.weight + run.gap
            some = -((unused - count) // each)
            if some >= size:
                some = size
                unused += size * each - run.gap + run.rest
                self._unlink(run)
                run.chain.remove(run)
            else:
                unused += some * each
                if run.index.rising:
                    run.start += some
                else:
                    run.stop -= some
            self.evicted += some * run.index.weight
        ends.rest = unused - count

    def _unlink(self, run: Run) -> None:
        run.before.after, run.after.before = run.after, run.before
        run.before = run.after = self._ends


class RunIndex:
    """The segments that can be found, and by how many requests each is held.

    Args:
        queue: where runs wait that no request holds.
        weight: blocks of a segment.
        rising: whether segments that are given back together queue up first one first; else last one first.
    """

    def __init__(self, queue: FreeQueue, weight: int, *, rising: bool) -> None:
        self.queue = queue
        self.weight = weight
        self.rising = rising
        self._chains: dict[int, list[Run]] = {}

    def known_to(self, start: int, stop: int) -> int:
        """End of the known segments that begin at ``start``, at most ``stop``; ``start`` itself if it is unknown."""
        chain = self._chains.get(start >> CHAIN_BITS, ())
        for position in range(bisect_right(chain, start, key=_STOP), len(chain)):
            run = chain[position]
            if run.start > start:
                break
            start = run.stop
            if start >= stop:
                return stop
        return start

    def last_known(self, start: int, stop: int) -> int | None:
        """The last known segment from ``start`` on and before ``stop``."""
        chain = self._chains.get(start >> CHAIN_BITS, ())
        position = bisect_right(chain, stop - 1, key=_STOP)
        if position < len(chain) and chain[position].start < stop:
            return stop - 1
        found = chain[position - 1].stop - 1 if position else -1
        return found if found >= start else None

    def add(self, start: int, stop: int, most: int) -> list[tuple[int, int]]:
        """Make the unknown ones of some segments known, the first ``most`` of them, held by one request.

        Returns:
            What was added: the first segment of each piece, and one more than its last.
        """
        chain = self._chains.get(start >> CHAIN_BITS)
        if chain is None:
            chain = self._chains[start >> CHAIN_BITS] = []
        elif chain and chain[-1].stop == start and chain[-1].refs == 1 and stop - start <= most:
            chain[-1].stop = stop  # what most steps do: go on behind the one before
            return [(start, stop)]
        position, added = bisect_right(chain, start, key=_STOP), []
        while start < stop and most:
            known = chain[position] if position < len(chain) else None
            end = stop if known is None or stop < known.start else known.start
            if start < end:
                if end - start > most:
                    end = start + most
                most -= end - start
                added.append((start, end))
                before = chain[position - 1] if position else None
                if before is not None and before.stop == start and before.refs == 1:
                    before.stop = end
                else:
                    chain.insert(position, Run(self, chain, start, end, 1))
                    position += 1
            if known is None:
                break
            start = known.stop
            position += 1
        return added

    def take(self, start: int, stop: int) -> int:
        """Let one more request hold known segments.

        Returns:
            How many of them none held before.
        """
        fresh = 0
        for run in self._cut_out(start, stop):
            if not run.refs:
                self.queue.remove(run)
                fresh += run.stop - run.start
            run.refs += 1
        return fresh

    def give_back(self, start: int, stop: int, gap: int = 0) -> int:
        """Let one request less hold segments, and ``gap`` unused blocks go before each of them.

        Returns:
            How many of them none holds any more.
        """
        freed, queue, runs = 0, self.queue, self._cut_out(start, stop)
        for run in runs if self.rising else reversed(runs):
            run.refs -= 1
            if run.refs:
                queue.give_unused((run.stop - run.start) * gap)
            else:
                freed += run.stop - run.start
                queue.append(run, gap)
        return freed

    def _cut_out(self, start: int, stop: int) -> list[Run]:
        """The runs of known segments, cut so that they begin and end with them."""
        chain = self._chains[start >> CHAIN_BITS]
        first = len(chain) - 1
        if chain[first].start > start:
            first = bisect_right(chain, start, key=_STOP)
        if chain[first].start < start:
            self._cut(chain, first, start)
            first += 1
        last = first
        while chain[last].stop < stop:
            last += 1
        if chain[last].stop > stop:
            self._cut(chain, last, stop)
        return chain[first : last + 1]

    def _cut(self, chain: list[Run], position: int, at: int) -> None:
        low = chain[position]
        high = Run(self, chain, at, low.stop, low.refs)
        low.stop = at
        chain.insert(position + 1, high)
        if not low.refs:
            self.queue.cut(low, high)
