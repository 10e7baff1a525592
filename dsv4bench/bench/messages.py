"""What a parent and its worker say to each other.

The parent sends ``Probe`` or ``Measure``. The worker answers a probe with ``Found``, and a measurement with any number
of ``Working`` and ``Measured`` and one ``Done``; ``Ready`` is answered with ``Go`` and ``Took`` with ``Settled``.
``Trace`` is the last task of a worker, answered with ``Working``, one ``Traced`` a case and ``Done``. A worker that
verifies gets one ``Try`` after another, each answered with ``Tried``, and ``Appraise``, answered with ``Appraised``.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsv4bench.bench.device import Device
from dsv4bench.bench.settings import Settings
from dsv4bench.results.manifest import Ceilings
from dsv4bench.results.row import Gaps, Row
from dsv4bench.scenario.case import Case

if TYPE_CHECKING:  # a worker may take the kernels, which these import, from another revision
    from dsv4bench.verify.suite import Outcome
    from dsv4bench.verify.trial import Setting


@dataclass(frozen=True)
class Probe:
    """Find the device.

    With ``calibrate`` also measure its ceilings and what the timers read for known work, with ``survey`` try every
    timer. A survey attaches a profiler, which is not something to time behind.
    """

    device: str
    calibrate: bool = False
    survey: bool = False


@dataclass(frozen=True)
class Measure:
    """Measure cases that share a ``round_id``; ``group`` are all the cases whose tensors should fit at once.

    With ``in_turns`` every round waits for ``Go`` before it and for ``Settled`` after it, so that sides in several
    processes can be interleaved and repeat the same rounds.
    """

    cases: tuple[Case, ...]
    group: tuple[Case, ...]
    settings: Settings
    in_turns: bool = False


@dataclass(frozen=True)
class Trace:
    """Find the launch gaps of measured cases; ``group`` as for ``Measure``.

    A profiler is attached for it, which is not something to time behind: the worker ends afterwards.
    """

    cases: tuple[Case, ...]
    group: tuple[Case, ...]
    settings: Settings


@dataclass(frozen=True)
class Ready:
    """The next turn, in round ``round`` that was repeated ``attempt`` times, waits for ``Go``."""

    round: int
    attempt: int = 0


@dataclass(frozen=True)
class Go:
    """Leave to take one turn."""


@dataclass(frozen=True)
class Took:
    """The turn has been taken; ``spoiled_by`` is why this side doesn't count it, empty if it does."""

    spoiled_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settled:
    """Why the round doesn't count on any side, so that every side repeats it; empty if it counts."""

    spoiled_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """Answer to ``Probe``; ``error`` is the sentence for the user where there is no such device."""

    device: Device | None
    ceilings: Ceilings | None = None
    timer_floor: dict[str, float] = field(default_factory=dict)
    calibration: dict[str, dict[str, float]] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Working:
    """Which case is worked on, and what is done for it."""

    case_id: str
    doing: str


@dataclass(frozen=True)
class Done:
    """The task is over; ``healthy`` unless the device context broke and the process ends."""

    spent: dict[str, float]
    healthy: bool = True


@dataclass(frozen=True)
class Measured:
    """One case's row, lines for ``samples.jsonl`` and ``telemetry.jsonl``, and the KV bytes that its step held."""

    row: Row
    samples: list[dict[str, Any]] = field(default_factory=list)
    telemetry: list[dict[str, Any]] = field(default_factory=list)
    kv_bytes: int | None = None


@dataclass(frozen=True)
class Traced:
    """One case's launch gaps, or why there are none."""

    case_id: str
    gaps: Gaps | None
    reason: str = ""


@dataclass(frozen=True)
class Try:
    """Try a row of the conformance suite, one of ``jobs`` at once; the inputs of a failure go to ``folder``."""

    provider: str
    row: int
    setting: "Setting"
    allow: frozenset[str]
    folder: Path
    jobs: int


@dataclass(frozen=True)
class Tried:
    """Answer to ``Try``; ``healthy`` unless the device context broke and the process ends."""

    outcome: "Outcome"
    healthy: bool = True


@dataclass(frozen=True)
class Appraise:
    """Find what a cache precision costs over fp32 caches, as one of ``jobs`` at once."""

    provider: str
    setting: "Setting"
    jobs: int


@dataclass(frozen=True)
class Appraised:
    """Answer to ``Appraise``: figures by stage, or why there are none; ``healthy`` as of ``Tried``."""

    setting: "Setting"
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    error: str = ""
    healthy: bool = True
