"""The speed of a simulated server."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """How fast the simulated server is.

    Attributes:
        prefill: prompt tokens per second, all requests together.
        decode: output tokens per second of each request.
        chunk: tokens of a prefill step.
        running: most requests that run at a time (vLLM's ``max_num_seqs``).
    """

    prefill: float = 20_000.0
    decode: float = 50.0
    chunk: int = 8192
    running: int = 1024
