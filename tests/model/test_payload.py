"""Payloads: what goes in comes out, or is refused; nothing in between."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast import PayloadError, Settings
from stepfast.model.payload import Payloads, is_deeper

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
    Thing,
    st.uuids(),
    st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC)),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.binary(max_size=50),
    st.tuples(st.integers(), st.text(st.characters(exclude_categories=["Cs"]))),
    st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)),
    st.none() | st.booleans(),
)


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
