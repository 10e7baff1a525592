import pytest

from dsv4bench.errors import UserError
from dsv4bench.model.shape import LayerKind
from dsv4bench.scenario.expand import expand, select
from dsv4bench.scenario.schema import Scenario
from dsv4bench.scenario.workload import Workload


def scenario(**keys):
    return Scenario.model_validate({"name": "t", "model": "v4-flash", "workload": {"context": "8K"}, **keys})


def test_the_product_of_the_axes_is_the_cases():
    cases = expand(
        scenario(
            workload={"context": ["8K", "64K"], "batch": [1, 8]},
            cache={"main": ["fp8", "bf16"]},
            providers=["eager", "reference"],
        )
    )
    assert len(cases) == 3 * 2 * 2 * 2 * 2
    assert len({case.case_id for case in cases}) == len(cases)
    assert len({case.label for case in cases}) == len(cases)


def test_sides_of_a_comparison_share_their_pair_id_and_stand_together():
    first, second = expand(scenario(layers="c4a", providers=["eager", "reference"]))
    assert first.pair_id == second.pair_id
    assert first.case_id != second.case_id


def test_dsa_always_has_the_v32_shape():
    cases = expand(scenario(layers=["c4a", "dsa"]))
    assert [(case.shape.name, case.kind) for case in cases] == [("v4-flash", "c4a"), ("v3.2", "dsa")]
    both = expand(scenario(model=["v4-flash", "v3.2"], layers=["c4a", "dsa"]))
    assert [case.kind for case in both] == [LayerKind.C4A, LayerKind.DSA]


def test_a_model_without_the_layers_asked_for_is_an_error():
    with pytest.raises(UserError, match=r"model v3\.2 has layers dsa, none of the layers asked for: c4a"):
        expand(scenario(model="v3.2", layers="c4a"))


def test_ids_do_not_depend_on_the_name_a_shape_was_given(tmp_path):
    import shutil
    from pathlib import Path

    config = tmp_path / "config.json"
    shutil.copy(Path(__file__).parents[2] / "data/configs/v4_flash.json", config)
    by_name, by_path = expand(scenario(layers="c4a")), expand(scenario(layers="c4a", model=str(config)))
    assert [case.case_id for case in by_name] == [case.case_id for case in by_path]


def test_case_ids_are_stable_across_releases():
    (case,) = expand(scenario(layers="c128a"))
    assert (case.case_id, case.label) == ("d8325e641627", "v4-flash/c128a/decode-b1-8K/fp8+fp8/serial/eager")


def test_a_stage_scenario_keeps_only_layers_that_have_the_stage():
    cases = expand(scenario(kind="stage", stages=["topk"]))
    assert [case.kind for case in cases] == ["c4a"]
    assert cases[0].stage_names == ("topk",)
    with pytest.raises(UserError, match="no layer of scenario t has any of the stages latent_insert"):
        expand(scenario(kind="stage", stages=["latent_insert"]))


def test_a_query_longer_than_its_context_is_refused():
    with pytest.raises(UserError, match="query_len 16384 is longer than workload.context 8192"):
        expand(scenario(workload={"context": "8K", "query_len": "16K"}))


def test_prefill_takes_the_whole_context_by_default():
    (case,) = expand(scenario(layers="c4a", workload={"phase": "prefill", "context": "4K"}))
    assert case.workload.query_len == 4096


def test_mixed_providers_name_who_runs_what():
    (case,) = expand(scenario(layers="c4a", providers=[{"default": "triton", "sparse_attention": "vllm"}]))
    assert case.provider.of("sparse_attention") == "vllm"
    assert case.provider.of("topk") == "triton"
    assert case.provider.label == "triton,sparse_attention=vllm"


def test_more_cases_than_a_run_finishes_are_refused_before_they_are_made():
    many = {"context": list(range(1, 1001)), "batch": list(range(1, 1001))}
    with pytest.raises(UserError, match="multiply to more than 10,000 cases"):
        expand(scenario(workload=many))
    with pytest.raises(UserError, match="multiply to more than 10,000 cases"):
        expand(scenario(workload={"context": list(range(1, 4001))}))


def test_selection_matches_labels_and_ids():
    cases = expand(scenario())
    assert select(cases, ["c4a"]) == [case for case in cases if "c4a" in case.label]
    assert select(cases, [cases[0].case_id]) == [cases[0]]
    assert select(cases, ["nothing"]) == []
    assert select(cases, []) == cases


def test_spread_puts_about_one_in_four_on_a_boundary():
    lens = Workload("decode", 128, 65536, 1, "spread").seq_lens
    assert sum(n % 4 == 0 for n in lens) == 32
    assert sum(n % 128 == 0 for n in lens) == 1


def test_all_and_none_put_everybody_or_nobody_on_a_boundary():
    assert Workload("decode", 3, 8192, 1, "all").seq_lens == (8192,) * 3
    assert all(n % 4 for n in Workload("decode", 3, 8192, 1, "none").seq_lens)


def test_a_request_is_never_shorter_than_its_query():
    assert Workload("prefill", 2, 64, 64, "spread").seq_lens == (64, 64)


def test_a_providers_file_has_the_same_id_wherever_the_working_directory_lies(tmp_path, monkeypatch):
    found = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        file = f"{folder}/mine/topk.py:Mine"
        providers = [file, {"default": "eager", "topk": file}, "/elsewhere/topk.py:Mine"]
        cases = expand(scenario(layers="c4a", providers=providers))
        found.append([(case.case_id, case.provider) for case in cases])
    assert found[0] == found[1]
    assert {choice.default for _, choice in found[0]} == {"mine/topk.py:Mine", "eager", "/elsewhere/topk.py:Mine"}
