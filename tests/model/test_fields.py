"""Fields that would be lost are found, with their path; nothing else is in the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest

from stepfast.errors import InvalidInput, PayloadError
from stepfast.model.payload import Payloads, check_type, json_schema
from stepfast.model.payload_check import first_problem
from stepfast.settings import FORMAT, Settings

PAYLOADS = Payloads(Settings())


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
