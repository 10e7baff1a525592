import pytest

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
