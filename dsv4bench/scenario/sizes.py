"""Sizes as people write them, tokens (``8K``, ``1M``) and bytes (``47.43GiB``), to integers and back.

Token suffixes are vLLM's: lower case counts in thousands (``1k`` = 1000, and ``25.6k`` is allowed), upper case in
powers of two (``1K`` = 1024, ``1M`` = 1,048,576). Bytes need a unit that says which kind it is, ``GiB`` or ``GB``: of a
bare ``110`` nobody can tell whether it means bytes or GiB.
"""

import re
from fractions import Fraction
from math import copysign, floor

from dsv4bench.errors import UserError

_TOKEN_UNITS = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip
_BYTE_UNITS = {
    "": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_NUMBER = re.compile(r"\s*(\d[\d_,]{0,40}(?:\.\d{1,40})?|\.\d{1,40})\s*([A-Za-z]*)\s*")
LARGEST = 2**62
"""Sizes above this are taken for typing errors: no token count or memory comes near it."""


def parse_tokens(text: str | int, name: str = "size", noun: str = "tokens") -> int:
    """Tokens of ``8K``, ``1M``, ``25.6k``, ``1_048_576`` or a plain integer.

    Args:
        text: what the user wrote; integers pass through the same checks.
        name: the flag or key it came from, for the error.
        noun: what is counted, for the error, where it isn't tokens.

    Raises:
        UserError: not such a size, negative, or beyond 2**62.
    """
    number, unit = _split(text, name, f"a number of {noun} such as 4096, 8K or 1M")
    if unit not in _TOKEN_UNITS:
        raise UserError(f"{name}: unknown suffix {unit!r} in {text!r}; use k, m (thousands) or K, M (powers of 1024)")
    value = number * _TOKEN_UNITS[unit]
    if value.denominator != 1 or (unit.isupper() and number.denominator != 1):
        raise UserError(f"{name}: {text!r} is not a whole number of {noun}; decimals go with k and m only, as in 25.6k")
    return _checked(int(value), text, name)


def parse_bytes(text: str | int, name: str = "size") -> int:
    """Bytes of ``47.43GiB``, ``80GB``, ``512 MiB``, ``584B``, ``0`` or an integer; fractions of a byte round down.

    Raises:
        UserError: not such a size, text without a unit, a unit that does not say GB or GiB, negative, or beyond 2**62.
    """
    number, unit = _split(text, name, "a size such as 47.43GiB or 80GB")
    if unit not in _BYTE_UNITS:
        known = "B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)"
        raise UserError(f"{name}: unknown unit {unit!r} in {text!r}; write {known}")
    if not unit and number and isinstance(text, str):
        raise UserError(f"{name}: {text!r} has no unit; write {text.strip()}GiB, or {text.strip()}B for bytes")
    return _checked(int(number * _BYTE_UNITS[unit]), text, name)


def format_tokens(count: int) -> str:
    """``1M``, ``8K`` or ``33,792``: the short form only where it is exact."""
    for unit in "GMK":
        if count >= _TOKEN_UNITS[unit] and count % _TOKEN_UNITS[unit] == 0:
            return f"{count // _TOKEN_UNITS[unit]:,}{unit}"
    return f"{count:,}"


def format_bytes(count: float, digits: int = 2) -> str:
    """``9.62 GiB``, ``8.13 MiB``, ``584 B``: the largest binary unit that leaves at least 1."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(count) >= _BYTE_UNITS[unit]:
            return f"{half_up(count / _BYTE_UNITS[unit], digits):,.{digits}f} {unit}"
    return f"{count:,.0f} B"


def half_up(value: float, digits: int) -> float:
    """Round as people do, 7.625 to 7.63, where formatting alone would round to even."""
    scale = 10.0**digits
    return copysign(floor(abs(value) * scale + 0.5) / scale, value)


def _split(text: str | int, name: str, expected: str) -> tuple[Fraction, str]:
    match = None if isinstance(text, bool) else _NUMBER.fullmatch(str(text))
    if match is None:
        raise UserError(f"{name}: {text!r} is not {expected}")
    return Fraction(match[1].replace("_", "").replace(",", "")), match[2]


def _checked(value: int, text: str | int, name: str) -> int:
    if value > LARGEST:
        raise UserError(f"{name}: {text!r} is absurdly large; sizes end at 2**62")
    return value
