"""What a reader needs to find a fault: which elements of the worst vector are off, and what would be right.

The layout of the wrong elements names most faults by itself: 448 to 511 is a rotation, every other one a pairing, one
block of 128 a scale, the vectors of one head an index.
"""

import math

import torch


def pinpoint(actual: torch.Tensor, expected: torch.Tensor, slack: float) -> str:
    """The worst element of a vector with both values, and how far its like reach.

    Args:
        actual: [D].
        expected: [D].
        slack: elements further apart than this differ.
    """
    gap = _gap(actual, expected)
    worst = int(gap.argmax())
    return f"element {worst} is {float(actual[worst]):.6g}, expected {float(expected[worst]):.6g}" + spread(gap > slack)


def spread(off: torch.Tensor) -> str:
    """How many elements of a vector are off and from where to where, if several are; ``off`` is boolean, [D]."""
    places = off.nonzero().flatten()
    if len(places) < 2:
        return ""
    return f"; {len(places)} of {len(off)} elements differ, {int(places[0])} to {int(places[-1])}"


def reach(error: torch.Tensor, tolerance: float, noun: str = "vectors") -> str:
    """How many of the vectors are off, where there are several; ``error`` has one element a vector."""
    count = int((error > tolerance).sum())
    return f"; {count} of {error.numel()} {noun} are off" if error.numel() > 1 else ""


def _gap(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Distances; infinite where ``actual`` isn't finite though it should be."""
    gap = (actual.double() - expected.double()).abs()
    return torch.where(actual == expected, 0.0, gap).nan_to_num(nan=math.inf, posinf=math.inf)
