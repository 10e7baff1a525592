"""One conformance row being tried: runs a provider's stages, checks each, and remembers what was found.

Stages that the provider lacks are filled in by the reference, so a provider of one stage can be tried on whole layers.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from dsv4_kernels import reference
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.codec import record_view, scale_view

from dsv4bench.errors import UserError
from dsv4bench.model.shape import LayerKind, ModelShape
from dsv4bench.model.stage import STAGES, Stage
from dsv4bench.providers.base import implemented_stages
from dsv4bench.providers.origin import place_of
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.stack.inputs import Values
from dsv4bench.stack.layer import further_arguments, stage_arguments, stage_outputs
from dsv4bench.verify.difference import LAYER_COSINE, LAYER_TOLERANCE, Difference, exact, vector_difference
from dsv4bench.verify.entries import WRITES
from dsv4bench.verify.outputs import Outputs
from dsv4bench.verify.sequences import Sequences, small_shape
from dsv4bench.verify.stage_check import StageCheck, changed_inputs, compare, kept_inputs, overwritten_inputs

GUARDED_BYTES = 1 << 26
"""Caches up to this size are compared as a whole around a stage that writes them, so that stray writes show."""
STAGE = {stage.name: stage for stages in STAGES.values() for stage in stages}
"""Every stage by name."""


@dataclass(frozen=True)
class Setting:
    """What a row is tried with.

    Attributes:
        kind: layer kind.
        precision: of the caches.
        device: torch device.
        quick: use smaller inputs.
        seed: of everything random.
    """

    kind: LayerKind
    precision: CachePrecision = field(default_factory=CachePrecision)
    device: str = "cpu"
    quick: bool = False
    seed: int = 0

    @property
    def dtype(self) -> torch.dtype:
        """Of the activations: fp32 over fp32 caches, else bf16."""
        return torch.float32 if self.precision.main == "fp32" else torch.bfloat16


@dataclass
class Trial:
    """A provider under one setting.

    Attributes:
        provider: who is tried.
        setting: with what.
        checks: what was found so far, in order.
        failed_call: stage name and arguments of the first call whose check failed.
        notes: facts that are neither right nor wrong.
        refused: stages that the provider said it can't do here.
    """

    provider: object
    setting: Setting
    checks: list[StageCheck] = field(default_factory=list)
    failed_call: tuple[str, dict[str, Any]] | None = None
    notes: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.implemented = frozenset(implemented_stages(self.provider))

    @property
    def kind(self) -> LayerKind:
        """The layer kind."""
        return self.setting.kind

    @property
    def shape(self) -> ModelShape:
        """The small model that rows use unless they say otherwise."""
        return small_shape(self.kind, self.setting.device)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the layer kind, in order."""
        return STAGES[self.kind]

    def sequences(self, *, requests: int, limit: int | Sequence[int], **options: Any) -> Sequences:
        """Requests under this trial's setting; ``options`` are those of ``Sequences``."""
        setting = self.setting
        shape = options.pop("shape", self.shape)
        precision = replace(setting.precision, slab=options.pop("slab", True))
        base: dict[str, Any] = {"device": setting.device, "dtype": setting.dtype, "seed": setting.seed}
        return Sequences(shape, self.kind, precision, requests=requests, limit=limit, **(base | options))

    def generator(self, salt: int = 0) -> torch.Generator:
        """A generator on the device, the same one for the same salt."""
        return torch.Generator(self.setting.device).manual_seed(self.setting.seed * 7919 + salt)

    def randn(self, *dims: int, salt: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal numbers on the device, of the activations' dtype by default."""
        drawn = torch.randn(dims, generator=self.generator(salt), device=self.setting.device)
        return drawn.to(dtype or self.setting.dtype)

    def layer(self, values: Values, names: Iterable[str] | None = None) -> None:
        """Run stages in order (all of the layer's by default) and check each one that the provider implements."""
        wanted = set(names) if names is not None else {stage.name for stage in self.stages}
        for stage in self.stages:
            if stage.name in wanted:
                further = self._further(stage, values)
                result = self.stage(stage.name, further=further, **stage_arguments(stage, values))
                values.update(zip(stage.outputs, result, strict=True))

    def run(self, values: Values) -> None:
        """Run all of the layer's stages in order without checks, given what ``layer`` gives them."""
        for stage in self.stages:
            further = self._further(stage, values)
            result = self.plain(stage.name, further=further, **stage_arguments(stage, values))
            values.update(zip(stage.outputs, result, strict=True))

    def _further(self, stage: Stage, values: Values) -> dict[str, Any]:
        method = getattr(self.provider, stage.name, None)
        return further_arguments(method, stage, values) if method is not None else {}

    def between(self, first: str, last: str) -> tuple[str, ...]:
        """Names of the layer's stages from one to another, both included."""
        names = [stage.name for stage in self.stages]
        return tuple(names[names.index(first) : names.index(last) + 1])

    def stage(self, name: str, *, further: Mapping[str, Any] | None = None, **arguments: Any) -> Outputs:
        """Run one stage, check it, and return its outputs as a tuple; the reference's if it cannot be run.

        A provider that raises ``NotImplementedError`` is not checked: that is what it can't do, not what it does wrong.

        Args:
            name: the stage.
            further: what the provider takes beside the stage's own arguments.
            arguments: the stage's own.
        """
        if name not in self.implemented:
            return _reference(name, arguments)
        guard, before = _snapshot(name, arguments), kept_inputs(arguments)
        try:
            outputs = stage_outputs(STAGE[name], getattr(self.provider, name)(**arguments, **(further or {})))
            check = compare(name, arguments, outputs)
        except NotImplementedError as error:  # it says so itself: neither right nor wrong
            self.refused.add(name)
            note = f"{name} is unsupported here: {error}"
            self.notes += [note] if note not in self.notes else []
            return _reference(name, arguments)
        except (Exception, SystemExit) as error:  # a provider may raise anything; that is a finding, not a crash
            check = raised(name, error)
            outputs = _reference(name, arguments)
        if guard is not None and check.ok:
            check = StageCheck(name, (*check.differences, _stray_writes(name, arguments, guard)))
        if overwritten := overwritten_inputs(arguments, before):
            check = StageCheck(name, (*check.differences, overwritten))
        if not check.ok and self.failed_call is None:
            arguments = _as_called(name, arguments, before, guard)
        self._record(check, (name, arguments))
        return outputs

    def plain(self, name: str, *, further: Mapping[str, Any] | None = None, **arguments: Any) -> Outputs:
        """Run one stage without a check, with the reference where the provider lacks or can't do it, or raises."""
        if name in self.implemented:
            try:
                return stage_outputs(STAGE[name], getattr(self.provider, name)(**arguments, **(further or {})))
            except NotImplementedError:
                self.refused.add(name)
            except (Exception, SystemExit) as error:  # as in ``stage``
                self._record(raised(name, error), (name, arguments))
        return _reference(name, arguments)

    def expect(self, stage: str, what: str, ok: bool, where: str = "", deviation: str = "") -> None:
        """Record a statement about what a stage did; ignored where the provider lacks the stage."""
        if stage in self.implemented:
            self._record(StageCheck(stage, (exact(what, ok, where, deviation),)), None)

    def same(self, stage: str, what: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """Record that two results of the provider's stage must agree as a bf16 stage agrees with the reference."""
        if stage not in self.implemented:
            return
        actual, expected = actual.flatten(0, -2), expected.flatten(0, -2)
        found = vector_difference(what, actual, expected, dims=("row",))
        self._record(StageCheck(stage, (found,)), None)

    def same_layer(self, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """Record that two outputs of the layer must agree; ignored where the provider has none of its stages."""
        if self.implemented & {stage.name for stage in self.stages}:
            found = vector_difference("y", actual, expected, LAYER_TOLERANCE, LAYER_COSINE, ("row",))
            self._record(StageCheck("layer", (found,)), None)

    def _record(self, check: StageCheck, call: tuple[str, dict[str, Any]] | None) -> None:
        self.checks.append(check)
        if not check.ok and self.failed_call is None and call is not None:
            self.failed_call = call


def raised(stage: str, error: BaseException) -> StageCheck:
    """The finding that a stage raised an exception, with the line of the provider's file that it came through."""
    first = next(iter(str(error).splitlines()), "")
    message = first if isinstance(error, UserError) else f"{type(error).__name__}: {first}"
    return StageCheck(stage, (Difference("call", math.inf, 0.0, message + place_of(error)),))


def _reference(name: str, arguments: dict[str, Any]) -> Outputs:
    return stage_outputs(STAGE[name], getattr(reference, name)(**arguments))


def _snapshot(name: str, arguments: dict[str, Any]) -> torch.Tensor | None:
    """A copy of the cache that a stage writes, unless it is large."""
    if name not in WRITES:
        return None
    cache = arguments[WRITES[name][0]]
    raw = cache.pages if isinstance(cache, PagedCache) else cache
    return raw.clone() if raw.numel() * raw.element_size() <= GUARDED_BYTES else None


def _as_called(
    name: str, arguments: dict[str, Any], before: Mapping[str, torch.Tensor], guard: torch.Tensor | None
) -> dict[str, Any]:
    """A call's arguments with what it wrote taken back: done again over that, a stray write would change nothing.

    At the given slots may lie what it wrote there; a cache of which there is no snapshot is left as it is.
    """
    arguments = arguments | {changed: before[changed] for changed in changed_inputs(arguments, before)}
    if guard is None:
        return arguments
    cache = arguments[WRITES[name][0]]
    raw = cache.pages if isinstance(cache, PagedCache) else cache
    pages = torch.empty_strided(raw.size(), raw.stride(), dtype=raw.dtype, device=raw.device).copy_(guard)
    restored = PagedCache(pages, cache.format, cache.entries) if isinstance(cache, PagedCache) else pages
    return arguments | {WRITES[name][0]: restored}


def _stray_writes(name: str, arguments: dict[str, Any], before: torch.Tensor) -> Difference:
    """Whether anything but the entries at the stage's slots changed since ``before``."""
    cache_name, slots_name = WRITES[name]
    cache, slots = arguments[cache_name], arguments[slots_name]
    slots = slots[slots >= 0].long()
    if isinstance(cache, PagedCache):
        old = PagedCache(before, cache.format, cache.entries)
        page, entry = slots // cache.entries, slots % cache.entries
        record_view(old)[page, entry] = record_view(cache)[page, entry]
        if cache.format.scale_bytes:
            scale_view(old)[page, entry] = scale_view(cache)[page, entry]
        changed = (before != cache.pages).any(1)
    else:
        block = cache.shape[1]
        before[slots // block, slots % block] = cache[slots // block, slots % block]
        changed = (before.view(torch.int32) != cache.view(torch.int32)).flatten(1).any(1)
    where = f"page {int(changed.int().argmax())}: bytes outside the given slots" if bool(changed.any()) else ""
    if where and len(slots) < len(arguments[slots_name]):
        where += "; −1 is given too and means that nothing is written"
    return exact("stray writes", not where, where)


def pages_of(tables: torch.Tensor, rows: Sequence[int], columns: range) -> torch.Tensor:
    """Page ids in some columns of some rows of a block table, flat."""
    return tables[list(rows), columns.start : columns.stop].flatten().long()
