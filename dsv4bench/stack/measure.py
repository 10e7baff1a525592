"""What a device really gives for the blocks of a request: allocated, touched and read back from the device."""

import ctypes
from contextlib import suppress
from pathlib import Path

import torch

from dsv4bench.errors import UserError
from dsv4bench.memory.layout import CacheLayout
from dsv4bench.stack.pool import BlockPool


def measure_request(layout: CacheLayout, num_blocks: int, device: str | None) -> int:
    """Allocate a pool of blocks and report the bytes the device gave for it.

    Args:
        layout: the cache layout.
        num_blocks: blocks of one request.
        device: ``cpu`` or ``cuda``; None takes cuda where there is one.

    Returns:
        CUDA: growth of the memory the allocator reserved from the device. CPU: growth of the resident set.

    Raises:
        UserError: no such device, or too little memory free.
    """
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise UserError(f"--device must be cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: no CUDA device here; leave --device out or say cpu")
    need, free = num_blocks * layout.bytes_per_block, _free(name)
    if need > 0.9 * free:
        raise UserError(f"--measure: {need:,} B are needed and {free:,} B are free on {name}; lower --ctx")
    torch.zeros(1, device=name)  # the device's context is not the pool's
    before = _taken(name)
    pool = BlockPool(layout, num_blocks, device=name)
    pool.slab.zero_()
    given = _taken(name) - before
    del pool
    return given


def _free(device: str) -> int:
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    return _kilobytes("/proc/meminfo", "MemAvailable")


def _taken(device: str) -> int:
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_reserved()
    _return_free_heap()
    return _kilobytes("/proc/self/status", "VmRSS")


def _return_free_heap() -> None:
    """Give freed heap back to the system, so that it is not taken for what the next allocation gets (glibc only)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _kilobytes(path: str, field: str) -> int:
    """Bytes of a ``Field:  n kB`` line of procfs.

    Raises:
        UserError: this system has no procfs.
    """
    try:
        lines = Path(path).read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise UserError(f"--measure on the CPU needs Linux: {path} cannot be read") from error
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024
