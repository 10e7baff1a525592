"""``kind: model``: one case a model, told apart by its list of layers."""

import pytest

from dsv4bench.model.shape import V4_FLASH, LayerKind
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.schema import Scenario


def cases(**keys):
    given = {"name": "t", "kind": "model", "model": ["v4-flash", "v3.2"], "workload": {"context": "8K"}, **keys}
    return expand(Scenario.model_validate(given))


def test_a_model_is_one_case_with_all_its_layers():
    flash, old = cases()
    assert flash.layers == V4_FLASH.layers
    assert flash.kinds == {LayerKind.SWA: 2, LayerKind.C4A: 21, LayerKind.C128A: 20}
    assert old.kinds == {LayerKind.DSA: 61}
    assert flash.label == "v4-flash/model/decode-b1-8K/fp8+fp8/serial/eager"
    assert flash.describe()["layers"] == "2swa+21c4a+20c128a"
    assert flash.describe()["layer"] == "model"


def test_copies_count_into_the_id_and_end_at_the_number_of_layers():
    assert len({case.case_id for copies in (1, 2, 61) for case in cases(copies=copies)}) == 6
    assert [case.copies for case in cases(copies=100)] == [21, 61]


def test_a_single_layer_of_a_model_is_an_ordinary_case():
    (plain,) = expand(
        Scenario.model_validate({"name": "t", "model": "v4-flash", "layers": "c128a", "workload": {"context": "8K"}})
    )
    assert cases()[0].of_kind(LayerKind.C128A) == plain


def test_layer_lists_and_checkpoints_do_not_go_with_models():
    with pytest.raises(ValueError, match="'layers' does not go with kind: model"):
        cases(layers=["c4a"])
    with pytest.raises(ValueError, match=r"'weights\.checkpoint' does not go with kind: model"):
        cases(weights={"checkpoint": "x", "layer": 0})
