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
    if enough is None or not any(database(call.params) in enough.args for call in calls):
        return kept
    return [call for call in kept if database(call.params) in enough.args]


def database(parameters: dict[str, Any]) -> str:
    """The database that a case of a test runs on, if the test runs once on each."""
    return next((str(parameters[name]) for name in DATABASES if name in parameters), "")
