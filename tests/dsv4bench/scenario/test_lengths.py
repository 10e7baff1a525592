"""Mixed lengths lie at the quantiles of their distribution, the same in every run."""

from math import log
from statistics import mean, median, stdev

from hypothesis import given
from hypothesis import strategies as st

from dsv4bench.scenario.lengths import GRID, ContextMix

SIZES = st.integers(1, 2**20)


def test_half_of_a_lognormal_batch_lies_below_the_median():
    mix = ContextMix("lognormal", 128, 2**20, 32768, 1.0)
    lengths = mix.lengths(256)
    assert abs(median(lengths) / 32768 - 1) < 0.01
    assert abs(mean(map(log, lengths)) - log(32768)) < 0.01
    assert abs(stdev(map(log, lengths)) - 1.0) < 0.02
    assert mix.nominal == 32768


def test_a_uniform_batch_fills_its_range():
    lengths = ContextMix("uniform", 1024, 9216).lengths(64)
    assert abs(mean(lengths) - 5120) < 64
    assert min(lengths) < 1280
    assert max(lengths) > 8960


def test_short_and_long_requests_are_mixed_rather_than_sorted():
    lengths = ContextMix("lognormal", 128, 2**20, 32768, 1.0).lengths(64)
    for start in range(0, 64, 8):
        part = lengths[start : start + 8]
        assert min(part) < 32768 < max(part)


@given(st.sampled_from(["lognormal", "uniform"]), SIZES, SIZES, st.floats(0.05, 5), st.integers(1, 40))
def test_lengths_stay_in_range_and_are_the_same_every_time(distribution, one, other, sigma, batch):
    low, high = sorted((one, other))
    mix = ContextMix(distribution, low, high, (low + high) // 2 if distribution == "lognormal" else 0, sigma)
    lengths = mix.lengths(batch)
    assert len(lengths) == batch
    assert all(low <= length <= high for length in lengths)
    assert all(length % GRID == 0 or length in (low, high) for length in lengths)
    assert lengths == mix.lengths(batch)


def test_labels_say_everything():
    assert ContextMix("lognormal", 128, 2**20, 32768, 0.5).label == "lognormal(32K,0.5,128..1M)"
    assert ContextMix("uniform", 1024, 8192).label == "uniform(1K..8K)"
