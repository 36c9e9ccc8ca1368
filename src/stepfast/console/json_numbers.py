"""JSON as it was written: numbers keep their digits, whatever a float would make of them.

An amount of 0.10, or an id of twenty digits, must be read in the console as it is stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

DEEPEST = 200
"""Levels that are shown; nobody reads deeper, and recursion must end."""


class ExactInt(int):
    """An integer that remembers how it was written."""

    text: str


class ExactFloat(float):
    """A float that remembers how it was written."""

    text: str


class Digits(str):
    """A number too long for Python to read."""

    __slots__ = ()


def read(text: str) -> Any:
    """The value behind JSON text. ValueError if it is none, or is nested too deeply."""
    try:
        return json.loads(text, parse_int=_integer, parse_float=_float)
    except RecursionError:
        raise ValueError("it is nested too deeply to be shown") from None


def write(value: Any, indent: int = 2) -> str:
    """The value as JSON text on many lines, numbers as they were written."""
    return "".join(_parts(value, "\n", " " * indent, 0))


def begin(value: Any, most: int) -> tuple[str, bool]:
    """The beginning of the same text, and whether that is all of it: nothing is written that nobody sees."""
    parts, size = [], 0
    for part in _parts(value, "\n", "  ", 0):
        parts.append(part)
        size += len(part)
        if size > most:
            return "".join(parts)[:most], False
    return "".join(parts), True


def _integer(text: str) -> Any:
    try:
        number = ExactInt(text)
    except ValueError:
        return Digits(text)
    number.text = text
    return number


def _float(text: str) -> ExactFloat:
    number = ExactFloat(text)
    number.text = text
    return number


def _parts(value: Any, line: str, indent: str, depth: int) -> Iterator[str]:
    if depth > DEEPEST:
        yield '"…"'
    elif isinstance(value, Digits):
        yield str(value)
    elif isinstance(value, (ExactInt, ExactFloat)):
        yield value.text
    elif isinstance(value, dict) and value:
        entries = ((f"{json.dumps(str(key), ensure_ascii=False)}: ", part) for key, part in value.items())
        yield from _group("{", "}", entries, (line, indent, depth))
    elif isinstance(value, (list, tuple)) and value:
        yield from _group("[", "]", (("", part) for part in value), (line, indent, depth))
    else:
        yield json.dumps(value, ensure_ascii=False, default=str)


def _group(first: str, last: str, entries: Iterator[tuple[str, Any]], place: tuple[str, str, int]) -> Iterator[str]:
    line, indent, depth = place
    inner, between = line + indent, first
    for name, part in entries:
        yield f"{between}{inner}{name}"
        yield from _parts(part, inner, indent, depth + 1)
        between = ","
    yield f"{line}{last}"
