"""The table of a run: baselines first, speedups, memory, reasons; and its other forms."""

import csv
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from dsv4bench.report.run_table import lines_of, run_csv, run_json, run_markdown, run_table, short_labels, stage_table
from dsv4bench.results.row import Gaps, MemoryFigures, Row, StageRow, Status
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.schema import Scenario
from tests.dsv4bench.stored_runs import CONTRACT, run, timing

SECONDS = {
    ("v4-flash", "swa", "triton"): 1e-3,
    ("v4-flash", "swa", "eager"): 2e-3,
    ("v4-flash", "c4a", "triton"): 4e-3,
    ("v4-flash", "c4a", "eager"): 8e-3,
    ("v3.2", "dsa", "triton"): None,
    ("v3.2", "dsa", "eager"): 16e-3,
}


def row_of(case):
    seconds = SECONDS[case.shape.name, case.kind.value, case.provider.label]
    stage = StageRow(name="topk", provider=case.provider.label, timing=timing([seconds]) if seconds else None)
    return Row(
        case_id=case.case_id,
        pair_id=case.pair_id,
        contract_id="c",
        label=case.label,
        case=case.describe(),
        contract=CONTRACT,
        status=Status.OK if seconds else Status.UNSUPPORTED,
        reason="" if seconds else "no [dsa] of [8, 64] here | yet",
        layer=timing([seconds]) if seconds else None,
        stages=[stage] if seconds else [],
        memory=MemoryFigures(ideal_bytes=2048),
    )


@pytest.fixture
def stored():
    scenario = Scenario.model_validate(
        {
            "name": "t",
            "model": ["v4-flash", "v3.2"],
            "layers": ["swa", "c4a", "dsa"],
            "workload": {"context": "4K"},
            "providers": ["triton", "eager"],
            "baseline": {"provider": "eager", "model": "v3.2"},
        }
    )
    made = run([row_of(case) for case in expand(scenario)])
    manifest = made.manifest.model_copy(update={"scenario": scenario.model_dump(mode="json")})
    return replace(made, manifest=manifest)


def test_the_baseline_model_comes_first_and_the_baseline_provider_before_the_others(stored):
    order = [(line.row.case["layer"], line.row.case["provider"]) for line in lines_of(stored)]
    assert order == [
        ("dsa", "eager"),
        ("dsa", "triton"),
        ("swa", "eager"),
        ("swa", "triton"),
        ("c4a", "eager"),
        ("c4a", "triton"),
    ]


def test_the_table_shows_speedups_over_both_baselines_and_why_a_case_has_none(stored):
    console = Console(width=140, file=io.StringIO(), color_system=None)
    console.print(run_table(stored))
    head, *lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert head == "case provider median ± MAD vs eager vs v3.2 KV memory status"
    assert lines[0] == "v3.2/dsa/decode-b1-4K eager 16.00 ms 0 % 1.00× – 2.00 KiB ok"
    assert lines[1] == "v3.2/dsa/decode-b1-4K triton – – – – 2.00 KiB unsupported: no [dsa] of [8, 64] here | yet"
    assert "1.00× 8.00×" in lines[2]
    assert "2.00× –" in lines[5], "the baseline model has no time with this provider"


def shown(table):
    console = Console(width=140, file=io.StringIO(), color_system=None)
    console.print(table)
    return console.file.getvalue().splitlines()


def test_columns_without_any_value_are_left_out_of_the_tables_alone(stored):
    bytes_alone = tuple(
        item.model_copy(update={"layer": None, "stages": [], "case": item.case | {"scenario_kind": "memory"}})
        for item in stored.rows
    )
    without_times = replace(stored, rows=bytes_alone)
    assert shown(run_table(without_times))[0].split() == ["case", "provider", "KV", "memory", "status"]
    assert "| median | ± MAD |" in run_markdown(without_times)
    assert "median_s" in run_csv(without_times)


def test_the_stages_have_the_columns_that_any_of_them_has_a_value_in(stored):
    head, whole, stage, *_ = shown(stage_table(stored))
    assert head.split() == ["case", "/", "stage", "provider", "median", "share"]
    assert (whole.split()[-2:], stage.split()) == (["16.00", "ms"], ["topk", "eager", "16.00", "ms", "100", "%"])
    first, *others = stored.rows
    launched = first.model_copy(update={"layer": first.layer.model_copy(update={"launches": 7})})
    head, *lines = shown(stage_table(replace(stored, rows=(launched, *others))))
    assert head.split()[-1] == "launches"
    assert [line.split()[-1] for line in lines].count("7") == 1


@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_terminal_still_shows_every_case_its_time_and_its_status(stored, width):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(run_table(stored, width))
    text = console.file.getvalue()
    assert max(len(line) for line in text.splitlines()) <= width
    assert "16.00 ms" in text
    words = text.replace("\n", " ").split()
    assert "unsupported:" in words
    assert {"case", "median", "status"} <= set(words)


@pytest.fixture
def traced(stored):
    """The same run, every timed layer of which idled for a fifth of its span."""
    gaps = Gaps(launches=7, span=5e-6, busy=4e-6, idle=1e-6, largest=5e-7, after="a_kernel", streams=[4e-6])

    def known(row):
        return row.model_copy(update={"layer": row.layer.model_copy(update={"gaps": gaps})}) if row.layer else row

    return replace(stored, rows=tuple(known(row) for row in stored.rows))


def test_the_idle_share_is_shown_where_gaps_were_traced(stored, traced):
    head, _, first, second, *_ = run_markdown(traced).splitlines()
    assert head.endswith("| idle | KV memory | status |")
    assert first.endswith("| 20 % | 2.00 KiB | ok |")
    assert "| – | 2.00 KiB | unsupported" in second
    assert "idle" not in run_markdown(stored)


def test_gaps_are_columns_of_the_csv_and_part_of_the_json(stored, traced):
    first, second, *_ = csv.DictReader(io.StringIO(run_csv(traced)))
    assert [float(first[key]) for key in ("span_s", "busy_s", "idle_s", "largest_gap_s")] == [5e-6, 4e-6, 1e-6, 5e-7]
    assert second["idle_s"] == next(csv.DictReader(io.StringIO(run_csv(stored))))["idle_s"] == ""
    assert json.loads(run_json(traced))["rows"][0]["layer"]["gaps"]["after"] == "a_kernel"


def test_labels_leave_out_what_all_rows_share(stored):
    assert set(short_labels(stored.rows).values()) == {
        "v4-flash/swa/decode-b1-4K",
        "v4-flash/c4a/decode-b1-4K",
        "v3.2/dsa/decode-b1-4K",
    }


def test_markdown_escapes_what_would_end_a_cell(stored):
    lines = run_markdown(stored).splitlines()
    assert lines[0].startswith("| case | provider | median |")
    assert r"no [dsa] of [8, 64] here \| yet" in lines[3]
    assert len(lines) == 2 + 6


def test_csv_keeps_si_units_and_leaves_empty_what_is_not_there(stored):
    records = list(csv.DictReader(io.StringIO(run_csv(stored))))
    assert float(records[0]["median_s"]) == 16e-3
    assert records[1]["median_s"] == ""
    assert records[1]["reason"] == "no [dsa] of [8, 64] here | yet"
    assert float(records[5]["speedup_provider"]) == 2.0
    assert records[0]["ideal_bytes"] == "2048"


def test_json_holds_manifest_and_rows_with_their_speedups(stored):
    record = json.loads(run_json(stored))
    assert record["manifest"]["run_id"] == "run"
    assert [row["case_id"] for row in record["rows"]] == [line.row.case_id for line in lines_of(stored)]
    assert record["rows"][2]["speedup"] == {"provider": 1.0, "model": 8.0}


def test_a_case_whose_figures_come_with_a_warning_is_marked(stored):
    first, *others = stored.rows
    warned = replace(stored, rows=(first.model_copy(update={"warnings": ["others kept 1.0 cores busy"]}), *others))
    marks = [line.endswith("ok, warned") for line in (text.rstrip() for text in shown(run_table(warned)))]
    assert marks.count(True) == 1
    assert "| ok, warned |" in run_markdown(warned)
    assert "warned" not in run_csv(warned)
