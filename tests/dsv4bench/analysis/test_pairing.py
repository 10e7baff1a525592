from dsv4bench.analysis.pairing import (
    contract_differences,
    fingerprint,
    fingerprint_differences,
    match,
    version_differences,
)
from tests.dsv4bench.stored_runs import CONTRACT, H200, around, row, run

TIMES = around(1e-4)


def test_rows_are_matched_by_case_id_whatever_their_name():
    matching = match([row("old", TIMES, case_id="same")], [row("new", TIMES, case_id="same")])
    [pair] = matching.pairs
    assert pair.renamed
    assert not matching.added
    assert not matching.vanished


def test_rows_of_two_providers_meet_by_the_case_without_its_provider():
    base = [row("triton", TIMES, pair_id="case")]
    new = [row("vllm", TIMES, pair_id="case")]
    assert [(pair.base.label, pair.new.label) for pair in match(base, new).pairs] == [("triton", "vllm")]


def test_a_pair_that_is_ambiguous_is_not_guessed():
    base = [row("triton", TIMES, pair_id="case"), row("eager", TIMES, pair_id="case")]
    matching = match(base, [row("vllm", TIMES, pair_id="case")])
    assert not matching.pairs
    assert len(matching.vanished) == 2


def test_a_case_with_the_same_name_and_another_definition_is_reshaped():
    base = [row("decode", TIMES, case_id="a", pair_id="a")]
    new = [row("decode", TIMES, case_id="b", pair_id="b")]
    matching = match(base, new)
    assert not matching.pairs
    assert [(pair.base.case_id, pair.new.case_id) for pair in matching.reshaped] == [("a", "b")]


def test_what_is_on_one_side_only_is_added_or_vanished():
    matching = match([row("a", TIMES), row("b", TIMES)], [row("b", TIMES), row("c", TIMES)])
    assert [pair.new.label for pair in matching.pairs] == ["b"]
    assert [item.label for item in matching.added] == ["c"]
    assert [item.label for item in matching.vanished] == ["a"]


def test_differences_of_contracts_are_named():
    other = CONTRACT.model_copy(update={"l2": "cold", "timer": "graph"})
    assert contract_differences(CONTRACT, other) == "timer: events → graph, l2: warm → cold"
    assert contract_differences(CONTRACT, CONTRACT) == ""


def test_the_fingerprint_of_a_gpu_is_what_the_specification_lists():
    assert list(fingerprint(run([]).manifest)) == ["GPU", "SMs", "memory", "power limit", "ECC", "MIG"]


def test_another_power_limit_is_another_machine():
    capped = H200.model_copy(update={"power_limit_w": 500.0})
    assert fingerprint_differences(run([]).manifest, run([], gpu=capped).manifest) == "power limit: 700.0 → 500.0"


def test_a_cpu_and_a_gpu_are_never_the_same_machine():
    assert (
        fingerprint_differences(run([]).manifest, run([], gpu=None).manifest)
        == "device: NVIDIA H200 → CPU, a processor"
    )


def test_another_card_of_the_same_kind_is_the_same_machine():
    other = H200.model_copy(update={"uuid": "GPU-1", "temperature_c": 60.0})
    assert fingerprint_differences(run([]).manifest, run([], gpu=other).manifest) == ""


def test_versions_that_differ_are_named():
    assert version_differences(run([]).manifest, run([], torch="2.11.0").manifest) == "torch: 2.13.0 → 2.11.0"
