"""Applications on the test's database, closed afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from stepfast import Stepfast
from tests.support.engine import Calls
from tests.support.warm import take_up_sessions

MakeApp = Callable[..., Stepfast]

ON_SQLITE = pytest.mark.enough_on("sqlite")
"""For files about what the engine decides, and the store, whose suite tries it on every database."""
ON_BOTH = pytest.mark.enough_on("postgres", "sqlite")
"""For tests in such files in which sessions, locks or wake-ups take part, or SQL of its own."""

COLD = ("roles", "foreign_connections", "held_keys", "sleeping")
"""Files in which sessions themselves are the subject: each test has new ones."""


@pytest.fixture
async def make_app(url: str) -> AsyncIterator[MakeApp]:
    """Makes applications on one database: a second one stands for another process, with other code."""
    made: list[Stepfast] = []

    def make(**options: Any) -> Stepfast:
        app = Stepfast(url, **options)
        made.append(app)
        return app

    yield make
    for app in made:
        await app.close()


@pytest.fixture
def app(make_app: MakeApp) -> Stepfast:
    """An application with the defaults."""
    return make_app()


@pytest.fixture
def calls() -> Calls:
    """Counts calls by name."""
    return Calls()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A run that never ends should fail its test soon."""
    for item in items:
        if "tests/engine" in item.nodeid:
            item.add_marker(pytest.mark.timeout(45))
    take_up_sessions(items, "engine", COLD)
