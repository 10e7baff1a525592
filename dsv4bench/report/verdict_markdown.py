"""The gate's result as Markdown, in the form that kernel pull requests are reviewed in: before, after, speedup."""

from collections.abc import Sequence

from dsv4bench.analysis.examine import interleaved
from dsv4bench.analysis.gate import GateReport
from dsv4bench.analysis.verdict import Outcome, Verdict
from dsv4bench.report.quantity import change
from dsv4bench.report.verdict_cells import (
    MARK,
    decided,
    equal_bytes,
    figure,
    interval_of,
    name,
    notable,
    shared_why,
    speedup,
    why,
)
from dsv4bench.results.run_directory import Run

HEADLINE = {
    0: "no regression",
    1: "regression",
    3: "inconclusive",
    4: "incomparable",
    5: "measurement failed",
}
"""What each exit code of the gate means, in a title."""


def headline(report: GateReport) -> tuple[str, str]:
    """A sign and a title for the whole report; a gate that passes with times that could not be judged says so."""
    timed = [verdict.outcome for verdict in report.verdicts if verdict.subject.metric.startswith("time")]
    unjudged = timed.count(Outcome.INCONCLUSIVE)
    if report.exit_code:
        return "❌", HEADLINE[report.exit_code]
    if not unjudged:
        return "✅", HEADLINE[0]
    if unjudged == len(timed):
        return MARK[Outcome.INCONCLUSIVE], f"no time judged: {unjudged} inconclusive"
    return "✅", f"{HEADLINE[0]}, {unjudged} of {len(timed)} times inconclusive"


def gate_markdown(report: GateReport) -> str:
    """The whole report: headline, table of what needs attention, the rest folded away, environment."""
    mark, title = headline(report)
    counts = ", ".join(
        f"{number} {outcome.value}" for outcome in Outcome if (number := report.count(outcome))
    )  # fmt: skip
    loud = [verdict for verdict in report.verdicts if verdict.outcome is not Outcome.PASS]
    quiet = [verdict for verdict in notable(report.verdicts) if verdict.outcome is Outcome.PASS]
    parts = [f"### {mark} {report.run.manifest.scenario_name}: {title}", f"{counts}. {against(report)}"]
    if loud:
        parts.append(verdict_rows(loud))
    if quiet:
        parts.append(folded(f"{len(quiet)} passed", verdict_rows(quiet)))
    if loud:
        parts.append(folded("Decisions", _decisions(loud)))
    notes = [note for note in (equal_bytes(report.verdicts), *report.notes) if note]
    if notes:
        parts.append("\n".join(f"- {note}" for note in notes))
    parts.append(folded("Environment", environment(report.run)))
    return "\n\n".join(parts) + "\n"


def verdict_rows(verdicts: Sequence[Verdict]) -> str:
    """Verdicts as a Markdown table, in the order given; a reason that all have in common stands once, below it."""
    shared = shared_why(verdicts)
    lines = [
        f"| | Case | Before | After | Change | 95 % interval | Speedup |{'' if shared else ' Why |'}",
        f"|---|---|---:|---:|---:|---:|---:|{'' if shared else '---|'}",
    ]
    for verdict in verdicts:
        cells = (
            f"{MARK[verdict.outcome]} {verdict.outcome.value}",
            f"`{name(verdict.subject)}`".replace("|", r"\|"),
            figure(verdict.subject, verdict.base),
            figure(verdict.subject, verdict.new),
            change(verdict.effect),
            interval_of(verdict),
            speedup(verdict),
            *([] if shared else [why(verdict).replace("|", r"\|")]),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{shared[0].upper()}{shared[1:]}"] if shared else lines)


def against(report: GateReport) -> str:
    """What the run was held against, in a sentence."""
    if interleaved(report.base, report.run):
        return f"Both sides measured in interleaved rounds; preset {report.preset}."
    runs = f"{len(report.base)} stored run{'s' if len(report.base) != 1 else ''}"
    scenarios = " and ".join(dict.fromkeys(run.manifest.scenario_name for run in report.base))
    return f"Held against {runs} of {scenarios}; preset {report.preset}."


def environment(run: Run) -> str:
    """Where the numbers come from, as a list."""
    found = run.manifest.environment
    machine = found.gpu.name if found.gpu else found.cpu or found.platform
    versions = {"driver": found.driver, "CUDA": found.cuda, "torch": found.torch, "triton": found.triton}
    versions |= {"vllm": found.vllm, "dsv4bench": found.release}
    lines = [f"- {machine}", f"- {', '.join(f'{key} {value}' for key, value in versions.items() if value)}"]
    if found.git_sha:
        lines.append(f"- commit {found.git_sha[:12]}{' with uncommitted changes' if found.git_dirty else ''}")
    return "\n".join([*lines, f"- `{' '.join(run.manifest.argv)}`"])


def folded(summary: str, body: str) -> str:
    """A section that opens on a click."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def _decisions(verdicts: Sequence[Verdict]) -> str:
    return "\n".join("\n  - ".join((f"- {title}", *lines)) for title, lines in decided(verdicts, "`"))
