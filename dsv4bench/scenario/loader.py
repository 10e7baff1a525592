"""Reading a scenario: from a path or by the name of a shipped one, with errors that say file and line."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dsv4bench.errors import UserError
from dsv4bench.scenario.document import MOST_CHARACTERS, Location, parse_document, parse_value
from dsv4bench.scenario.schema import CONTEXT_TAGS, TAGS, ContextSection, Scenario

_PACKAGE = Path(__file__).parent
_SHIPPED = (_PACKAGE / "shipped", _PACKAGE.parent.parent / "scenarios")
"""In the wheel, and in a checkout."""


def shipped_scenarios() -> dict[str, Path]:
    """Scenarios that come with the package, by name."""
    return {path.stem: path for folder in reversed(_SHIPPED) for path in sorted(folder.glob("*.yaml"))}


def find_scenario(name_or_path: str) -> Path:
    """The file of a scenario given by path or by shipped name.

    Raises:
        UserError: neither exists; the message lists the shipped names.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    shipped = shipped_scenarios()
    if path.stem in shipped and (name_or_path == path.stem or path.parts[:-1] == ("scenarios",)):
        return shipped[path.stem]
    near = difflib.get_close_matches(path.stem, shipped, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UserError(f"no scenario {name_or_path!r}: not a file, and the shipped ones are {', '.join(shipped)}{hint}")


def load_scenario(name_or_path: str, overrides: Iterable[str] = ()) -> Scenario:
    """Read and validate a scenario.

    Args:
        name_or_path: file, or name of a shipped scenario.
        overrides: ``key.path=value`` texts (the value is YAML); they win over the file.

    Raises:
        UserError: unreadable file, YAML error, unknown key, wrong value; the message names file and line, or the
            override.
    """
    path = find_scenario(name_or_path)
    shown = str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
    data, lines = parse_document(_read(path, shown), shown)
    for override in overrides:
        _apply(data, lines, override)
    return scenario_of(data, shown, lines)


def scenario_of(data: dict[str, Any], source: str, lines: dict[Location, str] | None = None) -> Scenario:
    """A scenario from plain data.

    Args:
        data: its keys.
        source: what errors call the whole.
        lines: where each key stands, as far as that is known.

    Raises:
        UserError: unknown key or wrong value.
    """
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        raise UserError(_explain(error, source, lines or {})) from error


def _read(path: Path, shown: str) -> str:
    try:
        with path.open(encoding="utf-8-sig") as file:
            return file.read(MOST_CHARACTERS + 1)
    except OSError as error:
        raise UserError(f"{shown}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{shown}: not UTF-8: byte 0x{error.object[error.start]:02x} at {error.start}") from error


def _apply(data: dict[str, Any], lines: dict[Location, str], override: str) -> None:
    key, separator, text = override.partition("=")
    names = key.strip().split(".")
    if not separator or not all(names):
        raise UserError(f"--set {override}: expected key.path=value, for example workload.batch=[1, 8]")
    try:
        value = parse_value(text)
    except ValueError as error:
        raise UserError(f"--set {override}: the value is not valid YAML: {error}") from error
    target = data
    for depth, name in enumerate(names[:-1]):
        if name not in target:
            target[name] = {}
            lines[tuple(names[: depth + 1])] = f"--set {override}"
        inner = target[name]
        if not isinstance(inner, dict):
            raise UserError(f"--set {override}: {'.'.join(names[: depth + 1])} is not a section")
        target = inner
    target[names[-1]] = value
    where = tuple(names)
    for stale in [location for location in lines if location[: len(where)] == where]:
        del lines[stale]
    lines[where] = f"--set {override}"


def _explain(error: ValidationError, source: str, lines: dict[Location, str]) -> str:
    """Each distinct problem as ``where: key: what is wrong``, one a line."""
    problems: dict[str, None] = {}
    for detail in error.errors():
        location, sentence = detail["loc"] or _named_in(detail["msg"], lines), _sentence(detail)
        where = next((lines[location[:n]] for n in range(len(location), 0, -1) if location[:n] in lines), source)
        shown = (str(part) for part in detail["loc"] if str(part) not in TAGS)
        key = ".".join(part for part in shown if not part.startswith(("list[", "dict[", "function-")))
        problems[f"{where}: {key + ': ' if key else ''}{sentence}"] = None
    return "\n".join(problems)


def _named_in(message: str, lines: dict[Location, str]) -> Location:
    """Of a mistake of the whole scenario, the key that its message names first."""
    found = [(match.start(), where) for where in lines if (match := re.search(_as_word(where), message))]
    return min(found, key=lambda item: (item[0], -len(item[1])), default=(0, ()))[1]


def _as_word(location: Location) -> str:
    return rf"(?<![\w.]){re.escape('.'.join(map(str, location)))}(?![\w.])"


SAID = {
    "too_short": "needs at least one value",
    "int_type": "should be a whole number",
    "int_parsing": "should be a whole number",
    "int_from_float": "should be a whole number",
    "float_type": "should be a number",
    "float_parsing": "should be a number",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
    "string_type": "should be text",
    "dict_type": "should be a mapping",
    "model_type": "should be a mapping",
}
"""Pydantic's errors by type, in words that don't speak of parsing."""


def _sentence(detail: Any) -> str:
    message: str = SAID.get(detail["type"], detail["msg"].removeprefix("Value error, "))
    if detail["type"] == "extra_forbidden":
        known = _keys_at(detail["loc"][:-1])
        near = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
        return "unknown key" + (f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}")
    if detail["type"] == "missing":
        return "is missing"
    got = detail.get("input")
    said = repr(got) in message or (detail["type"] == "value_error" and not isinstance(got, str | int | float))
    shown = "nothing" if got is None else f"{got!r:.80}"
    return f"{message[0].lower()}{message[1:]}" + ("" if said else f", got {shown}")


def _keys_at(location: Location) -> list[str]:
    if CONTEXT_TAGS[1] in location:
        return list(ContextSection.model_fields)
    model: Any = Scenario
    for part in location:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if not isinstance(annotation, type) or not hasattr(annotation, "model_fields"):
            return []
        model = annotation
    return list(model.model_fields)
