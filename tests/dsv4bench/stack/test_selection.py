"""Planted selections are what topk could have returned, and attention gathers them."""

import pytest
import torch

from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.registry import load_provider
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.scenario.workload import Workload
from dsv4bench.stack.layer import prepare, run_layer
from dsv4bench.stack.selection import CLUSTER, plant

LENS = torch.tensor([0, 1, 15, 16, 63, 64, 65, 100, 1000, 4096], dtype=torch.int32)
K = 64


def planted(pattern, lens=LENS, seed=0):
    return plant(pattern, lens, K, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("pattern", ["recent", "clustered"])
def test_as_many_distinct_visible_entries_as_topk_selects_then_minus_one(pattern):
    for n, row in zip(LENS.tolist(), planted(pattern).tolist(), strict=True):
        chosen = row[: min(n, K)]
        assert len(set(chosen)) == min(n, K)
        assert all(0 <= index < n for index in chosen)
        assert row[len(chosen) :] == [-1] * (K - len(chosen))


def test_recent_is_the_last_k():
    for n, row in zip(LENS.tolist(), planted("recent").tolist(), strict=True):
        assert [index for index in row if index >= 0] == list(range(max(n - K, 0), n))


def test_clustered_is_whole_runs_that_change_with_the_seed():
    row = planted("clustered")[-1].view(-1, CLUSTER)
    assert torch.equal(row, row[:, :1] + torch.arange(CLUSTER))
    assert (row[:, 0] % CLUSTER == 0).all()
    assert not torch.equal(planted("clustered", seed=1)[-1], planted("clustered", seed=2)[-1])


def test_no_token_and_an_unknown_pattern():
    assert planted("clustered", LENS[:0]).shape == (0, K)
    with pytest.raises(ValueError, match="no selection pattern 'old'"):
        planted("old")


@pytest.mark.parametrize("kind", [LayerKind.C4A, LayerKind.DSA])
@pytest.mark.parametrize("pattern", ["recent", "clustered"])
def test_attention_gathers_the_planted_entries_while_topk_keeps_its_own(small_shape, kind, pattern):
    workload = Workload("decode", 2, 2048, 1, "all", index_pattern=pattern)
    layer = prepare(small_shape(kind), kind, CachePrecision(), [workload])
    reference = load_provider("reference")
    values = layer.draw(workload, 3)
    run_layer(STAGES[kind], {stage.name: reference for stage in STAGES[kind]}, values)
    wanted = values["planted_topk_indices"]
    table, entries = values["block_table"].long(), values["compressed_entries"]
    slots = torch.gather(table, 1, wanted.long() // entries) * entries + wanted % entries
    assert torch.equal(values["compressed_indices"].sort(1).values, slots.int().sort(1).values)
    own = values["topk_indices"].sort(1).values
    assert not torch.equal(own, wanted.sort(1).values)


def test_a_mixed_batch_runs_with_its_decodes_first(small_shape):
    kind = LayerKind.C4A
    workload = Workload.of_requests("3q1s1k_q4s600_q300", "spread", "recent")
    layer = prepare(small_shape(kind), kind, CachePrecision(), [workload])
    values = layer.draw(workload, 0)
    reference = load_provider("reference")
    run_layer(STAGES[kind], {stage.name: reference for stage in STAGES[kind]}, values)
    assert values["y"].shape == (3 + 4 + 300, 256)
    assert values["y"].isfinite().all()
    assert values["query_start"].tolist() == [0, 1, 2, 3, 7, 307]
