"""What stored runs say over time: the spread a new run is held against, and whether a case has moved."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from dsv4bench.analysis.evidence import timings
from dsv4bench.analysis.pairing import card_of, fingerprint_differences
from dsv4bench.analysis.reason import MINIMUM_HISTORY
from dsv4bench.analysis.statistics import mean_and_deviation, t_quantile
from dsv4bench.results.row import Status
from dsv4bench.results.run_directory import Run


@dataclass(frozen=True)
class Series:
    """One time of one case over the stored runs that may be compared with the newest.

    Attributes:
        case_id: id of the case.
        metric: ``time`` or ``time.<stage>``.
        label: readable name, as the newest run has it.
        started: when each run started, ISO 8601, oldest first.
        medians: median of each run, seconds.
        excluded: stored runs left out: other hardware or another contract.
        cards: how many cards the runs come from; None where a run doesn't say.
    """

    case_id: str
    metric: str
    label: str
    started: tuple[str, ...]
    medians: tuple[float, ...]
    excluded: int
    cards: int | None = None

    @property
    def geometric_mean(self) -> float:
        """Geometric mean of the medians, seconds."""
        return math.exp(fmean(math.log(value) for value in self.medians))

    @property
    def enough(self) -> bool:
        """Whether a new run can be gated against it."""
        return len(self.medians) >= MINIMUM_HISTORY

    @property
    def prediction_half_width(self) -> float | None:
        """Relative half-width of the interval a further run of unchanged code falls into; None with one run."""
        count = len(self.medians)
        if count < 2:
            return None
        _, deviation = mean_and_deviation([math.log(value) for value in self.medians])
        return math.expm1(t_quantile(count - 1) * deviation * math.sqrt(1 + 1 / count))

    @property
    def change(self) -> float:
        """Relative change from the oldest to the newest run."""
        return self.medians[-1] / self.medians[0] - 1


def series(runs: Sequence[Run]) -> list[Series]:
    """Every time of the newest run, over all runs.

    Args:
        runs: stored runs of one scenario, oldest first.
    """
    newest = runs[-1]
    found = []
    for row in newest.rows:
        for metric, _ in timings(row):
            points: list[tuple[str, float]] = []
            cards: set[str | None] = set()
            for run in runs:
                same = next((item for item in run.rows if item.case_id == row.case_id), None)
                if same is None or same.status is not Status.OK:
                    continue
                timing = dict(timings(same)).get(metric)
                comparable = same.contract == row.contract and not fingerprint_differences(
                    run.manifest, newest.manifest
                )
                if timing is not None and comparable:
                    points.append((run.manifest.started, timing.median))
                    cards.add(card_of(run.manifest))
            started, medians = zip(*points, strict=True)
            left_out, known = len(runs) - len(points), None if None in cards else len(cards)
            found.append(Series(row.case_id, metric, row.label, started, medians, left_out, known))
    return found
