"""Named CUDA streams that are certain to be different ones.

Torch hands out a few pooled streams in turn, so that two of its ``Stream`` objects may be the same stream. A schedule
whose auxiliary stream is that of the graph it is captured in would run serially, right and silently slow.
"""

import torch

POOL = 32
"""Streams of a priority that torch keeps per device."""
_named: dict[tuple[int, str], torch.cuda.Stream] = {}


def side_stream(device: int, name: str) -> torch.cuda.Stream:
    """The stream of a name, the same one for the life of the process, as an engine keeps its auxiliary streams.

    Args:
        device: ordinal.
        name: what it is for.

    Raises:
        RuntimeError: all of torch's streams have names already.
    """
    if (device, name) not in _named:
        _named[device, name] = _unused(device)
    return _named[device, name]


def _unused(device: int) -> torch.cuda.Stream:
    taken = {stream.cuda_stream for (where, _), stream in _named.items() if where == device}
    for _ in range(2 * POOL):
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        if stream.cuda_stream not in taken:
            return stream
    raise RuntimeError(f"torch has no stream left on device {device} that {', '.join(n for _, n in _named)} don't use")
