"""What an engine works out once per step, outside its layers: kept here as long as the step's tensors live unchanged.

A stage is called many times over the same metadata, and a CUDA graph keeps pointing at whatever was made for it. So
results hang on the tensor they depend on: they are as old as it is, and die with it. A tensor that has been written to
since (torch counts that) gets new ones, while the old ones stay for graphs that were captured over them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch.utils.weak import WeakIdKeyDictionary

from dsv4bench.scenario.workload import MOST_DRAFTED

T = TypeVar("T")

_KEPT: Any = WeakIdKeyDictionary()
_FOLLOWING: Any = WeakIdKeyDictionary()


def once(what: str, tensors: tuple[torch.Tensor, ...], compute: Callable[[], T], *about: object) -> T:
    """The result of ``compute`` for the present contents of tensors; computed once for them.

    Args:
        what: names the result.
        tensors: what it depends on. It is kept with the first one, so the shortest-lived should come first.
        compute: makes it. It may wait for the device, so the first call has to be outside of a graph capture.
        about: hashable values that it depends on too.
    """
    owner = tensors[0]
    kept: dict[object, tuple[T, object]] = _KEPT.setdefault(owner, {})
    key = (what, about, tuple(_state(tensor, own=tensor is owner) for tensor in tensors))
    if key not in kept:
        others = tuple(tensor for tensor in tensors if tensor is not owner)
        kept[key] = (compute(), others)  # others are held so that nothing takes their identity
    return kept[key][0]


def following(
    what: str, tensors: tuple[torch.Tensor, ...], compute: Callable[[], torch.Tensor], *about: object
) -> torch.Tensor:
    """As ``once``, for what an engine puts into a buffer anew at every step: ``renew`` brings it up to date in place.

    Args:
        what: names the result.
        tensors: what it depends on, the shortest-lived first.
        compute: makes it. It is kept as long as the first tensor, so it must not hold that one itself.
        about: hashable values that it depends on too.
    """

    def make() -> torch.Tensor:
        made = compute()
        _FOLLOWING.setdefault(tensors[0], []).append((made, compute))
        return made

    return once(what, tensors, make, *about)


def renew(tensors: Iterable[object]) -> None:
    """Compute again, in place, what follows tensors into which a CUDA graph's next inputs were put.

    Args:
        tensors: the graph's buffers; what isn't a tensor is passed over.
    """
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            for made, compute in _FOLLOWING.get(tensor, ()):
                made.copy_(compute())


@cache
def zeros(count: int, device: torch.device) -> torch.Tensor:
    """int32 zeros that live on, so that graphs may point at them."""
    return torch.zeros(count, dtype=torch.int32, device=device)


@dataclass(frozen=True)
class Split:
    """A step as vLLM divides it: decoding requests first, then those with a prompt to read.

    Attributes:
        query_lens: query tokens of each request.
        seq_lens: length of each request after the step.
        decodes: leading requests that decode.
    """

    query_lens: tuple[int, ...]
    seq_lens: tuple[int, ...]
    decodes: int

    @property
    def decode_tokens(self) -> int:
        """Tokens of the decoding requests."""
        return sum(self.query_lens[: self.decodes])

    @property
    def drafts(self) -> int:
        """Query tokens of every decoding request; 0 where they differ."""
        lens = set(self.query_lens[: self.decodes])
        return lens.pop() if len(lens) == 1 else 0

    def tokens_of(self, first: int, last: int) -> slice:
        """Tokens of the requests ``first`` up to ``last``, which isn't among them."""
        start = sum(self.query_lens[:first])
        return slice(start, start + sum(self.query_lens[first:last]))


def split_step(query_start: torch.Tensor | None, seq_lens: torch.Tensor | None) -> Split | None:
    """Divide a step; None where its requests are unknown. Reads the device the first time.

    A request decodes if it brings one token, or up to eight after others (speculative decoding). vLLM draws the line at
    the number of drafts it was started with, which a step doesn't say.
    """
    if query_start is None or seq_lens is None:
        return None

    def read() -> Split:
        starts, lens = query_start.tolist(), seq_lens.tolist()
        queries = tuple(end - start for start, end in pairwise(starts))
        decodes = 0
        for query_len, seq_len in zip(queries, lens, strict=True):
            if query_len != 1 and not query_len <= min(MOST_DRAFTED, seq_len - 1):
                break
            decodes += 1
        return Split(queries, tuple(lens), decodes)

    return once("split", (query_start, seq_lens), read)


def _state(tensor: torch.Tensor, *, own: bool) -> tuple[int, int]:
    written = 0 if tensor.is_inference() else tensor._version
    return (0 if own else id(tensor), written)
