"""``dsv4bench selftest``: what identical code differs by on this machine, and what can therefore be gated."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dsv4bench.analysis.gate import DOUBLINGS
from dsv4bench.analysis.selftest import machine_noise, noise_at, with_stored
from dsv4bench.analysis.verdict import GATEABLE, PRESETS
from dsv4bench.cli.ab import progress
from dsv4bench.cli.flags import from_here
from dsv4bench.cli.output import Format, print_records
from dsv4bench.cli.run import RUNS, selected_cases
from dsv4bench.errors import MeasurementError, UserError
from dsv4bench.report.quantity import change, seconds, share
from dsv4bench.report.records import Record
from dsv4bench.results.baseline import ROOT, SELFTEST, folder_of
from dsv4bench.results.noise import CaseNoise, read_noise, write_noise
from dsv4bench.results.run_directory import new_run_path
from dsv4bench.scenario.loader import load_scenario


def selftest(
    scenario: Annotated[str, typer.Argument(help="Scenario to be gated later: file, or name of a shipped one.")],
    only: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Only cases whose label contains this, or by id.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default reports/runs/<time>-…-selftest.")] = None,
    store: Annotated[
        Path | None, typer.Option(help=f"File of the result; default {ROOT}/<gpu>/<scenario>/{SELFTEST}.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the scenario: timing.rounds=20."),
    ] = None,
    format: Annotated[Format, typer.Option(help="How to print the results.")] = Format.TABLE,
) -> None:
    """Measure a scenario against itself and store what differs: the gate's least tolerance per case.

    Both sides run in turns, as in `ab`.
    """
    from dsv4bench.bench.ab import Contest, Party, measure_sides
    from dsv4bench.bench.device import parse_device

    parse_device(device)
    resolved = load_scenario(scenario, overrides or ())
    if resolved.timing.rounds < 5:
        raise UserError("selftest needs timing.rounds of at least 5; 10 is what the gate uses")
    party = Party("here", resolved, selected_cases(resolved, only or []))
    contest = Contest((party, party), device, from_here(), ["dsv4bench", "selftest", scenario])
    path = out or new_run_path(RUNS, f"{resolved.name}-selftest")
    a, b = measure_sides(contest, path, progress(path), contest.pairs())
    noise = machine_noise(a.manifest, a.rows, b.rows)
    if not noise.cases:
        reasons = dict.fromkeys(f"{row.status.value}: {row.reason}" for row in (*a.rows, *b.rows) if row.reason)
        raise MeasurementError(f"nothing was measured; {'; '.join(reasons)}")
    target = store or folder_of(ROOT, a.manifest) / SELFTEST
    write_noise(with_stored(noise, read_noise(target)) if only and target.exists() else noise, target)
    print_records(noise_records(noise.cases), format, SHOWN)
    for line in (*judgement(noise.cases), f"stored: {target}"):
        typer.echo(line, err=True)


SHOWN = {
    "median": seconds,
    "half-width": share,
    "difference": change,
    "drift": change,
    "tolerance": share,
}
"""How columns are printed."""


def noise_records(cases: Sequence[CaseNoise]) -> list[Record]:
    """A line per case, the noisiest first."""
    return [
        {
            "case": case.label if case.metric == "time" else f"{case.label} [{case.metric}]",
            "median": case.median,
            "rounds": case.rounds,
            "half-width": case.half_width,
            "difference": case.effect,
            "drift": case.drift,
            "tolerance": case.recommended_tolerance,
        }
        for case in sorted(cases, key=lambda case: -case.half_width)
    ]


def judgement(cases: Sequence[CaseNoise]) -> list[str]:
    """What the machine is good for, in sentences."""
    wanted = PRESETS["default"].tolerance
    noisy = [case for case in cases if (case.recommended_tolerance or 1.0) > wanted]
    if not noisy:
        return [f"this machine can gate all {len(cases)} cases at {share(wanted)}"]
    lines = [f"this machine is too noisy to gate {len(noisy)} of {len(cases)} cases at {share(wanted)}"]
    loud = [case for case in noisy if case.recommended_tolerance is None]
    hopeless = [case for case in loud if noise_at(case, case.rounds * 2**DOUBLINGS) > GATEABLE]
    if later := len(loud) - len(hopeless):
        lines.append(f"{later} of them differ from themselves by more than {share(GATEABLE)}: `ab` takes more rounds")
    if hopeless:
        lines.append(f"{len(hopeless)} by more than {share(GATEABLE)} at any number of rounds: never gated here")
    return lines
