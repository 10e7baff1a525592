"""vLLM: one pool of blocks that every group of caches draws on, by generation of its allocator.

The arithmetic follows vLLM's planner and agrees with what its servers log (``tests/data/kv_memory.yaml``). Admission
charges a request for the tokens a scheduler step may have in flight, which is why the logged "GPU KV cache size" is a
derived number and depends on ``max_model_len``.
"""

from dataclasses import dataclass
from fractions import Fraction

from dsv4bench.errors import UserError
from dsv4bench.memory.deployment import Deployment
from dsv4bench.memory.engines.vllm_terms import (
    block_count_terms,
    decoding_term,
    in_flight_term,
    pool_terms,
    request_terms,
)
from dsv4bench.memory.ideal import EntryBytes
from dsv4bench.memory.layout import CacheLayout, build_layout
from dsv4bench.memory.page import CacheKind
from dsv4bench.memory.usage import Capacity, LayerBytes, Usage

GENERATION_FROM = (((0, 20), "tuple"), ((0, 22), "bucketed"), ((0, 27), "packed"))
"""First version of each generation: V4 since 0.20, #44454 in 0.22, #48993 in 0.27."""
NEWEST_READ = (0, 33)
"""Newest version whose planner was read; later ones are taken to be alike, and never as checked."""
VERSIONS = "0.20 … 0.33, or tuple, bucketed, packed"

CHECKED = frozenset(
    {
        ("packed", "v4-flash", "flashmla", "fp8", "fp8", False),
        ("packed", "v4-pro", "flashinfer", "fp8", "fp4", False),
        ("bucketed", "v4-flash", "flashmla", "fp8", "fp8", False),
        ("bucketed", "v4-flash", "flashmla", "fp8", "fp8", True),
        ("bucketed", "v4-pro", "flashinfer", "fp8", "fp4", False),
        ("tuple", "v4-flash", "flashmla", "fp8", "fp8", False),
    }
)
"""Generation, model, layout, main, indexer, MTP for which a server's log agrees."""


@dataclass(frozen=True)
class Vllm:
    """vLLM's allocator.

    Attributes:
        version: as given, or "".
        generation: ``tuple``, ``bucketed`` or ``packed``.
    """

    version: str
    generation: str

    options = frozenset(
        {"layout", "max_num_batched_tokens", "async_scheduling", "in_flight_tokens", "mtp", "tp", "dp", "pp", "dcp"}
    )

    @property
    def title(self) -> str:
        """Name, version and generation."""
        return f"vLLM {self.version} ({self.generation})" if self.version else f"vLLM ({self.generation})"

    def check(self, deployment: Deployment) -> None:
        """Refuse precisions the layout lacks; see `build_layout`."""
        if deployment.layout not in ("flashmla", "flashinfer"):
            raise UserError(f"--layout must be flashmla or flashinfer, got {deployment.layout!r}")
        if not deployment.shape.is_v4 and deployment.indexer != "fp8":
            raise UserError(f"vLLM serves V3.2 with indexer fp8, got {deployment.indexer!r}")
        self.layout(deployment)

    def layout(self, deployment: Deployment, stage: range | None = None) -> CacheLayout:
        """The cache layout of the deployment, or of one of its pipeline stages."""
        return build_layout(
            deployment.layers,
            main=deployment.main,
            indexer=deployment.indexer,
            backend=deployment.layout,
            generation=self.generation,
            sliding_window=deployment.shape.sliding_window,
            stage=stage,
        )

    def entry_bytes(self, deployment: Deployment) -> EntryBytes:
        """Entry sizes of the layout's formats."""
        layout = self.layout(deployment)
        sizes = {page.kind: Fraction(page.entry_bytes) for page in layout.pages}
        main = next(size for kind, size in sizes.items() if not kind.is_state and not kind.is_indexer)
        return EntryBytes(main, next((size for kind, size in sizes.items() if kind.is_indexer), Fraction(0)))

    def in_flight(self, deployment: Deployment) -> int:
        """Tokens admission charges for: those of `steps_in_flight`, unless given."""
        if deployment.in_flight_tokens is not None:
            return deployment.in_flight_tokens
        return deployment.max_num_batched_tokens * self.steps_in_flight(deployment)

    def steps_in_flight(self, deployment: Deployment) -> int:
        """Scheduler steps whose tokens admission charges for.

        One before ``packed``. Since then one for each pipeline stage, and two where async scheduling has no stages to
        fill (``max_concurrent_batches`` of vLLM 0.27.1 with its first model runner).
        """
        if self.generation != "packed":
            return 1
        return max(deployment.pp, 2 if deployment.async_scheduling else 1)

    def usage(self, deployment: Deployment, context: int) -> Usage:
        """Blocks one decoding request holds, attributed to layers; the unused rest of their slabs is shared.

        With pipeline stages it is the sum over all of them; with decode context parallelism it is one rank's part.
        """
        layout = self.layout(deployment)
        counts = group_blocks(layout, context, deployment.decode_tokens, deployment.dcp)
        layers = [_layer_bytes(layout, i, context, counts, deployment) for i in range(len(layout.layers))]
        slabs = self._stage_bytes(deployment)
        slack = sum(n * (sum(slabs) - layout.group(name).bytes) for name, n in counts.items())
        terms = request_terms(layout, slabs, context, deployment.decode_tokens, deployment.dcp)
        return Usage(tuple(layers), shared=slack, terms=terms)

    def blocks_held(self, deployment: Deployment, context: int) -> int:
        """Blocks one decoding request of ``context`` tokens holds."""
        counts = group_blocks(self.layout(deployment), context, deployment.decode_tokens, deployment.dcp)
        return sum(counts.values())

    def capacity(self, deployment: Deployment, available: int, num_blocks: int | None = None) -> Capacity:
        """Blocks, concurrency and the tokens vLLM logs."""
        layout, length = self.layout(deployment), deployment.max_model_len
        if length < 1:
            raise UserError(f"--max-model-len must be at least 1, got {length}")
        stage_bytes = self._stage_bytes(deployment)
        size = max(stage_bytes)
        pool = available // size if num_blocks is None else num_blocks
        flight = self.in_flight(deployment)
        counts = group_blocks(layout, length, flight, deployment.dcp)
        need = self.blocks_per_request(layout, length, flight, deployment.dcp)
        held = self.blocks_per_request(layout, length, deployment.decode_tokens, deployment.dcp)
        decoding = _decoding_requests(pool, sum(counts.values()), self.blocks_held(deployment, length))
        return Capacity(
            available_bytes=available,
            max_model_len=length,
            concurrency=pool / need,
            kv_cache_tokens=pool * length // need,
            largest_context=self._largest_context(layout, pool, flight, deployment.dcp),
            num_blocks=pool,
            bytes_per_block=size,
            blocks_per_request=need,
            group_blocks=counts,
            in_flight_tokens=flight,
            in_flight_share=max(0.0, (need - held) / need),
            decoding_requests=decoding,
            terms=(
                f"tokens in flight F = {in_flight_term(deployment, flight, self.steps_in_flight(deployment))}",
                *block_count_terms(layout, length, flight, deployment.dcp, need),
                *pool_terms(stage_bytes, available, num_blocks, need, length),
                decoding_term(pool, sum(counts.values()), self.blocks_held(deployment, length), decoding),
            ),
            notes=self._capacity_notes(deployment, layout),
        )

    def blocks_per_request(self, layout: CacheLayout, length: int, in_flight: int, dcp: int = 1) -> int:
        """Blocks admission charges: a sum in ``packed``; before, bytes of the groups in units of the full group."""
        counts = group_blocks(layout, length, in_flight, dcp)
        if self.generation == "packed":
            return sum(counts.values())
        used = sum(n * layout.group(name).bytes for name, n in counts.items())
        return -(-used // layout.groups[0].bytes)

    def is_checked(self, deployment: Deployment, context: int) -> bool:
        """Whether a case with this generation, model and layout exists, and the version was read."""
        d = deployment
        key = (self.generation, d.known_as, d.layout, d.main, d.indexer, d.mtp > 0)
        return key in CHECKED and d.pp == 1 and d.dcp == 1 and not self._is_newer

    def notes(self, deployment: Deployment) -> tuple[str, ...]:
        """What a reader has to know of these figures."""
        notes = []
        if deployment.shape.is_v4 and deployment.indexer == "fp4" and self.generation != "packed":
            notes.append("fp4 saves no memory before vLLM 0.27: an fp4 indexer row still reserves 132 B")
        if deployment.shape.is_v4 and deployment.dcp > 1:
            notes.append("no vLLM release serves V4 with decode context parallelism (PR #44573 is open)")
        if deployment.shape.is_v4 and self.generation != "packed":
            notes.append("vLLM before 0.27 under-counts the blocks of sliding groups; the concurrency is what it logs")
        if self._is_newer:
            notes.append(f"vLLM {self.version} is newer than what was read (0.33); taken to be alike")
        return tuple(notes)

    @property
    def _is_newer(self) -> bool:
        return self.version != "" and _parse_version(self.version) > NEWEST_READ

    def _capacity_notes(self, deployment: Deployment, layout: CacheLayout) -> tuple[str, ...]:
        """That one step in flight is not what a server does unless told otherwise (vLLM 0.26, 0.27.1)."""
        by_default = deployment.in_flight_tokens is None and self.steps_in_flight(deployment) == 1
        if self.generation != "packed" or not by_default or not any(group.window for group in layout.groups):
            return ()
        return ("one step is in flight here; vLLM schedules asynchronously by default, with two: --async-scheduling",)

    def _stage_bytes(self, deployment: Deployment) -> list[int]:
        """Bytes per block of each pipeline stage."""
        return [self.layout(deployment, stage).bytes_per_block for stage in deployment.stages]

    def _largest_context(self, layout: CacheLayout, pool: int, in_flight: int, dcp: int) -> int:
        low, high = 0, max(1, pool) * 256 * dcp
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.blocks_per_request(layout, middle, in_flight, dcp) <= pool
            low, high = (middle, high) if fits else (low, middle - 1)
        return low


def engine(version: str) -> Vllm:
    """The allocator of a version or of a named generation; the newest one for "".

    Raises:
        UserError: not a version that serves V4.
    """
    if version in ("", *(name for _, name in GENERATION_FROM)):
        return Vllm("", version or "packed")
    number = _parse_version(version)
    generation = next((name for first, name in reversed(GENERATION_FROM) if number >= first), None)
    if generation is None:
        raise UserError(f"unknown vLLM version {version!r}; known are {VERSIONS}")
    return Vllm(version, generation)


def _parse_version(text: str) -> tuple[int, ...]:
    parts = text.removeprefix("v").split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return (-1,)
    return int(parts[0]), int(parts[1])


def _decoding_requests(pool: int, admitted: int, held: int) -> int:
    """Requests that decode at once: the last is admitted with what a step may have in flight, the others only hold.

    The scheduler admits a request if the blocks of its prompt are free, those of sliding groups up to what admission
    charges, and windows give back what they have passed from then on (``KVCacheManager.allocate_slots``, vLLM 0.26).
    """
    return 1 + (pool - admitted) // held if pool >= admitted else 0


def group_blocks(layout: CacheLayout, context: int, in_flight: int, dcp: int) -> dict[str, int]:
    """Blocks of each group, by name; see `Group.blocks`."""
    return {group.name: group.blocks(context, in_flight, dcp) for group in layout.groups}


def _layer_bytes(
    layout: CacheLayout, layer: int, context: int, counts: dict[str, int], deployment: Deployment
) -> LayerBytes:
    """Own pages of a layer in the blocks a request holds; what its entries do not fill is padding."""
    kind = layout.layers[layer]
    parts = {"main": 0.0, "indexer": 0.0, "window": 0.0, "state": 0.0}
    reserved = 0
    for place in (place for group in layout.groups for place in group.placements if place.layer == layer):
        page, window = layout.page(place.kind), layout.group(place.group).window
        reserved += counts[place.group] * page.page_bytes
        held = min(context, window) if window else -(-(context // kind.ratio) // deployment.dcp)
        parts[_part(place.kind)] += held * page.entry_bytes
    return LayerBytes(layer, kind, **parts, padding=reserved - sum(parts.values()))


def _part(kind: CacheKind) -> str:
    if kind.is_state:
        return "state"
    if kind is CacheKind.WINDOW:
        return "window"
    return "indexer" if kind.is_indexer else "main"
