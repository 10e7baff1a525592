"""Counts by group in one number, so that all of them are added, and compared with their peaks, in one step.

A replay changes a few counts at every one of hundreds of thousands of steps; one by one they would take a tenth of it.
"""

from collections.abc import Sequence

FIELD_BITS = 48
"""Bits of a count. The highest stays free, for `Peaks`."""


def pack(counts: Sequence[int]) -> int:
    """One number of several counts below 2**47, the first in its lowest bits. The sum of packs is the pack of sums."""
    return sum(count << FIELD_BITS * place for place, count in enumerate(counts))


def unpack(packed: int, size: int) -> list[int]:
    """The ``size`` counts of a `pack`."""
    return [packed >> FIELD_BITS * place & (1 << FIELD_BITS) - 1 for place in range(size)]


class Peaks:
    """The largest of each of ``size`` counts so far."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._packed = 0
        self._spare = pack([1 << FIELD_BITS - 1] * size)

    def note(self, packed: int) -> None:
        """See the present counts, as a `pack`. One above its peak borrows the spare bit when it is subtracted."""
        if (self._packed | self._spare) - packed & self._spare != self._spare:
            counts = zip(unpack(self._packed, self._size), unpack(packed, self._size), strict=True)
            self._packed = pack([max(pair) for pair in counts])

    @property
    def counts(self) -> list[int]:
        """The peaks."""
        return unpack(self._packed, self._size)
