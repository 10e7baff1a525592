"""Whether others computed on the cores while a CPU was timed: torch's threads wait for each other at every barrier.

The load average would count the timed threads themselves and trail by a minute, so processor time is read around each
turn: what all cores spent, less what this process did. Where there is no ``/proc/stat`` nothing is known or said.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
IDLE = (3, 4)
"""Columns of ``/proc/stat`` in which a core had nothing to do: idle, iowait."""
COLUMNS = 8
"""Columns that add up to all of a core's time; guests are part of them."""
LEAST_WALL = 0.2
"""Seconds below which the kernel's ticks of 10 ms say too little."""
MARGIN = 0.25
"""Cores that the rest of a machine at rest may take."""


@dataclass(frozen=True)
class CpuTimes:
    """Clocks at one moment, seconds: wall time, time that all cores were busy, processor time of this process."""

    wall: float
    busy: float
    own: float

    def until(self, later: "CpuTimes") -> "CpuTimes":
        """What passed until a later moment."""
        return CpuTimes(later.wall - self.wall, later.busy - self.busy, later.own - self.own)


def read_cpu(stat: Path = STAT) -> CpuTimes | None:
    """The clocks now; None where the system doesn't show them."""
    try:
        columns = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1 : 1 + COLUMNS]]
        busy = sum(columns) - sum(columns[column] for column in IDLE)
    except (OSError, ValueError, IndexError):
        return None
    return CpuTimes(time.perf_counter(), busy / os.sysconf("SC_CLK_TCK"), time.process_time())


def busy_elsewhere(passed: Iterable[CpuTimes]) -> float | None:
    """Cores that others kept busy on average.

    Args:
        passed: in each timed window.

    Returns:
        None if too little time has passed to say.
    """
    windows = list(passed)
    wall = sum(window.wall for window in windows)
    if wall < LEAST_WALL:
        return None
    return max(sum(window.busy - window.own for window in windows) / wall, 0.0)


def crowded(others: float, threads: int, cores: int) -> list[str]:
    """A warning where others and the timed threads together had more to do than there are cores."""
    if others + threads <= cores + MARGIN:
        return []
    return [
        f"others kept {others:.1f} of the {cores} cores busy while this was timed on {threads} "
        f"thread{'s' if threads > 1 else ''}: its times may be several times too long"
    ]
