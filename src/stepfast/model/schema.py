"""Checks plain JSON values against a stored input schema, for triggers that do not have the code.

It knows the part of JSON Schema that msgspec writes for Python types; keywords beyond that (a pydantic model may
bring some) are passed over here and checked by the worker, which has the type itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from .names import nearest

_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def first_problem(value: Any, schema: dict[str, Any]) -> str | None:
    """What is wrong with ``value``, with its path, or None if it fits."""
    return next(_problems(value, schema, schema, "$"), None)


def _problems(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    if "$ref" in schema:
        yield from _problems(value, _resolve(schema["$ref"], root), root, path)
    if "anyOf" in schema:
        options = [next(_problems(value, option, root, path), None) for option in schema["anyOf"]]
        if None not in options:
            yield "; ".join(str(option) for option in options)
    kinds = schema.get("type")
    if kinds is not None and not _is_of(value, [kinds] if isinstance(kinds, str) else kinds):
        yield f"Expected `{kinds}`, got `{_name(value)}` - at `{path}`"
        return
    if "enum" in schema and not any(_same(value, member) for member in schema["enum"]):
        yield f"Invalid value {value!r}, expected one of {schema['enum']!r} - at `{path}`"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"Invalid value {value!r}, expected {schema['const']!r} - at `{path}`"
    if isinstance(value, dict):
        yield from _object_problems(value, schema, root, path)
    elif isinstance(value, list):
        yield from _array_problems(value, schema, root, path)
    elif isinstance(value, str):
        yield from _string_problems(value, schema, path)
    elif isinstance(value, (int, float)):
        yield from _number_problems(value, schema, path)


def _object_problems(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"Object missing required field `{name}` - at `{path}`"
    properties = schema.get("properties", {})
    extra = schema.get("additionalProperties", True)
    for name, child in value.items():
        if name in properties:
            yield from _problems(child, properties[name], root, f"{path}.{name}")
        elif extra is False:
            hint = nearest(name, properties) or ";"
            yield f"unknown field `{name}`{hint} there are {', '.join(properties) or 'none'} - at `{path}`"
        elif isinstance(extra, dict):
            yield from _problems(child, extra, root, f"{path}.{name}")


def _array_problems(value: list[Any], schema: dict[str, Any], root: dict[str, Any], path: str) -> Iterator[str]:
    if len(value) < schema.get("minItems", 0):
        yield f"Expected at least {schema['minItems']} items - at `{path}`"
    if len(value) > schema.get("maxItems", len(value)):
        yield f"Expected at most {schema['maxItems']} items - at `{path}`"
    prefix = schema.get("prefixItems", [])
    items = schema.get("items", True)
    for index, child in enumerate(value):
        rule = prefix[index] if index < len(prefix) else items
        if isinstance(rule, dict):
            yield from _problems(child, rule, root, f"{path}[{index}]")


def _string_problems(value: str, schema: dict[str, Any], path: str) -> Iterator[str]:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        yield f"Expected a `string` of another length - at `{path}`"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"Expected a `string` matching {schema['pattern']!r} - at `{path}`"


def _number_problems(value: float, schema: dict[str, Any], path: str) -> Iterator[str]:
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    outside = (
        not low <= value <= high or (above is not None and value <= above) or (below is not None and value >= below)
    )
    if outside:
        yield f"Expected a number within its bounds, got {value!r} - at `{path}`"


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: to Python true is 1 as well."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _is_of(value: Any, kinds: list[str]) -> bool:
    for kind in kinds:
        if isinstance(value, _TYPES.get(kind, (object,))) and (kind == "boolean" or not isinstance(value, bool)):
            return True
        if kind == "integer" and isinstance(value, float) and value.is_integer():
            return True
    return False


def _name(value: Any) -> str:
    return next((name for name, types in _TYPES.items() if type(value) in types), type(value).__name__)


def _resolve(ref: str, root: dict[str, Any]) -> dict[str, Any]:
    node: Any = root
    for part in ref.removeprefix("#/").split("/"):
        node = node.get(part, {}) if isinstance(node, dict) else {}
    return node if isinstance(node, dict) else {}
