from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4bench.errors import UserError
from dsv4bench.memory.allocator import BlockAllocator, OutOfBlocksError
from dsv4bench.memory.deployment import Deployment
from dsv4bench.memory.engines import ENGINES, engine_named
from dsv4bench.memory.engines.vllm import Vllm
from dsv4bench.memory.ideal import ideal_usage
from dsv4bench.model.shape import PRESETS, V3_2, V4_FLASH, V4_PRO, LayerKind

MILLION = 1_048_576
GIB = 2**30


def vllm(version: str = "packed") -> Vllm:
    engine = engine_named(f"vllm@{version}")
    assert isinstance(engine, Vllm)
    return engine


@pytest.mark.parametrize(
    ("version", "generation"),
    [
        ("", "packed"), ("0.20", "tuple"), ("0.21.1rc1", "tuple"), ("0.22", "bucketed"), ("v0.26.0", "bucketed"),
        ("0.27.1", "packed"), ("0.33", "packed"), ("0.40", "packed"), ("1.0", "packed"), ("bucketed", "bucketed"),
    ],
)  # fmt: skip
def test_a_version_belongs_to_its_generation(version: str, generation: str) -> None:
    assert vllm(version).generation == generation


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vlm", r"unknown engine 'vlm': did you mean vllm\? known are ideal, vllm, sglang, llama.cpp, ik_llama.cpp"),
        ("vllm@0.5", r"unknown vLLM version '0.5'; known are 0.20 … 0.33, or tuple, bucketed, packed"),
        ("vllm@new", "unknown vLLM version 'new'"),
        ("sglang@0.4", "unknown SGLang version '0.4'; known are 0.5.11, 0.5.13, latest"),
        ("sglang@x", "unknown SGLang version 'x'"),
        ("llama.cpp@b123", "unknown llama.cpp version 'b123'"),
    ],
)
def test_an_unknown_engine_or_version_lists_what_is_known(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        engine_named(name)


@pytest.mark.parametrize(("in_flight", "blocks"), [(1, 4122), (8192, 7450), (16384, 10778)])
def test_blocks_of_a_million_tokens_follow_the_tokens_in_flight(in_flight: int, blocks: int) -> None:
    plan = Deployment(V4_PRO, in_flight_tokens=in_flight)
    assert vllm().capacity(plan, 100 * GIB).blocks_per_request == blocks


def test_before_packed_the_blocks_of_sliding_groups_are_under_counted() -> None:
    counts = {
        version: vllm(version).capacity(Deployment(V4_PRO, mtp=1), 100 * GIB).blocks_per_request
        for version in ("bucketed", "packed")
    }
    assert counts == {"bucketed": 7124, "packed": 7450}


@pytest.mark.parametrize(
    ("version", "indexer", "shape", "gib"),
    [
        ("0.33", "fp8", V4_PRO, 5.513), ("0.33", "fp4", V4_PRO, 5.048), ("0.26", "fp8", V4_PRO, 5.656),
        ("0.33", "fp8", V4_FLASH, 3.848), ("0.33", "fp4", V4_FLASH, 3.522), ("0.26", "fp8", V4_FLASH, 3.991),
    ],
)  # fmt: skip
def test_a_decoding_request_of_a_million_tokens_holds(version: str, indexer: str, shape: object, gib: float) -> None:
    usage = vllm(version).usage(Deployment(shape, indexer=indexer), MILLION)  # type: ignore[arg-type]
    assert round(usage.total / GIB, 3) == gib


def test_most_blocks_of_a_million_tokens_are_the_in_flight_charge() -> None:
    plan = Deployment(V4_FLASH, max_num_batched_tokens=8192, async_scheduling=True)
    share = vllm().capacity(plan, 30 * GIB).in_flight_share
    assert share is not None
    assert round(share, 2) == 0.62


def test_the_largest_context_is_the_last_that_fits() -> None:
    engine, plan = vllm(), Deployment(V4_FLASH)
    got = engine.capacity(plan, 4 * GIB)
    at, beyond = (engine.capacity(plan.at(got.largest_context + more), 4 * GIB) for more in (0, 1))
    assert at.concurrency >= 1 > beyond.concurrency


def test_mtp_layers_join_the_window_groups() -> None:
    names = {group.name: len(group.placements) for group in vllm().layout(Deployment(V4_FLASH, mtp=1)).groups}
    assert (names["window0"], names["window1"]) == (22, 22)
    pro = vllm().layout(Deployment(V4_PRO, mtp=2)).groups
    assert [len(group.placements) for group in pro if group.name.startswith("window")] == [31, 31]


def test_fp4_saves_nothing_before_packed_and_a_note_says_so() -> None:
    plan = Deployment(V4_FLASH, indexer="fp4")
    old = vllm("0.26")
    assert old.usage(plan, MILLION).total == old.usage(Deployment(V4_FLASH), MILLION).total
    assert "fp4 saves no memory before vLLM 0.27" in old.notes(plan)[0]
    assert vllm("0.27").usage(plan, MILLION).total < vllm("0.27").usage(Deployment(V4_FLASH), MILLION).total


@pytest.mark.parametrize(("pp", "sizes"), [(1, [61]), (2, [31, 30]), (4, [15, 15, 16, 15]), (3, [20, 21, 20])])
def test_pipeline_stages_split_the_layers_as_vllm_does(pp: int, sizes: list[int]) -> None:
    stages = Deployment(V4_PRO, pp=pp).stages
    assert [len(stage) for stage in stages] == sizes
    assert [layer for stage in stages for layer in stage] == list(range(61))


def test_a_pipeline_stage_has_smaller_blocks_and_so_more_of_them() -> None:
    one, two = (vllm().capacity(Deployment(V4_PRO, pp=pp), 50 * GIB) for pp in (1, 2))
    assert one.num_blocks is not None
    assert two.num_blocks is not None
    assert 1.9 * one.num_blocks < two.num_blocks < 2.1 * one.num_blocks


@pytest.mark.parametrize(
    ("name", "pp", "async_scheduling", "steps"),
    [("packed", 1, False, 1), ("packed", 1, True, 2), ("packed", 2, False, 2), ("packed", 4, True, 4),
     ("bucketed", 1, True, 1), ("tuple", 2, True, 1)],
)  # fmt: skip
def test_a_step_is_in_flight_for_each_pipeline_stage(name: str, pp: int, async_scheduling: bool, steps: int) -> None:
    plan = Deployment(V4_PRO, pp=pp, async_scheduling=async_scheduling, max_num_batched_tokens=4096)
    got = vllm(name).capacity(plan, 50 * GIB)
    assert got.in_flight_tokens == 4096 * steps
    assert got.group_blocks["window0"] == -(-(127 + 4096 * steps) // 64) + 1


@pytest.mark.parametrize("name", ["packed", "bucketed", "tuple"])
def test_the_requests_that_decode_at_once_leave_room_to_admit_the_last_of_them(name: str) -> None:
    engine, plan = vllm(name), Deployment(V4_FLASH, max_model_len=131072)
    admitted, held = 512 + 2 * 131 + 2051 + 1041, 512 + 2 * 3 + 3 + 17  # full, two windows, c4 state, c128 state
    for more, fits in ((-1, 0), (0, 1), (held - 1, 1), (held, 2), (10 * held, 11)):
        assert engine.capacity(plan, 0, num_blocks=admitted + more).decoding_requests == fits


def _requests_that_fit(pool: BlockAllocator, length: int, step: int) -> int:
    """Admit requests one after another, prefill each in steps and decode one token, until the pool is used up."""
    for request in count():
        pool.admit(request, length - 1)
        prefill = [step] * (length // step) + [length % step - 1]
        try:
            for tokens in (*prefill, 1):
                pool.advance(request, tokens)
        except OutOfBlocksError:
            return request
    raise AssertionError


def test_the_allocator_holds_the_requests_that_decode_at_once() -> None:
    step, length = 1024, 4102  # the window begins and ends within a block of every group
    plan = Deployment(V4_FLASH, max_model_len=length, max_num_batched_tokens=step)
    expected = vllm().capacity(plan, 0, num_blocks=2000).decoding_requests
    fits = _requests_that_fit(BlockAllocator(vllm().layout(plan).groups, 2000), length, step)
    assert expected is not None
    assert expected <= fits <= expected + 1


def test_a_note_says_that_servers_have_two_steps_in_flight_unless_told_otherwise() -> None:
    plan = Deployment(V4_FLASH)
    assert "with two: --async-scheduling" in vllm("0.31").capacity(plan, 50 * GIB).notes[0]
    assert not vllm("bucketed").capacity(plan, 50 * GIB).notes
    for told in (
        replace(plan, async_scheduling=True), replace(plan, in_flight_tokens=4096), replace(plan, pp=2),
        replace(plan, shape=V3_2),
    ):  # fmt: skip
        assert not vllm("0.31").capacity(told, 50 * GIB).notes


@pytest.mark.parametrize(
    ("length", "need", "pool"),
    [(129, 256, "swa"), (256, 256, "swa"), (2048, 512, "swa"), (131072, 131072, "full"), (131073, 131328, "full")],
)
def test_sglang_fits_as_many_requests_as_its_scarcest_pool(length: int, need: int, pool: str) -> None:
    got = engine_named("sglang").capacity(Deployment(V4_FLASH, max_model_len=length), 40 * GIB)
    assert got.bound_by == pool
    assert got.concurrency == got.pools[pool] / need


def test_a_request_over_pipeline_stages_holds_a_slab_of_each() -> None:
    engine, plan = vllm(), Deployment(V4_PRO, pp=2)
    slabs = sum(engine.layout(plan, stage).bytes_per_block for stage in plan.stages)
    assert engine.usage(plan, MILLION).total == 4122 * slabs


def test_tensor_parallelism_changes_nothing_and_decode_context_parallelism_splits_compressed_blocks() -> None:
    base, tp, dcp = (
        vllm().capacity(Deployment(V3_2, **sizes), 50 * GIB)  # type: ignore[arg-type]
        for sizes in ({}, {"tp": 8}, {"tp": 8, "dcp": 4})
    )
    assert base.concurrency == tp.concurrency
    assert dcp.blocks_per_request == MILLION // 256


def test_v32_blocks_hold_64_tokens_of_788_bytes_a_layer() -> None:
    got = vllm().capacity(Deployment(V3_2, max_model_len=131072), 60 * GIB)
    assert got.bytes_per_block == 61 * 64 * 788
    assert got.blocks_per_request == 2048


@pytest.mark.parametrize("name", [*ENGINES, "vllm@tuple", "vllm@bucketed", "sglang@0.5.11"])
@settings(deadline=None, max_examples=40)
@given(
    context=st.integers(0, 1_500_000),
    more=st.integers(0, 5000),
    shape=st.sampled_from(list(PRESETS.values())),
    mtp=st.integers(0, 2),
    cache_type=st.sampled_from(["f16", "q8_0"]),
)
def test_an_engine_reserves_no_less_than_the_ideal_and_grows_with_the_context(
    name: str, context: int, more: int, shape: object, mtp: int, cache_type: str
) -> None:
    engine = engine_named(name)
    plan = Deployment(shape, mtp=mtp, cache_type=cache_type)  # type: ignore[arg-type]
    if name == "ik_llama.cpp" and not plan.shape.is_v4:
        return
    engine.check(plan)
    now, later = engine.usage(plan, context), engine.usage(plan, context + more)
    ideal = ideal_usage(plan.shape, context, engine.entry_bytes(plan), plan.layers)
    assert ideal.total <= now.total <= later.total
    assert all(part.padding >= -1e-6 for part in now.layers)


@pytest.mark.parametrize("name", [*ENGINES, "vllm@tuple", "vllm@bucketed"])
@settings(deadline=None, max_examples=20)
@given(gib=st.integers(20, 200), more=st.integers(0, 50), length=st.integers(1, 1_000_000))
def test_more_memory_never_fits_less(name: str, gib: int, more: int, length: int) -> None:
    engine, plan = engine_named(name), Deployment(V4_FLASH, max_model_len=length)
    small, large = (engine.capacity(plan, size * GIB) for size in (gib, gib + more))
    assert small.concurrency <= large.concurrency
    assert small.largest_context <= large.largest_context


def test_a_release_of_sglang_between_the_known_ones_is_said_to_be_taken_as_one() -> None:
    plan = Deployment(V4_FLASH)
    assert engine_named("sglang@0.5.13").notes(plan) == ()
    assert "SGLang 0.5.20: taken to be as 0.5.13" in engine_named("sglang@0.5.20").notes(plan)[0]


def test_state_of_newer_sglang_is_request_scoped_and_a_note_says_what_it_takes() -> None:
    def notes(name: str, **changes: int) -> tuple[str, ...]:
        return engine_named(name).capacity(Deployment(V4_FLASH, **changes), 40 * GIB).notes

    assert notes("sglang@0.5.13") == notes("sglang", fixed_state_bytes=GIB) == ()
    assert "10,485,760 B a request slot" in notes("sglang")[0]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("vllm", {"layout": "triton"}, "--layout must be flashmla or flashinfer, got 'triton'"),
        ("vllm", {"main": "bf16"}, "layout flashmla has no main 'bf16', only fp8; bf16 needs layout flashinfer"),
        ("sglang", {"main": "bf16"}, "SGLang serves V4 with main fp8"),
        ("sglang", {"state": "fp16"}, "--state must be bf16 or fp32, got 'fp16'"),
        ("llama.cpp", {"cache_type": "q4"}, "--cache-type must be f16 or q8_0, got 'q4'"),
    ],
)
def test_what_an_engine_lacks_is_refused(name: str, changes: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        engine_named(name).check(Deployment(V4_FLASH, **changes))  # type: ignore[arg-type]


def test_llama_cpp_refuses_a_window_cache_that_does_not_hold_the_window() -> None:
    engine = engine_named("llama.cpp")
    with pytest.raises(UserError, match="--window-cells must be at least 128, the sliding window of v4-flash, got 127"):
        engine.check(Deployment(V4_FLASH, window_cells=127))
    plan = Deployment(V4_FLASH, window_cells=128)
    engine.check(plan)
    assert engine.usage(plan, 8192).total >= ideal_usage(V4_FLASH, 8192, engine.entry_bytes(plan)).total
    engine.check(Deployment(V3_2, window_cells=1))  # which has no window


def test_the_window_cache_of_llama_cpp_follows_the_window() -> None:
    wide = replace(V4_FLASH, sliding_window=1024)
    plan = Deployment(wide)
    usage = engine_named("llama.cpp").usage(plan, 131072)
    assert usage.buffers["window"] == 43 * 1536 * 512 * 2  # the window and a step of 512, in 256s
    assert usage.total >= ideal_usage(wide, 131072, engine_named("llama.cpp").entry_bytes(plan)).total


@settings(deadline=None, max_examples=60)
@given(mib=st.integers(1, 400), ratio=st.sampled_from([0.001, 0.01, 0.03, 0.1, 0.5, 1.0]), rows=st.integers(0, 2))
def test_the_largest_context_of_sglang_is_the_last_that_fits_all_of_its_pools(
    mib: int, ratio: float, rows: int
) -> None:
    engine, plan = engine_named("sglang"), Deployment(V4_FLASH, swa_ratio=ratio, c128_state_rows=rows)
    longest = engine.capacity(plan, mib * 2**20).largest_context
    if longest:
        assert engine.capacity(plan.at(longest), mib * 2**20).concurrency >= 1
    assert engine.capacity(plan.at(longest + 1), mib * 2**20).concurrency < 1


def test_ik_llama_cpp_knows_no_v32() -> None:
    with pytest.raises(UserError, match="no source says how it caches V3.2"):
        engine_named("ik_llama.cpp").check(Deployment(V3_2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tp": 0}, "--tp must be at least 1, got 0"),
        ({"mtp": -1}, "--mtp must be at least 0, got -1"),
        ({"pp": 99}, "--pp 99 is more than the 43 layers of v4-flash"),
        ({"tp": 4, "dcp": 3}, "--dcp 3 must divide --tp 4"),
        ({"swa_ratio": 0.0}, "--swa-ratio must be above 0 and at most 1, got 0.0"),
        ({"max_num_batched_tokens": 0}, "--max-num-batched-tokens must be at least 1, got 0"),
        ({"in_flight_tokens": 0}, "--in-flight-tokens must be at least 1, got 0"),
        ({"dp": 2**63}, "--dp must be at most 4,611,686,018,427,387,904, got 9,223,372,036,854,775,808"),
        ({"c4_state_rows": 0}, "--c4-state-rows must be at least 1, got 0"),
        ({"c4_state_rows": 129}, "--c4-state-rows must be at most 128, got 129"),
        ({"c128_state_rows": -5}, "--c128-state-rows must be at least 0, got -5"),
        ({"window_cells": 0}, "--window-cells must be at least 1, got 0"),
    ],
)
def test_an_impossible_deployment_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Deployment(V4_FLASH, **changes)  # type: ignore[arg-type]


def test_no_capacity_for_requests_without_tokens() -> None:
    for name in ENGINES:
        with pytest.raises(UserError, match="--max-model-len must be at least 1, got 0"):
            engine_named(name).capacity(Deployment(V4_FLASH, max_model_len=0), GIB)


def test_padding_of_a_c128a_page_is_a_third_of_it() -> None:
    usage = vllm().usage(Deployment(V4_FLASH), MILLION)
    layer = next(layer for layer in usage.layers if layer.kind is LayerKind.C128A)
    assert layer.main == 8192 * 584
    assert layer.padding > 4096 * 560
