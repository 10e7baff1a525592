"""What a device really gives for the blocks of a request: allocated, touched and read back from the device."""

import ctypes
import mmap
import os
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
        CUDA: growth of the memory the allocator reserved from the device. CPU: bytes of the pages that are resident
        under the pool; the process as a whole may grow by less, where the pool got memory that was freed before.

    Raises:
        UserError: no such device, too little memory free, or a system that doesn't say which pages are resident.
    """
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise UserError(f"--device must be cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: no CUDA device here; leave --device out or say cpu")
    need, free = num_blocks * layout.bytes_per_block, free_bytes(name)
    if need > 0.9 * free:
        raise UserError(f"--measure: {need:,} B are needed and {free:,} B are free on {name}; lower --ctx")
    if name == "cpu":
        return _resident(_touched(layout, num_blocks, name))
    torch.zeros(1, device=name)  # the device's context is not the pool's
    before = torch.cuda.memory_reserved()
    slab = _touched(layout, num_blocks, name)
    torch.cuda.synchronize()
    given = torch.cuda.memory_reserved() - before
    del slab
    return given


def _touched(layout: CacheLayout, num_blocks: int, device: str) -> torch.Tensor:
    """The slab of a pool, every byte written."""
    return BlockPool(layout, num_blocks, device=device).slab.zero_()


def _resident(slab: torch.Tensor) -> int:
    """Bytes of the pages under a CPU tensor that are in memory, by mincore(2).

    Raises:
        UserError: this system has no mincore.
    """
    start = slab.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    size = slab.data_ptr() + slab.nbytes - start
    pages = torch.zeros(-(-size // mmap.PAGESIZE), dtype=torch.uint8)
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (OSError, AttributeError) as error:
        raise UserError("--measure on the CPU needs a Unix system: there is no mincore here") from error
    if mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), ctypes.c_void_p(pages.data_ptr())):
        raise UserError(f"--measure: mincore failed on {size:,} B: {os.strerror(ctypes.get_errno())}")
    return int((pages & 1).sum()) * mmap.PAGESIZE


def free_bytes(device: str) -> int:
    """Memory that a process could still get, ``cuda`` or ``cpu``.

    Raises:
        UserError: of the CPU, this system has no procfs.
    """
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise UserError("--measure on the CPU needs Linux: /proc/meminfo cannot be read") from error
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 1024
