"""The weights section: precision as an axis, a checkpoint's layer, ids that outlive both."""

import pytest

from dsv4bench.errors import UserError
from dsv4bench.model.shape import LayerKind
from dsv4bench.scenario.case import WeightChoice
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.schema import Scenario


def cases(**keys):
    given = {"name": "t", "model": "v4-flash", "workload": {"context": "8K"}, **keys}
    return expand(Scenario.model_validate(given))


def test_random_bf16_weights_leave_no_trace_in_an_id():
    plain, fp8 = cases(layers="c128a", weights={"precision": ["bf16", "fp8"]})
    assert plain.case_id == cases(layers="c128a")[0].case_id == "d8325e641627"
    assert fp8.describe() == {**plain.describe(), "weights": "fp8"}
    assert fp8.label == "v4-flash/c128a/decode-b1-8K/fp8+fp8/serial/fp8-weights/eager"


def test_a_checkpoints_layer_decides_the_layer_kind():
    found = cases(weights={"checkpoint": "/models/DeepSeek-V4-Flash", "layer": 3})
    assert [case.kind for case in found] == [LayerKind.C128A]
    assert found[0].weights == WeightChoice("bf16", "/models/DeepSeek-V4-Flash", 3)
    assert found[0].describe()["checkpoint"] == "DeepSeek-V4-Flash#3"


def test_an_id_does_not_depend_on_where_a_checkpoint_lies():
    here, there = (cases(weights={"checkpoint": f"{path}/V4", "layer": 2})[0] for path in ("/a", "b/c"))
    assert here.case_id == there.case_id


def test_a_layer_that_the_model_lacks_is_refused():
    with pytest.raises(UserError, match=r"weights\.layer 43: v4-flash has layers 0 to 42"):
        cases(weights={"checkpoint": "x", "layer": 43})


def test_a_checkpoint_needs_a_layer_and_the_other_way_round():
    for weights in ({"checkpoint": "x"}, {"layer": 3}):
        with pytest.raises(ValueError, match="checkpoint and layer go together"):
            cases(weights=weights)
