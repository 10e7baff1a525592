"""A machine's noise: what identical code differs by, case by case, as ``selftest`` stores it and the gate reads it."""

import json
from pathlib import Path

from pydantic import Field, ValidationError

from dsv4bench.errors import IncomparableError
from dsv4bench.results.atomic import write_text
from dsv4bench.results.manifest import Manifest
from dsv4bench.results.row import SCHEMA_VERSION, Contract, Model


class CaseNoise(Model):
    """What two sides of identical code differ by in one case."""

    case_id: str
    metric: str
    """``time`` or ``time.<stage>``."""
    label: str
    contract: Contract
    median: float
    """Seconds."""
    rounds: int
    deviation: float
    """Standard deviation of ln(b / a) between rounds."""
    effect: float
    """Relative difference that was found; the truth is none."""
    half_width: float
    """Relative half-width of the 95 % interval at ``rounds`` rounds."""
    drift: float
    """Relative change of the time from the first round to the last."""
    recommended_tolerance: float | None
    """Relative tolerance worth gating at; None where the case is too noisy for any."""


class MachineNoise(Model):
    """The result of a self-test."""

    schema_version: int = SCHEMA_VERSION
    manifest: Manifest
    cases: list[CaseNoise] = Field(default_factory=list)


def read_noise(path: Path) -> MachineNoise:
    """Read a stored self-test.

    Raises:
        IncomparableError: nothing there, truncated, or of another schema version.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IncomparableError(f"no self-test at {path}") from None
    except (OSError, ValueError) as error:
        raise IncomparableError(f"{path} can't be read (truncated?): {error}") from error
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version != SCHEMA_VERSION:
        raise IncomparableError(f"{path}: schema version {version!r}, this release reads {SCHEMA_VERSION}")
    try:
        return MachineNoise.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        raise IncomparableError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def write_noise(noise: MachineNoise, path: Path) -> None:
    """Store a self-test."""
    write_text(path, noise.model_dump_json(indent=1) + "\n")
