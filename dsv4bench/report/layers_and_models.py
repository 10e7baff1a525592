"""Tables of stream schedules and of whole models, as flat records."""

from collections.abc import Sequence

from rich.table import Table

from dsv4bench.analysis.model_step import model_steps, speedup_over
from dsv4bench.analysis.overlap import gains
from dsv4bench.report.quantity import change, seconds, share
from dsv4bench.report.records import Record, Shown, records_table
from dsv4bench.results.row import Row
from dsv4bench.results.run_directory import Run
from dsv4bench.scenario.sizes import format_bytes, format_tokens

SHOWN: Shown = {
    "context": format_tokens,
    "serial": seconds,
    "layer": seconds,
    "gain": change,
    "critical path": change,
    "noise": share,
    "attention per step": seconds,
    "KV": format_bytes,
    "speedup": lambda value: f"{value:.2f}×",
}
"""How the columns below are printed."""


def gain_records(rows: Sequence[Row]) -> list[Record]:
    """What each schedule gains over serial execution of the same layer, beside what its critical path would allow."""
    return [
        {
            "model": gain.case["model"],
            "kind": gain.case["layer"],
            "batch": gain.case["batch"],
            "context": gain.case["context"],
            "provider": gain.case["provider"],
            "streams": gain.case["streams"],
            "serial": gain.serial,
            "layer": gain.seconds,
            "gain": gain.gain,
            "critical path": gain.most,
            "noise": gain.noise,
        }
        for gain in gains(rows)
    ]


def model_records(rows: Sequence[Row], baseline: str | None) -> list[Record]:
    """Attention time per step of each model, weighted over boundary steps where measured, and KV bytes."""
    steps = model_steps(rows)
    faster = {id(step): factor for step, factor in speedup_over(steps, baseline)} if baseline else {}
    return [
        {
            "model": step.model,
            "phase": step.case["phase"],
            "batch": step.case["batch"],
            "context": step.context,
            "query": step.case["query_len"],
            "boundary": "weighted" if step.weighted else step.case["boundary"],
            "provider": step.case["provider"],
            "layers": step.case["layers"],
            "copies": step.case["copies"],
            "attention per step": step.seconds,
            "KV": step.ideal_bytes,
            "speedup": faster.get(id(step)),
        }
        for step in steps
    ]


def further_tables(run: Run) -> list[Table]:
    """What a run says beyond its rows: gains of its schedules, steps of its models; empty for neither."""
    baseline = (run.manifest.scenario.get("baseline") or {}).get("model")
    found = (gain_records(run.rows), model_records(run.rows, baseline))
    return [records_table(records, SHOWN) for records in found if records]
