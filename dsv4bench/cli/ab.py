"""``dsv4bench ab``: two sides of a scenario in interleaved rounds."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4bench.analysis.compare import tabulate
from dsv4bench.analysis.gate import LimitsOf
from dsv4bench.analysis.selftest import limits_at
from dsv4bench.analysis.verdict import PRESETS, Limits, Outcome
from dsv4bench.cli.compare import print_comparison
from dsv4bench.cli.flags import from_here
from dsv4bench.cli.gate import Preset, noise_of
from dsv4bench.cli.output import Format
from dsv4bench.cli.run import RUNS, provider_override, selected_cases
from dsv4bench.errors import MeasurementError, UserError
from dsv4bench.results.baseline import ROOT
from dsv4bench.results.noise import read_noise
from dsv4bench.results.run_directory import Run, new_run_path
from dsv4bench.scenario.case import Case
from dsv4bench.scenario.loader import load_scenario

if TYPE_CHECKING:
    from dsv4bench.bench.ab import Party
    from dsv4bench.bench.session import Listener

SIDE = "provider=NAME, provider=NAME,STAGE=NAME,…, git:REV, or `here` for the working tree"


def ab(
    scenario: Annotated[str, typer.Argument(help="Scenario file, or the name of a shipped scenario.")],
    a: Annotated[str, typer.Option(metavar="SIDE", help=f"The base: {SIDE}.")],
    b: Annotated[str, typer.Option(metavar="SIDE", help="The side under test, likewise.")],
    only: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Only cases whose label contains this, or by id.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Folder; default reports/runs/<time>-<scenario>-ab.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the scenario: timing.rounds=20."),
    ] = None,
    build: Annotated[str, typer.Option(metavar="COMMAND", help="Run in the worktree of a git:REV side first.")] = "",
    preset: Annotated[Preset, typer.Option(help="strict 1 %, default 3 %, permissive 10 %.")] = Preset.DEFAULT,
    selftest: Annotated[
        Path | None, typer.Option(help="Stored self-test; default: this machine's below reports/baselines.")
    ] = None,
    double: Annotated[bool, typer.Option(help="Double the rounds of inconclusive cases, up to three times.")] = True,
    confirm: Annotated[bool, typer.Option(help="Measure changes again in fresh processes.")] = True,
    check: Annotated[bool, typer.Option(help="Compare outputs with the reference around the timing.")] = True,
    format: Annotated[Format, typer.Option(help="How to print the results.")] = Format.TABLE,
) -> None:
    """Measure two sides of a scenario against each other, round by round, and say what changed.

    The harness is that of this installation; kernels and providers come from the revisions. The folder written is what
    `gate` takes. Exit code 0 when both sides were measured, 5 when one failed: whether a change may pass is the gate's.
    """
    from dsv4bench.bench.ab import Contest, decide
    from dsv4bench.bench.device import parse_device

    parse_device(device)
    if selftest is not None:
        read_noise(selftest)  # a file that can't be read is said before hours of measuring
    with ExitStack() as stack:
        parties = (
            _party(stack, a, scenario, overrides or [], only or [], build),
            _party(stack, b, scenario, overrides or [], only or [], build),
        )
        path = out or new_run_path(RUNS, f"{parties[0].scenario.name}-ab")
        words = ["dsv4bench", "ab", scenario, "--a", a, "--b", b]
        words += [word for override in overrides or () for word in ("--set", override)]
        contest = Contest(parties, device, from_here(), from_here(words), check)
        notes = [f"run: {path}"]
        limits = _limits(PRESETS[preset.value], selftest, notes)
        runs, verdicts = decide(contest, path, progress(path), limits, confirm=confirm, double=double)
    comparisons = tabulate(runs[0], [(runs[1], verdicts)])
    print_comparison(runs, (a, b) if a != b else ("a", "b"), comparisons, notes, format)
    if not verdicts:
        rows = [row for run in runs for row in run.rows if row.reason]
        reasons = "; ".join(dict.fromkeys(f"{row.status.value}: {row.reason}" for row in rows))
        raise MeasurementError(f"nothing was measured; {reasons or 'the sides have no case in common'}")
    if any(verdict.outcome is Outcome.FAILED for verdict in verdicts):
        raise typer.Exit(MeasurementError.exit_code)


def _party(
    stack: ExitStack, side: str, scenario: str, overrides: Sequence[str], only: Sequence[str], build: str
) -> "Party":
    """One side as the user wrote it; a revision is checked out until the stack closes."""
    from dsv4bench.bench.ab import Party
    from dsv4bench.bench.checkout import check_out

    kind, _, value = side.partition("=") if side.startswith("provider=") else side.partition(":")
    if side != "here" and (kind not in ("provider", "git") or not value):
        raise UserError(f"{side!r} is no side; expected {SIDE}")
    resolved = load_scenario(scenario, [*overrides, *(provider_override([value]) if kind == "provider" else ())])
    if resolved.kind == "memory":
        raise UserError(f"{scenario} is kind: memory, which nothing is timed in; `run` and `gate` compare its bytes")
    cases = selected_cases(resolved, only)
    return Party(side, resolved, cases, stack.enter_context(check_out(value, build)) if kind == "git" else None)


def _limits(preset: Limits, selftest: Path | None, notes: list[str]) -> Callable[[Run], LimitsOf]:
    """Limits from a preset and the stored self-test, once the machine is known."""

    def limits_from(run: Run) -> LimitsOf:
        noise, note = noise_of(selftest, ROOT, run)
        notes.extend([note] if note else [])
        return lambda subject, evidence: limits_at(preset, noise, subject, evidence)

    return limits_from


def progress(path: Path) -> "Callable[[str, Sequence[Case], int], AbstractContextManager[Listener]]":
    """Progress bars, one a pass."""
    from dsv4bench.cli.progress import RunProgress

    @contextmanager
    def watching(_: str, cases: Sequence[Case], rounds: int) -> "Iterator[Listener]":
        distinct = list({case.case_id: case for case in cases}.values())
        both = len(cases) // len(distinct)  # two sides of a revision share their ids
        with RunProgress(distinct, rounds * both, path) as bar:
            yield bar.see

    return watching
