"""Batches written as text, in the grammar of vLLM's attention benchmarks: ``64q1s128k_2q2ks2k``.

Segments are joined by ``_``; each is ``[count]q<query tokens>[s<sequence length>]``. Without ``s`` the request is a
whole prompt. As in vLLM, ``k`` stands for 1024 here, unlike in the other sizes of a scenario; ``K`` and ``M`` are
accepted too.
"""

import re
from dataclasses import dataclass

from dsv4bench.errors import UserError
from dsv4bench.scenario.sizes import LARGEST

_SEGMENT = re.compile(r"(\d{1,20})?q(\d{1,20})([kKM]?)(?:s(\d{1,20})([kKM]?))?")
_UNITS = {"": 1, "k": 2**10, "K": 2**10, "M": 2**20}
MOST_REQUESTS = 65536
"""More requests in a step than any engine schedules: taken for a typing error."""


@dataclass(frozen=True)
class Request:
    """One request of a step.

    Attributes:
        query_len: query tokens it brings.
        seq_len: its length after the step.
    """

    query_len: int
    seq_len: int


def parse_requests(text: str) -> tuple[Request, ...]:
    """The requests of a batch, decodes first as an engine orders them (by query length, otherwise as written).

    Raises:
        UserError: not in the grammar, an empty request, a query longer than its sequence, or absurdly many requests.
    """
    requests: list[Request] = []
    for segment in text.split("_"):
        shown = repr(text) if segment == text else f"{segment!r} in {text!r}"
        match = _SEGMENT.fullmatch(segment)
        if match is None:
            raise UserError(f"{shown} is not [count]q<tokens>[s<length>], for example 64q1s128k_2q2k")
        count = int(match[1] or 1)
        query_len = int(match[2]) * _UNITS[match[3]]
        seq_len = int(match[4]) * _UNITS[match[5]] if match[4] else query_len
        if not 1 <= query_len <= seq_len:
            raise UserError(f"{shown}: a request has 1 to s query tokens, this one {query_len} of {seq_len}")
        if seq_len > LARGEST:
            raise UserError(f"{shown}: a length is absurdly large; sizes end at 2**62")
        if not 1 <= len(requests) + count <= MOST_REQUESTS:
            raise UserError(f"{text!r} has {len(requests) + count:,} requests; 1 to {MOST_REQUESTS:,} make sense")
        requests += [Request(query_len, seq_len)] * count
    return tuple(sorted(requests, key=lambda request: request.query_len))
