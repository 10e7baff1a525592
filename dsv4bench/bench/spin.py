"""A kernel of known duration: it reads the card's global timer until the nanoseconds asked for have passed.

It calibrates the timers, and it keeps the card busy while a region's launches are enqueued.
"""

from functools import cache
from importlib.util import find_spec
from typing import Any


@cache
def can_spin() -> bool:
    """Whether the kernel can run here: Triton on an NVIDIA GPU."""
    import torch

    return torch.cuda.is_available() and torch.version.cuda is not None and find_spec("triton") is not None


def spin(nanoseconds: int) -> None:
    """Occupy the current stream for a time; one program on one SM.

    Args:
        nanoseconds: by the card's global timer, whose own step is 32 ns to 1 µs; below 2³¹.
    """
    import torch

    _kernel()[(1,)](_sink(torch.cuda.current_device()), nanoseconds, num_warps=1)


@cache
def _kernel() -> Any:
    import triton
    import triton.language as tl

    # not specialised on the value: another duration must not compile another kernel
    @triton.jit(do_not_specialize=["nanoseconds"])
    def spin_kernel(end_ptr, nanoseconds):  # type: ignore[no-untyped-def]
        start = tl.extra.cuda.globaltimer()
        now = start
        while now - start < nanoseconds:
            now = tl.extra.cuda.globaltimer()
        tl.store(end_ptr, now)  # stored, so that the loop can't be dropped

    return spin_kernel


@cache
def _sink(device: int) -> Any:
    import torch

    return torch.empty(1, dtype=torch.int64, device=f"cuda:{device}")
