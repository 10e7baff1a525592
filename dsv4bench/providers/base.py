"""What a provider is: a named object with one method per stage it implements.

A provider needs no base class. It has ``name``, ``supports(case)`` and methods named like stages (docs/stages.md gives
each one's parameters and result). Where one call covers several stages, ``covers`` says so.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import Any, Protocol, runtime_checkable

from dsv4bench.errors import UserError
from dsv4bench.model.shape import LayerKind
from dsv4bench.model.stage import STAGE_NAMES


@dataclass(frozen=True)
class Support:
    """Whether a provider can run a case, and why not."""

    ok: bool
    reason: str = ""

    @classmethod
    def no(cls, reason: str) -> "Support":
        """Unsupported, with a reason that a user can act on."""
        return cls(False, reason)


SUPPORTED = Support(True)
"""The plain yes."""


@dataclass(frozen=True)
class Need:
    """What a case asks of a provider.

    Attributes:
        kind: layer kind.
        stages: names of the stages it would have to run.
        device: torch device type, ``cpu`` or ``cuda``.
        main: precision of the main and window caches (``fp8``, ``bf16``, ``fp32``).
        indexer: precision of the indexer cache (``fp8``, ``fp4``, ``bf16``, ``fp32``).
        num_heads: query heads of this rank.
        phase: ``decode``, ``prefill`` or ``mixed``.
        weights: precision of the large projections' weights: ``bf16``, or ``fp8`` (``dsv4_kernels.weight.Fp8Weight``).
    """

    kind: LayerKind
    stages: tuple[str, ...]
    device: str
    main: str
    indexer: str
    num_heads: int
    phase: str
    weights: str = "bf16"


@runtime_checkable
class Provider(Protocol):
    """The least a provider has."""

    name: str

    def supports(self, need: Need) -> Support:
        """Say whether the provider can run ``need``, without allocating anything."""
        ...


def support_of(provider: Provider, need: Need) -> Support:
    """What a provider says of a need.

    Raises:
        UserError: its ``supports`` raises, or returns something else than a ``Support``.
    """
    try:
        answer: object = provider.supports(need)
    except Exception as error:  # whatever a user's provider raises is the user's message
        raise UserError(
            f"supports(need) of provider {provider.name!r} raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(answer, Support):
        raise UserError(
            f"supports(need) of provider {provider.name!r} returned {answer!r}; return a Support of "
            "dsv4bench.providers.base, such as SUPPORTED or Support.no(reason)"
        )
    return answer


def implemented_stages(provider: object) -> tuple[str, ...]:
    """Stage names that ``provider`` has a method for, in the vocabulary's order."""
    return tuple(name for name in STAGE_NAMES if callable(getattr(provider, name, None)))


@lru_cache(maxsize=1024)
def further_parameters(method: Callable[..., Any]) -> tuple[str, ...]:
    """Keyword parameters of a method that have a default: what it takes if it is to be had.

    A stage's method may name tensors of the step there that are not among the stage's own parameters; whoever has them
    hands them over, and whoever calls a single stage need not.
    """
    try:
        parameters = signature(method).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is None)


def stage_method(provider: object, name: str) -> Any:
    """The provider's implementation of a stage.

    Raises:
        NotImplementedError: it has none.
    """
    method = getattr(provider, name, None)
    if not callable(method):
        raise NotImplementedError(f"provider {getattr(provider, 'name', provider)!r} has no stage {name}")
    return method
