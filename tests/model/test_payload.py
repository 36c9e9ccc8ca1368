"""Payloads: what goes in comes out or is refused, lost fields are found, and schemas refuse no more than types do."""

from __future__ import annotations

import contextlib
import enum
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from stepfast.errors import InvalidInput, PayloadError
from stepfast.model.payload import Payloads, check_type, is_deeper, json_schema, same_arguments
from stepfast.model.payload_check import first_problem
from stepfast.settings import FORMAT, Settings

PAYLOADS = Payloads(Settings())

any_text = st.text(st.characters(exclude_categories=()))
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(any_text, inner, max_size=5),
    max_leaves=25,
)


def storable(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return not any(0xD800 <= ord(c) <= 0xDFFF for c in value)
    if isinstance(value, list):
        return all(map(storable, value))
    if isinstance(value, dict):
        return all(storable(k) and storable(v) for k, v in value.items())
    return True


@given(anything)
def test_plain_values_come_back_exactly_or_are_refused(value: Any) -> None:
    """NUL, surrogates, integers of any size, NaN; and the stored text is valid UTF-8 JSON."""
    if not storable(value):
        with pytest.raises(PayloadError, match=r"the thing .* at `\$"):
            PAYLOADS.round_trip(value, Any, "the thing")
        return
    text, live = PAYLOADS.round_trip(value, Any, "the thing")
    assert "\0" not in text
    text.encode()
    assert repr(live) == repr(value)
    assert repr(PAYLOADS.decode(text, Any, PAYLOADS.format, "the thing")) == repr(value)
    assert json.loads(text) == value


@dataclass
class Thing:
    id: UUID
    at: datetime
    price: Decimal
    raw: bytes
    pair: tuple[int, str]
    by_number: dict[int, float]
    maybe: bool | None


things = st.builds(
    Thing, st.uuids(), st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC)),
    st.decimals(allow_nan=False, allow_infinity=False), st.binary(max_size=50),
    st.tuples(st.integers(), st.text(st.characters(exclude_categories=["Cs"]))),
    st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)),
    st.none() | st.booleans(),
)  # fmt: skip


@given(things)
def test_typed_values_come_back_typed(thing: Thing) -> None:
    """Rule 13: live and replayed alike."""
    text, live = PAYLOADS.round_trip(thing, Thing, "the thing")
    assert live == thing == PAYLOADS.decode(text, Thing, PAYLOADS.format, "the thing")


@pytest.mark.parametrize("digits", [300, 4000, 4300, 4301, 10_000])
def test_integers_of_any_size_come_back_or_are_refused_when_stored(digits: int) -> None:
    """Never stored so that they cannot be read."""
    for value in (10**digits - 1, -(10**digits - 1), {"a": [-(10**digits - 1)]}):
        try:
            text, live = PAYLOADS.round_trip(value, Any, "the thing")
        except PayloadError:
            assert digits >= 4300
        else:
            assert live == value == PAYLOADS.decode(text, Any, 1, "the thing")


@pytest.mark.parametrize(
    ("text", "depth"),
    [("1", 0), ('"[[["', 0), ("[]", 1), ('[{"a":[1]},[]]', 3), ('["\\"[", "\\\\", [1]]', 2), ('{"[":{"]":[]}}', 3)],
)
def test_the_depth_of_json_is_counted_outside_strings(text: str, depth: int) -> None:
    raw = text.encode()
    assert [is_deeper(raw, limit) for limit in range(5)] == [depth > limit for limit in range(5)]


def test_arguments_are_the_same_whether_digests_of_them_are_kept_or_not() -> None:
    named = {"a": "x" * 600, "b": [1, 2], "c": {"d": "y" * 500}}
    texts = [Payloads(Settings(argument_bytes=most)).encode_arguments(named) for most in (0, 700, 4096)]
    assert len(set(texts)) == 3 and texts[1].count("sha256") == 1 and '"b":[1,2]' in texts[0]
    assert all(same_arguments(one, other) for one in texts for other in texts)
    for changed in ({**named, "a": "x" * 599}, {**named, "b": [1, 3]}, {"a": named["a"]}):
        other = PAYLOADS.encode_arguments(changed)
        assert not any(same_arguments(one, other) or same_arguments(other, one) for one in texts)


def test_arguments_that_are_too_large_for_a_payload_are_kept_as_digests() -> None:
    payloads = Payloads(Settings(max_payload=5000, max_depth=3))
    assert payloads.encode_arguments({"a": "x" * 9000, "b": 1}).endswith(',"b":1}')
    assert payloads.encode_arguments("x" * 4999).startswith('{"bytes":5001,"sha256":"')
    with pytest.raises(PayloadError, match="nested"):
        payloads.encode_arguments({"a": nested(200, 1)})


@given(anything.filter(storable))
def test_the_depth_is_that_of_the_value(value: Any) -> None:
    def depth(value: Any) -> int:
        if isinstance(value, list):
            return 1 + max(map(depth, value), default=0)
        if isinstance(value, dict):
            return 1 + max(map(depth, value.values()), default=0)
        return 0

    raw = PAYLOADS.encode(value, "the thing").encode()
    assert [is_deeper(raw, limit) for limit in range(9)] == [depth(value) > limit for limit in range(9)]


def nested(depth: int, inside: Any) -> Any:
    for _ in range(depth):
        inside = [inside]
    return inside


def effort(call: Callable[[], object]) -> float:
    """Seconds of this thread, at its best; without whoever looks at each line, such as coverage."""
    tries, tracer = [], sys.gettrace()
    sys.settrace(None)
    try:
        for _ in range(3):
            began = time.thread_time()
            with contextlib.suppress(PayloadError):
                call()
            tries.append(time.thread_time() - began)
    finally:
        sys.settrace(tracer)
    return min(tries)


@pytest.mark.parametrize(
    "value",
    [
        [nested(900, []) for _ in range(300)],
        [nested(97, [0]) for _ in range(3000)],
        nested(90, [1.5] * 30_000 + [None]),
        nested(90, [1.5] * 30_000 + [math.nan]),
        nested(900, ["x" * 100] * 3000 + ["\ud800"]),
    ],
    ids=["too deep", "deep", "null", "nan", "surrogate"],
)
def test_depth_costs_nothing_beside_size(value: Any) -> None:
    """Refused or stored: about what it takes to write the value down, not that for each level. This runs in the event
    loop, and a large payload must not hold it up."""
    plain = effort(lambda: json.dumps(value))
    assert effort(lambda: PAYLOADS.encode(value, "the thing")) < 10 * plain


@pytest.mark.parametrize("format_", [3, 99])
def test_a_newer_format_is_refused_not_guessed_at(format_: int) -> None:
    with pytest.raises(PayloadError, match=f"format {format_}.*update"):
        PAYLOADS.decode("1", Any, format_, "the thing")


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(PayloadError, match="the thing is not readable JSON"):
        PAYLOADS.decode("{", Any, 1, "the thing")


# -- fields that would be lost are found, with their path


@dataclass
class Line:
    article: str
    cents: int = 0


@dataclass
class Gift(Line):
    wish: str = ""


@dataclass
class Renamed(Line):
    """A subclass without fields of its own loses nothing."""


@dataclass
class Order:
    id: str
    lines: list[Line] = field(default_factory=list)
    first: Line | None = None
    by_name: dict[str, Line] = field(default_factory=dict)
    pair: tuple[int, Line] | None = None
    next: Order | None = None
    anything: Any = None


class Address(TypedDict, total=False):
    street: str
    number: int


class Parcel(msgspec.Struct, rename="camel"):
    full_weight: float = 0


class HeavyParcel(Parcel):
    handles: int = 2


class Circle(msgspec.Struct, tag=True):
    radius: int = 0


class Square(msgspec.Struct, tag=True):
    side: int = 0


class Customer(pydantic.BaseModel):
    name: str = ""
    home: Line | None = None


class Member(Customer):
    number: int = 0


class Aliased(pydantic.BaseModel):
    full_name: str = pydantic.Field("", alias="fullName")


class Ignoring(pydantic.BaseModel, extra="ignore"):
    name: str = ""


class Reshaping(pydantic.BaseModel):
    name: str = ""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _reshape(cls, data: Any) -> Any:
        return {"name": data["person"]["name"]}


class Place(NamedTuple):
    line: Line


LOST = [
    (Order, {"id": "1", "line": []}, "`line`.*did you mean 'lines'.*`\\$`"),
    (Order, {"id": "1", "lines": [{"article": "a", "cnets": 1}]}, r"`cnets`.*'cents'.*\$\.lines\[0\]"),
    (Order, {"id": "1", "first": {"article": "a", "x": 1}}, r"`x`; Line has article, cents - at `\$\.first`"),
    (Order, {"id": "1", "by_name": {"k": {"article": "a", "x": 1}}}, r"\$\.by_name\.k"),
    (Order, {"id": "1", "pair": [1, {"article": "a", "x": 1}]}, r"\$\.pair\[1\]"),
    (Order, {"id": "1", "next": {"id": "2", "next": {"id": "3", "x": 1}}}, r"\$\.next\.next"),
    (Order, Order("1", [Line("a"), Gift("b", wish="c")]), r"`wish` of this Gift.*Line.*\$\.lines\[1\]"),
    (Line, Gift("b", wish="c"), "`wish` of this Gift"),
    (list[Line], [Gift("b")], r"\$\[0\]"),
    (Address, {"street": "x", "nmber": 1}, "`nmber`.*'number'"),
    (Parcel, {"fullWeight": 1, "full_weight": 1}, "`full_weight`.*'fullWeight'"),
    (Parcel, HeavyParcel(1), "`handles` of this HeavyParcel"),
    (Circle | Square, {"type": "Square", "side": 1, "radius": 1}, "`radius`"),
    (Customer, {"nme": "Ann"}, "`nme`.*'name'"),
    (Customer, {"name": "Ann", "home": {"article": "a", "stret": "x"}}, r"`stret`.*\$\.home"),
    (Customer, Member(name="Ann", number=1), "`number` of this Member"),
    (dict[str, Customer], {"a": {"nme": "Ann"}}, r"\$\.a"),
    (Place, [{"article": "a", "x": 1}], r"\$\[0\]"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "said"), LOST, ids=str)
def test_a_field_that_would_be_lost_is_refused_with_its_path(kind: Any, value: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=f"the input of 'order' does not fit: .*{said}"):
        PAYLOADS.check_input(value, kind, "order")


@pytest.mark.parametrize(("kind", "value", "said"), [case for case in LOST if not isinstance(case[1], dict)], ids=str)
def test_a_result_may_not_lose_fields_of_a_subclass(kind: Any, value: Any, said: str) -> None:
    if isinstance(value, list) and isinstance(value[0], dict):
        assert PAYLOADS.round_trip(value, kind, "the result")  # dicts are read leniently
        return
    with pytest.raises(PayloadError, match=f"the result does not fit its annotation: .*{said}"):
        PAYLOADS.round_trip(value, kind, "the result")


KEPT = [
    (Order, Order("1", [Line("a")], Renamed("b"), anything={"x": 1})),
    (Order, {"id": "1", "anything": {"x": {"y": 1}}}),
    (dict[str, Any], {"x": 1}),
    (Any, Gift("b", wish="c")),
    (Line | None, None),
    (Circle | Square, {"type": "Circle", "radius": 1}),
    (Circle | Square, Square(1)),
    (Parcel, {"fullWeight": 1}),
    (Aliased, {"fullName": "Ann"}),
    (Ignoring, {"name": "Ann", "more": 1}),
    (Reshaping, {"person": {"name": "Ann"}}),
    (Customer, Customer(name="Ann", home=Line("a"))),
    (list[object], [1, {"x": 1}]),
    (object, {"x": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), KEPT, ids=str)
def test_what_loses_nothing_is_taken(kind: Any, value: Any) -> None:
    text = PAYLOADS.check_input(value, kind, "order")
    PAYLOADS.take_in(text, kind, FORMAT, "the signal")
    schema = json_schema(kind)
    if schema is not None and kind is not Reshaping:
        assert first_problem(msgspec.json.decode(text), msgspec.json.decode(schema)) is None


@pytest.mark.parametrize(("kind", "value", "said"), [case for case in LOST if isinstance(case[1], dict)], ids=str)
def test_what_comes_as_text_or_without_the_code_is_refused_alike(kind: Any, value: Any, said: str) -> None:
    text = PAYLOADS.encode(value, "the value")
    with pytest.raises(PayloadError, match=said):
        PAYLOADS.take_in(text, kind, FORMAT, "the signal")
    schema = json_schema(kind)
    assert schema is not None
    if "home" not in value:  # what a model holds is checked by the worker
        problem = first_problem(value, msgspec.json.decode(schema))
        assert problem is not None and "unknown field" in problem


def test_records_with_fields_that_the_code_has_no_more_are_read() -> None:
    """A deploy that removes a field does no harm."""
    assert PAYLOADS.decode('{"article": "a", "removed": 1}', Line, FORMAT, "the record") == Line("a")


class Client:
    """Nothing that JSON could be read as."""


@dataclass
class Holds:
    client: Client


@pytest.mark.parametrize("kind", [Client, list[Client], dict[str, Client | None], Holds, type, complex], ids=str)
def test_a_type_that_json_cannot_be_read_as_is_known_when_declared(kind: Any) -> None:
    with pytest.raises(InvalidInput, match=r"the input .*(Client|type|complex)"):
        check_type(kind, "the input")


# -- plain values against a stored schema


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class PricedLine:
    article: str
    cents: Annotated[int, Meta(ge=0, lt=100)]


class Node(msgspec.Struct):
    value: int
    next: Node | None = None


class Point(NamedTuple):
    x: int
    y: int


class Home(TypedDict, total=False):
    street: str


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    a: int = 0


class Buyer(pydantic.BaseModel):
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
    (PricedLine, {"article": "a", "cents": 5}, None),
    (PricedLine, {"article": "a"}, "cents"),
    (PricedLine, {"article": "a", "cents": -1}, "$.cents"),
    (PricedLine, {"article": "a", "cents": 100}, "$.cents"),
    (list[PricedLine], [{"article": "a", "cents": 5}, {"article": 1, "cents": 5}], "$[1].article"),
    (Node, {"value": 1, "next": {"value": 2, "next": None}}, None),
    (Node, {"value": 1, "next": {"value": "x"}}, "$.next.value"),
    (Colour, "red", None),
    (Colour, "green", "$"),
    (Literal["a", "b"], "c", "$"),
    (Home, {}, None),
    (Home, {"street": 5}, "$.street"),
    (Strict, {"a": 1}, None),
    (Strict, {"b": 1}, "`b`"),
    (Buyer, {"name": "Ann", "age": 3}, None),
    (Buyer, {"name": "Ann", "age": "x"}, "$.age"),
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
KINDS = [int, str, float, bool, PricedLine, Node, Point, Colour, list[int], dict[str, list[str]], int | None, datetime]


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
