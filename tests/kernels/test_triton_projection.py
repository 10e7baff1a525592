import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
SCRIPT = Path(__file__).with_name("projection_checks.py")
ON_GPU = torch.cuda.is_available()


def _environment() -> dict[str, str]:
    kernels = str(SCRIPT.parents[2] / "kernels")
    extra = {} if ON_GPU else {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, "PYTHONPATH": kernels, **extra}


def _run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, SCRIPT, *arguments], env=_environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    """Every check, run once in a process of its own; name → traceback, empty where it passed."""
    return json.loads(_run())


@pytest.mark.slow
@pytest.mark.parametrize("name", json.loads(_run("--list")))
def test_fp8_projections_agree_with_the_reference(failures, name):
    assert not failures[name], failures[name]
