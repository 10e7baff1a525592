"""``dsv4bench verify``: the conformance suite against a provider."""

import json
import re
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsv4bench.cli.flags import given_flags, refuse_beside
from dsv4bench.cli.output import Format, print_records
from dsv4bench.errors import MeasurementError, UserError
from dsv4bench.model.shape import LayerKind
from dsv4bench.providers.base import Need, Provider, support_of
from dsv4bench.providers.registry import load_provider, misspelt_stages, require_known
from dsv4bench.scenario.case import CachePrecision

if TYPE_CHECKING:
    from dsv4bench.verify.suite import Outcome, Row
    from dsv4bench.verify.trial import Setting

CACHES = ("fp8+fp8", "bf16+bf16", "fp32+fp32")
"""The suite runs with the first of these that the provider has."""
OTHER_CACHES = ("fp8+fp4", "bf16+bf16", "fp32+fp32")
"""The first row runs with each of these as well."""
SHOWN = {name: lambda value: f"{value:.4g}" for name in ("snr_db", "recall", "lse_error", "lse_error_fp32")} | {
    name: lambda value: f"{value:.6f}" for name in ("cosine", "selection_recall")
}
FAILURES = Path("verify-failures")
MOST_REPLAYS = 3
"""Failures whose command is printed; all are saved."""


def verify(
    call: typer.Context,
    provider: Annotated[str, typer.Option(help="Name, or path/to/file.py:Class.")] = "reference",
    layer: Annotated[list[LayerKind] | None, typer.Option(help="Only these layer kinds.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="ROW", help="Only rows of this number or name, or about this stage.")
    ] = None,
    cache: Annotated[
        list[str] | None, typer.Option(metavar="MAIN+INDEXER", help="Cache precisions, such as fp8+fp4.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    quick: Annotated[bool, typer.Option("--quick", help="Smaller inputs: under half a minute on a CPU.")] = False,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="DEVIATION", help="Let a documented deviation pass, such as scale-floor or bf16-keys."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of everything random.")] = 0,
    replay: Annotated[Path | None, typer.Option(help="Try a failure again that an earlier run saved.")] = None,
    save: Annotated[Path, typer.Option(help="Folder for the inputs of failures, a subfolder per provider.")] = FAILURES,
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Try so many rows at once, in a process each.")] = 1,
    timeout: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="SECONDS", help="A row that takes longer is killed and fails.")
    ] = 600,
    format: Annotated[Format, typer.Option(help="How to print the results.")] = Format.TABLE,
) -> None:
    """Check a provider's stages against the reference on everything that implementations get wrong in the field.

    Rows whose stages the provider lacks are skipped; stages it lacks within a row are filled in by the reference. Ends
    with exit code 5 if anything is wrong, and saves the failing inputs for --replay.
    """
    from dsv4bench.bench.device import find_device, parse_device, use_device

    if "," in provider and "=" in provider:
        raise UserError(f"--provider {provider}: verify takes one provider and fills in stages that it lacks by itself")
    require_known(provider)  # this much before torch, which takes seconds to import
    parse_device(device)
    for label in cache or []:
        _precision(label)
    if replay is not None:
        given = given_flags(call)
        refuse_beside("--replay", given, given.keys() - {"replay", "provider", "device", "format"})
        if not replay.is_file():
            raise UserError(f"--replay {replay}: no such file")
    from dsv4bench.bench.conformance import attempt_all
    from dsv4bench.bench.messages import Try
    from dsv4bench.verify.replay import replay as replay_file
    from dsv4bench.verify.replay import require_writable
    from dsv4bench.verify.suite import select_rows

    allowed = _deviations(allow or [])
    where = find_device(device).torch_name
    use_device(where)
    tried, figures = load_provider(provider), {}
    for method, stage in misspelt_stages(tried) if provider.rpartition(":")[0].endswith(".py") else ():
        typer.echo(f"{provider}: its method {method} is no stage and is never called; did you mean {stage}?", err=True)
    if replay is not None:
        outcomes, finished = [replay_file(replay, tried, device=None if device == "auto" else where)], True
    else:
        require_writable(save)
        kinds = layer or list(LayerKind)
        _require_stages_of(kinds, only or [])
        plan = _plan(tried, select_rows(only or []), kinds, cache or [], where, quick, seed)
        folder = save / re.sub(r"[^\w.-]+", "-", provider).strip("-")
        tasks = [Try(provider, row.number, setting, allowed, folder, jobs) for row, setting in plan]
        outcomes, finished = _collect(attempt_all(tasks, jobs, timeout), plan)
        if finished:
            figures = _against_fp32(provider, outcomes, jobs, timeout)
    if not finished and not outcomes:
        raise KeyboardInterrupt
    _print(outcomes, figures, format)
    _conclude(outcomes, provider, finished=finished)


def _require_stages_of(kinds: Sequence[LayerKind], words: Sequence[str]) -> None:
    """Refuse a stage of ``--only`` that none of the layer kinds has."""
    from dsv4bench.model.stage import STAGE_NAMES, STAGES

    have = {stage.name for kind in kinds for stage in STAGES[kind]}
    for word in words:
        if word in STAGE_NAMES and word not in have:
            raise UserError(f"--only {word}: layers of kind {', '.join(kinds)} have no such stage")


def _deviations(names: Sequence[str]) -> frozenset[str]:
    """The deviations of ``--allow``.

    Raises:
        UserError: one that isn't documented.
    """
    from dsv4bench.verify.quantised import DEVIATIONS

    for name in names:
        if name not in DEVIATIONS:
            raise UserError(f"--allow {name}: no such deviation; the known ones are {', '.join(DEVIATIONS)}")
    return frozenset(names)


def _plan(
    provider: Provider,
    rows: "Sequence[Row]",
    kinds: Sequence[LayerKind],
    caches: Sequence[str],
    device: str,
    quick: bool,
    seed: int,
) -> "list[tuple[Row, Setting]]":
    """Rows and settings to try: all of them with one cache precision, the first row with the others too."""
    from dsv4bench.verify.trial import Setting

    def settings(label: str, row: "Row") -> "list[tuple[Row, Setting]]":
        return [(row, Setting(k, _precision(label), device, quick, seed)) for k in kinds if k in row.kinds]

    if caches:
        return [pair for label in caches for row in rows for pair in settings(label, row)]
    main = next((label for label in CACHES if _supported(provider, label, kinds, device)), CACHES[0])
    plan = [pair for row in rows for pair in settings(main, row)]
    for row in rows[:1]:
        for label in OTHER_CACHES:
            if row.number == 1 and not quick and label != main and _supported(provider, label, kinds, device):
                plan += settings(label, row)
    return plan


def _precision(label: str) -> CachePrecision:
    main, plus, indexer = label.partition("+")
    if not plus or main not in ("fp8", "bf16", "fp32") or indexer not in ("fp8", "fp4", "bf16", "fp32"):
        raise UserError(f"--cache {label}: expected MAIN+INDEXER, such as fp8+fp8, fp8+fp4 or bf16+bf16")
    return CachePrecision(main, indexer)


def _supported(provider: Provider, label: str, kinds: Sequence[LayerKind], device: str) -> bool:
    from dsv4bench.verify.suite import need_of
    from dsv4bench.verify.trial import Setting

    needs: list[Need] = [need_of(provider, Setting(kind, _precision(label), device)) for kind in kinds]
    return any(need.stages and support_of(provider, need).ok for need in needs)


def _collect(found: "Generator[Outcome]", plan: "Sequence[tuple[Row, Setting]]") -> "tuple[list[Outcome], bool]":
    """Outcomes in the order of the plan, and whether they are all: Ctrl-C ends it early and loses nothing."""
    outcomes: list[Outcome] = []
    finished = True
    try:
        with closing(found):  # so that no process outlives an interruption
            for outcome in found:
                outcomes.append(outcome)
                if not _of_others(outcome):
                    row, setting = outcome.row, outcome.setting
                    name = f"{row.number:>3} {row.name} {setting.kind} {setting.precision.label}"
                    typer.echo(f"{name}: {outcome.status} ({outcome.seconds:.1f} s)", err=True)
    except KeyboardInterrupt:
        finished = False
    order = {(row.number, setting): place for place, (row, setting) in enumerate(plan)}
    return sorted(outcomes, key=lambda one: order[one.row.number, one.setting]), finished


def _against_fp32(
    provider: str, outcomes: "list[Outcome]", jobs: int, timeout: float
) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    """What each cache precision costs, by layer kind and precision; stderr says where that can't be told."""
    from dsv4bench.bench.conformance import appraise_all
    from dsv4bench.bench.messages import Appraise

    settings = dict.fromkeys(outcome.setting for outcome in outcomes if outcome.checks)
    figures = {}
    for found in appraise_all([Appraise(provider, setting, jobs) for setting in settings], jobs, timeout):
        kind, cache = found.setting.kind.value, found.setting.precision.label
        if found.error:  # the verdicts matter more
            typer.echo(f"no figures over fp32 caches for {kind} {cache}: {found.error}", err=True)
        else:
            figures[kind, cache] = found.figures
    return figures


def _print(
    outcomes: "list[Outcome]", against_fp32: dict[tuple[str, str], dict[str, dict[str, float]]], format: Format
) -> None:
    from dsv4bench.verify.records import accuracy_records, outcome_line, outcome_record

    accuracy = accuracy_records(outcomes, against_fp32)
    if format is Format.JSON:
        content = {"outcomes": [outcome_record(o) for o in outcomes], "accuracy": accuracy}
        typer.echo(json.dumps(content, indent=2, allow_nan=False))
    elif format is Format.CSV:
        print_records([outcome_record(o) for o in outcomes], format, {})
    else:
        print_records([outcome_line(o) for o in outcomes if not _of_others(o)], format, {})
        if accuracy:
            typer.echo("")
            print_records(accuracy, format, SHOWN)


def _of_others(outcome: "Outcome") -> bool:
    """Whether a row was skipped because the provider has none of its stages."""
    return outcome.status.value == "skipped" and not outcome.stages


def _conclude(outcomes: "list[Outcome]", provider: str, *, finished: bool) -> None:
    """Say how it ended on stderr, and how to try failures again.

    Raises:
        KeyboardInterrupt: it did not finish.
        MeasurementError: something failed, or nothing could be tried.
    """
    from dsv4bench.verify.suite import Status

    counts = {status: sum(o.status is status for o in outcomes) for status in Status}
    saved = [o.saved for o in outcomes if o.saved is not None]
    for path in saved[:MOST_REPLAYS]:
        typer.echo(f"saved: dsv4bench verify --provider {provider} --replay {path}", err=True)
    if len(saved) > MOST_REPLAYS:
        typer.echo(f"saved: {len(saved) - MOST_REPLAYS} more in {saved[0].parent}", err=True)
    text = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    if others := sum(_of_others(o) for o in outcomes):
        text += f" (not shown: {_rows(others)} about stages that it lacks)"
    if not finished:
        typer.echo(f"{provider} so far: {text}", err=True)
        raise KeyboardInterrupt
    if counts[Status.FAIL]:
        raise MeasurementError(f"{provider} is not conformant: {text}")
    if not counts[Status.PASS] + counts[Status.DEVIATION]:
        reasons = Counter("it lacks their stages" if _of_others(o) else o.reason for o in outcomes)
        text = "; ".join(f"{_rows(count)}: {reason}" for reason, count in reasons.items())
        raise MeasurementError(f"nothing of {provider} was checked: {text or 'no row concerns these layers'}")
    typer.echo(text, err=True)


def _rows(count: int) -> str:
    return f"{count} row{'s' if count != 1 else ''}"
