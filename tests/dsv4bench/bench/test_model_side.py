"""A model as a side: every layer runs in order over its own values, each kind is timed, every layer is checked."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4bench.bench.check import check_run
from dsv4bench.bench.device import Device
from dsv4bench.bench.execute import group_cases
from dsv4bench.bench.failure import IncorrectError
from dsv4bench.bench.footprint import memory_of
from dsv4bench.bench.model_side import load_casts, make_contestant
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.side import WHOLE
from dsv4bench.model.shape import LayerKind
from dsv4bench.results.row import Status
from dsv4bench.scenario.expand import expand
from dsv4bench.stack.model import prepare_model
from tests.dsv4bench.bench.small import small_config, small_scenario

KINDS = (LayerKind.SWA, LayerKind.C4A, LayerKind.C128A, LayerKind.C4A, LayerKind.C128A, LayerKind.C4A)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    scenario = small_scenario(tmp_path_factory.mktemp("model"), kind="model", layers=None)
    (found,) = expand(scenario)
    return replace(found, shape=replace(found.shape, layers=KINDS), layers=KINDS)


@pytest.fixture(scope="module")
def side(case):
    model = prepare_model(case.shape, case.layers, case.copies, case.cache, [case.workload])
    settings = Settings(small_timing(), Device("cpu"))
    return make_contestant(case, settings, model, load_casts(case, settings))


def small_timing():
    from dsv4bench.scenario.schema import TimingSection

    return TimingSection(rounds=1, iterations=1, warmup=0)


def test_every_layer_runs_once_in_the_models_order(side):
    assert side.order == (0, 1, 2, 3, 4, 1)
    assert [side.sides[number].case.kind for number in side.order] == list(KINDS)
    values = side.inputs(1)
    assert all("y" in one for one in values)
    for one in values:
        del one["y"]
    side.run(values)
    assert all(one["y"].isfinite().all() for one in values)


def test_the_whole_and_a_layer_of_each_kind_are_timed(side):
    calls = side.calls(side.inputs(2))
    assert list(calls) == [WHOLE, "swa", "c4a", "c128a"]
    for call in calls.values():
        call()


def test_every_distinct_layer_is_checked(side):
    accuracy = check_run(side, 3)
    assert {"topk", "compress_norm_rope_insert", "sparse_attention", "output_projection"} <= set(accuracy)

    class Wrong:
        name = "wrong"

        def __getattr__(self, stage):
            return lambda **arguments: getattr(side.sides[-1].providers[stage], stage)(**arguments) * 1.5

    last = side.sides[-1]
    broken = replace(last, providers={**last.providers, "output_projection": Wrong()})
    with pytest.raises(IncorrectError, match="output_projection"):
        check_run(replace(side, sides=(*side.sides[:-1], broken)), 3)


def test_memory_is_that_of_all_layers_whatever_the_copies(case):
    whole = memory_of(case)
    assert whole.ideal_bytes == sum(memory_of(case.of_kind(kind)).ideal_bytes for kind in KINDS)
    assert whole.engine_bytes >= whole.ideal_bytes


def test_models_do_not_share_a_group_with_layers(case):
    assert len(group_cases([case, case.of_kind(LayerKind.SWA), replace(case, copies=1)])) == 3


def test_a_model_scenario_runs_to_a_row_with_a_time_per_kind(tmp_path):
    from dsv4bench.bench.session import Request, start_run

    four = json.loads(Path(small_config(tmp_path)).read_text())
    four |= {"num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4, 0]}
    (tmp_path / "four.json").write_text(json.dumps(four))
    timing = {"rounds": 2, "iterations": 3, "warmup": 0}
    scenario = small_scenario(tmp_path, kind="model", layers=None, model=str(tmp_path / "four.json"), timing=timing)
    run = start_run(Request(scenario, expand(scenario), "cpu"), tmp_path / "run", lambda event: None)
    (row,) = run.rows
    assert row.status is Status.OK, row.reason
    assert [stage.name for stage in row.stages] == ["swa", "c4a", "c128a"]
    assert [stage.extra["layers"] for stage in row.stages] == [1, 2, 1]
    assert row.layer.min > max(stage.timing.min for stage in row.stages)
    assert row.memory.ideal_bytes == sum(s.extra["layers"] * s.extra["ideal_bytes"] for s in row.stages)
    assert row.case["copies"] == 2
