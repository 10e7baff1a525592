"""From what a scenario asks for to the contract of a number; what cannot be honest is refused here, before a run."""

from dsv4bench.bench.device import Device
from dsv4bench.errors import UserError
from dsv4bench.results.row import Contract
from dsv4bench.scenario.case import Case
from dsv4bench.scenario.schema import TimingSection

PROTOCOL = 1
"""Raised only when a number's meaning changes."""
CALLS_PER_WARM_GRAPH = 10
"""Calls that a graph for timing holds when L2 may stay warm; a cold graph holds one, with the flush outside it."""
MEMSET_BYTES = 512 * 2**20
"""What ``flush: memset`` writes."""


def check_timing(timing: TimingSection, device_type: str, graph: bool) -> tuple[str, str]:
    """Resolve ``auto`` and refuse combinations that would be labelled what they are not.

    Args:
        timing: the scenario's section.
        device_type: ``cpu`` or ``cuda``.
        graph: whether the case replays a CUDA graph.

    Returns:
        timer and L2 state.

    Raises:
        UserError: a timer that the device can't have, an L2 state that the timer can't make.
    """
    on_cpu = device_type == "cpu"
    timer: str = timing.timer
    if timer == "auto":
        timer = "wall" if on_cpu else "graph" if graph else "events"
    l2: str = timing.l2
    if l2 == "auto":
        l2 = "none" if on_cpu else "warm"
    if on_cpu and timer != "wall":
        raise UserError(f"timing.timer {timer} needs a GPU and this run is on the CPU; use wall or auto")
    if not on_cpu and timer == "wall":
        raise UserError("timing.timer wall is for synchronous calls on the CPU; use events, graph, cupti or auto")
    if on_cpu and l2 != "none":
        raise UserError(f"timing.l2 {l2}: a CPU's L2 can't be controlled from here; use none or auto")
    if not on_cpu and l2 == "none":
        raise UserError("timing.l2 none would leave the GPU's L2 state unknown; use warm, cold or auto")
    if timer == "graph" and not graph:
        raise UserError("timing.timer graph times CUDA graphs; set schedule.graph to true, or timing.timer to auto")
    return timer, l2


def beyond_device(case: Case, device: Device) -> str:
    """Why no provider whatever can run a case on a device; empty where one may."""
    return "a CUDA graph needs a GPU" if case.execution.graph and device.type == "cpu" else ""


def make_contract(timing: TimingSection, case: Case, device: Device) -> Contract:
    """The contract of a case's numbers on a device.

    Raises:
        UserError: as ``check_timing``; or cold L2 was asked for on a card whose L2 size is unknown.
    """
    timer, l2 = check_timing(timing, device.type, case.execution.graph)
    cold = l2 == "cold"
    if cold and not device.l2_bytes:
        raise UserError(f"timing.l2 cold: the L2 size of {device.name} is unknown here, so a sweep can't be sized")
    sweep = MEMSET_BYTES if timing.flush == "memset" else 2 * device.l2_bytes
    return Contract.model_validate(
        {
            "timer": timer,
            "l2": l2,
            "flush": timing.flush if cold else "none",
            "flush_bytes": sweep if cold else 0,
            "graph": case.execution.graph,
            "iterations_per_graph": (1 if case.layers else calls_per_graph(timer, l2)) if case.execution.graph else 0,
            "streams": case.execution.streams,
            "seed": timing.seed,
            "protocol": PROTOCOL,
        }
    )


def calls_per_graph(timer: str, l2: str) -> int:
    """Calls captured into one graph: several only when the graph itself is what is timed and L2 is warm anyway.

    A graph of several calls repeats one input back to back, so from the second on it can't be cold.
    """
    return CALLS_PER_WARM_GRAPH if timer == "graph" and l2 == "warm" else 1
