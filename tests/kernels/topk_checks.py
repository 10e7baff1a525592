"""Checks of top-k against torch.topk, by every way that it selects.

``test_triton_topk`` runs them as a script of its own process: on a GPU, or without one in Triton's interpreter with
small shapes.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch
from checks import DEVICE, INTERPRETED, check, integers, main, randn
from dsv4_kernels.triton import topk as topk_module
from dsv4_kernels.triton.streaming_selection import select_streaming
from dsv4_kernels.triton.topk import topk


@contextmanager
def patched(**names: object) -> Iterator[None]:
    """Other values for names of the module of top-k, which decide how it selects."""
    saved = {name: getattr(topk_module, name) for name in names}
    for name, value in names.items():
        setattr(topk_module, name, value)
    try:
        yield
    finally:
        for name, value in saved.items():
            setattr(topk_module, name, value)


def logits_of(kind: str, rows: int, width: int) -> torch.Tensor:
    column = torch.arange(width, device=DEVICE).float().repeat(rows, 1)
    return {
        "normal": lambda: randn(rows, width),
        "ties": lambda: torch.randint(-9, 9, (rows, width), device=DEVICE).float(),
        "equal": lambda: torch.zeros(rows, width, device=DEVICE),
        "ascending": lambda: column - width / 2,
        "cluster": lambda: randn(rows, width) + 9.0 * (column < 200),
        "infinite": lambda: torch.where(column % 3 == 0, float("-inf"), randn(rows, width)),
        "outliers": lambda: randn(rows, width) + 1e30 * (column % 400 == 7),
        "close": lambda: 1e6 + (torch.randint(0, 99, (rows, width), device=DEVICE) + (column > 300)) * 0.0625,
    }[kind]()


def assert_topk(chosen: torch.Tensor, logits: torch.Tensor, lens: torch.Tensor, k: int) -> None:
    """As a set the k best, without duplicates, then −1."""
    for row, length, got in zip(logits, lens.tolist(), chosen, strict=True):
        count = min(length, k)
        valid = got[:count].long()
        assert (got[count:] == -1).all()
        if count:
            assert 0 <= valid.min() <= valid.max() < length
            assert len(valid.unique()) == count
            assert torch.equal(row[valid].sort().values, torch.topk(row[:length], count).values.sort().values)


def topk_selects_the_best(rows: int, width: int, k: int, kind: str) -> None:
    logits = logits_of(kind, rows, width)
    lens = torch.randint(1, width + 1, (rows,), device=DEVICE).int()
    lens[: min(rows, 4)] = integers([width, 0, min(k + 1, width), min(k, width)])[: min(rows, 4)]
    for row, length in enumerate(lens.tolist()):
        logits[row, length:] = float("nan") if row % 2 else 3e38
    chosen = topk(logits=logits, candidate_lens=lens, k=k)
    assert_topk(chosen, logits, lens, k)
    assert torch.equal(chosen, topk(logits=logits, candidate_lens=lens, k=k))


SHAPES = [(4, 1025, 64), (3, 700, 512), (2, 4097, 64)]
if not INTERPRETED:
    SHAPES += [
        (5, 2048, 1024),
        (5, 8193, 512),
        (3, 16385, 1024),
        (8, 262144, 512),
        (1, 1048576, 2048),
        (70, 40000, 2048),
        (33, 70000, 512),
        (300, 40000, 512),
        (260, 70001, 1024),
        (512, 12000, 512),
    ]
for rows, width, k in SHAPES:
    for kind in ("normal", "ties", "equal", "ascending", "cluster", "infinite", "outliers", "close"):
        check(topk_selects_the_best, rows=rows, width=width, k=k, kind=kind)


def topk_shares_a_row(kind: str) -> None:
    """The path of long rows, on a row that the interpreter can walk through."""
    with patched(_ONE_PROGRAM=4096):
        topk_selects_the_best(2, 9000, 64, kind)


for kind in ("normal", "equal", "cluster", "infinite", "outliers"):
    check(topk_shares_a_row, kind=kind)


def a_run_of_the_best_leaves_few_to_select_from(begins: int) -> None:
    """A run as long as a program's columns is sampled too, wherever it begins: the whole row need not be searched."""
    k, width = 512, 9000
    logits = randn(1, width)
    logits[:, begins : begins + 2560] += 9
    lens = integers([width])

    def searched(*_: object) -> None:
        raise AssertionError("the whole row is searched")

    with patched(_ONE_PROGRAM=4096, select_streaming=searched):
        assert_topk(topk(logits=logits, candidate_lens=lens, k=k), logits, lens, k)


if INTERPRETED:
    for begins in (0, 2560, 5120):
        check(a_run_of_the_best_leaves_few_to_select_from, begins=begins)


def a_program_for_each_row(**constants: object) -> AbstractContextManager[None]:
    """The path of many long rows, on a few that the interpreter can walk through."""
    return patched(_ONE_PROGRAM=1024, _MOST_SHARED=0, **constants)


def topk_reads_a_row_once(kind: str, width: int) -> None:
    with a_program_for_each_row(_MANY=1):
        topk_selects_the_best(4 if kind == "normal" else 2, width, 64, kind)


for kind in ("normal", "ties", "equal", "ascending", "cluster", "infinite", "outliers", "close"):
    check(topk_reads_a_row_once, kind=kind, width=9000)
check(topk_reads_a_row_once, kind="normal", width=9001)
check(topk_reads_a_row_once, kind="ties", width=9001)
check(topk_reads_a_row_once, kind="normal", width=1000)
check(topk_reads_a_row_once, kind="normal", width=70000)


def topk_ranks_nan_in_a_row_read_once() -> None:
    with a_program_for_each_row():
        topk_ranks_nan_with_the_lowest(9000, 64)
        topk_ranks_nan_with_the_lowest(9000, 1024)


def an_unlucky_sample_costs_time_only(unlucky: str) -> None:
    """Sampled candidates are worse than all others, or better, or the best are few segments: still the k best."""
    k, width = 64, 17000
    column = torch.arange(width, device=DEVICE)
    segment = column // 32
    sampled = segment // topk_module._SAMPLED % 8 == segment % topk_module._SAMPLED
    searched = []

    def search(*arguments: object) -> None:
        searched.append(unlucky)
        select_streaming(*arguments)

    logits = {
        "worse": lambda: randn(1, width) - 50 * sampled,
        "mostly worse": lambda: randn(1, width) - 50 * (sampled & (segment >= 20)),
        "better": lambda: randn(1, width) + 50 * sampled,
        "one segment": lambda: randn(1, width) + 50 * (segment == 9),
        "a run": lambda: randn(1, width) + 50 * (column > 900) * (column < 3200),
        "descending": lambda: width - column[None].float(),
    }[unlucky]()
    lens = integers([width])
    with a_program_for_each_row(select_streaming=search if INTERPRETED else select_streaming):
        assert_topk(topk(logits=logits, candidate_lens=lens, k=k), logits, lens, k)
    assert bool(searched) == (unlucky == "worse" and INTERPRETED)


check(topk_ranks_nan_in_a_row_read_once)
for unlucky in ("worse", "mostly worse", "better", "one segment", "a run", "descending"):
    check(an_unlucky_sample_costs_time_only, unlucky=unlucky)


def a_row_read_once_selects_the_same_wherever_it_stands() -> None:
    k, width = 200, 9000
    logits = (3 * randn(5, width)).round()
    logits[4] = logits[1]
    lens = integers([width, 8500, 100, width, 8500])
    with a_program_for_each_row():
        chosen = topk(logits=logits, candidate_lens=lens, k=k)
        alone = topk(logits=logits[1:2].clone(), candidate_lens=lens[1:2], k=k)
    assert torch.equal(chosen[1], chosen[4])
    assert torch.equal(chosen[1], alone[0])


check(a_row_read_once_selects_the_same_wherever_it_stands)


def topk_ranks_nan_with_the_lowest(width: int, k: int) -> None:
    logits = randn(3, width)
    logits[:, ::3] = float("nan")
    logits[1, 40:] = float("nan")
    logits[2] = float("-inf")
    logits[2, 5::97] = float("inf")
    lens = integers([width, width, width - 1])
    numbers = torch.where(logits.isnan(), float("-inf"), logits)
    assert_topk(topk(logits=logits, candidate_lens=lens, k=k), numbers, lens, k)


def the_whole_row_search_ranks_nan_with_the_lowest() -> None:
    with patched(_ONE_PROGRAM=4096):
        logits = torch.where(torch.rand(1, 9000, device=DEVICE) < 0.9, float("nan"), randn(1, 9000))
        lens = integers([9000])
        numbers = torch.where(logits.isnan(), float("-inf"), logits)
        assert_topk(topk(logits=logits, candidate_lens=lens, k=1024), numbers, lens, 1024)


check(the_whole_row_search_ranks_nan_with_the_lowest)
check(topk_ranks_nan_with_the_lowest, width=700, k=64)
if not INTERPRETED:
    check(topk_ranks_nan_with_the_lowest, width=16384, k=1024)
    check(topk_ranks_nan_with_the_lowest, width=70000, k=512)


def topk_refuses_more_than_it_can_rank() -> None:
    with pytest.raises(ValueError, match="4096"):
        topk(logits=randn(1, 9000), candidate_lens=integers([9000]), k=5000)


check(topk_refuses_more_than_it_can_rank)


def equal_rows_select_equally() -> None:
    logits = logits_of("ties", 1, 3000).repeat(6, 1)
    chosen = topk(logits=logits, candidate_lens=integers([3000] * 6), k=64)
    assert (chosen == chosen[0]).all()


check(equal_rows_select_equally)


if __name__ == "__main__":
    main()
