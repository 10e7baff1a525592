"""A side knows its stream schedule, or says why it can't have it."""

import pytest

from dsv4bench.bench.device import Device
from dsv4bench.bench.execute import comparisons
from dsv4bench.bench.failure import UnsupportedError
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.side import MATRIX_PRODUCTS, load_cast, make_side
from dsv4bench.model.stage import STAGES
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.schema import Scenario

CUDA = Device("cuda", name="H200", l2_bytes=60 * 2**20)


def side(device=CUDA, **keys):
    scenario = Scenario.model_validate(
        {"name": "t", "model": "v4-flash", "layers": "c4a", "workload": {"context": "8K", "batch": 8}, **keys}
    )
    (case,) = expand(scenario)
    settings = Settings(scenario.timing, device)
    return make_side(case, settings, None, load_cast(case, settings))


def test_a_gpu_case_gets_the_schedule_it_asks_for():
    assert side().schedule is None
    multi3 = side(schedule={"streams": "multi3"})
    assert multi3.schedule.streams == ("default", "aux0", "aux1", "aux2")
    assert multi3.contract.streams == "multi3"


def test_the_token_threshold_sees_the_tokens_of_the_step():
    prefill = side(schedule={"streams": "multi3"}, workload={"phase": "prefill", "context": "2K"})
    streams = {launch.stage: launch.stream for launch in prefill.schedule.launches}
    assert streams["compressor_projection"] == "default"


def test_streams_on_a_cpu_are_unsupported_with_a_reason():
    with pytest.raises(UnsupportedError, match="schedule multi needs CUDA streams, and this is the CPU"):
        side(Device("cpu"), schedule={"streams": "multi"})


def test_streams_of_single_stages_are_unsupported_with_a_reason():
    with pytest.raises(UnsupportedError, match="schedule multi is of whole layers"):
        side(kind="stage", stages="topk", schedule={"streams": "multi"})


def test_schedules_of_a_step_share_their_rounds_and_contracts_keep_them_apart():
    scenario = Scenario.model_validate(
        {
            "name": "t", "model": "v4-flash", "layers": ["c4a", "c128a"], "workload": {"context": "8K"},
            "providers": ["eager", "reference"], "schedule": {"streams": ["serial", "multi"]},
        }
    )  # fmt: skip
    found = comparisons(expand(scenario))
    assert [len(sides) for sides in found] == [4, 4]
    assert len({case.kind for case in found[0]}) == 1
    assert len({case.pair_id for case in found[0]}) == 2
    settings = Settings(scenario.timing, CUDA)
    assert len({settings.contract(case).contract_id for case in found[0]}) == 2


def test_matrix_products_that_a_provider_leaves_out_are_torchs_and_say_so(tmp_path):
    kernels = tmp_path / "kernels.py"
    kernels.write_text(
        "from dsv4bench.providers.eager import EagerProvider\n"
        "from dsv4bench.model.stage import STAGE_NAMES\n"
        "class Kernels:\n"
        "    name = 'kernels'\n"
        "    supports = EagerProvider.supports\n"
        "for stage in STAGE_NAMES:\n"
        "    if not stage.endswith('_projection'):\n"
        "        setattr(Kernels, stage, staticmethod(getattr(EagerProvider, stage)))\n"
    )
    spec = f"{kernels}:Kernels"
    found = side(providers=spec)
    assert found.provider_of("topk") == spec
    assert {name for name, who in found.chosen.items() if who == "eager"} == {
        stage.name for stage in STAGES[found.case.kind] if stage.name.endswith("_projection")
    }
    for asked in (
        {"providers": {"default": "eager", "query_projection": spec}},
        {"providers": spec, "kind": "stage", "stages": "query_projection"},
    ):
        with pytest.raises(UnsupportedError, match="has no stage query_projection"):
            side(**asked)


def test_only_products_with_a_weight_may_be_left_to_torch():
    assert {"input_projection", "query_absorb", "value_up_projection", "output_group_projection"} <= MATRIX_PRODUCTS
    assert not {"qkv_norm", "topk", "sparse_attention", "indexer_key_insert"} & MATRIX_PRODUCTS
