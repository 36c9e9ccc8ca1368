"""JSON whose numbers keep their digits: an amount of 0.10, or an id of twenty digits, is shown as it is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

DEEPEST = 200
"""Levels that are written; deeper ones are cut, to bound the recursion."""


class ExactFloat(float):
    """A number that keeps the digits it was written with."""

    text: str


def read(text: str) -> Any:
    """Parse JSON. ValueError if it is not JSON, or nested too deeply."""
    try:
        return json.loads(text, parse_int=_integer, parse_float=_float)
    except RecursionError:
        raise ValueError("it is nested too deeply to be shown") from None


def _integer(text: str) -> int | float:
    try:
        return _float(text) if text == "-0" else int(text)  # there is no int that is written as -0
    except ValueError:  # more digits than Python converts
        return _float(text)


def _float(text: str) -> float:
    number = ExactFloat(text)
    number.text = text
    return number


def write(value: Any) -> str:
    """Return the value as indented JSON, numbers as they were written."""
    return "".join(_parts(value, "\n", 0))


def begin(value: Any, most: int) -> tuple[str, bool]:
    """Return the beginning of the same text, and whether it is all of it, without writing the rest."""
    text = ""
    for part in _parts(value, "\n", 0):
        text += part
        if len(text) > most:
            return text[:most], False
    return text, True


def _parts(value: Any, line: str, depth: int) -> Iterator[str]:
    if depth > DEEPEST:
        yield '"…"'
    elif isinstance(value, ExactFloat):
        yield value.text
    elif isinstance(value, dict) and value:
        names = (f"{json.dumps(str(key), ensure_ascii=False)}: " for key in value)
        yield from _group("{}", zip(names, value.values(), strict=True), line, depth)
    elif isinstance(value, (list, tuple)) and value:
        yield from _group("[]", (("", part) for part in value), line, depth)
    else:
        yield json.dumps(value, ensure_ascii=False, default=str)


def _group(brackets: str, entries: Iterator[tuple[str, Any]], line: str, depth: int) -> Iterator[str]:
    inner, between = f"{line}  ", brackets[0]
    for name, part in entries:
        yield f"{between}{inner}{name}"
        yield from _parts(part, inner, depth + 1)
        between = ","
    yield f"{line}{brackets[1]}"
