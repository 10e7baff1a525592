"""Contracts: auto resolves by device, and what can't be honest is refused before a run."""

import pytest

from dsv4bench.bench.contract import MEMSET_BYTES, calls_per_graph, check_timing, make_contract
from dsv4bench.bench.device import Device
from dsv4bench.errors import UserError
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.schema import Scenario, TimingSection

L2 = 60 * 2**20
H200 = Device("cuda", name="NVIDIA H200", l2_bytes=L2)


def contract(device=H200, graph=False, streams="serial", **timing):
    scenario = Scenario.model_validate(
        {
            "name": "t",
            "model": "v4-flash",
            "layers": "c4a",
            "workload": {"context": "4K"},
            "schedule": {"graph": graph, "streams": streams},
            "timing": timing,
        }
    )
    (case,) = expand(scenario)
    return make_contract(scenario.timing, case, device)


@pytest.mark.parametrize(
    ("device", "graph", "expected"),
    [("cpu", False, ("wall", "none")), ("cuda", False, ("events", "warm")), ("cuda", True, ("graph", "warm"))],
)
def test_auto_resolves_by_device(device, graph, expected):
    assert check_timing(TimingSection(), device, graph) == expected


@pytest.mark.parametrize(
    ("device", "graph", "timing", "message"),
    [
        ("cpu", False, {"timer": "events"}, "timing.timer events needs a GPU"),
        ("cpu", False, {"timer": "graph"}, "timing.timer graph needs a GPU"),
        ("cpu", False, {"timer": "cupti"}, "timing.timer cupti needs a GPU"),
        ("cpu", False, {"l2": "cold"}, "timing.l2 cold: a CPU's L2 can't be controlled"),
        ("cpu", False, {"l2": "warm"}, "timing.l2 warm: a CPU's L2 can't be controlled"),
        ("cuda", False, {"timer": "wall"}, "timing.timer wall is for synchronous calls on the CPU"),
        ("cuda", False, {"l2": "none"}, "timing.l2 none would leave the GPU's L2 state unknown"),
        ("cuda", False, {"timer": "graph"}, "timing.timer graph times CUDA graphs; set schedule.graph to true"),
    ],
)
def test_what_cannot_be_honest_is_refused(device, graph, timing, message):
    with pytest.raises(UserError, match=message):
        check_timing(TimingSection.model_validate(timing), device, graph)


def test_cold_l2_sweeps_twice_what_the_card_holds():
    cold = contract(l2="cold")
    assert (cold.l2, cold.flush, cold.flush_bytes) == ("cold", "read_sweep", 2 * L2)
    memset = contract(l2="cold", flush="memset")
    assert (memset.flush, memset.flush_bytes) == ("memset", MEMSET_BYTES)
    warm = contract(l2="warm", flush="memset")
    assert (warm.flush, warm.flush_bytes) == ("none", 0)
    with pytest.raises(UserError, match="the L2 size of X is unknown here"):
        contract(Device("cuda", name="X"), l2="cold")


def test_a_graph_of_several_calls_is_never_labelled_cold():
    assert contract(graph=True, l2="warm").iterations_per_graph > 1
    assert contract(graph=True, l2="cold").iterations_per_graph == 1
    assert all(calls_per_graph(timer, "cold") == 1 for timer in ("events", "graph", "cupti"))


def test_whatever_changes_a_number_changes_the_contract():
    variants = [
        contract(),
        contract(graph=True),
        contract(graph=True, timer="events"),
        contract(timer="cupti"),
        contract(l2="cold"),
        contract(l2="cold", flush="memset"),
        contract(streams="multi"),
        contract(seed=1),
        contract(Device("cuda", name="other", l2_bytes=2 * L2), l2="cold"),
        contract(Device("cpu")),
    ]
    assert len({one.contract_id for one in variants}) == len(variants)


def test_how_often_is_not_part_of_what_a_number_means():
    assert contract(rounds=3, iterations=7, warmup=1).contract_id == contract().contract_id
