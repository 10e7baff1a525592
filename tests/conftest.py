"""Shared by all tests: what is drawn is the same in every run, and GPU tests are skipped where there is no GPU."""

import sys

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run, however busy the machine is; --hypothesis-profile=default looks for others.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


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
