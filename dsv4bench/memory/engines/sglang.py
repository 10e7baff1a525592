"""SGLang: pools sized in tokens, all in proportion to the pool of full tokens.

The window, and the compressor state before it became request-scoped, get ``swa_full_tokens_ratio`` of the full tokens.
Agrees to the printed digit with the ``bytes_per_full_token`` that servers log (``tests/data/kv_memory.yaml``).
"""

from dataclasses import dataclass
from fractions import Fraction

from dsv4_kernels.formats import HEAD_DIM, INDEX_DIM, state_row_floats

from dsv4bench.errors import UserError
from dsv4bench.memory.deployment import Deployment
from dsv4bench.memory.ideal import EntryBytes, entry_bytes
from dsv4bench.memory.usage import Capacity, LayerBytes, Usage
from dsv4bench.model.shape import LayerKind

PAGE_TOKENS = {"v4": 256, "v3.2": 64}
_STATE_FLOAT = {"bf16": 2, "fp32": 4}


@dataclass(frozen=True)
class Defaults:
    """What a version does unless told otherwise.

    Attributes:
        c4_rows: c4 state rows per 128 window tokens.
        c4_rows_mtp: the same where drafts are made.
        c128_rows: c128 state rows per window token; 0 where the state is request-scoped.
    """

    c4_rows: int
    c4_rows_mtp: int
    c128_rows: int


RELEASES = {
    "0.5.11": Defaults(8, 16, 2),
    "0.5.13": Defaults(8, 8, 1),
    "latest": Defaults(8, 8, 0),
}
"""Defaults by the release they were seen in; a version takes those of the last release not after it."""
VERSIONS = "0.5.11, 0.5.13, latest (request-scoped c128 state)"

CHECKED = frozenset(
    {
        # model, layers of drafts, state, c4 rows, c128 rows, swa ratio
        ("v4-flash", 0, "bf16", 8, 0, 0.1),
        ("v4-flash", 1, "fp32", 8, 1, 0.1),
        ("v4-flash", 1, "fp32", 16, 2, 0.8),
        ("v4-pro", 0, "fp32", 8, 1, 0.15),
    }
)
"""Configurations of V4 whose bytes per full token a server logged; V3.2 has no such choices."""


@dataclass(frozen=True)
class Sglang:
    """SGLang's pools.

    Attributes:
        version: a key of `RELEASES`.
        asked: the version asked for; "" for the newest.
    """

    version: str
    asked: str = ""

    options = frozenset(
        {
            "max_num_batched_tokens",
            "mtp",
            "tp",
            "dp",
            "pp",
            "swa_ratio",
            "state",
            "c4_state_rows",
            "c128_state_rows",
            "fixed_state_bytes",
        }
    )

    @property
    def title(self) -> str:
        """Name and version."""
        return f"SGLang {self.version}"

    def check(self, deployment: Deployment) -> None:
        """Refuse what its pools do not hold.

        Raises:
            UserError: an unknown state precision, a bf16 V4 cache, or an fp4 indexer on V3.2.
        """
        if deployment.state not in (None, *_STATE_FLOAT):
            raise UserError(f"--state must be bf16 or fp32, got {deployment.state!r}")
        if deployment.shape.is_v4 and (deployment.main != "fp8" or deployment.indexer not in ("fp8", "fp4")):
            raise UserError("SGLang serves V4 with main fp8 and indexer fp8 or fp4")
        self.entry_bytes(deployment)

    def entry_bytes(self, deployment: Deployment) -> EntryBytes:
        """The design's entries; V3.2 keeps an fp8 indexer at any main precision."""
        indexer = deployment.indexer if deployment.shape.is_v4 else "fp8"
        return entry_bytes(deployment.shape, deployment.main, indexer)

    def usage(self, deployment: Deployment, context: int) -> Usage:
        """Pages of one request in every pool: full pages, and at most two pages of window and ring state."""
        page = PAGE_TOKENS[deployment.shape.family]
        full, near = _request_tokens(context, page)
        layers = tuple(
            self._layer_bytes(deployment, index, kind, context, full, near)
            for index, kind in enumerate(deployment.layers)
        )
        terms = [f"full tokens = ⌈{context:,}/{page}⌉·{page} = {full:,}"]
        if deployment.shape.is_v4:
            terms.append(f"window tokens = min({full:,}, 2·{page}) = {near:,}: the pages the window can touch")
        return Usage(layers, terms=tuple(terms))

    def capacity(self, deployment: Deployment, available: int, num_blocks: int | None = None) -> Capacity:
        """Pool sizes in tokens."""
        if num_blocks is not None:
            raise UserError("--num-blocks: SGLang's pools are counted in tokens; give --available")
        d, page = deployment, PAGE_TOKENS[deployment.shape.family]
        if d.max_model_len < 1:
            raise UserError(f"--max-model-len must be at least 1, got {d.max_model_len}")
        per_token = max(self.bytes_per_token(d, stage) for stage in d.stages)
        usable = max(0, available - d.fixed_state_bytes)
        full = int(usable / per_token) // page * page
        pools = {"full": full}
        if d.shape.is_v4:
            pools |= {
                "swa": int(full * Fraction(str(d.swa_ratio))) // page * page,
                "c4": full // 4,
                "c128": full // 128,
            }
        need, near = _request_tokens(d.max_model_len, page)
        fits = {"full": Fraction(full, need)} | ({"swa": Fraction(pools["swa"], near)} if d.shape.is_v4 else {})
        scarce = min(fits, key=lambda name: fits[name])
        lines = self._token_terms(d)
        pool = f"({available:,} − {d.fixed_state_bytes:,})"
        lines.append(f"full tokens = ⌊{pool} / {float(per_token):,.2f} / {page}⌋·{page} = {full:,}")
        if d.shape.is_v4:
            lines.append(f"swa = ⌊{d.swa_ratio:g}·{full:,}/{page}⌋·{page} = {pools['swa']:,}")
            lines.append(f"c4 = {full:,}//4 = {pools['c4']:,}; c128 = {full:,}//128 = {pools['c128']:,}")
        share = f"{pools[scarce]:,} {scarce} tokens / {need if scarce == 'full' else near:,} a request"
        lines.append(f"concurrency = {share} = {float(fits[scarce]):,.2f}")
        return Capacity(
            available_bytes=available,
            max_model_len=d.max_model_len,
            concurrency=float(fits[scarce]),
            bound_by=scarce if len(fits) > 1 else "",
            kv_cache_tokens=full,
            largest_context=full if pools.get("swa", 2 * page) >= 2 * page else min(full, pools["swa"]),
            bytes_per_token=float(per_token),
            pools=pools,
            terms=tuple(lines),
            notes=self._capacity_notes(d),
        )

    def bytes_per_token(self, deployment: Deployment, stage: range | None = None) -> Fraction:
        """Bytes every full token costs over all pools of one rank (or one pipeline stage of it)."""
        kinds = [k for i, k in enumerate(deployment.layers) if stage is None or i in stage]
        total = Fraction(0)
        for kind in kinds:
            linear, near = self._rates(deployment, kind)
            total += linear + Fraction(str(deployment.swa_ratio)) * near
        return total

    def is_checked(self, deployment: Deployment, context: int) -> bool:
        """Whether a server logged this configuration."""
        d = deployment
        if self._is_taken:
            return False
        if not d.shape.is_v4:
            return d.known_as == "v3.2" and d.main == "fp8" and not d.mtp and d.pp == 1
        c4, c128 = self._rows(d)
        key = (d.known_as, int(d.mtp > 0), d.state or "fp32", c4, c128, d.swa_ratio)
        return key in CHECKED and d.indexer == "fp8" and d.pp == 1

    def notes(self, deployment: Deployment) -> tuple[str, ...]:
        """What a reader has to know of these figures."""
        if not self._is_taken:
            return ()
        return (f"SGLang {self.asked}: taken to be as {self.version}, the last known release not after it",)

    def _capacity_notes(self, deployment: Deployment) -> tuple[str, ...]:
        """That the pool gives memory to request-scoped state, where nobody said how much."""
        fixed = self._fixed_state_bytes(deployment) if self._rows(deployment)[1] == 0 else 0
        if not fixed or deployment.fixed_state_bytes:
            return ()
        each = f"{fixed:,} B a request slot"
        return (f"the request-scoped c128 state ({each}) is not counted: give --fixed-state as logged",)

    @property
    def _is_taken(self) -> bool:
        """Whether the version asked for is only taken to be as the last known one before it."""
        return self.asked.removeprefix("v") not in ("", self.version)

    def _rows(self, deployment: Deployment) -> tuple[int, int]:
        defaults = RELEASES[self.version]
        c4 = defaults.c4_rows_mtp if deployment.mtp else defaults.c4_rows
        return (
            c4 if deployment.c4_state_rows is None else deployment.c4_state_rows,
            defaults.c128_rows if deployment.c128_state_rows is None else deployment.c128_state_rows,
        )

    def _rates(self, deployment: Deployment, kind: LayerKind) -> tuple[Fraction, Fraction]:
        """Bytes of a layer per full token, and per window token (state in its ring included)."""
        entry = self.entry_bytes(deployment)
        if kind is LayerKind.DSA:
            return entry.main + entry.indexer, Fraction(0)
        linear = Fraction(0)
        if kind.ratio:
            linear = (entry.main + (entry.indexer if kind.has_indexer else 0)) / kind.ratio
        return linear, entry.main + self._state_rate(deployment, kind)

    def _state_rate(self, deployment: Deployment, kind: LayerKind) -> Fraction:
        c4, c128 = self._rows(deployment)
        if kind is LayerKind.C4A:
            floats = state_row_floats(HEAD_DIM, 4) + state_row_floats(INDEX_DIM, 4)
            return Fraction(floats * _STATE_FLOAT[deployment.state or "fp32"] * c4, 128)
        if kind is LayerKind.C128A:
            return Fraction(4 * state_row_floats(HEAD_DIM, 128) * c128)
        return Fraction(0)

    def _fixed_state_bytes(self, deployment: Deployment) -> int:
        return deployment.layers.count(LayerKind.C128A) * 128 * 4 * state_row_floats(HEAD_DIM, 128)

    def _layer_bytes(
        self, d: Deployment, index: int, kind: LayerKind, context: int, full: int, near: int
    ) -> LayerBytes:
        entry, window = self.entry_bytes(d), d.shape.sliding_window
        linear, rate = self._rates(d, kind)
        entries = context // kind.ratio if kind.ratio else 0
        main = float(entries * entry.main)
        indexer = float(entries * entry.indexer) if kind.has_indexer else 0.0
        held = 0.0 if kind is LayerKind.DSA else float(min(context, window) * entry.main)
        state = float(near * self._state_rate(d, kind))
        reserved = float(full * linear + near * rate)
        if kind is LayerKind.C128A and self._rows(d)[1] == 0 and context:
            state = float(128 * 4 * state_row_floats(HEAD_DIM, 128))
            reserved += state
        return LayerBytes(index, kind, main, indexer, held, state, reserved - main - indexer - held - state)

    def _token_terms(self, d: Deployment) -> list[str]:
        kinds, entry = d.layers, self.entry_bytes(d)
        e, x = f"{float(entry.main):g}", f"{float(entry.indexer):g}"
        if not d.shape.is_v4:
            return [f"bytes per token = {len(kinds)}·({e} + {x}) = {float(self.bytes_per_token(d)):,.2f}"]
        c4, c128 = self._rows(d)
        n4, n128 = kinds.count(LayerKind.C4A), kinds.count(LayerKind.C128A)
        floats = state_row_floats(HEAD_DIM, 4) + state_row_floats(INDEX_DIM, 4)
        row4, row128 = floats * _STATE_FLOAT[d.state or "fp32"], 4 * state_row_floats(HEAD_DIM, 128)
        near = f"{len(kinds)}·{e} + {n4}·{row4:,}·{c4}/128 + {n128}·{row128:,}·{c128}"
        linear = f"{n4}·({e}/4 + {x}/4) + {n128}·{e}/128"
        return [f"bytes per full token = {linear} + {d.swa_ratio:g}·[{near}] = {float(self.bytes_per_token(d)):,.2f}"]


def _request_tokens(context: int, page: int) -> tuple[int, int]:
    """Tokens of the full and of the window pool that a request takes: whole pages, at most two of the window."""
    full = -(-context // page) * page
    return full, min(full, 2 * page)


def engine(version: str) -> Sglang:
    """The pools of a release; the newest for "".

    Raises:
        UserError: a version before the first known.
    """
    if version in ("", "latest"):
        return Sglang("latest")
    try:
        number = tuple(int(part) for part in version.removeprefix("v").split(".")[:3])
    except ValueError:
        number = ()
    known = [name for name in RELEASES if name != "latest" and tuple(map(int, name.split("."))) <= number]
    if not known:
        raise UserError(f"unknown SGLang version {version!r}; known are {VERSIONS}")
    return Sglang(known[-1], version)
