import subprocess
import sys
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


@pytest.mark.parametrize(("spills", "status"), [(0, 0), (8, 1)])
def test_a_spill_that_no_kernel_declared_fails_the_report(monkeypatch, capsys, spills, status):
    name = next(name for name, case in CASES.items() if case.spills == 0)
    row = Resources("kernel", 90, registers=32, stack=spills, spills=spills, shared=0, warps=4)
    monkeypatch.setattr(compile_report, "report", lambda arch, cases: [(name, row)])
    monkeypatch.setattr(sys, "argv", ["compile_report.py", "--arch", "90"])
    assert compile_report.main() == status
    assert (f"{name} on sm_90: {spills} B, 0 declared" in capsys.readouterr().err) == bool(spills)
