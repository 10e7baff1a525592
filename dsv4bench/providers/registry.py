"""Finding providers: the built-in ones, the entry-point group ``dsv4bench.providers``, and files.

Nothing is imported before a provider is asked for, so that listing works without torch.
"""

import difflib
import importlib
import importlib.util
import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from dsv4bench.errors import UserError
from dsv4bench.model.stage import STAGE_NAMES
from dsv4bench.providers.base import Provider, implemented_stages
from dsv4bench.providers.origin import FILE_MODULE

GROUP = "dsv4bench.providers"
"""Entry-point group in which third parties register a provider class or factory."""

BUILT_IN = {
    "reference": "dsv4bench.providers.reference:ReferenceProvider",
    "eager": "dsv4bench.providers.eager:EagerProvider",
    "triton": "dsv4bench.providers.triton:TritonProvider",
    "triton-unfused": "dsv4bench.providers.triton_unfused:TritonUnfusedProvider",
    "vllm": "dsv4bench.providers.vllm:VllmProvider",
}
"""``module:attribute`` of the providers that ship, by name."""
VARIANTS = {"vllm": ("triton", "cute")}
"""What may follow the name of a provider that ships, after a colon."""


@dataclass(frozen=True)
class ProviderInfo:
    """What ``list providers`` shows.

    Attributes:
        name: what scenarios call it.
        source: ``built-in``, the distribution that registers it, or the file.
        target: ``module:attribute``.
        stages: stages it implements; empty when it can't be loaded.
        unavailable: why it can't be loaded, or run anything on this machine; empty when it may.
    """

    name: str
    source: str
    target: str
    stages: tuple[str, ...] = ()
    unavailable: str = ""


@cache
def provider_targets() -> dict[str, tuple[str, str]]:
    """Name → (target, source) of every registered provider. Built-in names can't be taken over.

    Read once per process: looking through the installed packages takes 30 ms.
    """
    found = {}
    for point in entry_points(group=GROUP):
        found[point.name] = (point.value, point.dist.name if point.dist else "entry point")
    found.update({name: (target, "built-in") for name, target in BUILT_IN.items()})
    return found


def load_provider(spec: str) -> Provider:
    """Make a provider from its name, from ``name:variant``, or from ``path/to/file.py:Class``.

    Raises:
        UserError: unknown name, missing file or class, or an import that fails; the message says which.
    """
    path, _, attribute = spec.rpartition(":")
    if path.endswith(".py"):
        return _make(_file_attribute(Path(path), attribute), spec)
    require_known(spec)
    name, _, variant = spec.partition(":")
    module, _, attribute = provider_targets()[name][0].partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"provider {name!r} can't be loaded here: {error}") from error
    return _make(factory, spec, *((variant,) if variant else ()))


def require_known(spec: str) -> None:
    """Refuse a provider that can't exist, without importing anything.

    Raises:
        UserError: unknown name, a variant that a provider of this package doesn't have, or a missing file.
    """
    path, _, attribute = spec.rpartition(":")
    if path.endswith(".py"):
        if not Path(path).is_file():
            raise UserError(f"no such provider file: {path}")
        try:
            source = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UserError(f"{path} can't be read: {error.strerror}") from error
        if attribute not in re.findall(r"\w+", source):
            classes = re.findall(r"^class (\w+)", source, re.MULTILINE)
            raise UserError(f"{path} has no {attribute!r}" + (f"; it has {', '.join(classes)}" if classes else ""))
        return
    if spec.endswith(".py"):
        raise UserError(f"provider {spec}: say which class of the file, as {spec}:Class")
    (name, colon, variant), known = spec.partition(":"), provider_targets()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(
            f"unknown provider {spec!r}: {hint}known are {', '.join(sorted(known))}, or a file as path/to/file.py:Class"
        )
    if colon and name in BUILT_IN and variant not in VARIANTS.get(name, ()):
        also = "".join(f", {name}:{other}" for other in VARIANTS.get(name, ()))
        raise UserError(f"provider {name} has no variant {variant!r}; known: {name}{also}")


def misspelt_stages(provider: object) -> list[tuple[str, str]]:
    """Public methods that are no stage but nearly named like one that the provider lacks, each with that stage."""
    have, found = implemented_stages(provider), []
    for name in dir(provider):
        if name.startswith("_") or name in STAGE_NAMES:
            continue
        near = difflib.get_close_matches(name, STAGE_NAMES, n=1, cutoff=0.8)
        # beside the stage itself such a name is a helper's
        if near and near[0] not in have and callable(getattr(provider, name, None)):
            found.append((name, near[0]))
    return found


def list_providers() -> list[ProviderInfo]:
    """Every registered provider, loaded if it can be."""
    infos = []
    for name, (target, source) in sorted(provider_targets().items()):
        try:
            provider = load_provider(name)
            here = getattr(provider, "unavailable", str)
            infos.append(ProviderInfo(name, source, target, implemented_stages(provider), str(here())))
        except UserError as error:
            infos.append(ProviderInfo(name, source, target, unavailable=str(error)))
    return infos


def _make(factory: object, spec: str, *arguments: str) -> Provider:
    if not callable(factory):
        raise UserError(f"provider {spec!r} is not a class or a function")
    try:
        provider = factory(*arguments)
    except (Exception, SystemExit) as error:  # whatever a user's constructor raises is the user's message
        raise UserError(f"provider {spec!r} can't be made: {type(error).__name__}: {error}") from error
    if not isinstance(provider, Provider):
        raise UserError(f"provider {spec!r} lacks a `name` or a `supports(need)` method")
    if not implemented_stages(provider):
        hints = "".join(f"; {method} is none, did you mean {stage}?" for method, stage in misspelt_stages(provider))
        raise UserError(f"provider {spec!r} implements no stage; docs/stages.md lists them{hints}")
    return provider


def _file_attribute(path: Path, attribute: str) -> object:
    if not path.is_file():
        raise UserError(f"no such provider file: {path}")
    module_name = FILE_MODULE + path.stem
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever a user's file raises is the user's message
        raise UserError(f"{path} failed to import: {type(error).__name__}: {error}") from error
    if not hasattr(module, attribute):
        raise UserError(f"{path} has no {attribute!r}")
    return getattr(module, attribute)
