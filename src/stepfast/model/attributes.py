"""Attributes: names and typed values by which runs are found.

A value is stored as a text that says its type by its first letter, so that equal values are equal texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from ..errors import InvalidInput
from .names import check_name
from .stored import read_json

TEXT, NUMBER, BOOL, TIME = "text", "number", "bool", "time"
_LETTERS = {"s": TEXT, "n": NUMBER, "b": BOOL, "t": TIME}
TYPES = tuple(_LETTERS.values())
LONGEST = 200
"""Characters of a name, and of a text."""
_LARGEST = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Attribute(NamedTuple):
    """An attribute of a run, as it is stored."""

    name: str
    value: str

    @property
    def type(self) -> str:
        """The type of its value."""
        return _LETTERS[self.value[0]]


def encode_attributes(given: object, most: int) -> tuple[Attribute, ...]:
    """Attributes as they are stored, by name. InvalidInput for what cannot be one."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"attributes must be a dict of names and values, not {type(given).__name__}")
    if len(given) > most:
        raise InvalidInput(too_many(len(given), most))
    encoded = [Attribute(check_name(name, "an attribute", LONGEST), _encode(name, given[name])) for name in given]
    return tuple(sorted(encoded))


def too_many(number: int, most: int) -> str:
    """Why a run does not take so many attributes."""
    return (
        f"a run has at most {most} attributes (setting max_attributes), not {number}: they are what it is found by; "
        "what it only tells belongs into its input, or is set by ctx.set"
    )


def _encode(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "btrue" if value else "bfalse"
    if isinstance(value, str):
        return "s" + _checked_text(name, value)
    if isinstance(value, int | float):
        return "n" + _number(name, value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidInput(f"attribute {name!r} must be a time with a time zone, not {value!r}")
        return f"t{(value - _EPOCH) // timedelta(microseconds=1)}"
    raise InvalidInput(
        f"attribute {name!r} must be a text, a number, a bool or a datetime with a time zone, not "
        f"{'None' if value is None else type(value).__name__}"
    )


def _checked_text(name: str, value: str) -> str:
    if len(value) > LONGEST:
        raise InvalidInput(
            f"attribute {name!r} has {len(value)} characters; at most {LONGEST} are kept. A longer text belongs into "
            "the input"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"attribute {name!r} has a lone surrogate, which no database can keep") from None
    if "\0" in value:
        raise InvalidInput(f"attribute {name!r} has a NUL character, which no database can keep")
    return value


def _number(name: str, value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"attribute {name!r} must be a finite number, not {value!r}")
    if isinstance(value, int) or value.is_integer():
        if abs(value) > _LARGEST:
            if isinstance(value, float):
                return repr(value)
            raise InvalidInput(f"attribute {name!r} must be a number of at most 64 bits, not {value!r}")
        return str(int(value))
    return repr(float(value))


def decode(value: str) -> Any:
    """The value that is stored as a text; the text itself, if it was written by hand."""
    kind, text = _LETTERS.get(value[:1]), value[1:]
    try:
        if kind == NUMBER:
            return int(text) if text.lstrip("-").isdigit() else float(text)
        if kind == TIME:
            return _EPOCH + timedelta(microseconds=int(text))
    except (ValueError, OverflowError):
        return value
    if kind == BOOL and text in ("true", "false"):
        return text == "true"
    return text if kind == TEXT else value


def read_attributes(text: str | None) -> dict[str, str]:
    """The attributes of a row, which a query gives as one JSON object."""
    return dict(sorted(read_json(text, dict[str, str], {}).items())) if text else {}


def wrong_type(name: str, given: str, stored: str) -> InvalidInput:
    """Why a value is refused, whose name has values of another type."""
    return InvalidInput(
        f"attribute {name!r} is a {stored} in this database, and was given a {given}: give a {stored}, or use another "
        "name"
    )


def check_types(attributes: Iterable[Attribute], stored: Mapping[str, str]) -> None:
    """Refuse a value of another type than its name has."""
    for attribute in attributes:
        known = stored.get(attribute.name)
        if known is not None and known != attribute.type:
            raise wrong_type(attribute.name, attribute.type, known)


def from_text(name: str, text: str, kind: str | None) -> Any:
    """A value that was typed in: of the type that the name has, or else of the type that it looks like."""
    for each in TYPES if kind is None else (kind,):
        value = _READ[each](text)
        if value is not None and (kind is not None or each != TEXT):
            return value
    if kind is None:
        return text
    raise InvalidInput(f"attribute {name!r} is a {kind} in this database; {text!r} is none")


def shown(value: Any) -> str:
    """A value as ``from_text`` reads it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _read_number(text: str) -> float | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _read_time(text: str) -> datetime | None:
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        return None
    return value if value.tzinfo is not None else None


_READ = {
    TEXT: lambda text: text,
    NUMBER: _read_number,
    BOOL: lambda text: {"true": True, "false": False}.get(text),
    TIME: _read_time,
}
