from pathlib import Path

import pytest

pytest.importorskip("triton")
from tests.kernels.checks import names, tracebacks

SCRIPT = Path(__file__).with_name("projection_checks.py")


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    return tracebacks(SCRIPT)


@pytest.mark.xdist_group("projection checks")  # the script runs once
@pytest.mark.slow
@pytest.mark.parametrize("name", names(SCRIPT))
def test_fp8_projections_agree_with_the_reference(failures, name):
    assert not failures[name], failures[name]
