"""The precision everything here computes in, and the memory a chunk of work may take."""

import torch

CHUNK_FLOATS = 1 << 25
"""Elements of the largest temporary of a chunk (128 MiB in fp32)."""


def wide(x: torch.Tensor) -> torch.Tensor:
    """``x`` in the dtype it is computed in: float64 stays, everything else becomes fp32."""
    return x if x.dtype == torch.float64 else x.float()


def chunk_rows(floats_per_row: int) -> int:
    """Rows whose temporaries fit into a chunk, at least one."""
    return max(1, CHUNK_FLOATS // max(floats_per_row, 1))
