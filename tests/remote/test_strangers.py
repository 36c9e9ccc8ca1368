"""Statements on Postgres use the server's own functions and operators, whatever strangers make on the search_path."""

from __future__ import annotations

import re
from importlib import resources

import asyncpg

from stepfast.remote import SqlTransport, Task
from stepfast.remote.protocol import TaskOutcome
from stepfast.remote.task_store import Serving, located, open_database
from stepfast.settings import Settings
from tests.support.overloads import overloads


def called() -> set[str]:
    """The functions that the statements call."""
    folder = resources.files("stepfast.remote.postgres")
    text = "".join((folder / name).read_text() for name in ("tables.sql", "transport.sql"))
    return set(re.findall(r"(?<![\w.])([a-z_]+)\(", re.sub(r"--[^\n]*", "", text))) | {"statement_timestamp"}


async def test_overloads_of_strangers_are_never_called(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    shapes = await connection.fetch(
        "SELECT DISTINCT proname::text, pronargs::int FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace "
        "AND proname = ANY ($1) AND pronargs BETWEEN 1 AND 2",
        list(called()),
    )
    await connection.execute(overloads([(name, count) for name, count in shapes]))
    await connection.close()
    async with SqlTransport(postgres_url) as transport:
        await use_everything(postgres_url, transport)


async def use_everything(url: str, transport: SqlTransport) -> None:
    database = open_database(located(url, None, "durable"), Settings())
    await database.open()
    serving = Serving(database, "worker", "echo", 30)
    try:
        await transport.dispatch([Task(f"run:{n}", "run", n, "echo", "echo", None) for n in range(4)])
        tasks = await serving.claim(3)
        assert await serving.renew([tasks[0].key]) == {tasks[0].key}
        await serving.give_back([tasks[1].key])
        await serving.give_back_strays([tasks[0].key])
        await serving.record([TaskOutcome(tasks[0].step_id, 1, "failed", None, "{}", 1)])
        await transport.dispatch([Task(tasks[0].step_id, "run", 0, "echo", "echo", None, 2)])
        assert len(await transport.cancel([f"run:{n}" for n in range(4)])) == 4
        assert len(await transport.lost([f"run:{n}" for n in range(4)])) == 4
        await transport.remove(await transport.results(["run:0"]))
    finally:
        await database.close()
