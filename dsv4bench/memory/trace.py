"""Requests to replay: read from a JSONL trace, or drawn from a built-in mix."""

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dsv4bench.errors import UserError
from dsv4bench.memory.page import BLOCK_TOKENS
from dsv4bench.memory.runs import CHAIN_BITS

MOST_TOKENS = 2**30
"""Tokens of a prompt or an answer above this are taken for mistakes: each 256 of them are an object in memory."""
MOST_REQUESTS = 1_000_000
"""Requests of a built-in mix; replaying these takes minutes and a gigabyte."""
KEYS = ("arrival", "prompt", "output", "session", "system", "system_tokens", "hash_ids")
MOONCAKE_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")
"""What a line of a trace may hold, in our words and in Mooncake's."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request.

    Attributes:
        arrival: seconds from the start.
        prompt: prompt tokens.
        output: output tokens.
        content: a number for each 256-token segment of prompt and output, as ranges; equal in two requests exactly
            where all tokens up to the segment's end are equal.
    """

    arrival: float
    prompt: int
    output: int
    content: tuple[range, ...]


class _Identities:
    """Numbers for prefixes: the same pair of owner and segment always gets the same one, a chain for each owner."""

    def __init__(self) -> None:
        self._chains: dict[Any, int] = {}
        self._hashes: dict[Any, int] = {}

    def of(self, owner: Any, start: int, end: int) -> range:
        base = self._chains.setdefault(owner, len(self._chains) << CHAIN_BITS)
        return range(base + start, base + end)

    def of_hashes(self, owner: Any, hashes: list[Any], end: int) -> tuple[range, ...]:
        """Two segments for each hash, ``end`` in all; new hashes go into the owner's chain, one behind the other."""
        found: list[range] = []
        for position, value in enumerate(hashes[: -(-end // 2)]):
            start = self._hashes.setdefault(value, self.of(owner, 2 * position, 2 * position).start)
            count = min(2, end - 2 * position)
            if found and found[-1].stop == start:
                found[-1] = range(found[-1].start, start + count)
            else:
                found.append(range(start, start + count))
        return tuple(found)


def read_trace(path: Path) -> list[TraceRequest]:
    """Read a trace: one JSON object a line, in any order of arrival.

    Fields: ``arrival`` (seconds), ``prompt``, ``output`` (tokens). Optional: ``session`` (requests of a session
    continue one another), ``system`` with ``system_tokens`` (a prompt shared by all that name it), or ``hash_ids`` (one
    number per 512 tokens of the prompt, as in Mooncake's traces, whose ``timestamp`` in ms, ``input_length`` and
    ``output_length`` are read as well).

    Raises:
        UserError: not readable, or a line that is no request; the message names file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"--simulate: {path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--simulate: {path} cannot be read ({error})") from error
    identities, requests = _Identities(), []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            requests.append(_parse(line, f"{path}:{number}", number, identities))
    if not requests:
        raise UserError(f"--simulate: {path} has no request")
    return sorted(requests, key=lambda request: request.arrival)


def _parse(line: str, where: str, number: int, identities: _Identities) -> TraceRequest:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not valid JSON ({error.msg})") from error
    if not isinstance(fields, dict):
        raise UserError(f"{where}: a request is a JSON object with arrival, prompt and output")
    mooncake = "input_length" in fields
    _check_keys(fields, MOONCAKE_KEYS if mooncake else KEYS, where)
    if mooncake:
        fields = {
            "arrival": _number(fields, "timestamp", where, default=0) / 1000, "prompt": fields["input_length"],
            "output": fields.get("output_length"), "hash_ids": fields.get("hash_ids"),
        }  # fmt: skip
    _check_sharing(fields, where)
    fields |= {name: _tokens(fields, name, where, least) for name, least in (("prompt", 1), ("output", 0))}
    tokens = fields["prompt"] + fields["output"]
    return TraceRequest(
        float(_number(fields, "arrival", where)), fields["prompt"], fields["output"],
        _content(fields, tokens, number, identities),
    )  # fmt: skip


def _check_keys(fields: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    """Refuse a mistyped key, which would change what requests share; traces may hold more than is read here."""
    for key in fields.keys() - set(known):
        if close := [name for name in get_close_matches(key, known, n=1, cutoff=0.8) if name not in fields]:
            raise UserError(f"{where}: unknown key {key!r}: did you mean {close[0]}? known are {', '.join(known)}")


def _check_sharing(fields: dict[str, Any], where: str) -> None:
    """Refuse what cannot say which requests share tokens."""
    for name in ("session", "system"):
        if not isinstance(fields.get(name), str | int | None):
            raise UserError(f"{where}: {name} must be a text or a whole number, got {fields[name]!r}")
    hashes = fields.get("hash_ids")
    if hashes is not None and not (isinstance(hashes, list) and all(isinstance(each, str | int) for each in hashes)):
        raise UserError(f"{where}: hash_ids must be a list of numbers, got {hashes!r}")
    if (fields.get("system") is None) != (fields.get("system_tokens") is None):
        raise UserError(f"{where}: system and system_tokens go together: which prompt is shared, and how long it is")
    if fields.get("system") is not None:
        fields["system_tokens"] = _tokens(fields, "system_tokens", where, 0)


def _number(fields: dict[str, Any], name: str, where: str, least: int = 0, default: int | None = None) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
        raise UserError(f"{where}: {name} must be a number of at least {least}, got {value!r}")
    return value


def _tokens(fields: dict[str, Any], name: str, where: str, least: int) -> int:
    value = _number(fields, name, where, least)
    if value != int(value) or value > MOST_TOKENS:
        raise UserError(f"{where}: {name} must be a whole number of at most {MOST_TOKENS:,} tokens, got {value!r}")
    return int(value)


def _content(fields: dict[str, Any], tokens: int, number: int, identities: _Identities) -> tuple[range, ...]:
    segments = tokens // BLOCK_TOKENS
    owner: tuple[str, Any] = ("request", number)
    if fields.get("hash_ids"):
        shared = min(2 * len(fields["hash_ids"]), fields["prompt"] // BLOCK_TOKENS)
        parts = identities.of_hashes(("hashes", number), fields["hash_ids"], shared)
    else:
        shared = 0
        if fields.get("system") is not None:
            shared = min(segments, fields["system_tokens"] // BLOCK_TOKENS)
        parts = (identities.of(("system", fields.get("system")), 0, shared),)
        if fields.get("session") is not None:
            owner = ("session", fields["session"])
    return tuple(part for part in (*parts, identities.of(owner, shared, segments)) if part)


def _chat(random_: random.Random, count: int, rate: float) -> Iterator[dict[str, Any]]:
    """Conversations of a few turns behind one of 20 system prompts."""
    return _sessions(random_, count, rate, systems=20, system=1024, first=400, turn=200, output=300, turns=6, pause=30)


def _agents(random_: random.Random, count: int, rate: float) -> Iterator[dict[str, Any]]:
    """Agents: a long shared prompt of tools, many turns that grow by tool results."""
    return _sessions(
        random_, count, rate, systems=4, system=12288, first=2000, turn=1500, output=250, turns=20, pause=8
    )


def _documents(random_: random.Random, count: int, rate: float) -> Iterator[dict[str, Any]]:
    """Long documents, each read once or asked about a few times."""
    return _sessions(random_, count, rate, systems=1, system=0, first=60000, turn=100, output=500, turns=3, pause=20)


def _sessions(
    random_: random.Random, count: int, rate: float, *, systems: int, system: int, first: int, turn: int, output: int,
    turns: int, pause: float,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Sessions start at random and take turns; lengths are exponential around their means."""
    made, start = 0, 0.0
    while made < count:
        start += random_.expovariate(rate / turns)
        session, clock = made, start
        which = random_.randrange(systems)
        length = system + max(16, int(random_.expovariate(1 / first)))
        for _ in range(min(count - made, 1 + int(random_.expovariate(1 / max(1, turns - 1))))):
            answer = max(1, int(random_.expovariate(1 / output)))
            yield {
                "arrival": clock, "prompt": length, "output": answer, "session": session, "system": which,
                "system_tokens": system,
            }  # fmt: skip
            made += 1
            length += answer + max(8, int(random_.expovariate(1 / turn)))
            clock += answer / 50 + random_.expovariate(1 / pause)


_Draw = Callable[[random.Random, int, float], Iterator[dict[str, Any]]]
MIXES: dict[str, tuple[_Draw, float]] = {"chat": (_chat, 5.0), "agents": (_agents, 1.0), "documents": (_documents, 0.2)}
"""The built-in mixes, with their mean requests per second unless told otherwise."""


def built_in(name: str, count: int, rate: float | None = None) -> list[TraceRequest]:
    """Requests of a built-in mix, the same ones every time.

    Args:
        name: a key of `MIXES`.
        count: requests.
        rate: mean requests per second; None for the mix's own.
    """
    identities = _Identities()
    draw, usual = MIXES[name]
    drawn = list(draw(random.Random(0), count, usual if rate is None else rate))
    requests = [
        TraceRequest(
            fields["arrival"], fields["prompt"], fields["output"],
            _content(fields, fields["prompt"] + fields["output"], number, identities),
        )
        for number, fields in enumerate(drawn)
    ]  # fmt: skip
    return sorted(requests, key=lambda request: request.arrival)


def load_requests(source: str, count: int, rate: float | None) -> list[TraceRequest]:
    """Requests of a built-in mix or of a trace file.

    Raises:
        UserError: neither.
    """
    if source in MIXES:
        return built_in(source, count, rate)
    if not Path(source).is_file():
        raise UserError(f"--simulate: {source!r} is no file and no mix; the mixes are {', '.join(MIXES)}")
    return read_trace(Path(source))
