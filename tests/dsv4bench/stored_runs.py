"""Stored runs made to order, for tests of what is said about them."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dsv4bench.results.environment import Environment, Gpu
from dsv4bench.results.manifest import Manifest, PlannedCase
from dsv4bench.results.row import Contract, MemoryFigures, Round, Row, Status, Timing
from dsv4bench.results.run_directory import Run, RunDirectory, write_run_file

H200 = Gpu(
    name="NVIDIA H200",
    uuid="GPU-0",
    sm_count=132,
    memory_bytes=150_000_000_000,
    power_limit_w=700.0,
    ecc=True,
    mig=False,
)  # fmt: skip
CONTRACT = Contract(timer="events", l2="warm", graph=False)


def timing(medians: Sequence[float], clocks: Sequence[float] | float | None = 1.98e9) -> Timing:
    clock_of = clocks if isinstance(clocks, Sequence) else [clocks] * len(medians)
    rounds = [
        Round(index=index, seed=index, iterations=20, median=value, min=value, mad=0.0, sm_clock_hz=clock)
        for index, (value, clock) in enumerate(zip(medians, clock_of, strict=True))
    ]
    return Timing(median=median(medians), min=min(medians), mad=0.0, rounds=rounds)


def row(name: str, medians: Sequence[float] = (), **changes: Any) -> Row:
    """A row called ``name``; without medians it needs a status and a reason."""
    contract: Contract = changes.pop("contract", CONTRACT)
    fields: dict[str, Any] = {
        "case_id": f"id-{name}",
        "pair_id": f"pair-{name}",
        "contract_id": contract.model_dump_json(),
        "label": name,
        "case": {"scenario_kind": "layer", "model": "v4-flash", "layer": "c4a"},
        "contract": contract,
        "status": Status.OK,
        "layer": timing(medians, changes.pop("clocks", 1.98e9)) if medians else None,
    }
    memory: int | None = changes.pop("engine_bytes", None)
    if memory is not None:
        fields["memory"] = MemoryFigures(ideal_bytes=1000, engine_bytes=memory)
    return Row(**fields | changes)


def run(rows: Sequence[Row], run_id: str = "run", day: int = 1, gpu: Gpu | None = H200, **changes: Any) -> Run:
    """A finished run, of 1 January plus ``day``."""
    environment = Environment(
        release="0.1.0", python="3.11", platform="Linux", cpu="a processor", cpu_count=2, gpu=gpu,
        torch=changes.pop("torch", "2.13.0"),
    )  # fmt: skip
    fields: dict[str, Any] = {
        "run_id": run_id,
        "side": "b",
        "scenario_name": "decode",
        "scenario": {"name": "decode"},
        "scenario_hash": "0" * 12,
        "argv": ["dsv4bench", "run", "decode"],
        "device": "cuda" if gpu else "cpu",
        "started": f"2026-01-{day:02d}T00:00:00+00:00",
        "finished": f"2026-01-{day:02d}T00:01:00+00:00",
        "environment": environment,
        "planned": [PlannedCase(case_id=item.case_id, label=item.label) for item in rows],
    }
    return Run(Path(run_id), Manifest(**fields | changes), tuple(rows))


def base_run(rows: Sequence[Row], run_id: str = "run", day: int = 1, **changes: Any) -> Run:
    """The side that a run made by ``run`` was interleaved with."""
    return run(rows, run_id, day, **{"side": "a"} | changes)


def around(value: float, count: int = 10, spread: float = 0.002) -> list[float]:
    """Medians of rounds that scatter evenly around a value."""
    return [value * (1 + spread * (2 * index / (count - 1) - 1)) for index in range(count)]


def shuffled(value: float, count: int = 10, spread: float = 0.002) -> list[float]:
    """The same in another order, so that two sides don't move together."""
    medians = around(value, count, spread)
    return medians[::2] + medians[1::2]


def write_directory(stored: Run, path: Path) -> Path:
    directory = RunDirectory.create(path, stored.manifest)
    for item in stored.rows:
        directory.append_row(item)
    return path


def write_file(stored: Run, path: Path) -> Path:
    write_run_file(stored, path)
    return path


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
