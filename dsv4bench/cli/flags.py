"""The command line as it was given: which flags, and which of them a mode would silently ignore."""

import os
import sys
from collections.abc import Sequence, Set

import typer

from dsv4bench.errors import UserError


def from_here(words: Sequence[str] | None = None) -> list[str]:
    """Words of a command, by default this process's, with paths below the working directory made relative to it."""
    here = os.getcwd() + os.sep
    return [word.replace(here, "") for word in (sys.argv[1:] if words is None else words)]


def given_flags(call: typer.Context) -> dict[str, str]:
    """The flags and arguments that are on the command line, by parameter, as a user writes them."""
    shown = {
        option.name: option.opts[0] if option.opts[0].startswith("-") else option.opts[0].upper()
        for option in call.command.params
        if option.name
    }
    sources = {name: call.get_parameter_source(name) for name in shown}
    return {name: shown[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def refuse_beside(flag: str, given: dict[str, str], unread: Set[str]) -> None:
    """Refuse flags that the mode chosen by ``flag`` does not read.

    Raises:
        UserError: it names them.
    """
    if ignored := [given[name] for name in given if name in unread]:
        raise UserError(f"{flag} does not read {', '.join(ignored)}")


def refuse_without(flag: str, given: dict[str, str], of_flag: Set[str]) -> None:
    """Refuse flags that only a mode that was not chosen reads.

    Raises:
        UserError: it names them.
    """
    if ignored := [given[name] for name in given if name in of_flag]:
        raise UserError(f"{', '.join(ignored)} {'is' if len(ignored) == 1 else 'are'} read with {flag} only")
