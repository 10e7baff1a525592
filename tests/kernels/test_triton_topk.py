from pathlib import Path

import pytest

pytest.importorskip("triton")
from tests.kernels.checks import names, tracebacks

SCRIPT = Path(__file__).with_name("topk_checks.py")


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    return tracebacks(SCRIPT)


@pytest.mark.xdist_group("topk checks")  # the script runs once
@pytest.mark.slow
@pytest.mark.parametrize("name", names(SCRIPT))
def test_topk_selects_the_best(failures, name):
    assert not failures[name], failures[name]
