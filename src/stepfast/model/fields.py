"""Fields that would be lost: those of a value, or of a dict given in its place, that its annotation does not know.

JSON is read back as the annotation says. A field it does not know would vanish without a word: one that was misspelt,
or that of a subclass. Such values are refused where they come in. Records are read without these rules, so that a
deploy that removes a field does no harm to what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        waiting += _parts(info)
    return None


def _is_known(kind: Any) -> bool:
    return kind is object or hasattr(kind, "model_validate")


def _parts(info: Any) -> list[Any]:
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
        """What may stand in a dict given in its place; None: anything."""
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
        """A pydantic model. One that says what it does with further fields, or that looks at its input before its
        fields are read, is asked no further: it knows."""
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
