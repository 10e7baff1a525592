"""Every figure of a real deployment in tests/data/kv_memory.yaml, as graded there."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dsv4bench.memory.deployment import Deployment
from dsv4bench.memory.engines import engine_named
from dsv4bench.memory.engines.llamacpp import CHECKED as CHECKED_LLAMA_CPP
from dsv4bench.memory.engines.sglang import CHECKED as CHECKED_SGLANG
from dsv4bench.memory.engines.vllm import CHECKED as CHECKED_VLLM
from dsv4bench.memory.engines.vllm import Vllm
from dsv4bench.memory.ideal import entry_bytes, ideal_usage
from dsv4bench.memory.workspaces import indexer_logits_bytes
from dsv4bench.model.config import load_shape

CASES = {
    case["id"]: case for case in yaml.safe_load((Path(__file__).parents[2] / "data" / "kv_memory.yaml").read_text())
}
GIB = 2**30
MILLION = 2**20
CHECKS: dict[str, Any] = {}


def check(*names: str) -> Any:
    def register(function: Any) -> Any:
        CHECKS.update(dict.fromkeys(names, function))
        return function

    return register


@pytest.mark.parametrize("name", CASES)
def test_a_reported_figure_is_reproduced_as_graded(name: str) -> None:
    CHECKS[name](CASES[name], CASES[name]["expect"])


def rounds_to(value: float, printed: float) -> bool:
    """Whether a value prints as the figure did, in as many decimals."""
    decimals = len(str(printed).partition(".")[2])
    return round(value, decimals) == printed


def deployment(case: dict[str, Any]) -> Deployment:
    fields = {"shape": load_shape(case["model"])}
    same = (
        "indexer", "layout", "max_model_len", "max_num_batched_tokens", "async_scheduling", "in_flight_tokens",
        "state", "c4_state_rows", "c128_state_rows", "cache_type",
    )  # fmt: skip
    fields |= {name: case[name] for name in same if name in case}
    if "swa_full_tokens_ratio" in case:
        fields["swa_ratio"] = case["swa_full_tokens_ratio"]
    if case.get("mtp_layers") or case.get("draft_layers"):
        fields["mtp"] = 1
    return Deployment(**fields)


def vllm(case: dict[str, Any], version: str = "") -> Vllm:
    engine = engine_named(f"vllm@{version or case['version']}")
    assert isinstance(engine, Vllm)
    return engine


@check("blog-1m-pro-bf16")
def ideal_ratio(case: dict[str, Any], expect: dict[str, float]) -> None:
    v4, v32 = load_shape("v4-pro"), load_shape("v3.2")
    ours = ideal_usage(v4, case["context"], entry_bytes(v4, case["main"], case["indexer"])).total
    theirs = ideal_usage(v32, case["context"], entry_bytes(v32, "bf16", "bf16")).total
    assert rounds_to(ours / GIB, expect["ideal_gib"])
    assert rounds_to(theirs / GIB, expect["v32_bf16_gib"])
    assert rounds_to(theirs / ours, expect["ratio"])


@check("packed-flash-gb10")
def exact_capacity(case: dict[str, Any], expect: dict[str, float]) -> None:
    got = vllm(case).capacity(deployment(case), case["available_bytes"])
    assert (got.num_blocks, got.blocks_per_request) == (expect["num_blocks"], expect["blocks_per_request"])
    assert got.kv_cache_tokens == expect["kv_cache_tokens"]
    assert rounds_to(got.concurrency, expect["concurrency"])


@check("packed-flash-groups")
def group_bytes(case: dict[str, Any], expect: dict[str, Any]) -> None:
    assert list(vllm(case).layout(deployment(case)).group_bytes) == expect["group_bytes"]


@check("packed-flash-small-mml")
def capacity_of_blocks(case: dict[str, Any], expect: dict[str, float]) -> None:
    got = vllm(case).capacity(deployment(case), 0, num_blocks=case["num_blocks"])
    assert got.blocks_per_request == expect["blocks_per_request"]
    assert got.kv_cache_tokens == expect["kv_cache_tokens"]
    assert rounds_to(got.concurrency, expect["concurrency"])


@check("bucketed-packing-gain")
def packing_gain(case: dict[str, Any], expect: dict[str, int]) -> None:
    for generation in ("tuple", "bucketed"):
        assert vllm(case, generation).layout(deployment(case)).bytes_per_block == expect[f"{generation}_bytes"]


@check("packed-pro-flashinfer")
def packing_gain_of_pro(case: dict[str, Any], expect: dict[str, int]) -> None:
    for generation, key in (("bucketed", "before"), ("packed", "after")):
        engine = vllm(case, generation)
        assert engine.layout(deployment(case)).bytes_per_block == expect[f"bytes_{key}"]
        blocks = {
            engine.capacity(deployment(case), int((case["available_gib"] + edge) * GIB)).num_blocks
            for edge in (-0.005, 0.005)
        }
        assert min(blocks) <= expect[f"blocks_{key}"] <= max(blocks)


@check("sglang-flash-h100")
def pools(case: dict[str, Any], expect: dict[str, float]) -> None:
    got = engine_named("sglang").capacity(deployment(case), round((case["pool_gib"] - case["fixed_state_gib"]) * GIB))
    assert got.bytes_per_token is not None
    assert rounds_to(got.bytes_per_token, expect["engine_bytes_per_token"])
    assert got.kv_cache_tokens == expect["full_tokens"]
    assert {name: got.pools[name] for name in ("swa", "c4", "c128")} == {
        name: expect[name] for name in ("swa", "c4", "c128")
    }


@check("sglang-flash-h20-mtp", "sglang-flash-mi300x-mtp", "sglang-pro-mi355x-0.5.13")
def bytes_per_full_token(case: dict[str, Any], expect: dict[str, float]) -> None:
    got = engine_named("sglang").capacity(deployment(case), 10 * GIB)
    assert got.bytes_per_token is not None
    assert rounds_to(got.bytes_per_token, expect["engine_bytes_per_token"])


@check("llamacpp-flash-128k")
def llama_buffers(case: dict[str, Any], expect: dict[str, float]) -> None:
    buffers = engine_named("llama.cpp").usage(deployment(case), case["context"]).buffers
    for name, key in (("CSA", "csa_mib"), ("HCA", "hca_mib"), ("indexer", "indexer_mib")):
        assert buffers[name] / 2**20 == expect[key]


@check("ik-raw-k")
def raw_keys(case: dict[str, Any], expect: dict[str, dict[int, float]]) -> None:
    plan = Deployment(shape=load_shape(case["model"]), cache_type="q8_0")
    for context, mib in expect["raw_k_mib"].items():
        assert engine_named("ik_llama.cpp").usage(plan, context).buffers["raw K"] / 2**20 == mib


@check("v32-fp8-b200")
def v32_pool(case: dict[str, Any], expect: dict[str, float]) -> None:
    usage = engine_named("sglang").usage(deployment(case), case["full_tokens"])
    assert rounds_to(usage.total / GIB, expect["gib"])


@check("logits-workspace")
def logits(case: dict[str, Any], expect: dict[str, list[float]]) -> None:
    for tokens, gib in zip(case["tokens"], expect["gib"], strict=True):
        assert rounds_to(indexer_logits_bytes(load_shape("v4-flash"), case["rows"], tokens) / GIB, gib)


@check("bucketed-flash-h20", "bucketed-flash-h200nvl", "tuple-flash-h100")
def older_capacity(case: dict[str, Any], expect: dict[str, float]) -> None:
    plan, engine = deployment(case), vllm(case)
    half = 0.5 * 10 ** -len(str(case["available_gib"]).partition(".")[2])
    low = engine.capacity(plan, int((case["available_gib"] - half) * GIB))
    high = engine.capacity(plan, int((case["available_gib"] + half) * GIB))
    assert low.blocks_per_request == expect["blocks_per_request"]
    assert low.kv_cache_tokens <= expect["kv_cache_tokens"] <= high.kv_cache_tokens
    assert round(low.concurrency, 2) <= expect["concurrency"] <= round(high.concurrency, 2)
    if "num_blocks" in expect:
        assert low.num_blocks is not None
        assert high.num_blocks is not None
        assert low.num_blocks <= expect["num_blocks"] <= high.num_blocks
        logged = engine.capacity(plan, 0, num_blocks=int(expect["num_blocks"]))
        assert logged.kv_cache_tokens == expect["kv_cache_tokens"]


def test_every_case_has_a_check() -> None:
    assert set(CHECKS) == set(CASES)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "engine" in case and name != "ik-raw-k"])
def test_the_configuration_of_a_case_counts_as_checked(name: str) -> None:
    case = CASES[name]
    if case["engine"] == "vllm":
        generations = [case["version"]] if "version" in case else ["bucketed"]
        assert all(vllm(case, version).is_checked(deployment(case), MILLION) for version in generations)
    else:
        assert engine_named(case["engine"]).is_checked(deployment(case), case.get("context", MILLION))


def vllm_generations(case: dict[str, Any]) -> list[str]:
    """Those whose figures a case has: its version's, or the two sides of a comparison."""
    if "version" in case:
        return [vllm(case).generation]
    return ["tuple", "bucketed"] if "tuple_bytes" in case["expect"] else ["bucketed", "packed"]


def test_every_checked_configuration_of_vllm_has_a_case_and_every_case_counts() -> None:
    assert {
        (generation, case["model"], case.get("layout", "flashmla"), "fp8", case.get("indexer", "fp8"),
         "mtp_layers" in case)
        for case in CASES.values() if case.get("engine") == "vllm" for generation in vllm_generations(case)
    } == CHECKED_VLLM  # fmt: skip


def test_every_checked_configuration_of_sglang_has_a_case_and_every_case_counts() -> None:
    assert {
        (case["model"], case.get("draft_layers", 0), case["state"], case.get("c4_state_rows", 8),
         case.get("c128_state_rows", 0), case["swa_full_tokens_ratio"])
        for case in CASES.values() if case.get("engine") == "sglang" and case["model"] != "v3.2"
    } == CHECKED_SGLANG  # fmt: skip


def test_the_checked_configuration_of_llama_cpp_is_that_of_its_case() -> None:
    (case,) = (case for case in CASES.values() if case.get("engine") == "llama.cpp")
    assert (case["model"], case["cache_type"], 768) == CHECKED_LLAMA_CPP  # the cells: see the last test here


@pytest.mark.parametrize(
    ("engine", "model", "changes", "context"),
    [
        ("vllm@9.9", "v4-flash", {}, MILLION),
        ("vllm@0.34", "v4-flash", {}, MILLION),
        ("vllm", "v4-flash", {"pp": 2}, MILLION),
        ("sglang", "v4-flash", {}, MILLION),
        ("sglang", "v4-pro", {"swa_ratio": 0.15}, MILLION),
        ("sglang@0.5.14", "v4-pro", {"swa_ratio": 0.15}, MILLION),
        ("llama.cpp", "v4-flash", {}, 5),
        ("llama.cpp", "v4-flash", {}, 16384),
        ("llama.cpp", "v4-flash", {}, 131073),
        ("llama.cpp", "v4-flash", {"window_cells": 1024}, 131072),
        ("llama.cpp", "v4-flash", {"mtp": 1}, 131072),
        ("llama.cpp", "v4-pro", {}, 131072),
        ("ik_llama.cpp", "v4-flash", {"cache_type": "q8_0"}, 131072),
    ],
)
def test_a_configuration_that_no_case_covers_counts_as_predicted(
    engine: str, model: str, changes: dict[str, Any], context: int
) -> None:
    assert not engine_named(engine).is_checked(Deployment(load_shape(model), **changes), context)


@pytest.mark.parametrize("context", [32768, 131072, MILLION])
def test_llama_cpp_counts_as_checked_where_padding_changes_nothing(context: int) -> None:
    plan = Deployment(load_shape("v4-flash"))
    buffers = engine_named("llama.cpp").usage(plan, context).buffers
    assert engine_named("llama.cpp").is_checked(plan, context)
    assert buffers["CSA"] == 21 * context // 4 * 512 * 2
    assert buffers["HCA"] == 20 * context // 128 * 512 * 2


def test_cells_of_llama_cpp_are_padded_to_256() -> None:
    usage = engine_named("llama.cpp").usage(Deployment(load_shape("v4-flash")), 16384)
    assert usage.buffers["HCA"] == 20 * 256 * 512 * 2
    assert "HCA: 20·256·512·2 B = 5.00 MiB (128 cells padded to 256)" in usage.terms
    assert "CSA: 21·4,096·512·2 B = 84.00 MiB" in usage.terms


def test_the_window_of_llama_cpp_has_768_cells_as_logged() -> None:
    usage = engine_named("llama.cpp").usage(deployment({"model": "v4-flash"}), 131072)
    assert usage.buffers["window"] / 2**20 == 32.25  # llama.cpp#25468
    assert sum(usage.buffers.values()) == usage.total
