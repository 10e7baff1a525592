"""``dsv4bench run``: measure a scenario."""

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4bench.analysis.roofline import Peaks
from dsv4bench.cli.cases import known_cases, unused_baselines
from dsv4bench.cli.console import output_console
from dsv4bench.cli.flags import from_here, given_flags, refuse_beside, refuse_without
from dsv4bench.cli.output import Format, print_records, print_run
from dsv4bench.errors import IncomparableError, MeasurementError, UserError
from dsv4bench.model.gpus import gpu_named, gpu_of_device
from dsv4bench.results.run_directory import MANIFEST, Run, new_run_path, read_run
from dsv4bench.scenario.case import Case
from dsv4bench.scenario.expand import expand, select
from dsv4bench.scenario.loader import load_scenario, scenario_of
from dsv4bench.scenario.schema import Scenario, require_stages

if TYPE_CHECKING:
    from dsv4bench.bench.execute import Event

RUNS = Path("reports") / "runs"


def run(
    call: typer.Context,
    scenario: Annotated[str | None, typer.Argument(help="Scenario file, or the name of a shipped scenario.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Only cases whose label contains this, or by id.")
    ] = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Instead of the scenario's providers: triton, or triton,topk=vllm."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Run directory; default reports/runs/<time>-<scenario>.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the scenario: timing.rounds=20."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Read a layer's weights from a checkpoint's safetensors.")
    ] = None,
    layer: Annotated[int | None, typer.Option(min=0, metavar="N", help="Which layer of --weights.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the cases and stop.")] = False,
    roofline: Annotated[
        bool, typer.Option("--roofline", help="With --dry-run: bytes, FLOPs and least time of every stage.")
    ] = False,
    gpu: Annotated[
        str | None, typer.Option(help="With --roofline: the card, such as b200 (see the GPU table).")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Finish what a run is missing.")] = None,
    check: Annotated[bool, typer.Option(help="Compare outputs with the reference around the timing.")] = True,
    stages: Annotated[bool, typer.Option("--stages", help="Print every stage and launch gaps as well.")] = False,
    format: Annotated[Format, typer.Option(help="How to print the results.")] = Format.TABLE,
) -> None:
    """Measure a scenario: rows go to the run directory, the table to stdout, progress to stderr.

    Exit code 0 when every case is ok, unsupported, oom or skipped and at least one is ok; 5 otherwise; 2 for wrong
    input; 130 on Ctrl-C, which leaves a run that --resume finishes.
    """
    given = given_flags(call)
    if resume is not None:
        refuse_beside("--resume", given, given.keys() - {"resume", "check", "stages", "format"})
        _report(_resumed(resume, check), format, stages)
        return
    from dsv4bench.bench.device import parse_device

    parse_device(device)
    if scenario is None:
        raise UserError("which scenario? `dsv4bench list scenarios` shows those that ship")
    read = weights_override(weights, layer)
    resolved = load_scenario(scenario, [*(overrides or ()), *provider_override(provider), *read])
    cases = selected_cases(resolved, only or [])
    for sentence in unused_baselines(resolved, cases):
        typer.echo(f"note: {sentence}", err=True)
    if not dry_run:
        refuse_without("--dry-run", given, {"roofline", "gpu"})  # a real run stores floors anyway
    if dry_run:
        _print_plan(cases, format, roofline, gpu)
        return
    words = ["dsv4bench", "run", scenario, *_repeated("--set", overrides), *_repeated("--provider", provider)]
    if weights is not None:
        words += ["--weights", str(weights), "--layer", str(layer)]
    if device != "auto":
        words += ["--device", device]
    path = out or new_run_path(RUNS, resolved.name)
    _report(_measured(resolved, cases, device, words, path, check), format, stages)


def selected_cases(scenario: Scenario, only: Sequence[str]) -> list[Case]:
    """Cases of a scenario by ``--only``.

    Raises:
        MeasurementError: none is selected.
        UserError: as of ``known_cases``.
    """
    cases = known_cases(scenario)
    chosen = select(cases, list(only))
    if not chosen:
        raise MeasurementError(f"--only {' '.join(only)} selects none of the {len(cases)} cases; --dry-run lists them")
    return chosen


def weights_override(weights: Path | None, layer: int | None) -> list[str]:
    """``--weights`` and ``--layer`` as overrides of the scenario's ``weights``."""
    if weights is None and layer is None:
        return []
    if weights is None or layer is None:
        raise UserError("--weights DIR and --layer N go together")
    if not weights.is_dir():
        raise UserError(f"--weights {weights}: no such directory")
    if not any(weights.glob("*.safetensors")):
        raise UserError(f"--weights {weights}: no .safetensors file in it")
    return [f"weights.checkpoint={json.dumps(str(weights))}", f"weights.layer={layer}"]


def provider_override(providers: Sequence[str] | None) -> list[str]:
    """``--provider`` texts as an override of the scenario's ``providers``."""
    if not providers:
        return []
    entries: list[str | dict[str, str]] = []
    for text in providers:
        default, *exceptions = text.split(",")
        pairs = [word.partition("=") for word in exceptions]
        if not default or any(not stage or not name for stage, _, name in pairs):
            raise UserError(f"--provider {text}: expected NAME or NAME,STAGE=NAME,…")
        stages = [stage for stage, _, _ in pairs]
        if twice := [stage for stage in dict.fromkeys(stages) if stages.count(stage) > 1]:
            raise UserError(f"--provider {text}: stage {twice[0]} is there twice")
        try:
            require_stages(stages)
        except ValueError as error:
            raise UserError(f"--provider {text}: {error}") from error
        entries.append({"default": default, **{stage: name for stage, _, name in pairs}} if pairs else default)
    return [f"providers={json.dumps(entries)}"]


def _measured(
    scenario: Scenario, cases: Sequence[Case], device: str, words: Sequence[str], path: Path, check: bool
) -> Run:
    from dsv4bench.bench.session import Request, start_run
    from dsv4bench.cli.progress import RunProgress

    request = Request(scenario, cases, device, from_here(), from_here(words), check)
    with RunProgress(cases, scenario.timing.rounds, path) as bar, _resumable(path, bar.see) as see:
        return start_run(request, path, see)


def _resumed(path: Path, check: bool) -> Run:
    from dsv4bench.bench.session import resume_run
    from dsv4bench.cli.progress import RunProgress

    run = read_run(path, torn=True)
    try:
        scenario = scenario_of(run.manifest.scenario, f"{path / MANIFEST}: scenario")
    except UserError as error:
        raise IncomparableError(str(error)) from error
    missing = [case for case in expand(scenario) if case.case_id in run.missing]
    with RunProgress(missing, scenario.timing.rounds, path) as bar, _resumable(path, bar.see) as see:
        return resume_run(path, see, check=check)


@contextmanager
def _resumable(path: Path, see: "Callable[[Event], None]") -> "Iterator[Callable[[Event], None]]":
    """Turn Ctrl-C into exit code 130 and the command that goes on, whatever was running when it came.

    Python drops an exception that a signal raises within a destructor or a callback of the import machinery; so the
    signal is remembered, and raised again with the next event. SIGTERM is dealt with alike.
    """
    end: BaseException | None = None

    def remember(number: int, _: object) -> None:
        nonlocal end
        end = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        raise end

    def listen(event: "Event") -> None:
        if end is not None:
            raise end
        see(event)

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield listen
    except (KeyboardInterrupt, SystemExit):
        if (path / MANIFEST).exists():
            typer.echo(f"continue with: dsv4bench run --resume {path}", err=True)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(run: Run, format: Format, stages: bool) -> None:
    """Print a run and leave with its exit code."""
    from dsv4bench.bench.session import exit_code

    print_run(run, format, stages)
    if code := exit_code(run.rows):
        raise typer.Exit(code)


def _print_plan(cases: Sequence[Case], format: Format, roofline: bool, gpu: str | None) -> None:
    """The cases, or with ``roofline`` the floors of their stages on a card."""
    from dsv4bench.report.plan import SHOWN, floor_records, floor_table, plan_records

    if not roofline and gpu is None:
        print_records(plan_records(cases), format, SHOWN)
        return
    peaks = _peaks(gpu)
    records = floor_records(cases, peaks)
    if format is Format.TABLE:
        output_console().print(floor_table(records))
    else:
        print_records(records, format, SHOWN)
    typer.echo(
        f"floors over the {peaks.source}: {peaks.bandwidth / 1e12:.2f} TB/s, "
        f"{peaks.bf16_flops / 1e12:.0f} bf16 and {peaks.fp8_flops / 1e12:.0f} fp8 TFLOP/s",
        err=True,
    )


def _peaks(gpu: str | None) -> Peaks:
    """Datasheet of the card named, or of the one that is here."""
    if gpu is not None:
        return Peaks.datasheet(gpu_named(gpu))
    from dsv4bench.bench.telemetry import open_sensor

    sensor, reason = open_sensor()
    card = gpu_of_device(sensor.describe().name) if sensor else None
    if card is None:
        raise UserError(f"--roofline needs --gpu NAME: {reason or 'the card here is not in the GPU table'}")
    return Peaks.datasheet(card)


def _repeated(flag: str, values: Sequence[str] | None) -> list[str]:
    return [word for value in values or () for word in (flag, value)]
