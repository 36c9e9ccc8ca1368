"""The databases that remote steps go over: each test runs on Postgres and on MariaDB, in a database without any table.

Nothing of Stepfast's own tables is there, because a remote worker needs none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from stepfast.remote import SqlTransport
from tests.remote.tables import Tables


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/remote/" in item.nodeid:
            item.add_marker(pytest.mark.empty)


@pytest.fixture(params=["postgres", "mariadb"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def transport(url: str) -> AsyncIterator[SqlTransport]:
    """The engine's side; with it the tables are made."""
    async with SqlTransport(url) as transport:
        yield transport


@pytest.fixture
async def tables(url: str, transport: SqlTransport) -> AsyncIterator[Tables]:
    """The tables, seen by somebody else."""
    tables = await Tables(url).open()
    yield tables
    await tables.close()
