"""Making L2 cold: read (or write) more than it holds before each call, outside the timed region."""

from collections.abc import Callable

from dsv4bench.results.row import Contract

INPUT_SETS = 4
"""Input sets that cold calls rotate over: other activations, other index sets, other pages."""


def make_flush(contract: Contract, device: str) -> Callable[[], object] | None:
    """What runs before each cold call; ``None`` where L2 is left as it is.

    A read sweep leaves clean lines behind. ``memset`` leaves L2 full of dirty lines whose write-back overlaps the next
    kernel; it exists to compare with numbers taken that way.
    """
    if contract.l2 != "cold":
        return None
    import torch

    buffer = torch.zeros(contract.flush_bytes // 4, dtype=torch.int32, device=device)
    if contract.flush == "memset":
        return buffer.zero_
    return lambda: torch.amax(buffer)


def input_sets(contract: Contract) -> int:
    """How many input sets the calls of one window rotate over."""
    return INPUT_SETS if contract.l2 == "cold" else 1
