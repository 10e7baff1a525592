import json
from pathlib import Path

import pytest

pytest.importorskip("triton")
import bench_attention
import torch
from dsv4_kernels.triton.sparse_attention import visible_entries
from dsv4_kernels.triton.splits import (
    COSTS,
    MAX_SPLITS,
    Gpu,
    gather_saves_us,
    gather_us,
    gathers,
    launch_us,
    plan_splits,
)
from hypothesis import given
from hypothesis import strategies as st

H200 = Gpu(processors=132, cache_bytes=60 << 20)
MEASURED = Path(bench_attention.__file__).with_name("measured")


def swept(table: str) -> dict[str, dict[int, float]]:
    """Microseconds by cell and number of splits."""
    return {
        cell: {int(name.removeprefix("splits=")): us for name, us in row.items() if name.startswith("splits=")}
        for cell, row in json.loads((MEASURED / table).read_text()).items()
    }


SWEPT = swept("h200-attention-v8.json")
SWEPT_LATENT = swept("h200-latent-v1.json")


def cell_of(name: str) -> bench_attention.Cell:
    op, heads, batch, context, variant = name.split()
    return bench_attention.Cell(op, int(heads), int(batch), int(context), variant)


def planned(cell: bench_attention.Cell) -> int:
    return plan_splits(cell.batch, cell.heads, bench_attention.attention_tiles(cell), 64, H200, "gluon")


@pytest.mark.parametrize("name", SWEPT)
def test_the_plan_is_within_5_percent_of_the_best_number_of_splits_that_was_measured(name):
    times = SWEPT[name]
    splits = planned(cell_of(name))
    assert splits in times, f"{splits} splits were not measured"
    assert times[splits] <= 1.05 * min(times.values())


@pytest.mark.parametrize("name", SWEPT_LATENT)
def test_the_plan_for_v32_is_the_best_number_of_splits_that_was_measured(name):
    _, heads, batch, entries = (int(word) if word.isdigit() else word for word in name.split())
    splits = plan_splits(batch, heads, entries // 64, 64, H200, "latent")
    assert SWEPT_LATENT[name][splits] == min(SWEPT_LATENT[name].values())


def test_padding_of_the_lists_is_not_shared_out():
    """64 requests of 8K have 64 c128a entries each, in lists padded to 128: three tiles, which one share does best."""
    lists = torch.empty((64, 128), device="meta")
    tiles = [2 + -(-visible_entries(lists, known) // 64) for known in (None, 64, 1000)]
    assert tiles == [4, 3, 4]
    assert [plan_splits(64, 64, count, 64, H200, "gluon") for count in tiles] == [2, 1, 2]


def test_the_measured_table_holds_every_cell_and_more_than_one_number_of_splits_for_most():
    assert len(SWEPT) == 48
    assert sum(len(times) for times in SWEPT.values()) > 200


def test_the_cost_model_explains_the_measured_times():
    """Within 15 % of the measured time, typically; a model that is off by a term would be further."""
    errors = []
    for name, times in SWEPT.items():
        cell = cell_of(name)
        for splits, us in times.items():
            tiles = bench_attention.attention_tiles(cell)
            expected = launch_us(cell.batch, cell.heads, tiles, 64, splits, H200, COSTS["gluon"])
            errors.append(abs(expected / us - 1))
    errors.sort()
    assert errors[len(errors) * 9 // 10] < 0.15


steps = {"tokens": st.integers(1, 8192), "heads": st.integers(1, 128), "tiles": st.integers(0, 4096)}


@given(**steps, form=st.sampled_from(sorted(COSTS)))
def test_no_share_is_empty_and_no_more_than_the_join_takes(tokens, heads, tiles, form):
    assert 1 <= plan_splits(tokens, heads, tiles, 64, H200, form) <= min(max(tiles, 1), MAX_SPLITS)


@given(tiles=st.integers(1, 4096), form=st.sampled_from(sorted(COSTS)), tokens=st.integers(4, 64))
def test_many_full_waves_are_not_split(tiles, form, tokens):
    assert plan_splits(tokens * H200.processors, 64, tiles, 64, H200, form) == 1


@given(tiles=st.integers(2, 4096))
def test_one_token_is_split(tiles):
    assert plan_splits(1, 64, tiles, 64, H200, "gluon") > 1


@pytest.mark.parametrize(("tokens", "us"), [(1, 9.0), (128, 34.0), (128, 270.9)])
def test_the_cost_of_rows_is_near_what_was_measured(tokens, us):
    """64 heads over bf16 entries: one token of 64K c4a in ten shares, 128 of it, 128 of c128a at 1M."""
    tiles, splits = (130 if us > 200 else 10), (10 if tokens == 1 else 1)
    assert launch_us(tokens, 64, tiles, 64, splits, H200, COSTS["rows"]) == pytest.approx(us, rel=0.25)


PREFILL = [
    # heads, tiles, tokens, entries, measured us: gather, rows, fp8 pages
    (64, 10, 512, 17_023, 13.6, 94.2, 134), (64, 10, 2048, 18_559, 13.6, 339, 490),
    (64, 10, 8192, 24_703, 16.9, 1274, 1837), (64, 10, 512, 1_151, 8.2, 94.5, 132),
    (64, 10, 8192, 8_831, 12.8, 1271, 1792), (128, 18, 512, 17_023, 14.5, 288, 408),
    (128, 18, 4096, 20_607, 16.2, 2145, 3058), (128, 18, 8192, 24_703, 21.8, 4444, 6269),
    (128, 10, 8192, 8_831, 12.4, 2567, 3620), (64, 10, 8192, 10_240, 12.4, 1184, 1669),
    (64, 3, 8192, 8_256, 11.2, 518, 784),
]  # fmt: skip


@pytest.mark.parametrize(("heads", "tiles", "tokens", "entries", "gather", "rows", "pages"), PREFILL)
def test_gathering_is_estimated_as_it_was_measured_and_chosen_where_it_won(
    heads, tiles, tokens, entries, gather, rows, pages
):
    assert gather_us(entries) == pytest.approx(gather, rel=0.25)
    assert gather_saves_us(tokens, heads, tiles, entries, H200) == pytest.approx(pages - rows, rel=0.25)
    assert gathers(tokens, heads, tiles, entries, H200)


@pytest.mark.parametrize(
    ("tokens", "heads", "tiles", "context_entries", "expected"),
    [(1, 64, 10, 16_384, False), (128, 64, 10, 16_384, False), (256, 64, 10, 16_384, True),
     (512, 64, 10, 262_144, False), (4096, 64, 10, 262_144, True), (128, 128, 18, 16_384, True)],
)  # fmt: skip
def test_few_queries_of_a_long_context_do_not_pay_for_gathering_it(tokens, heads, tiles, context_entries, expected):
    assert gathers(tokens, heads, tiles, context_entries + tokens + 127, H200) == expected


@given(
    tokens=st.integers(1, 8192), heads=st.integers(1, 128), tiles=st.integers(2, 64), entries=st.integers(1, 300_000)
)
def test_more_queries_of_the_same_entries_never_make_gathering_worse(tokens, heads, tiles, entries):
    assert gathers(2 * tokens, heads, tiles, entries, H200) >= gathers(tokens, heads, tiles, entries, H200)
