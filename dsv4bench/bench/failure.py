"""From an exception to the status and the sentence that a row carries."""

import re
from contextlib import suppress

from dsv4bench.errors import UserError
from dsv4bench.providers.origin import place_of
from dsv4bench.results.row import Status
from dsv4bench.scenario.sizes import format_bytes
from dsv4bench.stack.measure import free_bytes

COMPILER_ERRORS = ("CompilationError", "CompileTimeAssertionFailure", "OutOfResources", "PTXASError")
"""Exceptions of Triton and its backends that mean: this kernel can't be built for these arguments."""


class IncorrectError(Exception):
    """An output that is not what the reference computes."""


class UnsupportedError(Exception):
    """A case that a provider says it can't run."""


def status_of(error: BaseException) -> tuple[Status, str]:
    """Status and reason of a case that ended with an exception."""
    text = f"{type(error).__name__}: {_first_line(error)}{place_of(error)}"
    if isinstance(error, IncorrectError):
        return Status.INCORRECT, str(error)
    if isinstance(error, UnsupportedError):
        return Status.UNSUPPORTED, str(error)
    if isinstance(error, NotImplementedError):
        return Status.UNSUPPORTED, text
    if is_out_of_memory(error):
        return Status.OOM, f"out of memory: {_shortage(error)}a smaller batch or context may fit"
    if any(kind.__name__ in COMPILER_ERRORS for kind in type(error).__mro__):
        return Status.COMPILE_ERROR, text
    if isinstance(error, UserError):
        return Status.RUNTIME_ERROR, str(error)
    return Status.RUNTIME_ERROR, text


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on the device or on the host."""
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"OutOfMemoryError", "MemoryError"}:
        return True
    driver_or_host = r"CUDA[^:\n]*: out of memory|can't allocate memory"
    return isinstance(error, RuntimeError) and re.search(driver_or_host, str(error)) is not None


def _shortage(error: BaseException) -> str:
    """How much was asked for and how much is free, as far as an allocator's message or the system says."""
    text = str(error)
    asked = re.search(r"(?:tried|unable) to allocate ([\d.]+) (\w+)", text, re.IGNORECASE)
    free = re.search(r"total capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free", text)
    told = []
    if asked:
        told.append(f"{format_bytes(int(asked[1])) if asked[2] == 'bytes' else ' '.join(asked.groups())} asked for")
    elif text and "memory" not in text:
        told.append(_first_line(error))
    if free:
        told.append(f"{free[2]} of the GPU's {free[1]} free")
    elif "CUDA" not in text:
        with suppress(UserError):
            told.append(f"{format_bytes(free_bytes('cpu'))} of the host's memory free")
    return ", ".join(told) + "; " if told else ""


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else "no message"
