"""Critical paths: laws that hold for any stage times, and layers small enough to reckon by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.analysis.overlap import gains, layer_overlap, tokens_of
from dsv4bench.model.schedule import SCHEDULES, make_schedule
from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.results.row import Contract, Row, StageRow, Status, Timing
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.schema import Scenario


def stage_seconds(kind, **changes):
    return {stage.name: changes.get(stage.name, 1.0) for stage in STAGES[kind]}


def test_serial_exposes_everything():
    kind = LayerKind.C4A
    found = layer_overlap(make_schedule("serial", kind), stage_seconds(kind))
    assert found.seconds == found.serial == 20.0
    assert all(stage.exposed == 1.0 for stage in found.stages)


def test_c128a_hides_the_shorter_of_its_two_streams():
    """default: 4 stages of 1 s ahead of attention; compressor: 3 of 1 s; then 4 together."""
    kind = LayerKind.C128A
    even = layer_overlap(make_schedule("multi", kind), stage_seconds(kind))
    assert even.seconds == 8.0
    assert even.serial == 11.0
    late = layer_overlap(make_schedule("multi", kind), stage_seconds(kind, compress_norm_rope_insert=5.0))
    assert late.seconds == 11.0
    assert late.critical_path[:3] == (
        "compressor_projection", "compressor_state_save", "compress_norm_rope_insert",
    )  # fmt: skip
    by_name = {stage.stage: stage for stage in late.stages}
    assert by_name["compress_norm_rope_insert"].exposed == 5.0
    assert by_name["query_projection"].exposed == 0.0
    assert by_name["query_projection"].stream == "default"


@given(st.data(), st.sampled_from(list(SCHEDULES)), st.sampled_from(list(LayerKind)))
def test_the_critical_path_lies_between_the_longest_stage_and_the_serial_sum(data, name, kind):
    seconds = {stage.name: data.draw(st.floats(1e-6, 1e-2)) for stage in STAGES[kind]}
    schedule = make_schedule(name, kind)
    found = layer_overlap(schedule, seconds)
    assert max(seconds.values()) <= found.seconds <= found.serial * (1 + 1e-12)
    assert sum(stage.exposed for stage in found.stages) == pytest.approx(found.seconds)
    assert set(found.critical_path) == {stage.stage for stage in found.stages if stage.exposed > 0}


@given(st.data(), st.sampled_from(["multi", "multi3"]))
def test_a_stage_off_the_critical_path_may_be_free_without_helping(data, name):
    kind = LayerKind.C4A
    seconds = {stage.name: data.draw(st.floats(1e-6, 1e-2)) for stage in STAGES[kind]}
    schedule = make_schedule(name, kind)
    found = layer_overlap(schedule, seconds)
    for stage in found.stages:
        faster = layer_overlap(schedule, {**seconds, stage.stage: 0.0}).seconds
        assert found.seconds - faster <= stage.exposed + 1e-15


def layer_rows(times):
    """Rows of a c128a layer by schedule; every stage takes 1 µs alone."""
    scenario = Scenario.model_validate(
        {
            "name": "t", "model": "v4-flash", "layers": "c128a", "workload": {"context": "8K"},
            "schedule": {"streams": list(times)},
        }
    )  # fmt: skip
    for case in expand(scenario):
        contract = Contract(timer="graph", l2="warm", streams=case.execution.streams)
        one = Timing(median=1e-6, min=1e-6, mad=0)
        seconds = times[case.execution.streams]
        yield Row(
            case_id=case.case_id, pair_id=case.pair_id, contract_id=contract.contract_id, label=case.label,
            case=case.describe(), contract=contract, status=Status.OK,
            layer=Timing(median=seconds, min=seconds, mad=seconds / 100),
            stages=[StageRow(name=name, provider="eager", timing=one) for name in case.stage_names],
        )  # fmt: skip


def test_gains_stand_beside_what_the_critical_path_allows():
    multi, multi3 = gains(layer_rows({"serial": 12e-6, "multi": 10e-6, "multi3": 11e-6}))
    assert multi.case["streams"] == "multi"
    assert multi.gain == pytest.approx(0.2)
    assert multi.bound == pytest.approx(8e-6)
    assert multi.most == pytest.approx(11 / 8 - 1)
    assert multi3.gain == pytest.approx(12 / 11 - 1)
    assert multi3.bound == pytest.approx(8e-6)


def test_the_noise_of_a_gain_is_no_less_than_that_of_either_time():
    steady, shaky = layer_rows({"serial": 12e-6, "multi": 10e-6})
    shaky = shaky.model_copy(update={"layer": shaky.layer.model_copy(update={"mad": 0.5e-6})})
    [gain] = gains([steady, shaky])
    assert gain.noise == pytest.approx((0.01**2 + 0.05**2) ** 0.5)


def test_nothing_is_gained_over_a_serial_run_that_is_missing():
    assert gains(layer_rows({"multi": 10e-6})) == []


def test_tokens_of_a_stored_case():
    assert tokens_of({"batch": 8, "query_len": 3}) == 24
    assert tokens_of({"batch": 66, "query_len": 2048, "requests": "64q1s128k_2q2k"}) == 4160
