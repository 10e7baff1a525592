"""Replaying requests through an allocator: peaks by group, what is reused, and what separate pools would need.

Time is simple on purpose: one prefill at a time at a fixed rate, every running request decodes at a fixed rate. A
request waits until its prompt fits; when a decoding request finds no block, the youngest one is preempted and starts
over, as in vLLM.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dsv4bench.errors import UserError
from dsv4bench.memory.allocator import OutOfBlocksError
from dsv4bench.memory.counts import Peaks, unpack
from dsv4bench.memory.layout import CacheLayout
from dsv4bench.memory.page import BLOCK_TOKENS
from dsv4bench.memory.rates import Rates
from dsv4bench.memory.replay import RunAllocator
from dsv4bench.memory.trace import TraceRequest

UNLIMITED = 2**40
"""Blocks of a pool that never runs out."""


@dataclass
class Outcome:
    """What a replay saw.

    Attributes:
        requests: finished ones.
        rejected: requests that do not fit into the pool at all.
        preemptions: times a running request was pushed out.
        prompt_tokens: of all admissions, preempted ones counted again.
        hit_tokens: of these, found in the cache.
        peak_running: most requests at a time.
        peak_blocks: most blocks held at a time, all groups.
        peak_by_group: most blocks held at a time by each group, each at its own moment.
        at_peak: blocks by group at the moment of `peak_blocks`.
        evicted: blocks with reusable content that were overwritten.
        seconds: simulated time.
    """

    requests: int = 0
    rejected: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    peak_running: int = 0
    peak_blocks: int = 0
    peak_by_group: dict[str, int] = field(default_factory=dict)
    at_peak: dict[str, int] = field(default_factory=dict)
    evicted: int = 0
    seconds: float = 0.0

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens found in the cache."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True)
class Pools:
    """Memory a replay needed: one pool for all groups, against one pool per kind of cache.

    Attributes:
        shared_bytes: peak blocks · bytes per block.
        used_bytes: of these, bytes of pages of the group that held the block.
        separate_bytes: every kind's own peak · its own pages, as if each pool had been sized for this trace.
        first_full: group whose pool runs out first where the pools are split as one longest request needs them.
        stranded: share of such split pools that is empty at that moment.
    """

    shared_bytes: int
    used_bytes: int
    separate_bytes: int
    first_full: str
    stranded: float

    @property
    def fragmentation(self) -> float:
        """Share of the shared pool at its peak that no page uses: the rest of the slabs."""
        return 1 - self.used_bytes / self.shared_bytes if self.shared_bytes else 0.0


def pools_of(outcome: Outcome, layout: CacheLayout, longest: dict[str, int]) -> Pools:
    """What the peaks of a replay mean in bytes.

    Args:
        outcome: the replay.
        layout: its cache layout.
        longest: blocks by group that admission charges for the longest request.
    """
    size = {group.name: group.bytes for group in layout.groups}
    peaks = {name: count * size[name] for name, count in outcome.peak_by_group.items()}
    split = {name: count * size[name] for name, count in longest.items()}
    total = sum(split.values())
    first = max(peaks, key=lambda name: peaks[name] / split[name] if split[name] else 0.0)
    load = peaks[first] / split[first] if split[first] else 0.0
    return Pools(
        shared_bytes=outcome.peak_blocks * layout.bytes_per_block,
        used_bytes=sum(count * size[name] for name, count in outcome.at_peak.items()),
        separate_bytes=sum(peaks.values()),
        first_full=first,
        stranded=1 - sum(peaks.values()) / load / total if load and total else 0.0,
    )


@dataclass(frozen=True)
class Simulation:
    """The same trace without and with retention.

    Attributes:
        source: mix or trace file.
        requests: how many.
        num_blocks: size of the pool; None if unlimited.
        dense: the replay in which every boundary keeps its windows, unprotected.
        retained: the replay with retention.
        retention: its interval.
        pools: memory of each, in the same order.
        layout: the cache layout.
    """

    source: str
    requests: int
    num_blocks: int | None
    dense: Outcome
    retained: Outcome
    retention: int
    pools: tuple[Pools, Pools]
    layout: CacheLayout


def simulate(
    source: str,
    requests: Sequence[TraceRequest],
    layout: CacheLayout,
    longest: dict[str, int],
    num_blocks: int | None,
    *,
    rates: Rates,
    retention: int = 0,
    drafts: bool = False,
) -> Simulation:
    """Replay a trace twice, without and with retention.

    Args:
        source: its name.
        requests: the trace.
        layout: cache layout.
        longest: blocks by group of the longest request.
        num_blocks: blocks of the pool; None for one that never runs out.
        rates: speed of the server.
        retention: interval in tokens; 0 keeps the last boundary of each prompt.
        drafts: whether draft tokens are made.

    Raises:
        UserError: a window longer than the segments in which prefixes are reused.
    """
    widest = max(group.window for group in layout.groups)
    if widest > BLOCK_TOKENS:
        raise UserError(f"--simulate replays windows of up to {BLOCK_TOKENS} tokens; this model's is {widest:,}")
    blocks = UNLIMITED if num_blocks is None else num_blocks
    dense, retained = (
        replay(requests, RunAllocator(layout.groups, blocks, retention=kept, drafts=drafts), rates)
        for kept in (None, retention)
    )
    pools = (pools_of(dense, layout, longest), pools_of(retained, layout, longest))
    return Simulation(source, len(requests), num_blocks, dense, retained, retention, pools, layout)


def replay(requests: Sequence[TraceRequest], allocator: RunAllocator, rates: Rates | None = None) -> Outcome:
    """Run a trace to its end.

    Args:
        requests: in order of arrival.
        allocator: an empty pool.
        rates: speed of the server.
    """
    return _Replay(requests, allocator, rates or Rates()).run()


class _Replay:
    """State of one replay: an event per prefill step, per 256 decoded tokens and per end of a request.

    An event counts if its epoch is still the request's: a preemption makes the one that is under way void.
    """

    def __init__(self, requests: Sequence[TraceRequest], allocator: RunAllocator, rates: Rates) -> None:
        self.requests = requests
        self.pool = allocator
        self.rates = rates
        self.outcome = Outcome()
        self.waiting: deque[int] = deque()
        self.running: dict[int, None] = {}
        self.events: list[tuple[float, int, int]] = []
        self.epochs = [0] * len(requests)
        self.peaks = Peaks(len(allocator.names))
        self.at_peak = 0
        self.prefilling: int | None = None
        self.clock = 0.0

    def run(self) -> Outcome:
        requests, events, epochs, arrived = self.requests, self.events, self.epochs, 0
        arrival = requests[0].arrival if requests else 0.0
        while events or arrived < len(requests):
            if events and (arrived == len(requests) or events[0][0] < arrival):
                self.clock, index, epoch = heapq.heappop(events)
                if epochs[index] == epoch:
                    self._step(index)
            else:
                self.clock = arrival
                self.waiting.append(arrived)
                arrived += 1
                arrival = requests[arrived].arrival if arrived < len(requests) else arrival
            if self.prefilling is None and self.waiting:
                self._admit()
        names = self.pool.names
        self.outcome.peak_by_group = dict(zip(names, self.peaks.counts, strict=True))
        if self.outcome.peak_blocks:
            self.outcome.at_peak = dict(zip(names, unpack(self.at_peak, len(names)), strict=True))
        self.outcome.hit_tokens = self.pool.hit_tokens
        self.outcome.evicted = self.pool.evicted
        self.outcome.seconds = self.clock
        return self.outcome

    def _admit(self) -> None:
        """Start the prefill of the first waiting request, if its first step fits."""
        while self.waiting and len(self.running) < self.rates.running:
            index = self.waiting.popleft()
            request = self.requests[index]
            hit = self.pool.admit(index, request.prompt, request.content)
            if self._prefill(index, hit):
                self.outcome.prompt_tokens += request.prompt
                self.running[index] = None
                self.outcome.peak_running = max(self.outcome.peak_running, len(self.running))
                return
            self.pool.hit_tokens -= hit
            self.pool.finish(index)
            if self.running:
                self.waiting.appendleft(index)
                return
            self.outcome.rejected += 1

    def _prefill(self, index: int, computed: int) -> bool:
        """Start a step of the prefill behind what is computed; False where it does not fit."""
        tokens = self.requests[index].prompt - computed
        if tokens > self.rates.chunk:
            tokens = self.rates.chunk
        try:
            self.pool.advance(index, tokens)
        except OutOfBlocksError:
            return False
        self.prefilling = index
        self._schedule(index, tokens / self.rates.prefill)
        return True

    def _schedule(self, index: int, delay: float) -> None:
        """Let the step that was just allocated end after ``delay``, and keep the peaks."""
        self.epochs[index] = epoch = self.epochs[index] + 1
        heapq.heappush(self.events, (self.clock + delay, index, epoch))
        pool = self.pool
        used = pool.num_blocks - pool.free_blocks
        if used > self.outcome.peak_blocks:
            self.outcome.peak_blocks = used
            self.at_peak = pool.packed
        self.peaks.note(pool.packed)

    def _step(self, index: int) -> None:
        """What follows the end of a request's step."""
        request, computed = self.requests[index], self.pool.computed(index)
        if self.prefilling == index:
            self.prefilling = None
            if computed < request.prompt:
                if not self._prefill(index, computed):
                    self._preempt(index)
                return
        tokens = request.prompt + request.output - computed
        if tokens <= 0:
            self._finish(index)
            return
        if tokens > BLOCK_TOKENS - computed % BLOCK_TOKENS:
            tokens = BLOCK_TOKENS - computed % BLOCK_TOKENS
        while True:
            try:
                self.pool.advance(index, tokens, rolling=True)
                break
            except OutOfBlocksError:
                youngest = next(reversed(self.running))
                self._preempt(youngest)
                if youngest == index:
                    return
        self._schedule(index, tokens / self.rates.decode)

    def _finish(self, index: int) -> None:
        self.pool.finish(index)
        del self.running[index]
        self.outcome.requests += 1

    def _preempt(self, index: int) -> None:
        """Push a request out; it waits first in line, or is rejected where it was alone and still did not fit."""
        alone = len(self.running) == 1
        self.pool.finish(index)
        del self.running[index]
        self.epochs[index] += 1
        if self.prefilling == index:
            self.prefilling = None
        if alone:
            self.outcome.rejected += 1
            return
        self.outcome.preemptions += 1
        self.waiting.appendleft(index)
