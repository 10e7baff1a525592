from pathlib import Path

import pytest

pytest.importorskip("triton")
from tests.kernels.checks import names, tracebacks

SCRIPT = Path(__file__).with_name("attention_checks.py")


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    return tracebacks(SCRIPT)


@pytest.mark.xdist_group("attention checks")  # the script runs once
@pytest.mark.slow
@pytest.mark.parametrize("name", names(SCRIPT))
def test_logits_and_attention_agree_with_the_reference(failures, name):
    assert not failures[name], failures[name]
