"""Refusing flags that the mode chosen by another flag would silently ignore."""

from collections.abc import Set

import typer

from dsv4bench.errors import UserError


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
