"""Rows: what is known about one case after it ran, in SI base units."""

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

SCHEMA_VERSION = 1
"""Version of the stored row and manifest; raised when a reader would misread an older or newer one."""


class Status(StrEnum):
    """How a case ended. Measured numbers are present if and only if it is ``ok``."""

    OK = "ok"
    INCORRECT = "incorrect"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    OOM = "oom"
    TIMEOUT = "timeout"
    UNSUPPORTED = "unsupported"
    INVALID_THERMAL = "invalid_thermal"
    INVALID_RATE = "invalid_rate"
    SKIPPED = "skipped"


class Model(BaseModel):
    """Base of stored records: unknown keys are refused, NaN never passes."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Contract(Model):
    """Everything that changes what a number means; rows whose contracts differ are never compared."""

    timer: Literal["wall", "events", "graph", "cupti"]
    l2: Literal["none", "warm", "cold"]
    flush: Literal["none", "read_sweep", "memset"] = "none"
    flush_bytes: int = 0
    graph: bool = False
    iterations_per_graph: int = 0
    streams: str = "serial"
    clock_policy: str = "as found"
    statistic: str = "median"
    seed: int = 0
    protocol: int = 1
    """Raised only when a number's meaning changes."""

    @property
    def contract_id(self) -> str:
        """12 hex digits over every field; equal if and only if the contracts are."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


class Round(Model):
    """One interleaved round of one side: every number in seconds unless its name says otherwise."""

    index: int
    seed: int
    iterations: int
    median: float
    min: float
    mad: float
    host: float | None = None
    """Host time per call (launching), seconds."""
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle: list[str] = Field(default_factory=list)


class Gaps(Model):
    """How busy the device was while it ran the whole layer once: eagerly as launched, or as one replay of its graph.

    From a profile of its own, which makes the host launch more slowly; no time of a row comes from it. All in seconds.
    """

    launches: int
    """Kernels, copies and fills."""
    span: float
    """From the start of the first to the end of the last."""
    busy: float
    """Part of the span in which at least one of them ran, on any stream."""
    idle: float
    """The rest of the span."""
    largest: float
    """Longest time in a row in which nothing ran."""
    after: str
    """What had ended when that began; empty where there is no gap."""
    streams: list[float]
    """Busy time of each stream, in order of first use; of a graph they are those that the driver chose."""


class Timing(Model):
    """Device time of something over the rounds.

    ``median`` is the median of the rounds' medians, ``min`` the smallest sample, ``mad`` the median absolute deviation
    of the rounds' medians, ``host`` the median host time per call; all in seconds.
    """

    median: float
    min: float
    mad: float
    host: float | None = None
    launches: int | None = None
    gaps: Gaps | None = None
    """Of a whole layer on a GPU, where a profiler could see it."""
    rounds: list[Round] = Field(default_factory=list)


class Accuracy(Model):
    """How far an output is from the reference."""

    worst_error: float
    """Worst ‖out − ref‖ / ‖ref‖ over vectors."""
    tolerance: float
    numbers: dict[str, float] = Field(default_factory=dict)
    """Further figures by name: ``snr_db``, ``recall``, ``lse_error``, ``cosine``."""


def _floor_share(floor: float | None, timing: Timing | None) -> float | None:
    return floor / timing.median if floor and timing and timing.median > 0 else None


class StageRow(Model):
    """One stage of a case."""

    name: str
    provider: str
    timing: Timing | None = None
    bytes: int | None = None
    """Fewest bytes that device memory must move."""
    flops: int | None = None
    floor: float | None = None
    """Roofline floor, seconds."""
    bound: Literal["memory", "compute"] | None = None
    accuracy: Accuracy | None = None
    extra: dict[str, Any] = Field(default_factory=dict)

    @property
    def floor_share(self) -> float | None:
        """Floor over time; None where either is unknown or the timer read zero or less."""
        return _floor_share(self.floor, self.timing)


class MemoryFigures(Model):
    """KV bytes of the case's layer for the whole batch, of a model those of all its layers.

    The first two are predicted from the case alone, the third is measured.
    """

    ideal_bytes: int
    """By the design's arithmetic."""
    engine_bytes: int | None = None
    """In pages of the case's layout."""
    measured_bytes: int | None = None
    """Allocated storage that the step's block tables point to; None where layers of a model shared their caches."""


class Row(Model):
    """A case's result.

    What was measured (times, accuracy, compile seconds, energy, measured bytes) stands in it if and only if it is
    ``ok``. The bytes that are predicted from the case (`MemoryFigures`) stand in every row: they say what a case that
    ran out of memory would have needed.
    """

    schema_version: int = SCHEMA_VERSION
    case_id: str
    pair_id: str
    contract_id: str
    label: str
    case: dict[str, Any]
    contract: Contract
    status: Status
    reason: str = ""
    """Why it is not ``ok``, in a sentence."""
    layer: Timing | None = None
    """The whole layer (or, for ``kind: stage``, the stages together)."""
    stages: list[StageRow] = Field(default_factory=list)
    memory: MemoryFigures | None = None
    accuracy: Accuracy | None = None
    floor: float | None = None
    compile_seconds: float | None = None
    energy_joules: float | None = None
    """Energy per step."""
    warnings: list[str] = Field(default_factory=list)
    repro: str = ""
    """The command that runs this case again."""
    extra: dict[str, Any] = Field(default_factory=dict)

    @property
    def floor_share(self) -> float | None:
        """Floor over the time of the layer, as of a stage."""
        return _floor_share(self.floor, self.layer)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other fields, held to the rules of a new row (pydantic's own copy is held to none)."""
        return type(self).model_validate(dict(super().model_copy(deep=deep)) | dict(update or {}))

    @model_validator(mode="after")
    def _numbers_if_and_only_if_ok(self) -> Self:
        if self.status is not Status.OK and not self.reason:
            raise ValueError(f"a row that is {self.status.value} says why")
        timed = self.layer is not None or any(stage.timing for stage in self.stages)
        measured = {
            "a time": timed,
            "an accuracy": self.accuracy is not None or any(stage.accuracy for stage in self.stages),
            "compile seconds": self.compile_seconds is not None,
            "an energy": self.energy_joules is not None,
            "measured bytes": self.memory is not None and self.memory.measured_bytes is not None,
        }
        if self.status is not Status.OK and (found := [what for what, is_there in measured.items() if is_there]):
            raise ValueError(f"a row that is {self.status.value} may not carry {found[0]}")
        memory_only = self.case.get("scenario_kind") == "memory"
        if self.status is Status.OK and memory_only and self.memory is None:
            raise ValueError("a memory row that is ok has bytes")
        if self.status is Status.OK and not memory_only and not timed:
            raise ValueError("a row that is ok has a time")
        return self
