"""Workloads: which requests a step holds, how long each is, and how many query tokens it brings."""

from dataclasses import dataclass

from dsv4bench.scenario.sizes import format_tokens

SPREAD_STRIDE = 37
"""Odd, so that ``(1 + 37 r) mod 128`` walks through every distance from a compression boundary."""


@dataclass(frozen=True)
class Workload:
    """One step of a batch.

    Attributes:
        phase: ``decode``, ``prefill`` or ``mixed``.
        batch: requests.
        context: nominal sequence length after the step (vLLM's ``seq_lens``).
        query_len: query tokens per request in this step.
        boundary: who completes a compressed entry: ``spread``, ``all`` or ``none``.
    """

    phase: str
    batch: int
    context: int
    query_len: int
    boundary: str

    @property
    def seq_lens(self) -> tuple[int, ...]:
        """Length of each request after the step.

        Round contexts are multiples of 128, where every request would complete an entry. ``spread`` makes request r
        ``(1 + 37 r) mod 128`` tokens shorter (about one in 4 completes a c4a entry and one in 128 a c128a entry),
        ``none`` makes each one token shorter, ``all`` leaves them. Never shorter than the query.
        """
        if self.boundary == "all":
            short = [0] * self.batch
        elif self.boundary == "none":
            short = [1] * self.batch
        else:
            short = [(1 + SPREAD_STRIDE * r) % 128 for r in range(self.batch)]
        return tuple(max(self.context - s, self.query_len, 1) for s in short)

    @property
    def query_lens(self) -> tuple[int, ...]:
        """Query tokens of each request."""
        return (self.query_len,) * self.batch

    @property
    def tokens(self) -> int:
        """Query tokens in the step."""
        return self.batch * self.query_len

    @property
    def label(self) -> str:
        """Short text, for example ``decode-b8-64K``."""
        text = f"{self.phase}-b{self.batch}-{tokens_label(self.context)}"
        default = 1 if self.phase == "decode" else self.context
        if self.query_len != default:
            text += f"-q{tokens_label(self.query_len)}"
        return text if self.boundary == "spread" else f"{text}-{self.boundary}"


def tokens_label(tokens: int) -> str:
    """Exact short form of a token count for labels, without thousands separators."""
    return format_tokens(tokens).replace(",", "")
