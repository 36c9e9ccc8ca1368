"""A form for the stored input schema of a workflow, and the input that was filled in.

Texts, numbers, booleans and choices have fields of their own. Anything else is typed as JSON, and so
can be the whole input: a run can be started for any schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ..model.stored import read_json
from .refusals import Refused

PREFIX = "field."
"""Begins the names of input fields in the form, so that they do not collide with others."""
WHOLE = "input"
"""The field for the whole input as JSON."""
_ALONE = ""
"""The name of the field of an input that is a single value."""
_MOST = 50
"""An input with more fields than this is typed as JSON."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the form."""

    name: str
    kind: str
    """text, integer, number, boolean, choice or json."""
    required: bool
    title: str
    choices: tuple[str, ...] = ()
    """The choices, each as JSON."""
    default: str = ""
    hint: str = ""

    @property
    def key(self) -> str:
        """The name of the field in the form."""
        return PREFIX + self.name


def fields_of(schema_text: str | None) -> list[Field]:
    """Return the fields for a schema; none, if the input has to be typed as JSON, or the schema is not valid."""
    try:
        return _fields(read_json(schema_text, dict, {}))
    except (TypeError, AttributeError, KeyError):  # the stored schema was edited by hand
        return []


def _fields(root: Mapping[str, Any]) -> list[Field]:
    schema = _resolved(root, root)
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        needed = schema.get("required", [])
        parts = schema["properties"].items()
        if not 0 < len(parts) <= _MOST:
            return []
        return [_field(name, part, root, name in needed) for name, part in parts if isinstance(part, dict)]
    field = _field(_ALONE, schema, root, True)
    return [] if field.kind == "json" else [field]


def input_of(form: Mapping[str, str], schema_text: str | None) -> Any:
    """Return the input of a form: the whole as JSON, or from its fields."""
    whole = form.get(WHOLE, "").strip()
    if whole:
        return read_json_text(whole, "the input")
    fields = fields_of(schema_text)
    if not fields:
        return None
    given = {field.name: _value(field, text) for field in fields if _is_given(field, text := form.get(field.key, ""))}
    if fields[0].name == _ALONE:
        return given.get(_ALONE)
    return given


def _is_given(field: Field, text: str) -> bool:
    """An empty text counts, if the field is required."""
    return bool(text.strip()) or (field.kind == "text" and field.required)


def _field(name: str, part: Mapping[str, Any], root: Mapping[str, Any], required: bool) -> Field:
    schema = _resolved(_without_null(part), root)
    title = str(schema.get("title") or name or "input")
    hint = str(part.get("description") or schema.get("description") or "")[:200]
    default = msgspec.json.encode(part["default"]).decode() if part.get("default") is not None else ""
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if choices:
        encoded = tuple(msgspec.json.encode(each).decode() for each in choices[:200])
        return Field(name, "choice", required, title, encoded, default, hint)
    kinds = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}
    kind = kinds.get(schema.get("type", "") if isinstance(schema.get("type"), str) else "", "json")
    if kind == "text":
        default = part["default"] if isinstance(part.get("default"), str) else ""
        hint = hint or str(schema.get("format") or "")
    return Field(name, kind, required, title, (), default, hint)


def _value(field: Field, text: str) -> Any:
    if field.kind == "text":
        return text
    value = read_json_text(text.strip(), f"field {field.title!r}")
    fits = {"integer": int, "number": (int, float), "boolean": bool}.get(field.kind, object)
    if not isinstance(value, fits) or (isinstance(value, bool) and field.kind in ("integer", "number")):  # type: ignore[arg-type]
        raise Refused(400, f"field {field.title!r} takes {_A[field.kind]}")
    return value


_A = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}


def read_json_text(text: str, what: str) -> Any:
    """Parse JSON that was typed into a form."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise Refused(400, f'{what} is not JSON; a text needs its quotes: "text"') from None


def _without_null(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of an optional field without its null."""
    others = [option for option in part.get("anyOf", ()) if isinstance(option, dict) and option.get("type") != "null"]
    return others[0] if len(others) == 1 else part


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow references within the schema."""
    for _ in range(10):
        name = schema.get("$ref")
        if not isinstance(name, str) or not name.startswith("#/$defs/"):
            return schema
        found = root.get("$defs", {}).get(name.removeprefix("#/$defs/"))
        if not isinstance(found, dict):
            return {}
        schema = found
    return {}
