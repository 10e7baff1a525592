"""NVTX ranges: a case encloses layers, a layer encloses stages, all in the domain ``dsv4bench``.

Ranges are pushed on the thread that launches. Unless a tool listens, the package ``nvtx`` hands out a domain that does
nothing, and then not even that one is called. Inside a CUDA graph ranges exist at capture and not at replay.
"""

from contextlib import AbstractContextManager
from functools import cache
from types import TracebackType
from typing import Any

DOMAIN = "dsv4bench"


@cache
def _domain() -> Any | None:
    """The domain, or None when nothing listens."""
    try:
        import nvtx
    except ImportError:
        return None
    domain = nvtx.get_domain(DOMAIN)
    return domain if isinstance(domain, nvtx.Domain) else None


@cache
def _attributes(name: str) -> Any:
    domain = _domain()
    return domain.get_event_attributes(message=name) if domain else None


class _Range:
    __slots__ = ("_attributes", "_domain")

    def __init__(self, domain: Any, name: str) -> None:
        self._domain, self._attributes = domain, _attributes(name)

    def __enter__(self) -> None:
        self._domain.push_range(self._attributes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._domain.pop_range()


class _NoRange:
    """As ``contextlib.nullcontext``, in half its time."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


_OFF = _NoRange()


def scope(name: str) -> AbstractContextManager[None]:
    """A range around a ``with`` block; a shared no-op when no tool listens."""
    domain = _domain()
    return _OFF if domain is None else _Range(domain, name)
