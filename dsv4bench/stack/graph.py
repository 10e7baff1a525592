"""A layer as a CUDA graph: captured at the lengths of its inputs, replayed on fresh ones put into the same buffers."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from dsv4_kernels.cache import PagedCache

from dsv4bench.providers.step import renew
from dsv4bench.stack.inputs import Values
from dsv4bench.stack.side_streams import side_stream

CAPTURE = "capture"
"""Name of the stream that graphs are captured on; no schedule's auxiliary stream is the same one."""


def capture(call: Callable[[], object], times: int = 1, *, keep: bool = False) -> torch.cuda.CUDAGraph:
    """Capture ``times`` repetitions of a call, after one eager call on the same stream for lazy initialisation.

    Args:
        call: what to capture; streams it forks have to be joined again by itself.
        times: how often.
        keep: keep the graph's nodes readable (``raw_cuda_graph``) beside the executable.
    """
    stream = side_stream(torch.cuda.current_device(), CAPTURE)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=keep)
    try:
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(times):
                call()
    except BaseException:
        _renew_generator(stream.device)
        raise
    return graph


def _renew_generator(device: torch.device) -> None:
    """Give the default generator a fresh state: after a capture that failed, torch takes it for capturing still."""
    fresh = torch.Generator(device).manual_seed(torch.cuda.initial_seed())
    torch.cuda.default_generators[device.index].graphsafe_set_state(fresh.graphsafe_get_state())


@dataclass(frozen=True)
class CapturedLayer:
    """A captured run over buffers of its own.

    Attributes:
        graph: what is replayed.
        inputs: the buffers it reads.
        values: ``inputs`` with the outputs that a replay overwrites.
    """

    graph: torch.cuda.CUDAGraph
    inputs: Values
    values: Values

    def replay(self, fresh: Values) -> Values:
        """Put fresh inputs into the buffers, replay, and return the values with the new outputs.

        Raises:
            ValueError: inputs of other lengths than those captured.
        """
        refill(self.inputs, fresh)
        renew(self.inputs.values())
        self.graph.replay()
        return self.values


def capture_layer(run: Callable[[Values], None], inputs: Values) -> CapturedLayer:
    """Capture a run over ``inputs``, which from then on are the graph's buffers.

    Args:
        run: runs the layer, adding outputs to the values it is given.
        inputs: as drawn, without outputs.
    """
    values = dict(inputs)
    return CapturedLayer(capture(lambda: run(values)), inputs, values)


def refill(buffers: Values, fresh: Values) -> None:
    """Copy fresh inputs into the buffers that a graph was captured with.

    Weights and caches, which both hold, stay. Scalars are baked into a graph, so they have to be the same.

    Raises:
        ValueError: a scalar or a shape differs: the graph was captured at other lengths.
    """
    for name, buffer in buffers.items():
        value = fresh[name]
        if value is buffer:
            continue
        if isinstance(buffer, torch.Tensor):
            if not isinstance(value, torch.Tensor) or value.shape != buffer.shape:
                raise ValueError(f"{name} has another shape than in the captured graph; capture at these lengths")
            buffer.copy_(value)
        elif isinstance(buffer, PagedCache):
            raise ValueError(f"{name} is another cache than in the captured graph; draw inputs over the same layer")
        elif value != buffer:
            raise ValueError(f"{name} is {buffer!r} in the captured graph and {value!r} in the fresh inputs")
