import pytest
import torch

pytest.importorskip("triton")
from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.base import Need, implemented_stages
from dsv4bench.providers.registry import load_provider

FUSED = {
    "qkv_norm", "query_norm_rope_insert", "compressor_state_save", "compress_norm_rope_insert",
    "indexer_query_rope_quant", "indexer_state_save", "indexer_compress_insert", "index_map", "inverse_rope_quant",
}  # fmt: skip


def need(**changes: object) -> Need:
    kind = changes.pop("kind", LayerKind.C4A)
    defaults = {"device": "cuda", "main": "fp8", "indexer": "fp8", "num_heads": 64, "phase": "decode"}
    return Need(kind=kind, stages=tuple(stage.name for stage in STAGES[kind]), **{**defaults, **changes})


@pytest.mark.parametrize("name", ["triton", "triton-unfused"])
def test_both_have_every_fused_stage_of_v4(name):
    assert set(implemented_stages(load_provider(name))) >= FUSED


@pytest.mark.parametrize("name", ["triton", "triton-unfused"])
@pytest.mark.parametrize(
    ("changes", "word"),
    [({"device": "cpu"}, "cuda"), ({"main": "fp32"}, "fp8, bf16"), ({"indexer": "fp32"}, "indexer")],
)
def test_what_they_cannot_run_is_said_in_a_sentence(name, changes, word):
    support = load_provider(name).supports(need(**changes))
    assert not support.ok
    assert word in support.reason


def test_the_unfused_steps_are_those_of_v4():
    assert load_provider("triton-unfused").supports(need()).ok
    assert not load_provider("triton-unfused").supports(need(kind=LayerKind.DSA)).ok
    assert load_provider("triton").supports(need(kind=LayerKind.DSA)).ok


def test_products_with_bf16_weights_are_torchs_bit_for_bit():
    draw = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw).bfloat16()

    values = randn(3, 2, 64)
    calls = {
        "input_projection": {"x": randn(3, 64), "weight": randn(32, 64)},
        "query_projection": {"q_latent": randn(3, 64), "weight": randn(48, 64), "head_dim": 24},
        "indexer_query_projection": {"q_latent": randn(3, 64), "weight": randn(256, 64)},
        "output_group_projection": {"o_values": values, "o_scales": None, "weight": randn(2, 16, 64)},
        "output_projection": {"o": values, "weight": randn(32, 128)},
    }
    ours, eager = load_provider("triton"), load_provider("eager")
    for stage, arguments in calls.items():
        assert torch.equal(getattr(ours, stage)(**arguments), getattr(eager, stage)(**arguments))
    quantised = {
        "o_values": values.to(torch.float8_e4m3fn), "o_scales": torch.full((3, 2, 1), 2.0), "weight": randn(2, 16, 64),
    }  # fmt: skip
    assert torch.equal(ours.output_group_projection(**quantised), eager.output_group_projection(**quantised))
