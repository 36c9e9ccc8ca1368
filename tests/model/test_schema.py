"""The check of plain values against a stored schema: it refuses what the type itself would refuse."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from stepfast.model.payload import json_schema
from stepfast.model.payload_check import first_problem


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    article: str
    cents: Annotated[int, Meta(ge=0, lt=100)]


class Node(msgspec.Struct):
    value: int
    next: Node | None = None


class Point(NamedTuple):
    x: int
    y: int


class Address(TypedDict, total=False):
    street: str


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    a: int = 0


class Customer(pydantic.BaseModel):
    name: str
    age: int


CASES: list[tuple[Any, Any, str | None]] = [
    (int, 5, None),
    (int, "5", "$"),
    (int, True, "$"),
    (int, 5.5, "$"),
    (float, 5, None),
    (bool, 1, "$"),
    (str, None, "$"),
    (type(None), None, None),
    (int | None, None, None),
    (int | None, "x", "$"),
    (list[int], [1, 2], None),
    (list[int], [1, "x"], "$[1]"),
    (list[int], {"a": 1}, "$"),
    (dict[str, int], {"a": 1}, None),
    (dict[str, int], {"a": "x"}, "$.a"),
    (tuple[int, str], [1, "a"], None),
    (tuple[int, str], [1], "$"),
    (tuple[int, str], [1, "a", 2], "$"),
    (tuple[int, str], ["a", "a"], "$[0]"),
    (Point, [1, 2], None),
    (Point, [1, "x"], "$[1]"),
    (Line, {"article": "a", "cents": 5}, None),
    (Line, {"article": "a"}, "cents"),
    (Line, {"article": "a", "cents": -1}, "$.cents"),
    (Line, {"article": "a", "cents": 100}, "$.cents"),
    (list[Line], [{"article": "a", "cents": 5}, {"article": 1, "cents": 5}], "$[1].article"),
    (Node, {"value": 1, "next": {"value": 2, "next": None}}, None),
    (Node, {"value": 1, "next": {"value": "x"}}, "$.next.value"),
    (Colour, "red", None),
    (Colour, "green", "$"),
    (Literal["a", "b"], "c", "$"),
    (Address, {}, None),
    (Address, {"street": 5}, "$.street"),
    (Strict, {"a": 1}, None),
    (Strict, {"b": 1}, "`b`"),
    (Customer, {"name": "Ann", "age": 3}, None),
    (Customer, {"name": "Ann", "age": "x"}, "$.age"),
    (Annotated[str, Meta(min_length=2, max_length=3)], "abc", None),
    (Annotated[str, Meta(min_length=2, max_length=3)], "a", "$"),
    (Annotated[str, Meta(pattern="^a")], "b", "$"),
    (Annotated[float, Meta(gt=0)], 0, "$"),
    (Annotated[list[int], Meta(min_length=1)], [], "$"),
]


@pytest.mark.parametrize(("kind", "value", "path"), CASES, ids=[f"{n}" for n in range(len(CASES))])
def test_a_value_is_checked_with_its_path(kind: Any, value: Any, path: str | None) -> None:
    text = json_schema(kind)
    assert text is not None
    problem = first_problem(value, msgspec.json.decode(text))
    if path is None:
        assert problem is None
    else:
        assert problem is not None and path in problem


def test_a_type_without_a_schema_has_none() -> None:
    assert json_schema(Any) is None


def test_keywords_it_does_not_know_are_passed_over() -> None:
    assert first_problem("x", {"type": "string", "not": {"const": "x"}, "$ref": "#/nowhere"}) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KINDS = [int, str, float, bool, Line, Node, Point, Colour, list[int], dict[str, list[str]], int | None, datetime]


@given(st.sampled_from(KINDS), json_values)
def test_it_never_refuses_what_the_type_takes(kind: Any, value: Any) -> None:
    """A trigger without the code must not be stricter than one with it."""
    text = json_schema(kind)
    assert text is not None
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return
    assert first_problem(value, msgspec.json.decode(text)) is None
