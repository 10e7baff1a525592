"""Tracing launch gaps: a profile of each case in its own form, once everything in the process has been timed.

The profiler leaves CUPTI attached when it is done (pytorch/pytorch#144455). On an H200 with torch 2.11 the host then
took 4 to 6 µs instead of 0.5 to replay a graph and about a third longer to launch eagerly, and graphs of 44 and 73 µs
ran 0.4 % longer. So this is the last that a worker does.
"""

from collections.abc import Iterator, Sequence

from dsv4bench.analysis.gaps import typical_gaps
from dsv4bench.bench.failure import status_of
from dsv4bench.bench.messages import Traced
from dsv4bench.bench.model_side import load_casts, make_contestant
from dsv4bench.bench.rounds import seed_of
from dsv4bench.bench.settings import Settings
from dsv4bench.bench.side import WHOLE, Contestant, Report
from dsv4bench.bench.timers.cupti import CuptiTimer, profile_calls
from dsv4bench.bench.window import replays
from dsv4bench.results.row import Gaps
from dsv4bench.scenario.case import Case
from dsv4bench.stack.layer import Layer
from dsv4bench.stack.model import Model

PASSES = 4
"""Passes over a layer in a profile; the first doesn't count."""


def trace_cases(cases: Sequence[Case], layer: Layer | Model, settings: Settings, report: Report) -> Iterator[Traced]:
    """Trace cases that were measured in this process; each yields its gaps, or why there are none."""
    unavailable = CuptiTimer().unavailable()  # attaches the profiler, which has to come before a capture
    for case in cases:
        report(case.case_id, "tracing launch gaps")
        if unavailable:
            yield Traced(case.case_id, None, unavailable)
            continue
        try:
            side = make_contestant(case, settings, layer, load_casts(case, settings))
            gaps = trace(side, seed_of(settings.timing.seed, case.pair_id, "gaps"))
        except Exception as error:  # whatever a provider raises; its row stands
            yield Traced(case.case_id, None, status_of(error)[1])
        else:
            yield Traced(case.case_id, gaps)


def trace(side: Contestant, seed: int) -> Gaps:
    """Gaps of a side's whole layer: launched eagerly on its streams, or as the replay of its graph.

    Raises:
        MeasurementError: records are missing.
    """
    calls = [side.calls(side.inputs(seed))[WHOLE]]
    return typical_gaps(profile_calls(replays(calls, graph=side.contract.graph), PASSES, None), PASSES)
