"""Every exporter of the gate, on one report that has each outcome."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
import xmlschema
from rich.console import Console

from dsv4bench.analysis.compare import judged
from dsv4bench.analysis.gate import GateReport, by_severity
from dsv4bench.analysis.verdict import PRESETS, Outcome
from dsv4bench.errors import IncomparableError, MeasurementError
from dsv4bench.report.github import SUMMARY_LIMIT, annotations, append_step_summary
from dsv4bench.report.junit import junit_xml
from dsv4bench.report.refusal import Refusal, refusal_annotation, refusal_json, refusal_junit, refusal_markdown
from dsv4bench.report.verdict_cells import REMARKS, name, notable
from dsv4bench.report.verdict_json import faster_before, gate_json
from dsv4bench.report.verdict_markdown import against, gate_markdown, headline
from dsv4bench.report.verdict_table import decisions, verdict_table
from dsv4bench.results.row import Status
from tests.dsv4bench.stored_runs import CONTRACT, H200, around, base_run, row, run, shuffled

DATA = Path(__file__).parents[2] / "data"
SCHEMA = xmlschema.XMLSchema(DATA / "junit.xsd")


def report(*, strict: bool = False) -> GateReport:
    cold = CONTRACT.model_copy(update={"l2": "cold"})
    names = ("same", "slower", "quicker", "wrong", "noisy", "other <contract> & \"quotes\" 'n' |pipes|")
    base = base_run([row(name, around(1e-4), engine_bytes=5000) for name in names])
    new = run(
        [
            row("same", shuffled(1e-4), engine_bytes=5000),
            row("slower", shuffled(1.05e-4), engine_bytes=5120),
            row("quicker", shuffled(0.9e-4), engine_bytes=5000),
            row("wrong", status=Status.INCORRECT, reason="worst error 3, at most 0.01: 100 % off"),
            row("noisy", shuffled(1e-4, spread=0.2), engine_bytes=5000),
            row(names[-1], around(1e-4), contract=cold, engine_bytes=5000),
        ]
    )
    verdicts, notes = judged([base], new, PRESETS["default"])
    return GateReport(new, (base,), "default", strict, by_severity(verdicts), tuple(notes))


def test_the_report_under_test_has_every_outcome():
    assert {verdict.outcome for verdict in report().verdicts} == set(Outcome)


@pytest.mark.parametrize("strict", [False, True])
def test_junit_is_valid_by_its_schema(strict):
    SCHEMA.validate(junit_xml(report(strict=strict)))


def test_the_schema_can_refuse():
    broken = junit_xml(report()).replace("<failure", "<failed").replace("</failure", "</failed")
    with pytest.raises(xmlschema.XMLSchemaValidationError):
        SCHEMA.validate(broken)


@pytest.mark.parametrize(
    ("strict", "counts"),
    [(False, {"failures": 2, "errors": 2, "skipped": 1}), (True, {"failures": 3, "errors": 2, "skipped": 0})],
)
def test_junit_counts_what_it_holds(strict, counts):
    [suite] = ElementTree.fromstring(junit_xml(report(strict=strict)))
    assert {key: int(suite.attrib[key]) for key in counts} == counts
    assert int(suite.attrib["tests"]) == len(suite.findall("testcase")) == len(report().verdicts)
    for tag, key in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert len(suite.findall(f"testcase/{tag}")) == counts[key]


def test_markdown_is_as_reviewed():
    """A golden file; after a wanted change write ``gate_markdown(report())`` to it and read the difference."""
    assert gate_markdown(report()) == (DATA / "gate_report.md").read_text(encoding="utf-8")


def test_what_a_run_was_held_against_is_named_by_the_scenarios_of_the_stored_runs():
    rows = [row("case", around(1e-4))]
    base = tuple(run(rows, str(day), day, scenario_name=name) for day, name in ((2, "nightly"), (3, "nightly")))
    found = GateReport(run(rows, scenario_name="decode"), base, "default", False, ())
    assert against(found) == "Held against 2 stored runs of nightly; preset default."
    mixed = replace(found, base=(*base, run(rows, "4", 4, scenario_name="weekly")))
    assert against(mixed) == "Held against 3 stored runs of nightly and weekly; preset default."


def test_a_gate_that_could_judge_no_time_does_not_call_that_no_regression():
    base = base_run([row("case", around(1e-4), engine_bytes=5000)], "before")
    new = run([row("case", around(1.5e-4), engine_bytes=5000)], "after", 2)
    verdicts, _ = judged([base], new, PRESETS["default"])
    unjudged = GateReport(new, (base,), "default", False, by_severity(verdicts))
    assert unjudged.exit_code == 0
    assert headline(unjudged) == ("❔", "no time judged: 1 inconclusive")
    assert gate_markdown(unjudged).startswith("### ❔ decode: no time judged: 1 inconclusive\n")


def test_bytes_alone_that_are_equal_are_no_regression():
    base, new = (make([row("case", case={"scenario_kind": "memory"}, engine_bytes=5000)]) for make in (base_run, run))
    verdicts, _ = judged([base], new, PRESETS["default"])
    assert headline(GateReport(new, (base,), "default", False, by_severity(verdicts))) == ("✅", "no regression")


@pytest.mark.parametrize("width", [80, 240])
def test_a_terminal_shows_case_verdict_and_reasons_whole(width):
    console = Console(width=width, record=True, file=StringIO())
    console.print(verdict_table(report().verdicts, width))
    text = console.export_text()
    assert max(map(len, map(str.rstrip, text.splitlines()))) <= width
    for verdict in notable(report().verdicts):
        assert verdict.outcome.value in text
        assert name(verdict.subject) in text
        assert all(reason.value in text for reason in verdict.reasons if reason not in REMARKS)


def test_every_line_of_a_markdown_table_has_as_many_cells():
    lines = [line.replace(r"\|", "") for line in gate_markdown(report()).splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1


def on_another_gpu() -> GateReport:
    other = H200.model_copy(update={"name": "NVIDIA H100"})
    base = run([row(name, around(1e-6)) for name in ("small", "large")], "base", gpu=other)
    new = run([row("small", around(2e-6)), row("large", around(3e-4))], "new", 2)
    verdicts, notes = judged([base], new, PRESETS["default"])
    return GateReport(new, (base,), "default", False, by_severity(verdicts), tuple(notes))


@pytest.mark.parametrize("width", [80, 240])
def test_what_cannot_be_compared_has_no_change_and_a_reason_that_all_share_is_said_once(width):
    console = Console(width=width, record=True, file=StringIO())
    console.print(verdict_table(on_another_gpu().verdicts, width))
    text = console.export_text()
    assert text.count("incomparable") == 2
    assert text.count("all 2: fingerprint_differs: GPU: NVIDIA H100 → NVIDIA H200") == 1
    assert text.count("fingerprint_differs") == 1
    assert "%" not in text.replace("95 % interval", "")
    assert "300.0 µs" in text


def test_markdown_and_json_of_what_cannot_be_compared_have_no_change_either():
    markdown = gate_markdown(on_another_gpu())
    table = markdown.partition("<details>")[0]
    assert table.count("fingerprint_differs") == 1
    assert "×" not in table
    assert markdown.count("2 are incomparable") == 1
    assert [item["effect"] for item in json.loads(gate_json(on_another_gpu()))["verdicts"]] == [None, None]


def test_json_is_strict_and_in_si_units():
    record = json.loads(gate_json(report()), parse_constant=pytest.fail)
    slower = next(item for item in record["verdicts"] if item["label"] == "slower" and item["metric"] == "time")
    assert record["exit_code"] == 1
    assert slower["new"] == pytest.approx(1.05e-4)
    assert slower["effect"] == pytest.approx(0.05)
    assert slower["lower"] < slower["effect"] < slower["upper"]
    assert slower["reasons"] == ["above_tolerance", "unconfirmed"]
    assert (slower["tolerance"], slower["floor"]) == (0.03, 5e-7)


def test_the_cases_that_an_earlier_report_found_faster_are_read_back(tmp_path):
    path = tmp_path / "gate.json"
    assert faster_before(path, "another run") == set()
    path.write_text(gate_json(report()))
    assert faster_before(path, "another run") == {"id-quicker"}
    assert faster_before(path, "run") == set(), "the same run twice is not two runs"
    path.write_text(path.read_text()[:100])
    assert faster_before(path, "another run") == set()


def test_annotations_are_escaped_workflow_commands():
    lines = annotations(report())
    assert [line.split()[0] for line in lines] == [
        *["::error"] * 4,
        "::warning",
        "::notice",
    ]
    assert all("\n" not in line for line in lines)
    [wrong] = [line for line in lines if "wrong" in line]
    assert wrong == (
        "::error title=failed%3A wrong::measurement_failed: incorrect: worst error 3, at most 0.01: 100 %25 off"
    )


def test_the_step_summary_is_appended_and_cut_to_what_github_takes(tmp_path):
    path = tmp_path / "summary"
    path.write_text("before\n")
    append_step_summary(gate_markdown(report()), path)
    assert path.read_text().startswith("before\n### ❌ decode: regression")
    append_step_summary("ä" * SUMMARY_LIMIT, tmp_path / "long")
    assert (tmp_path / "long").stat().st_size <= SUMMARY_LIMIT


@pytest.mark.parametrize(
    ("error", "outcome", "title"),
    [
        (IncomparableError('no <baseline> & "none"'), "incomparable", "incomparable"),
        (MeasurementError("no case to gate"), "failed", "measurement failed"),
    ],
)
def test_a_gate_that_could_not_judge_says_why_in_every_form(error, outcome, title):
    refusal = Refusal(error, "default", strict=False)
    SCHEMA.validate(refusal_junit(refusal))
    [found] = ElementTree.fromstring(refusal_junit(refusal)).iter("error")
    assert (found.get("message"), found.get("type")) == (str(error), outcome)
    record = json.loads(refusal_json(refusal))
    assert (record["outcome"], record["reason"], record["exit_code"]) == (outcome, str(error), error.exit_code)
    assert record.keys() >= json.loads(gate_json(report())).keys()
    assert refusal_markdown(refusal) == f"### ❌ dsv4bench gate: {title}\n\nNothing was judged: {error}\n"
    assert refusal_annotation(refusal) == f"::error title=gate%3A {outcome}::{error}"


def test_a_decision_is_explained_with_its_numbers():
    text = decisions(report().verdicts)
    assert "100.0 µs → 105.0 µs: +5.0 %" in text
    assert "tolerance 3 %, floor 500.0 ns" in text
    assert "unconfirmed: not measured again in a fresh process" in text
