import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton")
import compile_report
from compile_report import CASES, Resources

SCRIPT = Path(compile_report.__file__)


@pytest.mark.slow
@pytest.mark.parametrize("arch", compile_report.ARCHES)
def test_every_kernel_compiles_without_undeclared_spills(arch):
    done = subprocess.run([sys.executable, SCRIPT, "--arch", str(arch)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("_query_norm_rope_insert", "_compress_split", "_inverse_rope_quant"):
        assert name in done.stdout


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({}, ""),
        ({"spills": 8}, "spills: {} on sm_90: 8 B, 0 declared"),
        ({"early": True}, "hands over early: {} on sm_90"),
    ],
)
def test_a_spill_that_no_kernel_declared_and_an_early_handover_fail_the_report(monkeypatch, capsys, fault, message):
    name = next(name for name, case in CASES.items() if case.spills == 0)
    row = Resources("kernel", 90, registers=32, stack=0, spills=0, shared=0, warps=4, early=False)
    monkeypatch.setattr(compile_report, "report", lambda arch, cases: [(name, replace(row, **fault))])
    monkeypatch.setattr(sys, "argv", ["compile_report.py", "--arch", "90"])
    assert compile_report.main() == bool(fault)
    said = capsys.readouterr().err
    assert message.format(name) in said
    assert bool(said) == bool(fault)


EXCHANGE = "st.shared.b32 [a], r1;\n bar.sync 0, 128;\n ld.shared.b32 r2, [a];\n"
HANDOVER = "st.shared.b32 [a], r3;\n barrier.sync 1;\n ld.shared.b32 r3, [a];\n"


@pytest.mark.parametrize(
    ("ptx", "early"),
    [
        (EXCHANGE + HANDOVER, True),
        (EXCHANGE + "bar.sync 0, 128;\n" + HANDOVER, False),
        (HANDOVER, False),
        (EXCHANGE, False),
    ],
)
def test_a_handover_is_early_without_a_barrier_after_what_warps_exchanged(ptx, early):
    assert compile_report.handed_over_early(ptx) is early
