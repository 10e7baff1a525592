"""Exceptions become statuses that a reader can act on."""

import pytest
import torch

from dsv4bench.bench.failure import IncorrectError, UnsupportedError, status_of
from dsv4bench.results.row import Status

CUDA = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.72 GiB of which 9.31 GiB is "
    "free. Including non-PyTorch memory, this process has 130.40 GiB memory in use. Of the allocated memory 128.00 GiB "
    "is allocated by PyTorch, and 1.77 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory "
    "is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
HOST = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "274877906944 bytes. Error code 12 (Cannot allocate memory)"
)
TRITON, DRIVER = "Triton Error [CUDA]: out of memory", "CUDA driver error: out of memory"


class OutOfResources(Exception):  # noqa: N818  named like Triton's
    pass


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (IncorrectError("topk: off by 3"), Status.INCORRECT, "topk: off by 3"),
        (UnsupportedError("no fp4"), Status.UNSUPPORTED, "no fp4"),
        (NotImplementedError("no stage x"), Status.UNSUPPORTED, "NotImplementedError: no stage x"),
        (
            torch.OutOfMemoryError(CUDA),
            Status.OOM,
            "out of memory: 20.00 GiB asked for, 9.31 GiB of the GPU's 139.72 GiB free; "
            "a smaller batch or context may fit",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory."),
            Status.OOM,
            "out of memory: a smaller batch or context may fit",
        ),
        *(
            (RuntimeError(text), Status.OOM, "out of memory: a smaller batch or context may fit")
            for text in ("CUDA error: out of memory\nFor debugging pass CUDA_LAUNCH_BLOCKING=1", TRITON, DRIVER)
        ),
        (
            RuntimeError("CUDA error: invalid argument"),
            Status.RUNTIME_ERROR,
            "RuntimeError: CUDA error: invalid argument",
        ),
        (
            RuntimeError(HOST),
            Status.OOM,
            "out of memory: 256.00 GiB asked for, 3.00 GiB of the host's memory free; "
            "a smaller batch or context may fit",
        ),
        (
            MemoryError(),
            Status.OOM,
            "out of memory: 3.00 GiB of the host's memory free; a smaller batch or context may fit",
        ),
        (OutOfResources("shared memory"), Status.COMPILE_ERROR, "OutOfResources: shared memory"),
        (ValueError("bad shape"), Status.RUNTIME_ERROR, "ValueError: bad shape"),
    ],
)
def test_status_and_reason(error, status, reason, monkeypatch):
    monkeypatch.setattr("dsv4bench.bench.failure.free_bytes", lambda device: 3 * 2**30)
    assert status_of(error) == (status, reason)


def test_a_failed_allocation_on_the_host_is_out_of_memory():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    status, reason = status_of(caught.value)
    assert status is Status.OOM
    assert reason.startswith("out of memory: 1,048,576.00 TiB asked for, ")
    assert "alloc_cpu" not in reason
