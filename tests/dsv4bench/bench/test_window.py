"""A window in which something was compiled is discarded; a kernel that compiles in every call is an error."""

import pytest

from dsv4bench.bench.compilation import CompileLog, watch_compilation
from dsv4bench.bench.window import DISCARDS, time_calls
from dsv4bench.errors import MeasurementError
from dsv4bench.results.row import Contract
from dsv4bench.scenario.schema import TimingSection

WALL = Contract(timer="wall", l2="none")
TIMING = TimingSection(rounds=1, iterations=3, warmup=0)


def test_an_undisturbed_window_counts():
    samples, discarded = time_calls(WALL, [lambda: None], TIMING, None, CompileLog())
    assert len(samples.seconds) == 3
    assert discarded == 0


def test_a_window_with_a_compilation_is_discarded_and_timed_again():
    log, calls = CompileLog(), []

    def call():
        calls.append(1)
        if len(calls) == 2:
            log.events += 1

    samples, discarded = time_calls(WALL, [call], TIMING, None, log)
    assert discarded == 1
    assert len(calls) == 6
    assert len(samples.seconds) == 3


def test_compiling_in_every_call_is_an_error():
    log = CompileLog()

    def call():
        log.events += 1

    with pytest.raises(MeasurementError, match=f"compiled in every call \\({DISCARDS + 1} timed windows"):
        time_calls(WALL, [call], TIMING, None, log)


def test_triton_reports_what_it_compiles_and_what_that_took(monkeypatch, tmp_path):
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget

    from dsv4bench.bench import spin

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    source = triton.compiler.ASTSource(spin._kernel(), {"end_ptr": "*i64", "nanoseconds": "i32"})
    with watch_compilation() as log:
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
        cold = dict(log.seconds)
        assert cold["spin_kernel"] > 0
        assert log.cached_bytes["spin_kernel"] > 0
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
        assert log.since(cold) == {}  # the second came from the cache
        triton.knobs.runtime.jit_post_compile_hook(key="", repr="")
        assert log.events == 1
    assert triton.knobs.runtime.jit_post_compile_hook is None
    assert triton.knobs.compilation.listener is None


def test_the_spin_kernel_reads_the_global_timer_and_is_not_specialised_on_the_duration():
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget

    from dsv4bench.bench import spin

    kernel = spin._kernel()
    source = triton.compiler.ASTSource(kernel, {"end_ptr": "*i64", "nanoseconds": "i32"})
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert ptx.count("%globaltimer") == 2
    assert "st.global" in ptx
    assert [parameter.do_not_specialize for parameter in kernel.params] == [False, True]
