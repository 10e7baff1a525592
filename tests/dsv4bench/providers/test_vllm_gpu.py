"""vLLM's real kernels over our caches: against the reference, mixed with other providers, and from a CUDA graph."""

from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dsv4_kernels.cache import PagedCache
from dsv4_kernels.rope import cos_sin_table

from dsv4bench.errors import UserError
from dsv4bench.model.shape import V3_2, V4_FLASH, LayerKind, ModelShape
from dsv4bench.model.stage import STAGES, Stage
from dsv4bench.providers.base import Need, Provider, implemented_stages
from dsv4bench.providers.registry import load_provider
from dsv4bench.providers.vllm.needs import PRODUCTS
from dsv4bench.scenario.case import CachePrecision, WeightChoice
from dsv4bench.scenario.workload import Workload
from dsv4bench.stack.graph import capture_layer
from dsv4bench.stack.inputs import Values
from dsv4bench.stack.layer import RANDOM_BF16, Layer, prepare, run_layer, run_stage
from dsv4bench.verify.difference import LAYER_COSINE, LAYER_TOLERANCE, vector_difference
from dsv4bench.verify.stage_check import StageCheck, check_stage

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed here")]

KINDS = tuple(LayerKind)
DECODES = (Workload("decode", 6, 3072, 1, "spread"), Workload("decode", 40, 2560, 2, "all"))
PROMPTS = (Workload("prefill", 1, 2304, 2304, "all"), Workload.of_requests("3q1s600_2q200s900_q300", "all"))
TIES = 1 / 16
"""Share of values that rounding to bf16 puts half-way between two e4m3 values, which have four bits fewer."""
OTHER_BYTES = {"indexer_key_insert": TIES}
"""Share of bytes that may differ: vLLM quantises V3.2's index keys without rounding them to bf16 first. Elsewhere only
values next to a rounding boundary do."""
OTHER_SCALES = ("latent_insert",)
"""Stages that scale by amax / 448 as it is, and so write other bytes altogether; the reference check takes both."""


def shape_of(kind: LayerKind) -> ModelShape:
    """Real heads and widths, a narrow hidden state."""
    base = V3_2 if kind is LayerKind.DSA else V4_FLASH
    return replace(base, hidden_size=512, q_lora_rank=256, o_lora_rank=256 if base.is_v4 else 0)


def layer_of(kind: LayerKind, workload: Workload, tp: int = 1, choice: WeightChoice = RANDOM_BF16) -> Layer:
    precision = CachePrecision(slab=kind is not LayerKind.DSA)
    return prepare(shape_of(kind).shard(tp), kind, precision, [workload], device="cuda", choice=choice)


def stages_of(provider: Provider, kind: LayerKind, phase: str) -> tuple[Stage, ...]:
    """Stages that the provider has and says it can run."""
    have = set(implemented_stages(provider))
    found = []
    for stage in STAGES[kind]:
        need = Need(kind, (stage.name,), "cuda", "fp8", "fp8", 64, phase)
        if stage.name in have and provider.supports(need).ok:
            found.append(stage)
    return tuple(found)


def run_checked(kind: LayerKind, workload: Workload, provider: Provider, tp: int = 1) -> dict[str, StageCheck]:
    """Run a layer with every stage that the provider has, the rest with eager, and check the provider's."""
    values = layer_of(kind, workload, tp).draw(workload, seed=3)
    own = {stage.name for stage in stages_of(provider, kind, workload.phase)}
    eager = load_provider("eager")
    checks = {}
    for stage in STAGES[kind]:
        run_stage(stage, provider if stage.name in own else eager, values)
        if stage.name in own:
            checks[stage.name] = check_stage(stage, values)
    return checks


def require_right(checks: dict[str, StageCheck]) -> None:
    wrong = [check.sentence for check in checks.values() if not check.ok]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_the_installed_vllm_runs_every_decode_stage(kind: LayerKind, capfd: pytest.CaptureFixture[str]) -> None:
    provider = load_provider("vllm")
    have = [stage.name for stage in STAGES[kind] if stage.name in implemented_stages(provider)]
    reasons = [provider.supports(Need(kind, (name,), "cuda", "fp8", "fp8", 64, "decode")).reason for name in have]
    assert reasons == [""] * len(have)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("variant", ["vllm", "vllm:triton"])
@pytest.mark.parametrize("workload", DECODES, ids=lambda workload: workload.label)
@pytest.mark.parametrize("kind", KINDS)
def test_decode_stages_agree_with_the_reference(kind: LayerKind, workload: Workload, variant: str) -> None:
    require_right(run_checked(kind, workload, load_provider(variant)))


@pytest.mark.parametrize("others", ["eager", "vllm"])
@pytest.mark.parametrize("tokens", [1, 6, 200])
@pytest.mark.parametrize("kind", [LayerKind.C4A, LayerKind.DSA])
def test_fp8_products_agree_with_the_reference(kind: LayerKind, tokens: int, others: str) -> None:
    workload = Workload("decode", tokens, 2560, 1, "all")
    values = layer_of(kind, workload, choice=WeightChoice("fp8")).draw(workload, seed=9)
    vllm, eager = load_provider("vllm"), load_provider("eager")
    checks = {}
    for stage in STAGES[kind]:
        mine = stage.name in PRODUCTS or (others == "vllm" and stage.name in implemented_stages(vllm))
        run_stage(stage, vllm if mine else eager, values)
        if stage.name in PRODUCTS:
            checks[stage.name] = check_stage(stage, values)
    require_right(checks)


@pytest.mark.parametrize("workload", DECODES, ids=lambda workload: workload.label)
@pytest.mark.parametrize(("kind", "tp"), [(LayerKind.C4A, 4), (LayerKind.C128A, 4), (LayerKind.DSA, 8)])
def test_sixteen_heads_are_padded_and_come_out_right(kind: LayerKind, tp: int, workload: Workload) -> None:
    require_right(run_checked(kind, workload, load_provider("vllm"), tp))


@pytest.mark.parametrize("kind", [LayerKind.C4A, LayerKind.DSA])
def test_the_second_layer_of_a_step_is_right_by_the_plan_of_the_first(kind: LayerKind) -> None:
    workload = DECODES[0]
    layer, vllm, eager = layer_of(kind, workload), load_provider("vllm"), load_provider("eager")
    able = {stage.name for stage in stages_of(vllm, kind, "decode")}
    values = layer.draw(workload, seed=4)
    for seed in (4, 5):
        values["x"] = layer.draw(workload, seed)["x"]  # another hidden state, and so another selection
        run_layer(STAGES[kind], {stage.name: vllm if stage.name in able else eager for stage in STAGES[kind]}, values)
        require_right({stage.name: check_stage(stage, values) for stage in STAGES[kind] if stage.name in able})


@pytest.mark.parametrize("workload", PROMPTS, ids=lambda workload: workload.label)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not LayerKind.DSA])
def test_stages_over_prompts_agree_with_the_reference(kind: LayerKind, workload: Workload) -> None:
    require_right(run_checked(kind, workload, load_provider("vllm")))


def others() -> list[Provider]:
    """Providers to mix with: eager, and triton where it is."""
    found = [load_provider("eager")]
    with suppress(UserError):
        found.append(load_provider("triton"))
    return found


def snapshot(values: Values) -> dict[str, torch.Tensor]:
    """Copies of all caches."""
    caches = {name: value for name, value in values.items() if name.endswith(("_cache", "_state"))}
    return {name: raw(cache).clone() for name, cache in caches.items() if cache is not None}


def raw(cache: PagedCache | torch.Tensor) -> torch.Tensor:
    return cache.pages if isinstance(cache, PagedCache) else cache


@pytest.mark.parametrize("kind", KINDS)
def test_mixing_vllm_into_a_layer_stage_by_stage_gives_the_same_output(kind: LayerKind) -> None:
    workload = DECODES[0]
    values = layer_of(kind, workload).draw(workload, seed=5)
    before = snapshot(values)
    vllm, eager = load_provider("vllm"), load_provider("eager")
    able = [stage.name for stage in stages_of(vllm, kind, "decode")]
    for other in others():
        expected: dict[str, Any] | None = None
        for chosen in ((), able[::2], able[1::2], able):
            mixed = dict(values)
            for name, bytes_before in before.items():
                raw(values[name]).copy_(bytes_before)
            own = set(implemented_stages(other))
            providers = {
                stage.name: vllm if stage.name in chosen else other if stage.name in own else eager
                for stage in STAGES[kind]
            }
            run_layer(STAGES[kind], providers, mixed)
            expected = expected or mixed
            y, right = mixed["y"].flatten(0, -2), expected["y"].flatten(0, -2)
            found = vector_difference(f"{other.name}+{','.join(chosen)}", y, right, LAYER_TOLERANCE, LAYER_COSINE)
            assert found.ok, f"{found.what}: off by {found.error:.3g} at {found.where}"


@pytest.mark.parametrize("kind", KINDS)
def test_vllm_writes_the_bytes_that_we_write(kind: LayerKind) -> None:
    workload = DECODES[1]
    values = layer_of(kind, workload).draw(workload, seed=7)
    vllm, eager = load_provider("vllm"), load_provider("eager")
    able = stages_of(vllm, kind, "decode")
    for stage in STAGES[kind]:
        # taken anew: in a slab, pages of one cache lie between those of another
        before = raw(values[stage.updates[0]]).clone() if stage.updates else None
        run_stage(stage, eager, values)
        if before is None or stage not in able or stage.name in OTHER_SCALES:
            continue
        cache = raw(values[stage.updates[0]])
        ours = cache.clone()
        cache.copy_(before)
        run_stage(stage, vllm, values)
        written, differing = int((ours != before).sum()), int((cache != ours).sum())
        assert written
        share = OTHER_BYTES.get(stage.name, 0.01)
        assert differing <= share * written, f"{stage.name}: {differing} of {written} bytes"


@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_layer_of_vllms_stages_is_right_on_fresh_inputs(kind: LayerKind) -> None:
    workload = DECODES[0]
    layer, vllm, eager = layer_of(kind, workload), load_provider("vllm"), load_provider("eager")
    able = {stage.name for stage in stages_of(vllm, kind, "decode")}
    providers = {stage.name: vllm if stage.name in able else eager for stage in STAGES[kind]}
    captured = capture_layer(lambda values: run_layer(STAGES[kind], providers, values), layer.draw(workload, seed=1))
    values = captured.replay(layer.draw(workload, seed=2))
    torch.cuda.synchronize()
    require_right({stage.name: check_stage(stage, values) for stage in STAGES[kind] if stage.name in able})


def rope_of_vllm(ratio: int) -> torch.Tensor:
    """The rotary table that vLLM builds for a layer of V4, fp32 [positions, 64]."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.models.deepseek_v4.common.rope import build_deepseek_v4_rope

    yarn = {"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
    config = SimpleNamespace(
        rope_parameters=yarn | {"beta_fast": 32, "beta_slow": 1}, rope_theta=10000, compress_rope_theta=160000
    )
    with set_current_vllm_config(VllmConfig()):
        rope = build_deepseek_v4_rope(
            config, head_dim=512, rope_head_dim=64, max_position_embeddings=1 << 20, compress_ratio=ratio
        )
    return rope.cos_sin_cache.float().cpu()


def test_vllms_rotary_tables_are_ours_but_for_swa_layers_in_0_26() -> None:
    from dsv4bench.providers.vllm.library import shared

    load_provider("vllm").supports(Need(LayerKind.SWA, ("qkv_norm",), "cuda", "fp8", "fp8", 64, "decode"))
    rows = 70_000
    compressed, window = rope_of_vllm(4)[:rows], rope_of_vllm(1)[:rows]
    ours = [
        cos_sin_table(rows, rope.theta, rope.factor, rope.original_positions)
        for rope in (V4_FLASH.compressed_rope, V4_FLASH.window_rope)
    ]
    torch.testing.assert_close(compressed, ours[0], rtol=0, atol=1e-5)
    apart = (window - ours[1]).abs().amax(0).view(2, 32).amax(0) > 1e-3
    first = 32 if not apart.any() else int(apart.int().argmax())
    assert first == (21 if shared().release == "0.26" else 32), f"tables differ from pair {first} on"
