"""Tables of stream schedules, of launch gaps and of whole models, as flat records."""

from collections.abc import Sequence

from rich.table import Table

from dsv4bench.analysis.model_step import model_steps, speedup_over
from dsv4bench.analysis.overlap import gains
from dsv4bench.report.quantity import change, seconds, share
from dsv4bench.report.records import Record, Shown, records_table
from dsv4bench.report.run_table import short_labels
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
    "span": seconds,
    "busy": seconds,
    "idle": seconds,
    "share": share,
    "largest gap": seconds,
    "after": lambda name: name if len(name) <= NAME else name[: NAME - 1] + "…",
}
"""How the columns below are printed."""
NAME = 40
"""Characters of a kernel's name that are shown."""


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


def gap_records(rows: Sequence[Row]) -> list[Record]:
    """Launches and launch gaps of each layer that was traced: one pass, eagerly as launched or as its graph."""
    labels = short_labels(rows)
    return [
        {
            "case": labels[row.case_id],
            "provider": row.case["provider"],
            "graph": "yes" if row.case["graph"] else "no",
            "launches": gaps.launches,
            "span": gaps.span,
            "busy": gaps.busy,
            "idle": gaps.idle,
            "share": gaps.idle / gaps.span,
            "largest gap": gaps.largest,
            "after": gaps.after or None,
        }
        for row in rows
        if row.layer and (gaps := row.layer.gaps)
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


def further_tables(run: Run, *, stages: bool = False, width: int | None = None) -> list[Table]:
    """What a run says beyond its rows: gains of its schedules, steps of its models; with ``stages``, launch gaps.

    Args:
        run: what to show.
        stages: with launch gaps.
        width: columns of the terminal.
    """
    baseline = (run.manifest.scenario.get("baseline") or {}).get("model")
    gaps = gap_records(run.rows) if stages else []
    found = (gaps, gain_records(run.rows), model_records(run.rows, baseline))
    return [records_table(records, SHOWN, width) for records in found if records]
