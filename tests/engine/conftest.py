"""Applications on the test's database, closed afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from stepfast import Settings, Stepfast
from tests.support.dags import Saga
from tests.support.engine import Calls
from tests.support.warm import take_up_sessions

MakeApp = Callable[..., Stepfast]

ON_SQLITE = pytest.mark.enough_on("sqlite")
"""For files about what the engine decides, and the store, whose suite tries it on every database."""
ON_BOTH = pytest.mark.enough_on("postgres", "sqlite")
"""For tests in such files in which sessions, locks or wake-ups take part, or SQL of its own."""


def with_settings(**settings: Any) -> pytest.MarkDecorator:
    """Run a test with these settings."""
    return pytest.mark.parametrize("app", [settings], ids=[""], indirect=True)


RELEASED = with_settings(inline_wait=0)
"""Every wait gives the slot back at once."""
WAITS = pytest.mark.parametrize(
    "app", [{"inline_wait": 0}, {"inline_wait": 2}], ids=["released", "in memory"], indirect=True
)
"""Both ways: released at once; and the usual one, where a short wait stays in memory."""

COLD = ("roles", "foreign_connections", "held_keys", "sleeping")
"""Files in which sessions themselves are the subject: each test has new ones."""


@pytest.fixture(params=["postgres", "sqlite", pytest.param("mariadb", marks=pytest.mark.thorough)])
def url(request: pytest.FixtureRequest) -> str:
    """The test runs once per database; on MariaDB, which has the flows of all databases, in `make test-all`."""
    return str(request.getfixturevalue(f"{request.param}_url"))


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
def app(make_app: MakeApp, request: pytest.FixtureRequest) -> Stepfast:
    """An application with the defaults, or with other settings by `WAITS`, `RELEASED` and `with_settings`."""
    return make_app(settings=Settings(**request.param)) if hasattr(request, "param") else make_app()


@pytest.fixture
def saga() -> Saga:
    """Records what steps that can be undone do."""
    return Saga()


@pytest.fixture
def calls() -> Calls:
    """Counts calls by name."""
    return Calls()


WRITTEN_BY_HAND = ("odd_rows", "odd_graphs")
"""Files whose tests write rows by SQL of Postgres and SQLite."""


def _on_mariadb(item: pytest.Item) -> bool:
    parameters = getattr(item, "callspec", None)
    return parameters is not None and parameters.params.get("url") == "mariadb"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A run that never ends should fail its test soon. On MariaDB everything takes more round trips."""
    items[:] = [item for item in items if not (_on_mariadb(item) and item.path.stem[5:] in WRITTEN_BY_HAND)]
    for item in items:
        if "tests/engine" in item.nodeid:
            item.add_marker(pytest.mark.timeout(120 if _on_mariadb(item) else 45))
    take_up_sessions(items, "engine", COLD)
