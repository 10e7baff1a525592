"""YAML as plain data, with the place of every key, so that an error can say file and line.

A file that can't be a scenario is refused before it costs memory or time: size, nesting and what aliases unfold to are
bounded.
"""

from typing import Any

import yaml

from dsv4bench.errors import UserError

MOST_CHARACTERS = 2**18
"""Longest text; the longest scenario that ships has some 2,000."""
MOST_VALUES = 50_000
"""Keys and values that a text may hold once its aliases are followed."""

Location = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """Gives every value that can't be read its place: PyYAML does not for dates and tagged numbers."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except ValueError as error:
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error


def parse_document(text: str, source: str) -> tuple[dict[str, Any], dict[Location, str]]:
    """A mapping, and where each of its keys stands as ``file:line``.

    Args:
        text: YAML.
        source: what errors call it.

    Raises:
        UserError: not YAML, not a mapping, a key that is twice there or not text, an alias of what it is in, or beyond
            the bounds of this module.
    """
    if len(text) > MOST_CHARACTERS:
        raise UserError(f"{source}: longer than any scenario, which have at most {MOST_CHARACTERS:,} characters")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            raise UserError(f"{source}:1: a scenario is a mapping with at least name, model and workload")
        lines: dict[Location, str] = {}
        _locate(root, (), source, lines, ())
        return dict(_Loader("").construct_document(root)), lines
    except yaml.YAMLError as error:
        raise UserError(f"{_place(error, text, source)}: not valid YAML: {_problem(error)}") from error
    except RecursionError as error:
        raise UserError(f"{source}: nested too deeply for a scenario") from error


def parse_value(text: str) -> Any:
    """A value on its own, as on the command line.

    Raises:
        ValueError: not YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(_problem(error)) from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _locate(
    node: yaml.Node, at: Location, source: str, lines: dict[Location, str], inside: tuple[yaml.Node, ...]
) -> None:
    """Note where the keys and items below a node stand; ``inside`` are the nodes that hold it."""
    line = f"{source}:{node.start_mark.line + 1}"
    if any(node is outer for outer in inside):
        raise UserError(f"{line}: what stands here refers to itself by an alias")
    if len(lines) > MOST_VALUES:
        raise UserError(f"{source}: over {MOST_VALUES:,} values once its aliases are followed, too many for a scenario")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = f"{source}:{key.start_mark.line + 1}"
            where = (*at, _key(key, here))
            if where in lines:
                raise UserError(f"{here}: key {key.value!r} stands here a second time")
            lines[where] = here
            _locate(value, where, source, lines, (*inside, node))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*at, index)] = f"{source}:{value.start_mark.line + 1}"
            _locate(value, (*at, index), source, lines, (*inside, node))


def _key(node: yaml.Node, here: str) -> str:
    if node.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
        shown = (
            f"{node.value!r}, which YAML does not read as text; quote it" if isinstance(node.value, str) else "a list"
        )
        raise UserError(f"{here}: a key has to be text; this one is {shown}")
    return str(node.value)


def _place(error: yaml.YAMLError, text: str, source: str) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"{source}:{mark.line + 1}"
    position = getattr(error, "position", None)  # of a character that YAML forbids
    return source if position is None else f"{source}:{text.count(chr(10), 0, position) + 1}"


def _problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f"the character {chr(int(error.character))!r} is not allowed"
    return str(getattr(error, "problem", None) or error)
