from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.memory.counts import Peaks, pack, unpack

five = st.lists(st.integers(0, 2**42), min_size=5, max_size=5)


@given(five, five)
def test_the_sum_of_packs_is_the_pack_of_sums(first: list[int], second: list[int]) -> None:
    assert unpack(pack(first) + pack(second), 5) == [a + b for a, b in zip(first, second, strict=True)]


@given(st.lists(five, min_size=1, max_size=8))
def test_peaks_are_those_of_each_count(seen: list[list[int]]) -> None:
    peaks = Peaks(5)
    for counts in seen:
        peaks.note(pack(counts))
    assert peaks.counts == [max(column) for column in zip(*seen, strict=True)]
