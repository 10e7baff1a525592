"""A run from its first line to its last: probe, manifest, rows as they come, and a directory that is always valid."""

import os
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from dsv4bench.analysis.pairing import VERSIONS
from dsv4bench.bench.contract import beyond_device, check_timing
from dsv4bench.bench.device import Device
from dsv4bench.bench.environment import describe_environment
from dsv4bench.bench.execute import Event, Executor
from dsv4bench.bench.exposure import with_exposure
from dsv4bench.bench.footprint import memory_of
from dsv4bench.bench.messages import Done, Found, Measured, Traced
from dsv4bench.bench.roofline import with_floors
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.telemetry import all_tenants, open_sensor
from dsv4bench.errors import MeasurementError, UserError
from dsv4bench.results.environment import Environment
from dsv4bench.results.manifest import Manifest, PlannedCase, scenario_digest
from dsv4bench.results.row import Row, Status
from dsv4bench.results.run_directory import MANIFEST, Run, RunDirectory, read_run
from dsv4bench.scenario.case import Case
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.schema import Scenario

WORKER_LOG = "worker.log"
OUTSIDE = "starting workers and journal"
"""Purpose under which the time outside the workers' own books stands."""
NO_CHECK = "--no-check"
"""Flag of `run` and `ab` that leaves out the comparison with the reference."""
BENIGN = frozenset({Status.OK, Status.UNSUPPORTED, Status.OOM, Status.SKIPPED})
"""Statuses that don't make a run fail."""

Listener = Callable[[Event], None]


@dataclass(frozen=True)
class Request:
    """What to run.

    Attributes:
        scenario: resolved, overrides applied.
        cases: the selected ones.
        device: the ``--device`` text.
        argv: the command line, for the manifest.
        repro: the words that run the scenario again, without ``--only`` and ``--no-check``.
        check: compare outputs with the reference around the timing.
    """

    scenario: Scenario
    cases: Sequence[Case]
    device: str = "auto"
    argv: Sequence[str] = ()
    repro: Sequence[str] = ()
    check: bool = True


def start_run(request: Request, path: Path, listen: Listener) -> Run:
    """Measure a request into a new run directory.

    Raises:
        UserError: no such device, a timing that can't be honest there, or a directory that holds a run.
        MeasurementError: no case selected, or no worker comes up.
        KeyboardInterrupt: passed on, after the directory has been left valid.
    """
    if not request.cases:
        raise MeasurementError("no case selected; `--dry-run` without --only lists them")
    if (path / MANIFEST).exists():
        raise UserError(f"{path} already holds a run; continue it with --resume {path} or choose another --out")
    began = time.monotonic()
    _check_timings(request)
    with _executor(path) as executor:
        tenants = all_tenants()
        found = _probe(executor, request)
        settings = Settings(request.scenario.timing, device_of(found), request.check)
        for case in request.cases:
            settings.contract(case)  # refuses what can't be measured honestly before anything runs
        sensor = open_sensor(settings.device.uuid)[0] if settings.device.uuid else None
        environment = describe_environment(settings.device, sensor, tenants, path)
        manifest = make_manifest(request, new_run_id(path), found, environment)
        directory = RunDirectory.create(path, manifest)
        _measure(directory, manifest, executor, settings, request, began, listen)
    return read_run(path)


def resume_run(path: Path, listen: Listener, *, check: bool = True) -> Run:
    """Measure the planned cases of a run that have no row yet.

    Raises:
        IncomparableError: the directory holds no readable run.
        UserError: the scenario no longer yields a planned case, this is another machine or other code, or the run is a
            side of an A/B run, whose rounds mean nothing without the other's.
    """
    began = time.monotonic()
    run = read_run(path, torn=True)
    if run.manifest.side is not None and run.missing:
        raise UserError(f"{path} is a side of an A/B run, and those are measured together; start `ab` anew")
    cases = {case.case_id: case for case in expand(Scenario.model_validate(run.manifest.scenario))}
    if gone := [case_id for case_id in run.missing if case_id not in cases]:
        raise UserError(f"{path}: its scenario no longer yields the cases {', '.join(gone)}; start a new run")
    missing = [cases[case_id] for case_id in run.missing]
    directory = RunDirectory.reopen(path)
    if not missing:
        return read_run(path)
    scenario = Scenario.model_validate(run.manifest.scenario)
    request = Request(scenario, missing, run.manifest.device, repro=run.manifest.repro, check=check)
    with _executor(path) as executor:
        tenants = all_tenants()
        found = _probe(executor, request)
        settings = Settings(request.scenario.timing, device_of(found), check)
        sensor = open_sensor(settings.device.uuid)[0] if settings.device.uuid else None
        _require_same_machine(run, describe_environment(settings.device, sensor, tenants, path))
        _measure(directory, run.manifest, executor, settings, request, began, listen)
    return read_run(path)


def exit_code(rows: Sequence[Row]) -> int:
    """0 when every row is ok, unsupported, oom or skipped and at least one is ok; else 5."""
    statuses = {row.status for row in rows}
    return 0 if Status.OK in statuses and statuses <= BENIGN else MeasurementError.exit_code


def _check_timings(request: Request) -> None:
    """Refuse a timing that the device named can't have, before a worker is started to find the device.

    Raises:
        UserError: it says what would fit.
    """
    device = request.device.partition(":")[0]
    if device in ("cpu", "cuda") and request.scenario.kind != "memory":
        for graph in {case.execution.graph for case in request.cases}:
            check_timing(request.scenario.timing, device, graph)


def _probe(executor: Executor, request: Request) -> Found:
    if request.scenario.kind == "memory":
        return Found(Device("cpu"))
    if find_spec("torch") is None:
        raise UserError("timing needs torch: pip install '.[torch]' in a checkout of dsv4bench")
    return executor.probe(request.device, calibrate=True)


def _measure(
    directory: RunDirectory,
    manifest: Manifest,
    executor: Executor,
    settings: Settings,
    request: Request,
    began: float,
    listen: Listener,
) -> None:
    """Run the cases, journal each row before the next case starts, and close the books whatever happens.

    They are closed after every comparison as well, so that a run that is killed loses the time of one.
    """
    by_id = {case.case_id: case for case in request.cases}
    rows: dict[str, Row] = {}
    spent = dict(manifest.spent)

    def close_books(**changes: object) -> None:
        in_workers = sum(spent.values()) - sum(manifest.spent.values())
        outside = spent.get(OUTSIDE, 0.0) + max(time.monotonic() - began - in_workers, 0.0)
        directory.write_manifest(manifest.model_copy(update=changes | {"spent": spent | {OUTSIDE: outside}}))

    interrupted = True
    try:
        for event in _events(executor, settings, request.cases):
            if isinstance(event, Measured):
                row = complete_row(event, by_id[event.row.case_id], settings, manifest, request.repro)
                directory.append_samples(event.samples)
                directory.append_telemetry(event.telemetry)
                directory.append_row(row)
                event, rows[row.case_id] = Measured(row), row
            elif isinstance(event, Traced) and rows[event.case_id].layer is not None:
                directory.append_row(with_gaps(rows[event.case_id], event))
            elif isinstance(event, Done):
                for purpose, seconds in event.spent.items():
                    spent[purpose] = spent.get(purpose, 0.0) + seconds
                close_books(finished=None, interrupted=False)
            listen(event)
        interrupted = False
    finally:
        executor.close()
        close_books(finished=now(), interrupted=interrupted)


def _events(executor: Executor, settings: Settings, cases: Sequence[Case]) -> Iterator[Event]:
    """What happens to the cases, first to those whose rows need no worker."""
    if cases[0].scenario_kind == "memory":
        yield from (Measured(settings.blank(case)) for case in cases)
        return
    able = []
    for case in cases:
        if reason := beyond_device(case, settings.device):
            yield Measured(settings.failed(case, Status.UNSUPPORTED, reason))
        else:
            able.append(case)
    yield from executor.run(able, settings)


def complete_row(found: Measured, case: Case, settings: Settings, manifest: Manifest, repro: Sequence[str]) -> Row:
    """What the parent knows: floors, whether the rates are possible, memory, and how to run it again.

    Bytes that are predicted from the case stand in every row, those that were measured in one that is ok.
    """
    words = (*repeating(repro, settings.check), "--only", case.case_id) if repro else ()
    row = with_exposure(with_floors(found.row, case, settings, manifest.ceilings), case)
    measured = found.kv_bytes if row.status is Status.OK else None
    memory = memory_of(case).model_copy(update={"measured_bytes": measured})
    row = row.model_copy(update={"memory": memory, "repro": shlex.join(words)})
    if row.status is not Status.OK:
        return row
    floor = manifest.timer_floor.get(row.contract.timer)
    if row.layer is not None and floor is not None:
        share = floor / max(row.contract.iterations_per_graph, 1) / row.layer.median
        row.extra["timer_share"] = share
        if share > 0.05:
            row.warnings.append(f"reading the {row.contract.timer} timer is {share:.0%} of this time")
    return row


def repeating(repro: Sequence[str], check: bool) -> list[str]:
    """The words of a command that runs a scenario again, checked or not as this run is."""
    words = [word for word in repro if word != NO_CHECK]
    return words if check or not words else [*words, NO_CHECK]


def with_gaps(row: Row, traced: Traced) -> Row:
    """A row as it is written again once its launch gaps are known, or known to be missing (``extra["no_gaps"]``)."""
    if row.layer is None or traced.gaps is None:
        return row.model_copy(update={"extra": row.extra | {"no_gaps": traced.reason}})
    return row.model_copy(update={"layer": row.layer.model_copy(update={"gaps": traced.gaps})})


def make_manifest(request: Request, run_id: str, found: Found, environment: Environment) -> Manifest:
    """The head of a run that starts now."""
    scenario = request.scenario.model_dump(mode="json", exclude_none=True)
    warnings = [
        f"another process is on the GPU: {process.name}"
        + (f", {process.memory_bytes / 2**20:.0f} MiB" if process.memory_bytes else "")
        for process in environment.processes
    ]
    return Manifest(
        run_id=run_id,
        scenario_name=request.scenario.name,
        scenario=scenario,
        scenario_hash=scenario_digest(scenario),
        argv=list(request.argv),
        repro=repeating(request.repro, request.check),
        device=device_of(found).torch_name,
        started=now(),
        environment=environment,
        ceilings=found.ceilings,
        timer_floor=found.timer_floor,
        calibration=found.calibration,
        planned=[PlannedCase(case_id=case.case_id, label=case.label) for case in request.cases],
        warnings=warnings,
    )


def _require_same_machine(run: Run, here: Environment) -> None:
    """Refuse to go on with a run that was begun on another machine, with other software or other code.

    Raises:
        UserError: it names all that differs.
    """

    def known(environment: Environment) -> dict[str, str | None]:
        gpu = environment.gpu
        return {
            "GPU": gpu and (gpu.uuid or gpu.name),
            "processor": environment.cpu,
            **{"dsv4bench" if name == "release" else name: getattr(environment, name) for name in VERSIONS},
            "commit": environment.git_sha,
            "uncommitted changes": environment.git_dirty,
        }

    then, now = known(run.manifest.environment), known(here)
    differing = [what for what in then if then[what] != now[what]]
    if differences := [f"{what} {then[what] or 'none'} (here {now[what] or 'none'})" for what in differing]:
        raise UserError(f"{run.path} was begun with {', '.join(differences)}; start a new run")


@contextmanager
def _executor(path: Path) -> Iterator[Executor]:
    """An executor that logs into the run directory; a directory that came to hold no run is removed again."""
    existed = path.exists()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"can't write a run to {path}: {error.strerror}") from error
    executor = Executor(path / WORKER_LOG)
    try:
        yield executor
    finally:
        executor.close()
        if not (path / MANIFEST).exists():
            (path / WORKER_LOG).unlink(missing_ok=True)
            if not existed and not any(path.iterdir()):
                os.rmdir(path)


def new_run_id(path: Path) -> str:
    """An id that no other run has, even one in a folder of the same name."""
    return f"{path.name}-{secrets.token_hex(4)}"


def device_of(found: Found) -> Device:
    """The device of a probe that found one."""
    assert found.device is not None
    return found.device


def now() -> str:
    """The time of day, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
