"""Tables and figures of schedules and models."""

import pytest
from rich.console import Console

from dsv4bench.analysis.roofline import Peaks
from dsv4bench.model.gpus import gpu_named
from dsv4bench.model.shape import LayerKind
from dsv4bench.report.layer_plots import further_figures
from dsv4bench.report.layers_and_models import SHOWN, further_tables, gain_records, gap_records, model_records
from dsv4bench.report.plan import floor_records, floor_table
from dsv4bench.report.quantity import seconds
from dsv4bench.report.records import records_markdown
from dsv4bench.results.row import Gaps
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.schema import Scenario
from tests.dsv4bench.analysis.test_model_step import flash_or_old
from tests.dsv4bench.analysis.test_model_step import rows as model_rows
from tests.dsv4bench.analysis.test_overlap import layer_rows
from tests.dsv4bench.stored_runs import run as stored_run


def test_gains_of_schedules_as_markdown():
    rows = list(layer_rows({"serial": 12e-6, "multi": 10e-6, "multi3": 12.5e-6}))
    assert records_markdown(gain_records(rows), SHOWN) == (
        "| model | kind | batch | context | provider | streams | serial | layer | gain | critical path | noise |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| v4-flash | c128a | 1 | 8K | eager | multi | 12.00 µs | 10.00 µs | +20.0 % | +37.5 % | 1.41 % |\n"
        "| v4-flash | c128a | 1 | 8K | eager | multi3 | 12.00 µs | 12.50 µs | -4.0 % | +37.5 % | 1.41 % |\n"
    )


def test_launch_gaps_as_markdown_and_only_with_the_stages():
    (serial, _) = layer_rows({"serial": 12e-6, "multi": 10e-6})
    gaps = Gaps(launches=24, span=20e-6, busy=8e-6, idle=12e-6, largest=3e-6, after="k" * 50, streams=[8e-6])
    row = serial.model_copy(update={"layer": serial.layer.model_copy(update={"gaps": gaps})})
    assert records_markdown(gap_records([row]), SHOWN) == (
        "| case | provider | graph | launches | span | busy | idle | share | largest gap | after |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        f"| {row.label.removesuffix('/eager')} | eager | no | 24 | 20.00 µs | 8.000 µs | 12.00 µs | 60 % | 3.000 µs "
        f"| {'k' * 39}… |\n"
    )
    assert gap_records([serial]) == []
    assert [len(further_tables(stored_run([row]), stages=stages)) for stages in (False, True)] == [0, 1]


def test_models_as_markdown():
    rows = list(model_rows(flash_or_old, boundary=["none", "c4a", "all"], context="8K"))
    text = records_markdown(model_records(rows, "v3.2"), SHOWN)
    first, second = text.splitlines()[2:]
    assert first == (
        "| v4-flash | decode | 1 | 8K | 1 | weighted | eager | 2swa+21c4a+20c128a | 2 | 1.266 ms | 8.00 KiB | 7.90× |"
    )
    assert second.endswith("| 61dsa | 2 | 10.00 ms | 8.00 KiB | – |")


def test_a_run_without_schedules_or_models_has_nothing_further(tmp_path):
    rows = list(layer_rows({"serial": 12e-6}))
    assert gain_records(rows) == []
    assert model_records(rows, "v3.2") == []
    assert further_figures(rows, {"model": "v3.2"}, tmp_path) == []


def test_figures_are_written_where_there_is_something_to_show(tmp_path):
    schedules = list(layer_rows({"serial": 12e-6, "multi": 10e-6}))
    assert [path.name for path in further_figures(schedules, {}, tmp_path)] == ["schedule_gain.png"]
    models = list(model_rows(flash_or_old, boundary=["none", "c4a", "all"]))
    (path,) = further_figures(models, {"model": "v3.2"}, tmp_path)
    assert path.name == "speedup_over_context.png"
    assert path.stat().st_size > 10_000


def test_floors_stand_in_the_order_of_the_scenario_and_once_for_all_providers():
    workload = {"batch": [1, 8], "context": ["8K", "64K"]}
    given = {"name": "t", "model": "v4-flash", "layers": "c4a", "workload": workload, "providers": ["eager", "triton"]}
    records = floor_records(expand(Scenario.model_validate(given)), Peaks.datasheet(gpu_named("h200")))
    steps = [record["case"].split("/")[2] for record in records if record["stage"] == "together"]
    assert steps == ["decode-b1-8K", "decode-b1-64K", "decode-b8-8K", "decode-b8-64K"]


def test_floors_of_a_model_are_those_of_its_layers():
    given = {"name": "t", "kind": "model", "model": "v4-flash", "workload": {"context": "64K"}}
    (model,) = expand(Scenario.model_validate(given))
    peaks = Peaks.datasheet(gpu_named("h200"))
    records = floor_records([model], peaks)
    assert [record["stage"] for record in records] == ["2 × swa", "21 × c4a", "20 × c128a", "together"]
    (*_, one) = floor_records([model.of_kind(LayerKind.C4A)], peaks)
    assert records[1]["bytes"] == 21 * one["bytes"]
    assert records[1]["floor"] == pytest.approx(21 * one["floor"])
    assert records[-1]["floor"] == pytest.approx(sum(record["floor"] for record in records[:-1]))


def test_floors_of_a_case_stand_below_its_sums():
    scenario = Scenario(name="one", model=["v4-flash"], layers=["swa"], workload={"batch": 1, "context": ["8K"]})
    records = floor_records(expand(scenario), Peaks.datasheet(gpu_named("h200")))
    console = Console(width=80)
    with console.capture() as capture:
        console.print(floor_table(records))
    head, whole, *stages = capture.get().splitlines()
    assert head.split() == ["case", "/", "stage", "bytes", "flops", "floor", "bound"]
    assert whole.startswith("v4-flash/swa/decode-b1-8K")
    assert whole.split()[-2:] == seconds(records[-1]["floor"]).split()
    assert [line.split()[0] for line in stages] == [record["stage"] for record in records[:-1]]
