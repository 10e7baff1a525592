"""The run directory: a journal that a killed run leaves valid, and the one way to read results back.

``manifest.json`` is replaced atomically. ``cases.jsonl`` (a row a case), ``samples.jsonl`` (the raw samples of each
round) and ``telemetry.jsonl`` (the card's state around each round) only grow, a line at a time; a row is on the disk
before the next case starts.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import ValidationError

from dsv4bench.errors import IncomparableError, UserError
from dsv4bench.results.atomic import naming, write_text
from dsv4bench.results.manifest import Manifest
from dsv4bench.results.row import SCHEMA_VERSION, Row

MANIFEST, CASES, SAMPLES, TELEMETRY = "manifest.json", "cases.jsonl", "samples.jsonl", "telemetry.jsonl"


T = TypeVar("T", Manifest, Row)


@dataclass(frozen=True)
class Run:
    """A run read back.

    Attributes:
        path: the directory or file it was read from.
        manifest: its head.
        rows: the last row of each case, in the order the cases were first written.
    """

    path: Path
    manifest: Manifest
    rows: tuple[Row, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Ids of planned cases that have no row."""
        have = {row.case_id for row in self.rows}
        return tuple(case.case_id for case in self.manifest.planned if case.case_id not in have)


class RunDirectory:
    """A run directory open for writing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, manifest: Manifest) -> "RunDirectory":
        """Make a directory with a manifest and an empty journal.

        Raises:
            UserError: it holds a run already, or can't be written.
        """
        if (path / MANIFEST).exists():
            raise UserError(f"{path} already holds a run; continue it with --resume {path} or choose another --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
            directory = cls(path)
            directory.write_manifest(manifest)
            (path / CASES).touch()
        except OSError as error:
            raise UserError(f"can't write a run to {path}: {error.strerror}") from error
        return directory

    @classmethod
    def reopen(cls, path: Path) -> "RunDirectory":
        """Open an existing run to go on with it, dropping a line that a kill left unfinished."""
        for name in (CASES, SAMPLES, TELEMETRY):
            if (path / name).is_file():
                _drop_torn_line(path / name)
        return cls(path)

    def write_manifest(self, manifest: Manifest) -> None:
        """Replace the manifest in one step."""
        write_text(self.path / MANIFEST, manifest.model_dump_json(indent=2) + "\n")

    def append_row(self, row: Row) -> None:
        """Add a case's row; it is on the disk when this returns."""
        self._append(CASES, [row.model_dump_json()])

    def append_samples(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add raw samples, one record a line."""
        self._append(SAMPLES, [json.dumps(record, allow_nan=False) for record in records])

    def append_telemetry(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add the card's state around rounds, one record a line."""
        self._append(TELEMETRY, [json.dumps(record, allow_nan=False) for record in records])

    def _append(self, name: str, lines: list[str]) -> None:
        if not lines:
            return
        path = self.path / name
        with naming(path), path.open("a", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))
            _sync(file)


def read_run(path: str | Path, *, torn: bool = False) -> Run:
    """Read a run: its directory, or one JSON file with ``manifest`` and ``rows`` (a stored baseline).

    Args:
        path: directory or file.
        torn: accept a last line that a kill left unfinished (for resuming); otherwise it is an error.

    Raises:
        IncomparableError: nothing there, not JSON, truncated, or of a schema this release can't read.
    """
    path = Path(path)
    if path.is_dir():
        manifest = _validated(Manifest, _json(path / MANIFEST), path / MANIFEST)
        lines = _lines(path / CASES, torn)
        rows = [_validated(Row, record, where) for where, record in lines]
    else:
        record = _json(path)
        if not isinstance(record, dict) or not {"manifest", "rows"} <= record.keys():
            raise IncomparableError(
                f"{path} is not a stored run, a JSON object with manifest and rows; keep other files out of baselines"
            )
        manifest = _validated(Manifest, record["manifest"], path)
        rows = [_validated(Row, row, f"{path} row {n}") for n, row in enumerate(record["rows"], 1)]
    return Run(path, manifest, tuple({row.case_id: row for row in rows}.values()))


def write_run_file(run: Run, path: Path) -> None:
    """Store a run as one JSON file, the form of a committed baseline: a line a row, so that a diff is one of cases."""
    manifest = json.dumps(run.manifest.model_dump(mode="json"), indent=1, allow_nan=False)
    rows = [json.dumps(row.model_dump(mode="json"), separators=(",", ":"), allow_nan=False) for row in run.rows]
    write_text(path, f'{{"manifest": {manifest},\n"rows": [\n' + ",\n".join(rows) + "\n]}\n")


def new_run_path(parent: Path, scenario_name: str, now: datetime | None = None) -> Path:
    """``<parent>/<UTC time>-<scenario>``, numbered when two runs start in the same second."""
    stamp = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    path = parent / f"{stamp}-{scenario_name}"
    number = 2
    while path.exists():
        path = parent / f"{stamp}-{scenario_name}-{number}"
        number += 1
    return path


def _json(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        folder = path.parent if path.name == MANIFEST else path
        sides = [str(folder / side) for side in "ab" if (folder / side / MANIFEST).is_file()]
        stored = sorted(folder.glob("*.json"))
        hint = f"; it holds the sides of an A/B run: {' and '.join(sides)}" if sides else ""
        hint = hint or (f"; it holds stored runs: name one, such as {stored[-1]}" if stored else "")
        raise IncomparableError(f"no run at {folder}{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise IncomparableError(f"{path} can't be read: {error}") from error
    return _decoded(text, path)


def _decoded(text: str, path: Path, line: int = 1) -> Any:
    """JSON that begins on a line of a file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}:{line + error.lineno - 1}"
        raise IncomparableError(f"{where}: not valid JSON (truncated?): {error.msg}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists within lists
        raise IncomparableError(f"{path}:{line}: no result of a run: {error}") from error


def _lines(path: Path, torn: bool) -> list[tuple[str, Any]]:
    try:
        with path.open(encoding="utf-8", newline="\n") as file:  # a row may quote what else ends a line
            lines = list(file)
    except FileNotFoundError:
        raise IncomparableError(f"no {path.name} in {path.parent}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise IncomparableError(f"{path} can't be read: {error}") from error
    records = []
    for number, line in enumerate(lines, 1):
        if torn and number == len(lines) and not line.endswith("\n"):
            break
        records.append((f"{path}:{number}", _decoded(line, path, number)))
    return records


def _validated(model: type[T], record: Any, where: object) -> T:
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version != SCHEMA_VERSION:
        raise IncomparableError(
            f"{where}: schema version {version!r}, this release reads {SCHEMA_VERSION}; "
            "read it with the release that wrote it"
        )
    try:
        return model.model_validate(record)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise IncomparableError(f"{where}: {field + ': ' if field else ''}{first['msg']}") from error


def _drop_torn_line(path: Path) -> None:
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)
            _sync(file)


def _sync(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())
