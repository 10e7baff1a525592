"""Exceptions become statuses that a reader can act on."""

import pytest
import torch

from dsv4bench.bench.failure import IncorrectError, UnsupportedError, status_of
from dsv4bench.results.row import Status


class OutOfResources(Exception):  # noqa: N818  named like Triton's
    pass


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (IncorrectError("topk: off by 3"), Status.INCORRECT, "topk: off by 3"),
        (UnsupportedError("no fp4"), Status.UNSUPPORTED, "no fp4"),
        (NotImplementedError("no stage x"), Status.UNSUPPORTED, "NotImplementedError: no stage x"),
        (torch.OutOfMemoryError("CUDA out of memory.\nmore"), Status.OOM, "OutOfMemoryError: CUDA out of memory."),
        (MemoryError(), Status.OOM, "MemoryError: no message"),
        (OutOfResources("shared memory"), Status.COMPILE_ERROR, "OutOfResources: shared memory"),
        (ValueError("bad shape"), Status.RUNTIME_ERROR, "ValueError: bad shape"),
    ],
)
def test_status_and_reason(error, status, reason):
    assert status_of(error) == (status, reason)


def test_a_failed_allocation_on_the_host_is_out_of_memory():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert status_of(caught.value)[0] is Status.OOM
