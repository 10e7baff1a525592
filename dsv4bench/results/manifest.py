"""What a run was: the command, the resolved scenario, the machine, and how its time was spent."""

import hashlib
import json
from typing import Any, Literal

from pydantic import Field

from dsv4bench.results.environment import Environment
from dsv4bench.results.row import SCHEMA_VERSION, Model


class PlannedCase(Model):
    """A case the run set out to measure."""

    case_id: str
    label: str


class Ceilings(Model):
    """What this very card was measured to reach once per run, beside which datasheet values are only a lead."""

    copy_bytes_per_second: float
    """Device copy, bytes read plus bytes written."""
    bf16_flops_per_second: float | None = None
    fp8_flops_per_second: float | None = None


class Manifest(Model):
    """The head of a run directory.

    Times of day are ISO 8601 in UTC; ``spent`` is wall time by purpose and ``timer_floor`` what each timer reads for a
    call that does nothing, both in seconds.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    side: Literal["a", "b"] | None = None
    """Side of an A/B run; both share its id, and their rounds were interleaved."""
    scenario_name: str
    scenario: dict[str, Any]
    scenario_hash: str
    argv: list[str]
    repro: list[str] = Field(default_factory=list)
    """Words that run the scenario again; a row adds its ``--only``."""
    device: str
    started: str
    finished: str | None = None
    """Absent while a run goes on, and after one that was killed."""
    interrupted: bool = False
    environment: Environment
    ceilings: Ceilings | None = None
    timer_floor: dict[str, float] = Field(default_factory=dict)
    calibration: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Timer → nanoseconds asked of a spinning kernel → seconds read for it."""
    planned: list[PlannedCase] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    spent: dict[str, float] = Field(default_factory=dict)


def scenario_digest(scenario: dict[str, Any]) -> str:
    """12 hex digits over a resolved scenario."""
    text = json.dumps(scenario, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
