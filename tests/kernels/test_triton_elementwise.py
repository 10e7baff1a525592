import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
SCRIPT = Path(__file__).with_name("elementwise_checks.py")
ON_GPU = torch.cuda.is_available()


def _names() -> list[str]:
    """Names of the checks; listed in a process of its own, since importing kernels fixes how they will run."""
    done = subprocess.run(
        [sys.executable, SCRIPT, "--list"], env=_environment(), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def _environment() -> dict[str, str]:
    kernels = str(SCRIPT.parents[2] / "kernels")
    extra = {} if ON_GPU else {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, "PYTHONPATH": kernels, **extra}


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    """Every check, run once in a process of its own; name → traceback, empty where it passed."""
    done = subprocess.run([sys.executable, SCRIPT], env=_environment(), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("name", _names())
def test_elementwise_kernels_agree_with_the_reference(failures, name):
    assert not failures[name], failures[name]
