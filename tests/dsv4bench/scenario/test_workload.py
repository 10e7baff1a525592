"""Workloads beyond equal requests: mixed lengths, batches as text, who completes an entry, what ids are made of."""

import pytest

from dsv4bench.errors import UserError
from dsv4bench.model.shape import LayerKind
from dsv4bench.scenario.expand import expand
from dsv4bench.scenario.lengths import ContextMix
from dsv4bench.scenario.loader import load_scenario
from dsv4bench.scenario.schema import Scenario
from dsv4bench.scenario.workload import Workload


def scenario(**workload):
    return Scenario.model_validate({"name": "t", "model": "v4-flash", "layers": "c4a", "workload": workload})


def workloads(**workload):
    return [case.workload for case in expand(scenario(**workload))]


def test_defaults_stay_out_of_what_an_id_is_made_of():
    assert Workload("decode", 1, 8192, 1, "spread").describe() == {
        "phase": "decode", "batch": 1, "context": 8192, "query_len": 1, "boundary": "spread",
    }  # fmt: skip


def test_every_new_way_to_say_a_workload_gives_another_id_and_label():
    cases = [
        *expand(scenario(context=["32K", {"distribution": "lognormal", "median": "32K"}], batch=8)),
        *expand(scenario(context={"distribution": "lognormal", "median": "32K", "sigma": 2}, batch=8)),
        *expand(scenario(context="32K", batch=8, index_pattern=["recent", "clustered"])),
        *expand(scenario(requests=["8q1s32k", "8q4s32k"])),
    ]
    assert len({case.case_id for case in cases}) == 7
    assert len({case.label for case in cases}) == 7


def test_boundary_c4a_completes_entries_in_c4a_layers_alone():
    lens = Workload("decode", 3, 8192, 1, "c4a").seq_lens
    assert all(length % 4 == 0 and length % 128 for length in lens)


def test_mixed_lengths_keep_their_distance_from_the_boundary():
    mix = ContextMix("lognormal", 256, 65536, 8192, 1.0)
    even = Workload("decode", 16, 8192, 1, "all", mix=mix).seq_lens
    spread = Workload("decode", 16, 8192, 1, "spread", mix=mix).seq_lens
    assert all(length % 128 == 0 for length in even)
    assert len(set(even)) > 8
    assert [a - b for a, b in zip(even, spread, strict=True)] == [(1 + 37 * r) % 128 for r in range(16)]


def test_a_batch_as_text_is_a_mixed_step_with_its_decodes_first():
    (workload,) = workloads(requests="64q1s128k_2q2ks2k", boundary="all")
    assert (workload.phase, workload.batch, workload.tokens) == ("mixed", 66, 64 + 4096)
    assert workload.query_lens == (1,) * 64 + (2048,) * 2
    assert workload.seq_lens == (131072,) * 64 + (2048,) * 2
    assert workload.label == "mixed-64q1s128k_2q2ks2k-all"


def test_a_few_drafted_tokens_are_a_decode_and_a_chunk_is_a_prefill():
    assert [w.phase for w in workloads(requests=["8q4s64k", "q2ks64k", "q4", "q1"])] == [
        "decode", "prefill", "prefill", "decode",
    ]  # fmt: skip


def test_spread_never_makes_a_prompt_shorter_than_its_query():
    (workload,) = workloads(requests="4q1s1k_2q1k")
    assert all(n >= q for n, q in zip(workload.seq_lens, workload.query_lens, strict=True))


def test_a_prefix_and_a_chunk_make_the_context():
    found = workloads(phase="prefill", prefix=[0, "64K"], query_len=["4K", "8K"])
    assert [(w.context, w.query_len) for w in found] == [(4096, 4096), (8192, 8192), (69632, 4096), (73728, 8192)]


def test_patterns_apply_to_layers_with_an_indexer_only():
    given = {"name": "t", "model": "v4-flash", "workload": {"context": "8K", "index_pattern": ["random", "recent"]}}
    cases = expand(Scenario.model_validate(given))
    assert [(case.kind, case.workload.index_pattern) for case in cases] == [
        (LayerKind.SWA, "random"), (LayerKind.C4A, "random"), (LayerKind.C4A, "recent"), (LayerKind.C128A, "random"),
    ]  # fmt: skip


def test_a_query_longer_than_the_shortest_request_is_refused():
    with pytest.raises(UserError, match=r"query_len 4096 is longer than workload\.context 1024"):
        workloads(context={"distribution": "uniform", "min": "1K", "max": "8K"}, query_len="4K", batch=64)


@pytest.mark.parametrize(
    "workload",
    [
        {"context": ["8K", {"distribution": "uniform", "max": "64K"}]},
        {"requests": "64q1s128k_2q2ks2k"},
        {"prefix": [0, "8K"], "query_len": "1K", "phase": "prefill"},
    ],
)
def test_a_stored_scenario_reads_back_as_the_same_cases(workload):
    given = scenario(**workload)
    again = Scenario.model_validate(given.model_dump(mode="json", exclude_none=True))
    assert [case.case_id for case in expand(again)] == [case.case_id for case in expand(given)]


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ("{context: [{distribution: normal}]}", r"mini.yaml:3: workload.context.0.distribution: .*'lognormal' or"),
        ("{context: {distribution: uniform, mid: 3}}", r"mini.yaml:3: workload.context.*mid: unknown key; .*'min'"),
        ("{context: {distribution: lognormal}}", r"mini.yaml:3: workload.context.0: 'median' belongs to"),
        ("{context: {distribution: uniform, min: 8K, max: 1K}}", r"min, median and max have to be in this order"),
        ("{context: 8K, prefix: 0}", r"mini.yaml:3: workload: needs exactly one of context, prefix and requests"),
        ("{batch: 2}", r"needs exactly one of context, prefix and requests, got none"),
        ("{requests: q1s1k, batch: 2}", r"requests says all of the batch; leave out batch"),
        ("{requests: q1s1z}", r"mini.yaml:3: workload.requests.0: 'q1s1z' is not"),
        ("{prefix: 8K, phase: prefill}", r"prefix needs query_len, the length of the chunk"),
        ("{context: 8K, index_pattern: old}", r"workload.index_pattern.0: .*'random', 'recent' or 'clustered'"),
    ],
)
def test_a_mistake_is_named_with_its_place(workload, message, tmp_path):
    path = tmp_path / "mini.yaml"
    path.write_text(f"name: mini\nmodel: v4-flash\nworkload: {workload}\n")
    with pytest.raises(UserError, match=message):
        load_scenario(str(path))
