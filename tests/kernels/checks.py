"""Checks of Triton kernels: registered by scripts that run in a process of their own, and run from there.

Importing kernels fixes how they will run, in Triton's interpreter or on a GPU, and the process that compiles can't
interpret. So each script of checks is a program: it prints the names of its checks, or their tracebacks, as JSON.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
"""Where a script's checks run."""
CHECKS: dict[str, Callable[[], None]] = {}
"""The checks of the script that runs, by name."""


def check(function: Callable[..., None], **arguments: object) -> None:
    """Register a check: a function with its arguments, whose values become part of its name."""
    suffix = "".join(f" {value}" for value in arguments.values())
    CHECKS[function.__name__ + suffix] = lambda: function(**arguments)


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE)


def integers(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def main() -> None:
    """Run the checks whose name contains the argument and print their tracebacks as JSON; --list prints the names."""
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    if only == "--list":
        print(json.dumps(list(CHECKS)))
        return
    torch.set_num_threads(1)
    failures = {}
    for name, run in CHECKS.items():
        if only in name:
            torch.manual_seed(0)  # for each, so that what it draws depends on no other
            try:
                run()
                failures[name] = ""
            except Exception:
                failures[name] = traceback.format_exc()
    print(json.dumps(failures))


def names(script: Path) -> list[str]:
    """Names of a script's checks."""
    return json.loads(_run(script, "--list"))


def tracebacks(script: Path) -> dict[str, str]:
    """Every check of a script, run on the GPU or, where there is none, in the interpreter; empty where it passed."""
    return json.loads(_run(script))


def _run(script: Path, *arguments: str) -> str:
    kernels = str(script.parents[2] / "kernels")
    extra = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, "PYTHONPATH": kernels, **extra}
    done = subprocess.run([sys.executable, script, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
