"""Names and namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import ConfigurationError
from stepfast.model.names import check_name, check_namespace


@pytest.mark.parametrize(
    "name", ["a", "order-fulfilment", "Über.Größe/1", "a b", "x" * 200, "名前", "'; DROP TABLE x; --"]
)
def test_any_readable_name_will_do(name: str) -> None:
    assert check_name(name, "the name", 200) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [("", "empty"), ("x" * 201, "201"), ("a\0", "NUL"), ("\ud800", "surrogate"), (5, "string"), (None, "string")],
    ids=repr,
)
def test_what_no_database_keeps_is_refused_by_name(name: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the name.*{why}"):
        check_name(name, "the name", 200)


@pytest.mark.parametrize("name", ["stepfast", "_x", "Prod_2", "x" * 48])
def test_a_namespace_is_a_plain_identifier(name: str) -> None:
    assert check_namespace(name) == name


@pytest.mark.parametrize("name", ["", "2x", "a-b", "a b", 'a"', "é", "x" * 49, "a\n", None], ids=repr)
def test_anything_else_is_no_namespace(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="namespace"):
        check_namespace(name)
