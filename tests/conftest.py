"""Shared by all tests: the same draws and a plain terminal for each, and no GPU tests where there is no GPU."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, however busy the machine is; --hypothesis-profile=default looks for others.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


# What rich, typer and the standard library take for a terminal and its width.
TERMINAL = (
    "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES",
    "TERMINAL_WIDTH",
)  # fmt: skip


@pytest.fixture(autouse=True, scope="session")
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Output is captured, whatever a CI system says that it is; Triton has a cache where there is no home to put it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in TERMINAL:
            patch.delenv(name, raising=False)
        if "TRITON_CACHE_DIR" not in os.environ and not os.access(Path.home(), os.W_OK):
            patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """What a test draws from torch's own generator depends on no test before it."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))
