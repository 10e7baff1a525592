"""What an A/A run says about a machine, and how the gate uses it."""

import math
from collections.abc import Mapping, Sequence

from dsv4bench.analysis.evidence import timings
from dsv4bench.analysis.pairing import fingerprint_differences
from dsv4bench.analysis.statistics import drift, half_width, mean_and_deviation
from dsv4bench.analysis.verdict import GATEABLE, PRESETS, Evidence, Limits, Subject, limits_for
from dsv4bench.results.manifest import Manifest
from dsv4bench.results.noise import CaseNoise, MachineNoise
from dsv4bench.results.row import Row, Status, Timing
from dsv4bench.results.run_directory import Run

STEP = 0.005
"""Recommended tolerances are multiples of this."""


def machine_noise(manifest: Manifest, a: Sequence[Row], b: Sequence[Row]) -> MachineNoise:
    """Turn both sides of an A/A run into the machine's noise.

    Args:
        manifest: of the run.
        a: rows of one side.
        b: rows of the other: the same cases, the same code, the same rounds.
    """
    other = {row.case_id: row for row in b if row.status is Status.OK}
    cases = []
    for row in a:
        if row.status is Status.OK and row.case_id in other:
            second = dict(timings(other[row.case_id]))
            cases += [_noise(row, metric, timing, second[metric]) for metric, timing in timings(row)]
    return MachineNoise(manifest=manifest, cases=cases)


def with_stored(noise: MachineNoise, stored: MachineNoise) -> MachineNoise:
    """A self-test of some cases, with what a stored one of the same hardware says of the others."""
    if fingerprint_differences(stored.manifest, noise.manifest):
        return noise
    measured = {case.case_id for case in noise.cases}
    kept = [case for case in stored.cases if case.case_id not in measured]
    return MachineNoise(manifest=noise.manifest, cases=[*noise.cases, *kept])


def recommended_tolerance(width: float) -> float | None:
    """Smallest step above a half-width, at least the strict preset's tolerance; None beyond what can be gated."""
    tolerance = max(PRESETS["strict"].tolerance, STEP * math.ceil(width / STEP - 1e-9))
    return round(tolerance, 6) if tolerance <= GATEABLE else None


def applicable(noise: MachineNoise, run: Run) -> dict[tuple[str, str], CaseNoise]:
    """The noise of a run's cases by (case id, metric): same hardware, same case, same contract."""
    if fingerprint_differences(noise.manifest, run.manifest):
        return {}
    contracts = {row.case_id: row.contract for row in run.rows}
    return {
        (case.case_id, case.metric): case for case in noise.cases if contracts.get(case.case_id) == case.contract
    }  # fmt: skip


def limits_at(
    preset: Limits, noise: Mapping[tuple[str, str], CaseNoise], subject: Subject, evidence: Evidence
) -> Limits:
    """Limits of a subject: a preset, widened to the noise of that very case at the number of rounds measured."""
    found = noise.get((subject.case_id, subject.metric))
    return limits_for(preset, noise_at(found, evidence.rounds) if found else None)


def noise_at(found: CaseNoise, rounds: int) -> float:
    """What identical code may differ by over a number of rounds.

    Scatter between rounds averages out. A difference beyond it is one between the two processes, which no number of
    rounds takes away.
    """
    lasting = abs(found.effect) if abs(found.effect) > found.half_width else 0.0
    return max(half_width(found.deviation, max(2, rounds)), lasting)


def _noise(row: Row, metric: str, a: Timing, b: Timing) -> CaseNoise:
    first = {item.index: item for item in a.rounds}
    logs = [math.log(item.median / first[item.index].median) for item in b.rounds if item.index in first]
    mean, deviation = mean_and_deviation(logs)
    width = half_width(deviation, len(logs))
    return CaseNoise(
        case_id=row.case_id,
        metric=metric,
        label=row.label,
        contract=row.contract,
        median=a.median,
        rounds=len(logs),
        deviation=deviation,
        effect=math.expm1(mean),
        half_width=width,
        drift=drift([item.median for item in a.rounds]),
        recommended_tolerance=recommended_tolerance(max(width, abs(math.expm1(mean)))),
    )
