"""Reading a scenario: from a path or by the name of a shipped one, with errors that say file and line."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dsv4bench.errors import UserError
from dsv4bench.scenario.schema import CONTEXT_TAGS, ContextSection, Scenario

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
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{shown}: can't be read: {error}") from error
    data, lines = _parse(text, shown)
    for override in overrides:
        _apply(data, lines, override)
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        raise UserError(_explain(error, shown, lines)) from error


Location = tuple[str | int, ...]


def _parse(text: str, source: str) -> tuple[dict[str, Any], dict[Location, str]]:
    """YAML to plain data, plus where each key stands (``file:line``)."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark else source
        raise UserError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from error
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{source}:1: a scenario is a mapping with at least name, model and workload")
    lines: dict[Location, str] = {}
    _locate(root, (), source, lines)
    data = yaml.SafeLoader("").construct_document(root)
    return dict(data), lines


def _locate(node: yaml.Node, at: Location, source: str, lines: dict[Location, str]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            where = (*at, str(key.value))
            if where in lines:
                raise UserError(f"{source}:{key.start_mark.line + 1}: key {key.value!r} stands here a second time")
            lines[where] = f"{source}:{key.start_mark.line + 1}"
            _locate(value, where, source, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*at, index)] = f"{source}:{value.start_mark.line + 1}"
            _locate(value, (*at, index), source, lines)


def _apply(data: dict[str, Any], lines: dict[Location, str], override: str) -> None:
    key, separator, text = override.partition("=")
    names = key.strip().split(".")
    if not separator or not all(names):
        raise UserError(f"--set {override}: expected key.path=value, for example workload.batch=[1, 8]")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"--set {override}: the value is not valid YAML") from error
    target = data
    for depth, name in enumerate(names[:-1]):
        inner = target.setdefault(name, {})
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
        location = detail["loc"]
        where = next((lines[location[:n]] for n in range(len(location), 0, -1) if location[:n] in lines), source)
        shown = (str(part) for part in location if str(part) not in CONTEXT_TAGS)
        key = ".".join(part for part in shown if not part.startswith(("list[", "dict[", "function-")))
        problems[f"{where}: {key + ': ' if key else ''}{_sentence(detail)}"] = None
    return "\n".join(problems)


def _sentence(detail: Any) -> str:
    message: str = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        known = _keys_at(detail["loc"][:-1])
        near = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
        return "unknown key" + (f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}")
    if detail["type"] == "missing":
        return "is missing"
    if detail["type"] == "model_type":
        return f"should be a mapping, got {detail.get('input')!r}"
    got = detail.get("input")
    said = not isinstance(got, str | int | float) or str(got) in message
    return f"{message[0].lower()}{message[1:]}" + ("" if said else f", got {got!r}")


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
