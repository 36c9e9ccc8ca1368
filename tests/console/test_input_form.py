"""A form out of a schema, and the input out of the form."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pytest

from stepfast.console.input_form import fields_of, input_of
from stepfast.console.pages.queues import sparkline
from stepfast.console.refusals import Refused
from stepfast.monitoring.queue_stats import Point


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Order:
    id: str
    cents: int
    size: Size
    gift: bool = False
    rate: float | None = None
    kind: Literal["a", "b"] = "a"
    lines: list[str] | None = None


def schema(type_: Any) -> str:
    return msgspec.json.encode(msgspec.json.schema(type_)).decode()


def test_fields_for_what_a_field_can_hold() -> None:
    fields = {field.name: (field.kind, field.required) for field in fields_of(schema(Order))}
    assert fields == {
        "id": ("text", True), "cents": ("integer", True), "size": ("choice", True), "gift": ("boolean", False),
        "rate": ("number", False), "kind": ("choice", False), "lines": ("json", False),
    }  # fmt: skip
    size = next(field for field in fields_of(schema(Order)) if field.name == "size")
    assert (size.choices, size.key) == (('"l"', '"s"'), "field.size")
    assert [(field.name, field.kind) for field in fields_of(schema(int))] == [("", "integer")]
    for other in (list[int], dict[str, int], Any, int | str):
        assert fields_of(schema(other)) == [], other
    for broken in (None, "", "{", "[]", '{"$ref": "#/$defs/x"}', '{"type": "object", "properties": {}}'):
        assert fields_of(broken) == [], broken
    endless = '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}'
    assert fields_of(endless) == []


def test_an_input_is_put_together_from_its_fields() -> None:
    form = {"field.id": " o-1 ", "field.cents": "12345678901234567890", "field.size": '"s"', "field.lines": '["a"]'}
    made = input_of(form | {"field.rate": "", "field.gift": ""}, schema(Order))
    assert made == {"id": " o-1 ", "cents": 12345678901234567890, "size": "s", "lines": ["a"]}
    assert input_of({"field.": "7"}, schema(int)) == 7
    assert input_of({"input": ' {"any": 1} ', "field.id": "x"}, schema(Order)) == {"any": 1}
    assert input_of({}, None) is None


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"field.cents": "1.5"}, "'cents' takes a whole number"),
        ({"field.cents": "true"}, "'cents' takes a whole number"),
        ({"field.rate": '"x"'}, "'rate' takes a number"),
        ({"field.gift": "1"}, "'gift' takes true or false"),
        ({"field.lines": "a, b"}, "'lines' is not JSON"),
        ({"input": "nothing"}, "the input is not JSON"),
    ],
)
def test_what_does_not_fit_a_field_is_refused(form: dict[str, str], said: str) -> None:
    with pytest.raises(Refused, match=said):
        input_of(form, schema(Order))


def test_a_chart_is_drawn_where_somebody_looked() -> None:
    assert str(sparkline([])) == str(sparkline([Point(0, 1, 0, 0)])) == ""
    drawn = str(sparkline([Point(3600, 0, 0, 0), Point(3590, 4, 0, 0), Point(20, 2, 0, 0), Point(0, 1, 0, 0)]))
    assert drawn.count("<polyline") == 2
    assert 'points="0.0,23.0 0.3,1.0"' in drawn and "1 now, 4 at most" in drawn
    assert "style" not in drawn
    young = str(sparkline([Point(30, 0, 0, 0), Point(0, 2, 0, 0)]))
    assert 'points="108.0,23.0 120.0,1.0"' in young


@pytest.mark.parametrize(
    "part", ['{"enum": {"x": 1}}', '{"anyOf": 5}', '{"$ref": "#/$defs/x"}', '{"type": "string"}, "b": 3']
)
def test_what_is_no_schema_leaves_the_box_for_json(part: str) -> None:
    text = f'{{"type": "object", "$defs": [], "required": 3, "properties": {{"a": {part}}}}}'
    assert fields_of(text) == []
    assert input_of({"input": "[1]"}, text) == [1]
