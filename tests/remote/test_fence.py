"""The fence: a worker that does not hold a task any more neither records nor gives back what is another's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from stepfast.remote import SqlTransport, Task
from stepfast.remote.protocol import TaskOutcome
from stepfast.remote.task_store import Database, Recorded, Serving, located, open_database
from stepfast.settings import Settings
from tests.remote.tables import Tables


@pytest.fixture
async def database(url: str, tables: Tables) -> AsyncIterator[Database]:
    database = open_database(located(url, None, "durable"), Settings())
    await database.open()
    yield database
    await database.close()


NOTHING = Recorded(set(), set())


def done(attempt: int = 1, output: str = '"late"') -> TaskOutcome:
    return TaskOutcome("run:0", attempt, "completed", output, None, 1)


def task(attempt: int = 1) -> Task:
    return Task("run:0", "run", 0, "echo", "echo", None, attempt)


async def owner(tables: Tables) -> list[tuple[Any, ...]]:
    return await tables.fetch("SELECT claimed_by, attempt FROM [tasks]")


async def test_a_worker_that_was_taken_for_dead_writes_nothing(
    database: Database, transport: SqlTransport, tables: Tables
) -> None:
    late, other = (Serving(database, name, "echo", 30) for name in ("late", "other"))
    await transport.dispatch([task()])
    [held] = await late.claim(5)
    assert await other.claim(5) == []
    await tables.fetch("UPDATE [tasks] SET claimed_at = 1")  # a long time ago
    assert [found.key for found in await other.claim(5)] == [held.key]
    assert await late.renew([held.key]) == set()
    await late.give_back([held.key])
    await late.give_back_strays([])
    assert await late.record([done()]) == NOTHING
    assert await owner(tables) == [("other", 1)] and await tables.results() == {}
    assert await other.record([done(output='"in time"')]) == ({held.key}, set())
    assert (await tables.results())["run:0"]["output"] == "in time"


async def test_an_attempt_that_was_given_up_writes_nothing_not_even_for_the_same_worker(
    database: Database, transport: SqlTransport, tables: Tables
) -> None:
    serving = Serving(database, "same", "echo", 30)
    await transport.dispatch([task()])
    [first] = await serving.claim(5)
    await transport.dispatch([task(2)])
    [second] = await serving.claim(5)
    assert await serving.renew([first.key, second.key]) == {second.key}
    await serving.give_back([first.key])
    assert await serving.record([done(1)]) == NOTHING
    assert await owner(tables) == [("same", 2)] and await tables.results() == {}
    assert await serving.record([done(1), done(2, '"second"')]) == ({second.key}, set())
    assert (await tables.results())["run:0"]["output"] == "second"


async def test_a_task_that_is_gone_gets_no_result(database: Database, transport: SqlTransport, tables: Tables) -> None:
    serving = Serving(database, "one", "echo", 30)
    await transport.dispatch([task()])
    await serving.claim(5)
    await tables.fetch("DELETE FROM [tasks]")
    assert await serving.record([done()]) == NOTHING
    assert await tables.results() == {}


async def test_each_statement_sees_what_was_committed_before_it(database: Database, tables: Tables) -> None:
    """Whatever is usual on this server: we lock first and look then."""
    async with database.transaction() as work:
        assert not await work.fetch("present", ids=("run:0",))
        await tables.put_task("run:0")
        assert await work.fetch("present", ids=("run:0",))
