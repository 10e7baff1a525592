"""Workloads: which requests a step holds, how long each is, and how many query tokens it brings."""

from dataclasses import dataclass
from typing import Any

from dsv4bench.scenario.lengths import ContextMix
from dsv4bench.scenario.requests import Request, parse_requests
from dsv4bench.scenario.sizes import format_tokens

SPREAD_STRIDE = 37
"""Odd, so that ``(1 + 37 r) mod 128`` walks through every distance from a compression boundary."""
MOST_DRAFTED = 8
"""Query tokens up to which a request counts as a speculative decode (where vLLM's benchmarks draw the line)."""
SHORTER = {"all": 0, "none": 1, "c4a": 4}
"""Tokens by which ``boundary`` shortens every request; ``spread`` shortens each by another number."""


@dataclass(frozen=True)
class Workload:
    """One step of a batch.

    Attributes:
        phase: ``decode``, ``prefill`` or ``mixed``.
        batch: requests.
        context: nominal sequence length after the step (vLLM's ``seq_lens``); the middle of ``mix``, the longest of
            ``requests``.
        query_len: query tokens per request in this step; the most of ``requests``.
        boundary: who completes a compressed entry: ``spread``, ``all``, ``none`` or ``c4a`` (all, in c4a layers alone).
        index_pattern: which entries the indexer is taken to select: ``random`` (what it does select: over random keys
            that is uniform), ``recent`` or ``clustered``.
        mix: distribution of sequence lengths; None where all have the nominal one.
        requests: the batch in vLLM's grammar; empty where ``batch``, ``context`` and ``query_len`` say it.
    """

    phase: str
    batch: int
    context: int
    query_len: int
    boundary: str
    index_pattern: str = "random"
    mix: ContextMix | None = None
    requests: str = ""

    @classmethod
    def of_requests(cls, text: str, boundary: str, index_pattern: str = "random") -> "Workload":
        """The workload of a batch in vLLM's grammar.

        Raises:
            UserError: not in the grammar.
        """
        requests = parse_requests(text)
        longest, most = max(r.seq_len for r in requests), max(r.query_len for r in requests)
        return cls(_phase_of(requests), len(requests), longest, most, boundary, index_pattern, requests=text)

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """Length of each request after the step.

        Round contexts are multiples of 128, where every request would complete an entry. ``spread`` makes request r
        ``(1 + 37 r) mod 128`` tokens shorter (about one in 4 completes a c4a entry and one in 128 a c128a entry),
        ``none`` makes each one token shorter, ``c4a`` four tokens, ``all`` leaves them. Never shorter than the query.
        """
        if self.boundary == "spread":
            short = [(1 + SPREAD_STRIDE * r) % 128 for r in range(self.batch)]
        else:
            short = [SHORTER[self.boundary]] * self.batch
        return tuple(
            max(length - s, query_len, 1)
            for length, s, query_len in zip(self._round_lens, short, self.query_lens, strict=True)
        )

    @property
    def _round_lens(self) -> tuple[int, ...]:
        if self.requests:
            return tuple(request.seq_len for request in parse_requests(self.requests))
        return self.mix.lengths(self.batch) if self.mix else (self.context,) * self.batch

    @property
    def query_lens(self) -> tuple[int, ...]:
        """Query tokens of each request."""
        if self.requests:
            return tuple(request.query_len for request in parse_requests(self.requests))
        return (self.query_len,) * self.batch

    @property
    def tokens(self) -> int:
        """Query tokens in the step."""
        return sum(self.query_lens)

    def describe(self) -> dict[str, Any]:
        """As plain data for rows and ids; what is at its default is left out, so that ids outlive new fields."""
        described: dict[str, Any] = {
            "phase": self.phase,
            "batch": self.batch,
            "context": self.context,
            "query_len": self.query_len,
            "boundary": self.boundary,
        }
        if self.index_pattern != "random":
            described["index_pattern"] = self.index_pattern
        if self.mix:
            described["mix"] = self.mix.label
        if self.requests:
            described["requests"] = self.requests
        return described

    @property
    def label(self) -> str:
        """Short text, for example ``decode-b8-64K``."""
        if self.requests:
            text = f"{self.phase}-{self.requests}"
        else:
            text = f"{self.phase}-b{self.batch}-{self.mix.label if self.mix else tokens_label(self.context)}"
            if self.query_len != (1 if self.phase == "decode" else self.context):
                text += f"-q{tokens_label(self.query_len)}"
        suffixes = [*([self.boundary] if self.boundary != "spread" else [])]
        suffixes += [self.index_pattern] if self.index_pattern != "random" else []
        return "-".join((text, *suffixes))


def _phase_of(requests: tuple[Request, ...]) -> str:
    """``decode`` where every request decodes (speculatively, perhaps), ``prefill`` where none does, else ``mixed``."""
    decodes = sum(r.query_len == 1 or (r.query_len <= MOST_DRAFTED and r.query_len < r.seq_len) for r in requests)
    return "decode" if decodes == len(requests) else "mixed" if decodes else "prefill"


def tokens_label(tokens: int) -> str:
    """Exact short form of a token count for labels, without thousands separators."""
    return format_tokens(tokens).replace(",", "")
