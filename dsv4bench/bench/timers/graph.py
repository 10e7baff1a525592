"""``graph``: capture n calls into a CUDA graph, replay it, divide. The flush stays outside the timed region."""

from collections.abc import Sequence

from dsv4bench.bench.timers import Call, Samples
from dsv4bench.bench.timers.events import no_gpu, time_with_events
from dsv4bench.bench.timers.hold import warm_up


class GraphTimer:
    """Captures anew whenever it times, so that no two rounds share a capture."""

    name = "graph"

    def __init__(self, calls_per_graph: int) -> None:
        self.calls_per_graph = calls_per_graph

    def unavailable(self) -> str:
        """Say so where there is no GPU."""
        return no_gpu()

    def time(self, calls: Sequence[Call], warmup: int, iterations: int, before: Call | None) -> Samples:
        """Time replays of one graph per call; see ``timers``.

        Raises:
            ValueError: a flush before a graph of several calls would leave all but the first warm.
        """
        if before and self.calls_per_graph > 1:
            raise ValueError("a graph of several calls can't be cold: its second call finds what the first left in L2")
        from dsv4bench.stack.graph import capture

        graphs = [capture(call, self.calls_per_graph) for call in calls]
        replays = [graph.replay for graph in graphs]
        warm_up(replays, warmup)
        return time_with_events(replays, iterations, before, self.calls_per_graph)
