import pytest
import torch
from dsv4_kernels.cache import PagedCache

from dsv4bench.model.shape import LayerKind
from dsv4bench.scenario.case import CachePrecision
from dsv4bench.verify.sequences import Sequences, small_shape


def sequences(kind=LayerKind.C4A, **options):
    options = {"requests": 2, "limit": 300} | options
    return Sequences(small_shape(kind), kind, CachePrecision(), **options)


@pytest.mark.parametrize("kind", LayerKind)
def test_no_two_requests_share_a_page(kind):
    for group, table in sequences(kind).tables.items():
        pages = table[:, :-4].flatten().tolist()
        assert len(set(pages)) == len(pages), group


def test_a_chunk_continues_where_the_last_one_ended():
    seqs = sequences()
    assert seqs.step([5, 0])["positions"].tolist() == [0, 1, 2, 3, 4]
    values = seqs.step([2, 3])
    assert values["positions"].tolist() == [5, 6, 0, 1, 2]
    assert torch.equal(values["x"], torch.cat((seqs.x[0, 5:7], seqs.x[1, :3])))


def test_rewinding_changes_nothing_but_the_length():
    seqs = sequences()
    seqs.step([7, 9])
    seqs.rewind([2, 0])
    assert seqs.lens == [5, 9]


def test_a_long_prefix_costs_only_the_pages_that_are_still_read():
    seqs = sequences(requests=1, limit=57_003, start=[57_000])
    state = seqs.caches["compressor_state"]
    assert isinstance(state, torch.Tensor)
    window = seqs.caches["window_cache"]
    assert isinstance(window, PagedCache)
    assert len(set(seqs.tables["state"][0].tolist())) < 10
    assert len(set(seqs.tables["window"][0].tolist())) < 6


def test_pages_that_slid_out_of_the_window_are_poisoned():
    seqs = sequences(requests=1, poison=0xFF)
    seqs.step([200])
    window = seqs.caches["window_cache"]
    assert isinstance(window, PagedCache)
    first = window.pages[int(seqs.tables["window"][0, 0])]
    first.zero_()
    seqs.step([50])
    assert bool((first == 0xFF).all()), "token 200 sees back to position 73 alone"
