import json
from pathlib import Path

import pytest

pytest.importorskip("triton")
import bench_attention
import torch
from dsv4_kernels.triton.sparse_attention import visible_entries
from dsv4_kernels.triton.splits import COSTS, MAX_SPLITS, Gpu, launch_us, plan_splits
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
