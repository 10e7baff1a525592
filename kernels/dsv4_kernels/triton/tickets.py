"""Counters with which the programs of one launch find out which of them finishes last.

A kernel that splits one result over several programs has each draw a ticket; the holder of the last one combines the
parts and puts the counter back to zero. The counters are therefore zeroed once, ahead of any CUDA graph, and every
stream has its own, since two launches that share them must not overlap; for the same reason, graphs that were captured
on one stream must not replay at the same time.
"""

import torch

CAPACITY = 16384
"""Counters per stream, so the most results that one launch may split."""
_STREAMS = 64
_counters: dict[torch.device, torch.Tensor] = {}
_streams: dict[tuple[torch.device, int], int] = {}


def tickets(device: torch.device) -> torch.Tensor:
    """Zeroed int32 counters [CAPACITY] for the current stream; a kernel must leave them zero.

    Raises:
        RuntimeError: the first use on a device lies inside a graph capture, or more than 64 streams ask for counters.
    """
    if device not in _counters:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("run a split kernel once before capturing it: its counters are zeroed outside the graph")
        _counters[device] = torch.zeros((_STREAMS, CAPACITY), dtype=torch.int32, device=device)
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    index = _streams.setdefault((device, stream), sum(1 for known, _ in _streams if known == device))
    if index >= _STREAMS:
        raise RuntimeError(f"ticket counters are kept for {_STREAMS} streams per device, and all are taken")
    return _counters[device][index]
