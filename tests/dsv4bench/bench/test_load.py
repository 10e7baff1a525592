"""Others on the cores: from clocks made to order, and from a neighbour that really computes."""

import os
import subprocess
import sys
import time

import pytest

from dsv4bench.bench.load import CpuTimes, busy_elsewhere, crowded, read_cpu


def test_what_others_did_is_all_that_the_cores_did_less_our_own():
    turns = [CpuTimes(0.5, 0.9, 0.5), CpuTimes(0.5, 0.6, 0.5)]
    assert busy_elsewhere(turns) == pytest.approx(0.5)
    assert busy_elsewhere([CpuTimes(1.0, 0.9, 1.0)]) == 0, "the kernel's ticks may lag behind"


def test_a_moment_too_short_for_the_kernels_ticks_says_nothing():
    assert busy_elsewhere([]) is None
    assert busy_elsewhere([CpuTimes(0.01, 0.02, 0.0)] * 5) is None
    assert busy_elsewhere([CpuTimes(0.01, 0.02, 0.01)] * 50) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("others", "threads", "cores", "warned"),
    [(0.1, 2, 2, False), (0.9, 1, 2, False), (0.9, 2, 2, True), (60.0, 4, 128, False), (126.0, 4, 128, True)],
)
def test_others_are_warned_of_where_they_and_the_timed_threads_need_more_than_the_cores(others, threads, cores, warned):
    assert bool(crowded(others, threads, cores)) == warned


def test_the_warning_says_what_was_seen():
    (text,) = crowded(0.94, 2, 2)
    assert text == (
        "others kept 0.9 of the 2 cores busy while this was timed on 2 threads: its times may be several times too long"
    )


def test_clocks_are_read_from_the_kernels_counters_without_guests(tmp_path):
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 10 20 5000 300 1 2 7 50 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    found = read_cpu(stat)
    assert found.busy * os.sysconf("SC_CLK_TCK") == pytest.approx(140)
    assert read_cpu(tmp_path / "absent") is None
    stat.write_text("")
    assert read_cpu(stat) is None


@pytest.mark.skipif(read_cpu() is None, reason="the system doesn't show its processor time")
def test_a_neighbour_that_computes_is_seen_and_our_own_work_is_not():
    began = read_cpu()
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        while time.perf_counter() - began.wall < 0.6 or time.process_time() - began.own < 0.2:
            pass
        passed = began.until(read_cpu())
    finally:
        neighbour.kill()
        neighbour.wait()
    assert passed.own > 0.1
    assert busy_elsewhere([passed]) > 0.2
