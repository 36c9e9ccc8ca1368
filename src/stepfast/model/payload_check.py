"""Checks of payloads: values that cannot be stored, fields that would be lost, and JSON against a stored schema."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from msgspec import inspect

from .names import nearest


class Rule(Protocol):
    """What may be in a value of one type."""

    def problem(self, value: Any, path: str, dicts: bool) -> str | None:
        """The first field that would be lost, with its path. ``dicts``: also if it is one of a dict."""
        ...


def rule_for(type_: Any) -> Rule | None:
    """The rule of an annotation; None, if nothing can be lost by it."""
    try:
        return _Rules().of(inspect.type_info(type_))
    except Exception:  # what cannot be understood is not in the way; that it can be read is checked elsewhere
        return None


def unreadable(type_: Any) -> str | None:
    """The first type within an annotation that nothing can be rebuilt as from JSON."""
    seen: set[int] = set()
    waiting: list[Any] = [inspect.type_info(type_)]
    while waiting:
        info = waiting.pop()
        if id(info) in seen:
            continue
        seen.add(id(info))
        if isinstance(info, inspect.CustomType) and not _is_known(info.cls):
            return str(getattr(info.cls, "__qualname__", info.cls))
        waiting += _type_parts(info)
    return None


def _is_known(kind: Any) -> bool:
    return kind is object or hasattr(kind, "model_validate")


def _type_parts(info: Any) -> list[Any]:
    """The types within a type."""
    parts = [field.type for field in getattr(info, "fields", ())]
    parts += [*getattr(info, "types", ()), *getattr(info, "item_types", ())]
    parts += [getattr(info, name) for name in ("item_type", "key_type", "value_type") if hasattr(info, name)]
    return parts


def fields_of(kind: type) -> list[str] | None:
    """The names of the fields of a class; None, if it has no such thing."""
    for attribute in ("__struct_fields__", "__dataclass_fields__", "model_fields"):
        found = getattr(kind, attribute, None)
        if found is not None:
            return list(found)
    attrs = getattr(kind, "__attrs_attrs__", None)
    return None if attrs is None else [attribute.name for attribute in attrs]


class _Object:
    """A class with fields, or a TypedDict."""

    def __init__(self, kind: Any) -> None:
        self.kind = getattr(kind, "__origin__", kind)
        self.keys: set[str] | None = set()
        """The keys of a dict given in its place; None: any."""
        self.tag: tuple[str, Any] | None = None
        self.inner: list[tuple[str, str, Rule]] = []
        """(key in a dict, name of the field, rule) of the fields in which something may be lost."""

    def problem(self, value: Any, path: str, dicts: bool) -> str | None:
        if isinstance(value, dict):
            return self._in_dict(value, path, dicts)
        if type(value) is not self.kind:
            names = fields_of(type(value))
            problem = None if names is None else self._of_other(type(value), names, path)
            if problem is not None or names is None:  # what has no fields is none of ours: null, or a list
                return problem
        for _, name, rule in self.inner:
            problem = rule.problem(getattr(value, name, None), f"{path}.{name}", dicts)
            if problem is not None:
                return problem
        return None

    def _in_dict(self, value: dict[Any, Any], path: str, dicts: bool) -> str | None:
        if dicts and self.keys is not None:
            for key in value:
                if key not in self.keys:
                    known = ", ".join(sorted(self.keys)) or "no fields"
                    hint = nearest(str(key), self.keys) or ";"
                    return f"unknown field `{key}`{hint} {self.kind.__name__} has {known} - at `{path}`"
        for key, _, rule in self.inner:
            problem = rule.problem(value.get(key), f"{path}.{key}", dicts)
            if problem is not None:
                return problem
        return None

    def _of_other(self, kind: type, names: list[str], path: str) -> str | None:
        own = fields_of(self.kind) or ()
        for name in names:
            if name not in own:
                return (
                    f"the field `{name}` of this {kind.__qualname__} would be lost, because it is read back as "
                    f"{self.kind.__qualname__}: annotate it with {kind.__qualname__}, or with a union of tagged "
                    f"msgspec Structs - at `{path}`"
                )
        return None


class _Items:
    """A list, a tuple, a set: one rule for all items."""

    def __init__(self, item: Rule) -> None:
        self._item = item

    def problem(self, value: Any, path: str, dicts: bool) -> str | None:
        if isinstance(value, (list, tuple, set, frozenset)):
            for index, child in enumerate(value):
                problem = self._item.problem(child, f"{path}[{index}]", dicts)
                if problem is not None:
                    return problem
        return None


class _Places:
    """A tuple with a rule for each place."""

    def __init__(self, rules: Sequence[Rule | None]) -> None:
        self._rules = rules

    def problem(self, value: Any, path: str, dicts: bool) -> str | None:
        if isinstance(value, (list, tuple)):
            for index, (child, rule) in enumerate(zip(value, self._rules, strict=False)):
                problem = None if rule is None else rule.problem(child, f"{path}[{index}]", dicts)
                if problem is not None:
                    return problem
        return None


class _Values:
    """A dict whose keys are data."""

    def __init__(self, item: Rule) -> None:
        self._item = item

    def problem(self, value: Any, path: str, dicts: bool) -> str | None:
        if isinstance(value, dict):
            for key, child in value.items():
                problem = self._item.problem(child, f"{path}.{key}", dicts)
                if problem is not None:
                    return problem
        return None


class _Either:
    """A union: what is none of its classes, and has no tag, is left alone."""

    def __init__(self, rules: list[Rule]) -> None:
        self._rules = rules

    def problem(self, value: Any, path: str, dicts: bool) -> str | None:
        rule = self._chosen(value)
        return None if rule is None else rule.problem(value, path, dicts)

    def _chosen(self, value: Any) -> Rule | None:
        objects = [rule for rule in self._rules if isinstance(rule, _Object)]
        for rule in objects:
            if type(value) is rule.kind or (
                isinstance(value, dict) and rule.tag is not None and value.get(rule.tag[0]) == rule.tag[1]
            ):
                return rule
        if len(objects) == 1 and not isinstance(value, (list, tuple, set, frozenset)):
            return objects[0]
        others = [rule for rule in self._rules if not isinstance(rule, _Object)]
        return others[0] if len(others) == 1 and not objects else None


class _Rules:
    """Makes rules; a class that contains itself has one rule, which contains itself too."""

    def __init__(self) -> None:
        self._made: dict[Any, _Object] = {}

    def of(self, info: Any) -> Rule | None:
        if isinstance(info, (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)):
            return self._object(info)
        if isinstance(info, inspect.CustomType):
            return self._model(info.cls)
        if isinstance(info, inspect.UnionType):
            return self._union(info)
        if isinstance(info, inspect.TupleType):
            return self._places(info.item_types)
        if isinstance(info, inspect.NamedTupleType):
            return self._places([field.type for field in info.fields])
        if isinstance(info, inspect.DictType):
            value = self.of(info.value_type)
            return None if value is None else _Values(value)
        item = self.of(info.item_type) if hasattr(info, "item_type") else None
        return None if item is None else _Items(item)

    def _places(self, parts: Iterable[Any]) -> Rule | None:
        rules = [self.of(part) for part in parts]
        return _Places(rules) if any(rules) else None

    def _union(self, info: inspect.UnionType) -> Rule | None:
        rules = [rule for rule in map(self.of, info.types) if rule is not None]
        return _Either(rules) if rules else None

    def _object(self, info: Any) -> _Object:
        if info.cls in self._made:
            return self._made[info.cls]
        rule = self._made[info.cls] = _Object(info.cls)
        rule.keys = {field.encode_name for field in info.fields} | set(fields_of(rule.kind) or ())
        if isinstance(info, inspect.StructType):
            rule.keys = {field.encode_name for field in info.fields}
            if info.tag_field is not None:
                rule.keys.add(info.tag_field)
                rule.tag = (info.tag_field, info.tag)
        for field in info.fields:
            inner = self.of(field.type)
            if inner is not None:
                rule.inner.append((field.encode_name, field.name, inner))
        return rule

    def _model(self, kind: Any) -> _Object | None:
        """Make the rule of a pydantic model. Models that declare what further fields mean, or that validate their input
        before its fields, may have any keys."""
        if not hasattr(kind, "model_fields"):
            return None
        if kind in self._made:
            return self._made[kind]
        rule = self._made[kind] = _Object(kind)
        rule.keys = None if model_is_open(kind) else set(model_keys(kind))
        for name, field in kind.model_fields.items():
            inner = self._of_annotation(field.annotation)
            if inner is not None:
                rule.inner.append((name, name, inner))
        return rule

    def _of_annotation(self, annotation: Any) -> Rule | None:
        try:
            return self.of(inspect.type_info(annotation))
        except Exception:
            return None


def model_is_open(kind: Any) -> bool:
    """Whether a pydantic model takes fields that it does not name, or may."""
    validators = kind.__pydantic_decorators__.model_validators.values()
    looks_before = any(validator.info.mode != "after" for validator in validators)
    aliases = [field.validation_alias for field in kind.model_fields.values()]
    return "extra" in kind.model_config or looks_before or any(not isinstance(a, (str, type(None))) for a in aliases)


def model_keys(kind: Any) -> Iterable[str]:
    """By which names the fields of a pydantic model may be given."""
    for name, field in kind.model_fields.items():
        yield name
        yield from {alias for alias in (field.alias, field.validation_alias) if isinstance(alias, str)}


_Parts = Iterator[tuple[str, Any]]
_ATOMS = frozenset({str, int, float, bool, type(None)})


def find_not_finite(value: Any, plain: Callable[[Any], Any]) -> tuple[str, float] | None:
    """The path of a NaN or an infinity, and the number. ``plain`` takes apart what is not of Python's own types."""
    if _all_finite(value, plain):
        return None

    def wrong(part: Any) -> bool:
        return isinstance(part, float) and not math.isfinite(part)

    return _find(value, wrong) or _find(plain(value), wrong)


def find_unfit(value: Any, encode: Callable[[Any], object]) -> tuple[str, Exception] | None:
    """The path of the first part that ``encode`` refuses by itself, and its error."""
    refused: list[Exception] = []

    def unfit(part: Any) -> bool:
        try:
            encode(part)
        except Exception as error:
            refused.append(error)
        return bool(refused)

    found = _find(value, unfit)
    return None if found is None else (found[0], refused[0])


def _all_finite(value: Any, plain: Callable[[Any], Any]) -> bool:
    """The usual answer, without a thought about paths, and without a copy of the value for the garbage collector."""
    open_ = [value]
    for part in open_:  # the list grows while it is read
        kind = type(part)
        if kind is float:
            if not math.isfinite(part):
                return False
        elif kind is dict:
            open_.extend(part.values())
        elif kind is list or kind is tuple:
            open_.extend(part)
        elif kind not in _ATOMS:
            open_.append(plain(part))
    return True


def _find(value: Any, wrong: Callable[[Any], bool]) -> tuple[str, Any] | None:
    """The first atom that is wrong, in the order of writing. A container is visited once."""
    seen: set[int] = set()
    path: list[str] = []
    stack: list[_Parts] = [iter([("$", value)])]
    while stack:
        for name, part in stack[-1]:
            parts = None if type(part) in _ATOMS else _parts(part)
            if parts is None:
                if wrong(part):
                    return "".join([*path, name]), part
            elif id(part) not in seen:
                seen.add(id(part))
                path.append(name)
                stack.append(parts)
                break
        else:
            stack.pop()
            del path[-1:]
    return None


def _parts(value: Any) -> _Parts | None:
    """The named parts of a container; None for an atom."""
    if isinstance(value, dict):
        return _items(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return ((f"[{index}]", part) for index, part in enumerate(value))
    fields = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None)
    if fields is None or isinstance(value, type):
        return None
    return ((f".{name}", getattr(value, name, None)) for name in fields)


def _items(value: dict[Any, Any]) -> _Parts:
    for key, part in value.items():
        yield ".<key>", _Key(key) if isinstance(key, (tuple, frozenset)) else key
        yield f".{key!s}".encode("utf-8", "replace").decode(), part


class _Key:
    """A key that is a container. It cannot be stored, though its parts could be: so it counts as one wrong atom."""

    def __init__(self, key: object) -> None:
        self.key = key


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
