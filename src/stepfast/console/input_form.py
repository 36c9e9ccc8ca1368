"""A form out of the stored input schema of a workflow, and the input out of what was filled in.

Fields are made for what a field can hold: texts, numbers, yes or no, one of several. Anything else is typed as JSON,
and the whole input can be, too: whatever a schema says, there is a way to start a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from .refusals import Refused

PREFIX = "field."
"""What the names of fields begin with in the form, so that they meet no other."""
WHOLE = "input"
"""The box for the whole input as JSON."""
_ALONE = ""
"""The name of the field of an input that is one value."""
_MOST = 50
"""More fields than this are rather typed as JSON."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the form."""

    name: str
    kind: str
    """text, integer, number, boolean, choice or json."""
    required: bool
    title: str
    choices: tuple[str, ...] = ()
    """What can be chosen, each as JSON."""
    default: str = ""
    hint: str = ""

    @property
    def key(self) -> str:
        """The name of the field in the form that is sent."""
        return PREFIX + self.name


def fields_of(schema_text: str | None) -> list[Field]:
    """The fields for a schema; none, if the input is better typed as JSON, or if the schema is none."""
    try:
        return _fields(_decoded(schema_text))
    except (TypeError, AttributeError, KeyError):  # somebody wrote into the table what no schema has
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
    """The input that was filled in: the whole of it as JSON, or field by field."""
    whole = form.get(WHOLE, "").strip()
    if whole:
        return _json(whole, "the input")
    fields = fields_of(schema_text)
    if not fields:
        return None
    given = {field.name: _value(field, text) for field in fields if _is_given(field, text := form.get(field.key, ""))}
    if fields[0].name == _ALONE:
        return given.get(_ALONE)
    return given


def _is_given(field: Field, text: str) -> bool:
    """A text may be empty on purpose, if there has to be one."""
    return bool(text.strip()) or (field.kind == "text" and field.required)


def _field(name: str, part: Mapping[str, Any], root: Mapping[str, Any], required: bool) -> Field:
    schema = _resolved(_without_null(part), root)
    title = str(schema.get("title") or name or "input")
    hint = str(part.get("description") or schema.get("description") or "")[:200]
    default = msgspec.json.encode(part["default"]).decode() if part.get("default") is not None else ""
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if choices:
        told = tuple(msgspec.json.encode(each).decode() for each in choices[:200])
        return Field(name, "choice", required, title, told, default, hint)
    kinds = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}
    kind = kinds.get(schema.get("type", "") if isinstance(schema.get("type"), str) else "", "json")
    if kind == "text":
        default = part["default"] if isinstance(part.get("default"), str) else ""
        hint = hint or str(schema.get("format") or "")
    return Field(name, kind, required, title, (), default, hint)


def _value(field: Field, text: str) -> Any:
    if field.kind == "text":
        return text
    value = _json(text.strip(), f"field {field.title!r}")
    fits = {"integer": int, "number": (int, float), "boolean": bool}.get(field.kind, object)
    if not isinstance(value, fits) or (isinstance(value, bool) and field.kind in ("integer", "number")):  # type: ignore[arg-type]
        raise Refused(400, f"field {field.title!r} takes {_A[field.kind]}")
    return value


_A = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}


def _json(text: str, what: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise Refused(400, f'{what} is not JSON; a text needs its quotes: "text"') from None


def _without_null(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """What may be null may be left out: the form asks for the rest."""
    others = [option for option in part.get("anyOf", ()) if isinstance(option, dict) and option.get("type") != "null"]
    return others[0] if len(others) == 1 else part


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where a schema only points to another one of the same text: that one."""
    for _ in range(10):
        name = schema.get("$ref")
        if not isinstance(name, str) or not name.startswith("#/$defs/"):
            return schema
        found = root.get("$defs", {}).get(name.removeprefix("#/$defs/"))
        if not isinstance(found, dict):
            return {}
        schema = found
    return {}


def _decoded(text: str | None) -> Mapping[str, Any]:
    """The stored schema; whatever somebody wrote into the table in its place is none."""
    try:
        found = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
