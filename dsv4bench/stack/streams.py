"""Running a layer by its schedule on CUDA streams, forked and joined with events so that a graph can capture it.

Outputs stay in ``values`` until the next run of the same layer rebinds them. Memory that is freed then was last touched
before the join at the end of the previous run, and every auxiliary stream waits for this run's start before it gets new
work: so no block of the allocator is reused while another stream still reads it.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from dsv4bench.model.schedule import DEFAULT, START, Schedule
from dsv4bench.model.stage import STAGES
from dsv4bench.providers.base import SUPPORTED, Support
from dsv4bench.stack.inputs import Values
from dsv4bench.stack.layer import run_layer, run_stage
from dsv4bench.stack.side_streams import side_stream


def schedule_support(streams: str, device: str) -> Support:
    """Whether a device type has the streams of a schedule."""
    if streams == "serial" or device == "cuda":
        return SUPPORTED
    return Support.no(f"schedule {streams} needs CUDA streams, and this is the {device.upper()}; use serial")


def run_schedule(schedule: Schedule, providers: Mapping[str, object], values: Values) -> None:
    """Run every stage of a layer on its stream; the current stream waits for all of them.

    Args:
        schedule: of ``make_schedule``, which has checked it.
        providers: stage name → provider.
        values: inputs; outputs are added.
    """
    if schedule.streams == (DEFAULT,):
        run_layer(STAGES[schedule.kind], providers, values)
        return
    stages = {stage.name: stage for stage in STAGES[schedule.kind]}
    current = torch.cuda.current_stream()
    streams = {
        name: current if name == DEFAULT else side_stream(current.device.index, name) for name in schedule.streams
    }
    done: dict[str, Any] = {}
    if START in schedule.awaited:
        done[START] = current.record_event()
    for launch in schedule.launches:
        stream = streams[launch.stream]
        for name in launch.after:
            stream.wait_event(done[name])
        with _on(stream, current):
            run_stage(stages[launch.stage], providers[launch.stage], values)
        if launch.stage in schedule.awaited:
            done[launch.stage] = stream.record_event()


def _on(stream: torch.cuda.Stream, current: torch.cuda.Stream) -> AbstractContextManager[Any]:
    """Switching streams costs the host microseconds, so the default stream's stages don't."""
    return nullcontext() if stream is current else torch.cuda.stream(stream)
