"""One accounting: the ideal, engine and measured figures of a deployment side by side, ready to print."""

from dataclasses import dataclass
from typing import Any

from dsv4bench.errors import UserError
from dsv4bench.memory.budget import Budget
from dsv4bench.memory.deployment import Deployment
from dsv4bench.memory.engines import Engine
from dsv4bench.memory.engines.vllm import Vllm
from dsv4bench.memory.ideal import EntryBytes, bytes_per_token, entry_bytes, fixed_bytes, ideal_usage, state_bytes
from dsv4bench.memory.layout import CacheLayout
from dsv4bench.memory.usage import Capacity, Usage
from dsv4bench.model.shape import ModelShape

FLASHINFER_ARCHS = ("sm_100", "sm_103", "sm_120", "sm_121")
"""Where FlashInfer's sparse attention over plain 512-element rows runs."""


@dataclass(frozen=True)
class View:
    """One model at one context: what the design needs and what the engine reserves.

    Attributes:
        shape: the model.
        main: precision of main entries, as a label (``fp8``, ``f16``).
        indexer: precision of indexer entries.
        entry: bytes of an entry.
        ideal: the ideal bytes by layer, in the order of the engine's layers.
        engine: what a decoding request holds; None in the ideal view.
        fixed_bytes: ideal bytes that do not depend on the context.
        bytes_per_token: ideal bytes of each further token.
        state_bytes: compressor state, not part of the ideal bytes.
    """

    shape: ModelShape
    main: str
    indexer: str
    entry: EntryBytes
    ideal: Usage
    engine: Usage | None
    fixed_bytes: int
    bytes_per_token: float
    state_bytes: int


@dataclass(frozen=True)
class Account:
    """Everything ``memory`` prints.

    Attributes:
        deployment: the inputs.
        context: tokens of the request.
        engine: whose allocator; None in the ideal view.
        view: the model.
        baseline: the model it is compared with; None if none was asked for or the engine has none.
        capacity: what fits; None where no memory was given.
        budget: where the cache's memory comes from.
        measured_bytes: what the device gave; None if not measured.
        notes: sentences the reader should see.
    """

    deployment: Deployment
    context: int
    engine: Engine | None
    view: View
    baseline: View | None
    capacity: Capacity | None
    budget: Budget | None
    measured_bytes: int | None
    notes: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        """Ideal bytes of the baseline over those of the model."""
        if self.baseline is None or not self.view.ideal.total:
            return None
        return self.baseline.ideal.total / self.view.ideal.total

    @property
    def layout(self) -> CacheLayout | None:
        """The cache layout, for engines that have blocks."""
        return self.engine.layout(self.deployment) if isinstance(self.engine, Vllm) else None

    @property
    def checked(self) -> bool:
        """Whether a log of a real server agrees with this configuration."""
        return self.engine is not None and self.engine.is_checked(self.deployment, self.context)


def view_of(deployment: Deployment, engine: Engine | None, context: int) -> View:
    """Account a deployment at a context.

    Raises:
        UserError: the model or engine has no such precision.
    """
    d = deployment
    entry = engine.entry_bytes(d) if engine else entry_bytes(d.shape, d.main, d.indexer)
    cache_type = d.cache_type if engine and "cache_type" in engine.options else None
    return View(
        shape=d.shape,
        main=cache_type or d.main,
        indexer=cache_type or d.indexer,
        entry=entry,
        ideal=ideal_usage(d.shape, context, entry, d.layers),
        engine=engine.usage(d, context) if engine else None,
        fixed_bytes=fixed_bytes(d.shape, entry, d.layers),
        bytes_per_token=float(bytes_per_token(d.layers, entry)),
        state_bytes=state_bytes(d.layers),
    )


def account(
    deployment: Deployment,
    engine: Engine | None,
    context: int,
    *,
    baseline: Deployment | None = None,
    budget: Budget | None = None,
    num_blocks: int | None = None,
    measured_bytes: int | None = None,
) -> Account:
    """Put an accounting together.

    Raises:
        UserError: what the engine refuses, or a capacity asked of no engine.
    """
    if engine is not None:
        engine.check(deployment)
    notes = list(engine.notes(deployment)) if engine else []
    notes += _context_notes(deployment.shape, context)
    notes += _gpu_notes(deployment, engine, budget)
    other = None
    if baseline is not None:
        try:
            if engine is not None:
                engine.check(baseline)
            other = view_of(baseline, engine, context)
            notes += _context_notes(baseline.shape, context)
        except UserError as error:
            notes.append(f"no baseline: {error}")
    capacity = None
    if budget is not None or num_blocks is not None:
        if engine is None:
            raise UserError("capacity needs an allocator: give --engine, such as --engine vllm")
        capacity = engine.capacity(deployment, budget.available_bytes if budget else 0, num_blocks)
        notes += capacity.notes
    return Account(
        deployment, context, engine, view_of(deployment, engine, context), other, capacity, budget, measured_bytes,
        tuple(notes),
    )  # fmt: skip


def _context_notes(shape: ModelShape, context: int) -> list[str]:
    if context <= shape.max_positions:
        return []
    return [
        f"{context:,} tokens are beyond the {shape.max_positions:,} that {shape.name} declares: a hypothetical figure"
    ]


def _gpu_notes(deployment: Deployment, engine: Engine | None, budget: Budget | None) -> list[str]:
    """What the kernels of a layout or precision do not run on."""
    gpu, notes = budget.gpu if budget else None, []
    if gpu is None or engine is None:
        return []
    if deployment.indexer == "fp4" and not gpu.has_fp4_indexer:
        notes.append(f"an fp4 indexer needs a data-centre Blackwell GPU (sm_100, sm_103); {gpu.name} is {gpu.arch}")
    if "layout" in engine.options and deployment.layout == "flashinfer" and gpu.arch not in FLASHINFER_ARCHS:
        notes.append(f"FlashInfer's sparse layout needs sm_100 or sm_120; {gpu.name} is {gpu.arch}")
    return notes


def to_json(account: Account) -> dict[str, Any]:
    """The accounting as one JSON object; sizes in bytes."""
    view, base, usage = account.view, account.baseline, account.view.engine
    layers = []
    for index, layer in enumerate(view.ideal.layers):
        entry: dict[str, Any] = {
            "layer": layer.layer, "kind": layer.kind.value, "ideal_bytes": round(layer.total),
        }  # fmt: skip
        if usage is not None:
            held = usage.layers[index]
            entry["engine_bytes"] = round(held.total)
            entry |= {name: round(getattr(held, name)) for name in ("main", "indexer", "window", "state", "padding")}
        layers.append(entry)
    result: dict[str, Any] = {
        "model": view.shape.name,
        "baseline": base.shape.name if base else None,
        "context": account.context,
        "engine": account.engine.title if account.engine else "ideal",
        "main": view.main,
        "indexer": view.indexer,
        "baseline_main": base.main if base else None,
        "baseline_indexer": base.indexer if base else None,
        "ideal_bytes": view.ideal.total,
        "baseline_ideal_bytes": base.ideal.total if base else None,
        "ratio": account.ratio,
        "fixed_bytes": view.fixed_bytes,
        "bytes_per_token": view.bytes_per_token,
        "state_bytes": view.state_bytes,
        "engine_bytes": usage.total if usage else None,
        "baseline_engine_bytes": base.engine.total if base and base.engine else None,
        "buffers": usage.buffers or None if usage else None,
        "measured_bytes": account.measured_bytes,
        "checked": account.checked if account.engine else None,
    }
    result |= _layout_json(account) | _capacity_json(account)
    return result | {"layers": layers, "notes": list(account.notes)}


def _layout_json(account: Account) -> dict[str, Any]:
    layout = account.layout
    if layout is None:
        return {"layout": None, "bytes_per_block": None, "group_bytes": None}
    return {
        "layout": layout.backend,
        "generation": layout.generation,
        "bytes_per_block": layout.bytes_per_block,
        "group_bytes": list(layout.group_bytes),
        "groups": [
            {"name": group.name, "tokens": group.tokens, "window": group.window, "bytes": group.bytes}
            for group in layout.groups
        ],
        "pages": [
            {
                "cache": page.kind.value, "bucket": page.bucket, "entries": page.entries, "tokens": page.tokens,
                "raw_bytes": page.raw_bytes, "page_bytes": page.page_bytes, "padding": page.padding,
            }
            for page in layout.pages
        ],
    }  # fmt: skip


def _capacity_json(account: Account) -> dict[str, Any]:
    names = ("num_blocks", "blocks_per_request", "concurrency", "kv_cache_tokens")
    got, budget, d = account.capacity, account.budget, account.deployment
    if got is None:
        return dict.fromkeys(names)
    result: dict[str, Any] = {name: getattr(got, name) for name in names}
    result |= {
        "available_bytes": got.available_bytes if budget else None,
        "max_model_len": got.max_model_len,
        "dp": d.dp,
        "total_concurrency": got.concurrency * d.dp,
        "largest_context": got.largest_context,
        "in_flight_tokens": got.in_flight_tokens,
        "in_flight_share": got.in_flight_share,
        "decoding_requests": got.decoding_requests,
        "bound_by": got.bound_by or None,
        "group_blocks": got.group_blocks or None,
        "bytes_per_block": got.bytes_per_block,
        "engine_bytes_per_token": got.bytes_per_token,
        "pools": got.pools or None,
        "fixed_state_bytes": d.fixed_state_bytes or None,
    }
    if budget:
        result["gpu"] = budget.gpu.name if budget.gpu else None
        result["gpus"] = budget.count
        result["workspaces"] = [{"name": w.name, "bytes": w.bytes, "how": w.how} for w in budget.lines]
    return result
