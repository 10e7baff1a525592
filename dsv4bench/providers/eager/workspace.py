"""How much memory an eager stage may use for temporaries, and the chunks that follow from it."""

from collections.abc import Iterator

import torch

WORKSPACE_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}
"""Temporaries of one chunk by device type: a laptop's share, and little beside a data-centre card's cache."""


def chunks(count: int, bytes_each: int, device: torch.device) -> Iterator[slice]:
    """Slices that cover ``range(count)`` so that one slice's temporaries fit the workspace.

    Sizes depend on shapes alone, never on data, so a captured graph replays the same chunks.

    Args:
        count: items (tokens, or pages).
        bytes_each: temporaries per item, in bytes.
        device: where they live.
    """
    step = max(1, WORKSPACE_BYTES.get(device.type, 1 << 28) // max(1, bytes_each))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
