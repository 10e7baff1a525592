"""The engines whose allocators are known, by name and version; a new engine or version is a table entry."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Protocol

from dsv4bench.errors import UserError
from dsv4bench.memory.deployment import Deployment
from dsv4bench.memory.engines import llamacpp, sglang, vllm
from dsv4bench.memory.ideal import EntryBytes
from dsv4bench.memory.usage import Capacity, Usage


class Engine(Protocol):
    """What an engine module's object does."""

    @property
    def title(self) -> str:
        """Such as ``vLLM 0.28 (packed)``."""
        ...

    @property
    def options(self) -> frozenset[str]:
        """Fields of `Deployment` it reads beside the model, its precision and max_model_len."""
        ...

    def check(self, deployment: Deployment) -> None:
        """Refuse what the engine cannot do.

        Raises:
            UserError: a precision, layout or model it does not have.
        """
        ...

    def entry_bytes(self, deployment: Deployment) -> EntryBytes:
        """Entry sizes in its cache, for an ideal figure that is like for like."""
        ...

    def usage(self, deployment: Deployment, context: int) -> Usage:
        """What one decoding request of ``context`` tokens holds."""
        ...

    def capacity(self, deployment: Deployment, available: int, num_blocks: int | None = None) -> Capacity:
        """What fits into ``available`` bytes per GPU (or into a given number of blocks)."""
        ...

    def is_checked(self, deployment: Deployment, context: int) -> bool:
        """Whether a real server's log agrees with this configuration's figures for a request of ``context`` tokens."""
        ...

    def notes(self, deployment: Deployment) -> tuple[str, ...]:
        """Sentences a reader of its figures should see."""
        ...


@dataclass(frozen=True)
class EngineFamily:
    """How an engine is built from the text after ``@``.

    Attributes:
        versions: what may be written there, for help and errors.
        build: makes the engine of a version; "" is the newest.
    """

    versions: str
    build: Callable[[str], Engine]


ENGINES: dict[str, EngineFamily] = {
    "vllm": EngineFamily(vllm.VERSIONS, vllm.engine),
    "sglang": EngineFamily(sglang.VERSIONS, sglang.engine),
    "llama.cpp": EngineFamily(llamacpp.VERSIONS, llamacpp.llama_cpp),
    "ik_llama.cpp": EngineFamily(llamacpp.VERSIONS, llamacpp.ik_llama_cpp),
}
"""Engines by name. ``ideal`` is not among them: it allocates nothing."""


def engine_named(text: str) -> Engine:
    """The engine of ``name`` or ``name@version``.

    Raises:
        UserError: unknown engine or version; the message lists the known ones.
    """
    name, _, version = text.partition("@")
    if name == "ideal":
        raise UserError(f"--engine {text}: the ideal has no versions; say ideal")
    if name not in ENGINES:
        close = get_close_matches(name, ENGINES, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UserError(f"unknown engine {name!r}: {hint}known are ideal, {', '.join(ENGINES)}")
    return ENGINES[name].build(version)
