"""Which cases of a test are made at all: `make test` leaves a third of them out, and would make them in each process.

pytest makes every case and then drops those that nobody asked for. Each of the processes of `make test` does that, and
nothing runs before it is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

DATABASES = ("url", "store_url", "storm_url", "scene_url")
"""The fixtures that run a test once per database."""
LEFT_OUT = ("slow", "thorough")
FIRST_CASES = ("engine",)
"""Folders in which the first case of a test is enough on Postgres: the others are tried on SQLite."""


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Where slow and thorough cases are not wanted, they are not made. What is left out of a test altogether keeps one,
    which pytest drops."""
    result = yield
    expression = metafunc.config.getoption("markexpr")
    calls: list[Any] = metafunc._calls
    if calls and all(f"not {name}" in expression for name in LEFT_OUT):
        calls[:] = _wanted(metafunc.definition, calls) or calls[:1]
    return result


def _wanted(definition: pytest.Item, calls: list[Any]) -> list[Any]:
    if any(definition.get_closest_marker(name) is not None for name in LEFT_OUT):
        return []
    kept = [call for call in calls if not any(mark.name in LEFT_OUT for mark in call.marks)]
    enough = definition.get_closest_marker("enough_on")
    if enough is not None and any(database(call.params) in enough.args for call in calls):
        kept = [call for call in kept if database(call.params) in enough.args]
    return _first_on_servers(kept) if definition.path.parent.name in FIRST_CASES else kept


def _first_on_servers(calls: list[Any]) -> list[Any]:
    """All cases on SQLite, and of those on a server the first: how the engine decides does not depend on it."""
    if not any(database(call.params) == "sqlite" for call in calls):
        return calls
    first: dict[str, Any] = {}
    for call in calls:
        first.setdefault(database(call.params), call)
    return [call for call in calls if database(call.params) in ("", "sqlite") or call is first[database(call.params)]]


def database(parameters: dict[str, Any]) -> str:
    """The database that a case of a test runs on, if the test runs once on each."""
    return next((str(parameters[name]) for name in DATABASES if name in parameters), "")
