"""One step of one layer in numbers: how many tokens, entries and candidates, from lengths alone."""

from dataclasses import dataclass
from functools import cached_property

from dsv4_kernels.formats import entry_format

from dsv4bench.model.shape import LayerKind, ModelShape


@dataclass(frozen=True)
class LayerStep:
    """One step of one layer: everything the formulas depend on.

    Attributes:
        shape: dimensions of this rank.
        kind: layer kind.
        seq_lens: length of each request after the step.
        query_lens: its query tokens, the last ones of the sequence.
        main: precision of the main and window caches; ``fp8`` also quantises the attention output.
        indexer: precision of the indexer cache and queries.
        weight_bytes: bytes per weight element of the large projections: 2 for bf16, 1 for fp8 (whose activations are
            then counted as fp8 too, without the pass that quantises them). Compressor and indexer-weight projections
            are always bf16.
    """

    shape: ModelShape
    kind: LayerKind
    seq_lens: tuple[int, ...]
    query_lens: tuple[int, ...]
    main: str = "fp8"
    indexer: str = "fp8"
    weight_bytes: int = 2

    def __post_init__(self) -> None:
        for n, q in zip(self.seq_lens, self.query_lens, strict=True):
            if not 0 <= q <= n:
                raise ValueError(f"{q} query tokens can't be the last ones of a sequence of {n}")

    @cached_property
    def tokens(self) -> int:
        """Query tokens of the step."""
        return sum(self.query_lens)

    @property
    def requests(self) -> tuple[tuple[int, int], ...]:
        """First position and end of each request's query tokens."""
        return tuple((n - q, n) for n, q in zip(self.seq_lens, self.query_lens, strict=True))

    @cached_property
    def candidates(self) -> int:
        """Visible entries summed over query tokens: what logits are computed for."""
        return sum(_visible(end, self.kind.ratio) - _visible(start, self.kind.ratio) for start, end in self.requests)

    @cached_property
    def distinct_candidates(self) -> int:
        """Visible entries summed over requests: what must be read to compute them."""
        return sum(self.shape.entries(self.kind, end) for start, end in self.requests if end > start)

    @cached_property
    def completed(self) -> int:
        """Entries that the step's tokens complete."""
        entries = self.shape.entries
        return sum(entries(self.kind, end) - entries(self.kind, start) for start, end in self.requests)

    @cached_property
    def attended(self) -> int:
        """Entries attended, summed over query tokens: window plus selected or all."""
        window = self.shape.sliding_window
        total = sum(_visible(end, 1, window) - _visible(start, 1, window) for start, end in self.requests)
        ratio, cap = self.kind.ratio, self.shape.index_topk if self.kind.has_indexer else None
        return total + sum(_visible(end, ratio, cap) - _visible(start, ratio, cap) for start, end in self.requests)

    @cached_property
    def distinct_attended(self) -> int:
        """Entries that must be read to attend them, summed over requests.

        Query tokens of a request share what they attend: the whole window, all c128a entries, and of selected entries
        the largest single selection, the least that any choice needs. With one query token it equals ``attended``.
        """
        total = 0
        for start, end in self.requests:
            if end == start:
                continue
            window = self.shape.sliding_window
            total += end - max(start - window + 1, 0) if window else 0
            entries = self.shape.entries(self.kind, end)
            total += min(entries, self.shape.index_topk) if self.kind.has_indexer else entries
        return total

    @property
    def main_entry(self) -> int:
        """Bytes of a main (V3.2: latent) entry."""
        return entry_format("main" if self.shape.is_v4 else "latent", self.main).entry_bytes

    @property
    def indexer_entry(self) -> int:
        """Bytes of an indexer entry; an index query head has as many."""
        return entry_format("indexer", self.indexer).entry_bytes


def _visible(positions: int, ratio: int, cap: int | None = None) -> int:
    """``Σ min((i + 1) // ratio, cap)`` over positions i < ``positions``, in closed form; 0 for ratio 0."""
    if ratio == 0:
        return 0
    below = positions if cap is None else min(positions, cap * ratio - 1)
    quotient, rest = divmod(max(below, 0), ratio)
    total = ratio * quotient * (quotient - 1) // 2 + quotient * (rest + 1)
    return total + (cap * (positions - max(below, 0)) if cap is not None else 0)
