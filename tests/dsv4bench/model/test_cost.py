"""Costs against the worked figures of the design and against an independent table of measured cells."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4bench.model.cost import layer_costs, stage_cost
from dsv4bench.model.shape import V3_2, V4_FLASH, V4_PRO, LayerKind, ModelShape
from dsv4bench.model.stage import STAGES
from dsv4bench.model.step import LayerStep

MILLION = 1_048_576
TABLE = Path(__file__).parents[2] / "data" / "roofline" / "h200_floors.csv"


def decode(shape: ModelShape, kind: LayerKind, context: int, batch: int = 1, **options: object) -> LayerStep:
    return replace(LayerStep(shape, kind, (context,) * batch, (1,) * batch), **options)


@pytest.mark.parametrize(
    ("shape", "kind", "flops", "kv_bytes"),
    [
        (V4_PRO, LayerKind.C4A, 301_989_888, 672_768),
        (V4_PRO, LayerKind.C128A, 2_181_038_080, 4_858_880),
        (V4_PRO, LayerKind.SWA, 33_554_432, 74_752),
        (V4_FLASH, LayerKind.C4A, 83_886_080, 373_760),
    ],
)
def test_attention_of_a_decode_token_at_a_million(
    shape: ModelShape, kind: LayerKind, flops: int, kv_bytes: int
) -> None:
    cost = stage_cost("sparse_attention", decode(shape, kind, MILLION))
    assert cost.flops == flops
    assert cost.bytes == kv_bytes + 2048 * shape.num_heads


def test_attention_of_pro_c4a_has_an_intensity_of_323() -> None:
    cost = stage_cost("sparse_attention", decode(V4_PRO, LayerKind.C4A, MILLION))
    assert cost.flops / cost.bytes == pytest.approx(323, abs=0.5)


@pytest.mark.parametrize(("indexer", "key_bytes"), [("fp8", 34_603_008), ("fp4", 17_825_792)])
def test_logits_of_a_decode_token_at_a_million(indexer: str, key_bytes: int) -> None:
    cost = stage_cost("indexer_logits", decode(V4_PRO, LayerKind.C4A, MILLION, indexer=indexer))
    assert cost.flops == 16_512 * 262_144
    query = {"fp8": 64 * 128, "fp4": 64 * 68}[indexer] + 64 * 4
    assert cost.bytes == key_bytes + 4 * 262_144 + query
    assert cost.unit == "fp8"


def test_fp8_weights_of_a_pro_c4a_layer_have_the_published_sizes() -> None:
    """Megabytes of a step of no tokens: weights alone."""
    step = LayerStep(V4_PRO, LayerKind.C4A, (1,), (0,), weight_bytes=1)
    megabytes = {name: round(cost.bytes / 1e6, 1) for name, cost in layer_costs(step).items() if cost.bytes}
    assert megabytes == {
        "input_projection": 14.7,
        "compressor_projection": 29.4,
        "indexer_weights_projection": 0.9,
        "indexer_compressor_projection": 7.3,
        "query_projection": 100.7,
        "indexer_query_projection": 12.6,
        "output_group_projection": 67.1,
        "output_projection": 117.4,
    }


def test_v32_costs_at_a_position() -> None:
    """At position i: logits 16,512 (i + 1) FLOP over 132 B keys, attention 2 H S (576 + 512) over 656 B entries."""
    position = 9_999
    step = decode(V3_2, LayerKind.DSA, position + 1)
    logits, attention = stage_cost("indexer_logits", step), stage_cost("sparse_attention", step)
    assert logits.flops == 16_512 * (position + 1)
    assert logits.bytes == (132 + 4) * (position + 1) + 64 * 128 + 256
    assert attention.flops == 2 * 128 * 2048 * (576 + 512)
    assert attention.bytes == 656 * 2048 + 2 * 128 * (576 + 512)
    absorb, up = stage_cost("query_absorb", step), stage_cost("value_up_projection", step)
    assert absorb.flops == up.flops == 2 * 128 * 128 * 512


@pytest.mark.parametrize(
    ("stage", "kind", "per_token"),
    [
        ("qkv_norm", LayerKind.C4A, 4 * (1024 + 512)),
        ("query_norm_rope_insert", LayerKind.C4A, 2048 * 64 + 192 * 65),
        ("compressor_state_save", LayerKind.C4A, 2 * 512),
        ("compressor_state_save", LayerKind.C128A, 512),
        ("indexer_state_save", LayerKind.C4A, 2 * 128),
        ("indexer_query_rope_quant", LayerKind.C4A, 6 * 64 * 128),
        ("inverse_rope_quant", LayerKind.C4A, 5120 * 64),
        ("query_rope", LayerKind.DSA, 192 * 128),
        ("latent_insert", LayerKind.DSA, 1728),
        ("indexer_key_insert", LayerKind.DSA, 1408),
    ],
)
def test_element_wise_stages_have_the_flops_of_the_documented_formulas(
    stage: str, kind: LayerKind, per_token: int
) -> None:
    step = decode(V3_2 if kind is LayerKind.DSA else V4_FLASH, kind, 4096, batch=3)
    assert stage_cost(stage, step).flops == 3 * per_token


@pytest.mark.parametrize("kind", LayerKind)
@pytest.mark.parametrize("weight_bytes", [1, 2])
def test_every_stage_has_a_cost_that_grows_with_tokens(kind: LayerKind, weight_bytes: int) -> None:
    shape = V3_2 if kind is LayerKind.DSA else V4_FLASH
    one, two = (layer_costs(decode(shape, kind, 4096, batch, weight_bytes=weight_bytes)) for batch in (1, 2))
    assert tuple(one) == tuple(stage.name for stage in STAGES[kind])
    for stage in one:
        assert 0 < one[stage].bytes < two[stage].bytes
        assert two[stage].flops == 2 * one[stage].flops


@pytest.mark.parametrize("main", ["fp8", "bf16", "fp32"])
def test_wider_caches_cost_more(main: str) -> None:
    entry = {"fp8": 584, "bf16": 1024, "fp32": 2048}[main]
    step = decode(V4_FLASH, LayerKind.SWA, 4096, main=main)
    assert stage_cost("sparse_attention", step).bytes == 128 * entry + 2048 * 64
    assert stage_cost("inverse_rope_quant", step).bytes == 64 * 512 * (3 if main == "fp8" else 4) + (
        1024 if main == "fp8" else 0
    )


def test_a_window_shared_by_drafts_is_read_once() -> None:
    step = LayerStep(V4_FLASH, LayerKind.SWA, (1000,), (5,))
    cost = stage_cost("sparse_attention", step)
    assert cost.flops == 5 * 4 * 64 * 512 * 128
    assert cost.bytes == (128 + 4) * 584 + 5 * 2048 * 64


def test_a_stage_of_another_layer_kind_is_refused() -> None:
    with pytest.raises(KeyError, match="swa has no stage 'topk'"):
        stage_cost("topk", decode(V4_FLASH, LayerKind.SWA, 4096))


def cells() -> list[dict[str, str]]:
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def step_of(cell: dict[str, str]) -> tuple[str, LayerStep]:
    """The stage and step that a cell of the table measured."""
    shape = V4_PRO if cell["heads"] == "128" or cell["variant"] == "k1024" else V4_FLASH
    batch, op, variant = int(cell["batch_or_tokens"]), cell["op"], cell["variant"]
    kind = LayerKind(variant) if op == "sparse_attention_decode" else LayerKind.C4A
    if variant.startswith(("c4", "c128")) and op.startswith("compress"):
        kind = LayerKind.C128A if variant == "c128main" else LayerKind.C4A
        if variant == "c4idx":
            op = {"compressor_state_save": "indexer_state_save"}.get(op, "indexer_compress_insert")
        return op, decode(shape, kind, 128, batch)  # every token completes an entry
    return op.removesuffix("_decode"), decode(shape, kind, int(cell["context"] or 4096), batch)


@pytest.mark.parametrize("cell", cells(), ids=lambda cell: "-".join(list(cell.values())[:5]))
def test_bytes_equal_the_table_of_measured_cells(cell: dict[str, str]) -> None:
    stage, step = step_of(cell)
    cost = stage_cost(stage, step)
    indices = 4 * step.attended if stage == "sparse_attention" else 0
    assert cost.bytes + indices == int(cell["min_bytes"])
    if int(cell["flops"]):
        assert cost.flops == int(cell["flops"])
