"""The installed vLLM: imported when first needed, silently, and asked for functions by what we call them.

Importing vLLM takes seconds, prints, and may fail in many ways; none of that may reach a table or end a run. Whatever
is missing becomes a `MissingError`, whose text is the reason that a stage is unsupported.
"""

import contextlib
import importlib
import inspect
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from dsv4bench.providers.vllm.release import KNOWN, Form, forms_for, release_of

Function = Callable[..., Any]
ABSENT = "vLLM is not installed here: pip install '.[vllm]' in a checkout of dsv4bench"


class MissingError(NotImplementedError):
    """Something of vLLM that isn't here, with the reason in a sentence."""


class Library:
    """vLLM's functions by our names (``release.FORMS``), each looked up once. Nothing is imported before that."""

    def __init__(self, version: str = "", load: Callable[[str], ModuleType] | None = None) -> None:
        """Take ``version`` for the installed one, and ``load`` to import modules; both are found out by default."""
        self._version, self._load = version, load or quiet_import
        self._found: dict[str, tuple[Function, Form] | str] = {}
        self._parts: dict[str, str] = {}

    @property
    def version(self) -> str:
        """Version of the installed vLLM.

        Raises:
            MissingError: there is none, or it can't be imported.
        """
        self._version = self._version or installed_version()
        return self._version

    @property
    def release(self) -> str:
        """The known release that it is of; empty for one that the table doesn't know."""
        return release_of(self.version)

    @property
    def note(self) -> str:
        """What to say about a version that the table doesn't know; empty for a known one."""
        if self.release:
            return ""
        return f"vLLM {self.version} is not among the known releases ({', '.join(KNOWN)}); what it kept is tried"

    def function(self, name: str) -> Function:
        """A function of vLLM.

        Raises:
            MissingError: none of the forms it is known in exists here.
        """
        return self._look_up(name)[0]

    def takes(self, name: str, parameter: str) -> bool:
        """Whether the form found takes a parameter.

        Raises:
            MissingError: as ``function``.
        """
        return parameter in self._look_up(name)[1].takes

    def module(self, name: str) -> ModuleType:
        """A module of vLLM; raises whatever its import raises."""
        return self._load(name)

    def part(self, name: str, check: Callable[["Library"], str]) -> str:
        """Why a part of vLLM is missing, found out once by ``check``; empty when it is there."""
        if name not in self._parts:
            self._parts[name] = check(self)
        return self._parts[name]

    def _look_up(self, name: str) -> tuple[Function, Form]:
        if name not in self._found:
            self._found[name] = self._search(name)
        found = self._found[name]
        if isinstance(found, str):
            raise MissingError(found)
        return found

    def _search(self, name: str) -> tuple[Function, Form] | str:
        problems = []
        for form in forms_for(name, self.release):
            try:
                function = self._attribute(form.target)
                check_signature(function, form)
            except MissingError as error:
                problems.append(str(error))
            else:
                return function, form
        note = f" ({self.note})" if self.note else ""
        return f"vLLM {self.version}: {'; '.join(problems)}{note}"

    def _attribute(self, target: str) -> Function:
        module, _, path = target.partition(":")
        try:
            if module == "torch.ops":
                self._load("vllm._custom_ops")  # registers the operators
            owner: Any = self._load("torch").ops if module == "torch.ops" else self._load(module)
            for part in path.split("."):
                owner = getattr(owner, part)
        except AttributeError as error:
            raise MissingError(f"there is no {path} in {module}") from error
        except Exception as error:  # an import of vLLM may raise anything
            raise MissingError(f"{module} can't be imported: {describe(error)}") from error
        found: Function = owner
        return found


@cache
def shared() -> Library:
    """The library of this process, so that what was looked up once serves every provider."""
    return Library()


def installed_version() -> str:
    """Version of the vLLM that can be imported here.

    Raises:
        MissingError: there is none, or its import fails.
    """
    found, reason = _installed()
    if reason:
        raise MissingError(reason)
    return found


def is_installed() -> bool:
    """Whether there is a vLLM, of whatever version and whether or not it can be imported."""
    try:
        return bool(version("vllm"))
    except PackageNotFoundError:
        return False


@cache
def _installed() -> tuple[str, str]:
    if not is_installed():
        return "", ABSENT
    number = version("vllm")
    try:
        quiet_import("vllm")
    except Exception as error:  # whatever it raises is the reason
        return "", f"vLLM {number} can't be imported: {describe(error)}"
    return number, ""


def quiet_import(name: str) -> ModuleType:
    """Import a module without letting it print, warn or log."""
    with silence():
        return importlib.import_module(name)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Swallow what Python code prints, warns and logs below an error; vLLM's own logger stays that quiet afterwards.

    vLLM configures logging when it is imported unless told not to by its environment variable.
    """
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    logger = logging.getLogger("vllm")
    logger.setLevel(logging.ERROR)
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield
    logger.setLevel(logging.ERROR)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def check_signature(function: Function, form: Form) -> None:
    """Refuse a function that doesn't take what we would pass, or needs what we wouldn't.

    Raises:
        MissingError: with the difference.
    """
    name = form.target.rpartition(":")[2]
    schema = operator_parameters(function)
    if schema is not None:
        taken, rest = tuple(schema)[: len(form.takes)], tuple(schema.items())[len(form.takes) :]
        if taken != form.takes or not all(optional for _, optional in rest):
            raise MissingError(f"{name} takes {', '.join(schema)}, not {', '.join(form.takes)}")
        return
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return  # a builtin tells nothing about itself; calling it will
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    named = {p.name: p for p in parameters if p.kind is not p.VAR_POSITIONAL}
    unknown = [word for word in form.takes if word not in named]
    needed = [p.name for p in named.values() if p.default is p.empty and p.name not in form.takes]
    if unknown or needed:
        what = [f"lacks {', '.join(unknown)}"] * bool(unknown) + [f"also needs {', '.join(needed)}"] * bool(needed)
        raise MissingError(f"{name} {' and '.join(what)}")


def operator_parameters(function: Function) -> dict[str, bool] | None:
    """Parameters of a torch operator in order, and whether each has a default; None for anything else."""
    overload = getattr(function, "default", None)
    schema = getattr(overload, "_schema", None)
    return {a.name: a.has_default_value() for a in schema.arguments} if schema is not None else None


def describe(error: BaseException) -> str:
    """Type and first line of an exception."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
