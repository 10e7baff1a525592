"""Stored baselines: a JSON file a run, at ``<root>/<gpu>/<scenario>/<UTC time>.json``, reviewed as ordinary commits."""

from datetime import datetime
from pathlib import Path

from dsv4bench.errors import IncomparableError, MeasurementError, UserError
from dsv4bench.results.manifest import Manifest
from dsv4bench.results.row import Status
from dsv4bench.results.run_directory import MANIFEST, Run, read_run, write_run_file

ROOT = Path("reports/baselines")
"""Where baselines are kept, relative to the working directory."""

SELFTEST = "selftest.json"
"""Name of the machine's noise, stored beside the baselines of a scenario."""

STORABLE = (Status.OK, Status.UNSUPPORTED, Status.OOM, Status.SKIPPED)
"""Statuses of rows that a baseline may hold."""


def machine_slug(manifest: Manifest) -> str:
    """Folder of a machine: the GPU's name (``h200``, ``h100-80gb-hbm3``), or ``cpu``."""
    gpu = manifest.environment.gpu
    return gpu.slug if gpu is not None and manifest.device != "cpu" else "cpu"


def folder_of(root: Path, manifest: Manifest) -> Path:
    """Where the baselines of a run's machine and scenario are."""
    return root / machine_slug(manifest) / manifest.scenario_name


def store(run: Run, root: Path) -> Path:
    """Store a run as a baseline.

    Returns:
        The file written.

    Raises:
        MeasurementError: a row of the run failed, or nothing in it was measured.
        UserError: the run is unfinished, or is stored already.
    """
    if run.manifest.finished is None or run.missing:
        raise UserError(f"{run.path} is unfinished; finish it with --resume before storing it as a baseline")
    for row in run.rows:
        if row.status not in STORABLE:
            raise MeasurementError(f"{run.path} is no baseline: {row.label} is {row.status.value}, {row.reason}")
    if all(row.status is not Status.OK for row in run.rows):
        raise MeasurementError(f"{run.path} is no baseline: nothing in it was measured")
    folder = folder_of(root, run.manifest)
    for stored in stored_runs(folder) if folder.is_dir() else []:
        if _same(stored.manifest, run.manifest):
            raise UserError(f"{run.path} is stored already: {stored.path}")
    path = _free(folder / f"{datetime.fromisoformat(run.manifest.started):%Y%m%dT%H%M%SZ}.json")
    write_run_file(run, path)
    return path


def stored_runs(folder: Path) -> list[Run]:
    """The baselines in a folder, oldest first.

    Raises:
        IncomparableError: one of them can't be read.
    """
    files = sorted(path for path in folder.glob("*.json") if path.name != SELFTEST)
    return sorted((read_run(path) for path in files), key=lambda run: run.manifest.started)


def baseline_folders(root: Path) -> list[Path]:
    """Folders under a root that hold baselines, ``<gpu>/<scenario>`` each."""
    return sorted({path.parent for path in root.glob("*/*/*.json") if path.name != SELFTEST})


def find_base(path: Path, manifest: Manifest) -> list[Run]:
    """What a run is held against: a run directory, a stored file, a folder of stored files, or the root of them all.

    Args:
        path: any of these.
        manifest: of the run under test; says which machine and scenario to look for under a root.

    Returns:
        Runs, oldest first; at least one.

    Raises:
        IncomparableError: nothing there but the run itself, or it can't be read.
    """
    if path.is_file() or (path / MANIFEST).is_file():
        if _same((run := read_run(path)).manifest, manifest):
            raise IncomparableError(f"{path} is the run itself; name another as its baseline")
        return [run]
    slug, scenario = machine_slug(manifest), manifest.scenario_name
    itself = ""
    for folder in (path, path / scenario, path / slug / scenario):
        runs = stored_runs(folder) if folder.is_dir() else []
        if others := [run for run in runs if not _same(run.manifest, manifest)]:
            return others
        itself = " but the run itself" if runs else itself
    raise IncomparableError(
        f"no baseline{itself} for {scenario} on {slug} at {path}; `dsv4bench baseline add RUN` stores one"
    )


def _same(one: Manifest, other: Manifest) -> bool:
    """Whether both are of the same run, and the same side of it."""
    return (one.run_id, one.side) == (other.run_id, other.side)


def _free(path: Path) -> Path:
    number = 2
    candidate = path
    while candidate.exists():
        candidate = path.with_stem(f"{path.stem}-{number}")
        number += 1
    return candidate
