"""The progress of a run on stderr: which case, what is done for it, and the time left."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from dsv4bench.bench.execute import Event
from dsv4bench.bench.messages import Measured, Working
from dsv4bench.results.row import Status
from dsv4bench.scenario.case import Case

WIDE = 160
"""Columns of what goes to a file or a pipe."""
AROUND = 2
"""Steps of a case beside its rounds: preparing and finishing."""


class RunProgress:
    """A progress bar that counts the rounds of all cases."""

    def __init__(self, cases: Sequence[Case], rounds: int, path: Path) -> None:
        self._labels = {case.case_id: case.label for case in cases}
        self._per_case = rounds + AROUND
        self._seen = dict.fromkeys(self._labels, 0)
        self._console = Console(stderr=True, width=None if sys.stderr.isatty() else WIDE)
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        doing = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis"))
        self._progress = Progress(BarColumn(20), MofNCompleteColumn(), *times, doing, console=self._console)
        self._task = self._progress.add_task(f"run {path.name}", total=len(cases) * self._per_case)

    def __enter__(self) -> "RunProgress":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def see(self, event: Event) -> None:
        """Take note of what a worker says."""
        if isinstance(event, Working):
            self._advance(event.case_id, 1)
            self._progress.update(self._task, description=f"{self._labels[event.case_id]}: {event.doing}")
        elif isinstance(event, Measured):
            row = event.row
            self._advance(row.case_id, self._per_case)
            if row.status is not Status.OK:
                text = f"{row.label}: {row.status.value}: {row.reason}"
                self._console.print(text, markup=False, emoji=False, highlight=False)

    def _advance(self, case_id: str, steps: int) -> None:
        """Count steps of a case, never more than it has."""
        steps = min(steps, self._per_case - self._seen[case_id])
        self._seen[case_id] += steps
        self._progress.advance(self._task, steps)
