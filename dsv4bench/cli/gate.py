"""``dsv4bench gate``: did anything get slower? A verdict per case and one exit code."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dsv4bench.analysis.examine import Findings, examine, interleaved
from dsv4bench.analysis.gate import Again, Evidences, GateReport, by_severity, settle, with_remarks
from dsv4bench.analysis.pairing import match
from dsv4bench.analysis.selftest import applicable, limits_at
from dsv4bench.analysis.verdict import PRESETS, Evidence, Limits, Outcome, Subject, Verdict, all_one_sided
from dsv4bench.cli.console import output_console
from dsv4bench.errors import IncomparableError, MeasurementError, UserError
from dsv4bench.report.github import annotations, append_step_summary
from dsv4bench.report.junit import junit_xml
from dsv4bench.report.refusal import Refusal, refusal_annotation, refusal_json, refusal_junit, refusal_markdown
from dsv4bench.report.verdict_cells import equal_bytes
from dsv4bench.report.verdict_json import faster_before, gate_json
from dsv4bench.report.verdict_markdown import against, gate_markdown, headline
from dsv4bench.report.verdict_table import decisions, verdict_table
from dsv4bench.results.atomic import write_text
from dsv4bench.results.baseline import ROOT, SELFTEST, find_base, folder_of, machine_slug
from dsv4bench.results.noise import CaseNoise, read_noise
from dsv4bench.results.run_directory import MANIFEST, Run, read_run


class Preset(StrEnum):
    """Tolerance and floor by name: 1 % / 0.1 µs, 3 % / 0.5 µs, 10 % / 2 µs."""

    STRICT = "strict"
    DEFAULT = "default"
    PERMISSIVE = "permissive"


def gate(
    run: Annotated[Path, typer.Argument(help="Run directory, stored file, or the folder that `ab` wrote.")],
    baseline: Annotated[
        Path | None,
        typer.Option(help=f"Run, stored file or folder of stored files; default: side a of `ab`, or {ROOT}."),
    ] = None,
    preset: Annotated[Preset, typer.Option(help="strict 1 %, default 3 %, permissive 10 %.")] = Preset.DEFAULT,
    only: Annotated[list[str] | None, typer.Option(help="Cases whose label or id contains this.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="An inconclusive case fails the gate (exit 3).")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show each decision with its numbers.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML.")] = None,
    md: Annotated[Path | None, typer.Option(help="Write Markdown.")] = None,
    json: Annotated[
        Path | None,
        typer.Option(help="Write JSON; cases FASTER here and in the report it replaces ask for a new baseline."),
    ] = None,
    github: Annotated[bool, typer.Option("--github", help="Write GitHub's step summary and annotations.")] = False,
    selftest: Annotated[Path | None, typer.Option(help="Stored self-test; default: the one beside the base.")] = None,
    confirmation: Annotated[
        Path | None, typer.Option(help="A second run, by a fresh process; default: measured now if the device is here.")
    ] = None,
    confirm: Annotated[bool, typer.Option(help="Measure changes again in a fresh process.")] = True,
) -> None:
    """Give every case of a run a verdict against its base; works from files alone.

    Exit codes: 0 pass, 1 regression, 2 wrong usage, 3 inconclusive (with --strict), 4 incomparable, 5 measurement
    failed. A gate that can't judge anything writes why into the files asked for.
    """
    if confirmation is not None and not confirm:
        raise UserError("--confirmation and --no-confirm contradict each other; leave one out")
    try:
        new, base = _sides(run, baseline)
        new, base = _selected(new, only or []), [_selected(side, only or []) for side in base]
        findings = examine(base, new)
        timed = selftest is not None or bool(findings.evidence)  # bytes have no noise
        noise, note = noise_of(selftest, baseline or ROOT, new) if timed else ({}, "")
        again = _again(run, confirmation, base, new, findings) if confirm else None
        verdicts = _verdicts(findings, PRESETS[preset.value], noise, again)
        if not verdicts:
            raise MeasurementError(f"{run}: no case to gate; the run is empty or --only selects nothing")
        _refuse_strangers(verdicts, base, new)
    except (IncomparableError, MeasurementError) as error:
        refusal = Refusal(error, preset.value, strict)
        _write({junit: refusal_junit(refusal), md: refusal_markdown(refusal), json: refusal_json(refusal)})
        if github:
            _show_on_github([refusal_annotation(refusal)], refusal_markdown(refusal))
        raise
    notes = tuple(note for note in (*findings.notes, note) if note)
    report = GateReport(new, tuple(base), preset.value, strict, verdicts, notes)
    if json and not interleaved(base, new):  # measured beside its base, a run says nothing of stored ones
        report = _with_request_for_baseline(report, faster_before(json, new.manifest.run_id))
    _write({junit: junit_xml(report), md: gate_markdown(report), json: gate_json(report)})
    _print(report, explain=explain)
    if github:
        _show_on_github(annotations(report), gate_markdown(report))
    typer.echo(f"{headline(report)[1]}. {against(report)}", err=True)
    raise typer.Exit(report.exit_code)


def _verdicts(
    findings: Findings, limits: Limits, noise: dict[tuple[str, str], CaseNoise], again: Again | None
) -> tuple[Verdict, ...]:
    """Every verdict, worst first."""
    settled = settle(findings.evidence, lambda subject, item: limits_at(limits, noise, subject, item), again=again)
    return by_severity([*findings.verdicts, *(with_remarks(verdict, findings.remarks) for verdict in settled)])


def _refuse_strangers(verdicts: Sequence[Verdict], base: Sequence[Run], new: Run) -> None:
    """Refuse a base that has none of the run's cases: a line for every case of both would say no more.

    Raises:
        IncomparableError: it says what each of them is.
    """
    if all_one_sided(verdicts) and not any(match(side.rows, new.rows).pairs for side in base):
        their, our = base[-1].manifest, new.manifest
        raise IncomparableError(
            f"the baseline is of scenario {their.scenario_name} on {machine_slug(their)}, this run of "
            f"{our.scenario_name} on {machine_slug(our)}: no case in common"
        )


def _sides(run: Path, baseline: Path | None) -> tuple[Run, list[Run]]:
    """The run under test and what it is held against."""
    if baseline is not None and not baseline.exists():
        raise IncomparableError(f"--baseline {baseline} does not exist")
    if not (run / MANIFEST).is_file() and (run / "a").is_dir() and (run / "b").is_dir():
        new = read_run(run / "b")
        return new, find_base(baseline or run / "a", new.manifest)
    new = read_run(run)
    return new, find_base(baseline or ROOT, new.manifest)


def _selected(run: Run, only: list[str]) -> Run:
    """A run with the cases that a text selects."""
    if not only:
        return run

    def wanted(label: str, case_id: str) -> bool:
        return any(text in label or case_id.startswith(text) for text in only)

    planned = [case for case in run.manifest.planned if wanted(case.label, case.case_id)]
    rows = tuple(row for row in run.rows if wanted(row.label, row.case_id))
    return replace(run, manifest=run.manifest.model_copy(update={"planned": planned}), rows=rows)


def noise_of(given: Path | None, root: Path, run: Run) -> tuple[dict[tuple[str, str], CaseNoise], str]:
    """The noise of a run's cases on this machine, from the file given or from beside the baselines.

    Returns:
        Noise by (case id, metric), and a note for the reader where there is none.
    """
    folders = (root, folder_of(root, run.manifest), folder_of(ROOT, run.manifest))
    path = given or next((folder / SELFTEST for folder in folders if (folder / SELFTEST).is_file()), None)
    if path is None:
        return {}, "no self-test of this machine is stored; tolerances are the preset's (`dsv4bench selftest`)"
    noise = applicable(read_noise(path), run)
    if not noise:
        return {}, f"{path} says nothing about these cases on this machine; tolerances are the preset's"
    return noise, ""


def _again(run: Path, confirmation: Path | None, base: list[Run], new: Run, findings: Findings) -> Again | None:
    """How changes are confirmed: by a second run that is stored, by measuring now, or not at all."""
    paired = interleaved(base, new)
    if confirmation is None and paired and (run / "confirm" / "b").is_dir():
        confirmation = run / "confirm"
    if confirmation is not None:
        second, second_base = _sides(confirmation, None) if paired else (read_run(confirmation), base)
        if second.manifest.run_id == new.manifest.run_id:
            raise UserError(f"{confirmation} is the run itself; a confirmation is measured by a fresh process")
        evidence = examine(second_base, second).evidence
        return lambda subjects: {subject: evidence[subject] for subject in subjects if subject in evidence}
    if paired:
        return None
    return lambda subjects: _measure_again(subjects, base, new, findings)


def _measure_again(subjects: Collection[Subject], base: list[Run], new: Run, findings: Findings) -> Evidences:
    """Run the cases of subjects in a fresh process, if the device of the run is here."""
    from dsv4bench.bench.remeasure import remeasure, why_not_here

    if reason := why_not_here(new.manifest):
        findings.notes.append(f"changes are unconfirmed: {reason}")
        return {}
    typer.echo(f"measuring {len(subjects)} changed cases again …", err=True)
    again: dict[Subject, Evidence] = examine(
        base, remeasure(new.manifest, {item.case_id for item in subjects})
    ).evidence
    return {subject: again[subject] for subject in subjects if subject in again}


def _with_request_for_baseline(report: GateReport, before: set[str]) -> GateReport:
    """Ask for a new baseline where cases were faster twice."""
    twice = [
        verdict.subject.label
        for verdict in report.verdicts
        if verdict.outcome is Outcome.FASTER and verdict.subject.case_id in before
    ]
    if not twice:
        return report
    note = f"faster twice, so the baseline is out of date (`dsv4bench baseline add`): {', '.join(twice)}"
    return replace(report, notes=(*report.notes, note))


def _write(reports: dict[Path | None, str]) -> None:
    for path, text in reports.items():
        if path is not None:
            write_text(path, text)


def _print(report: GateReport, *, explain: bool) -> None:
    console = output_console()
    console.print(verdict_table(report.verdicts, console.width))
    if explain:
        typer.echo(f"\n{decisions(report.verdicts)}")
    for note in (equal_bytes(report.verdicts), *report.notes):
        if note:
            typer.echo(f"note: {note}", err=True)


def _show_on_github(lines: Sequence[str], markdown: str) -> None:
    for line in lines:
        typer.echo(line)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        append_step_summary(markdown, Path(summary))
    else:
        typer.echo("note: GITHUB_STEP_SUMMARY is not set, so no step summary was written", err=True)
