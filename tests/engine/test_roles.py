"""Roles of least privilege: what each may do, and what it must not (`stepfast migrate --roles-sql`)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from typer.testing import CliRunner

from stepfast import ConfigurationError, Context, InvalidState, RunNotFound, Settings, Stepfast
from stepfast.cli import cli
from stepfast.store.migrations import Migration, made_by
from stepfast.store.postgres.schema import OPERATING, Roles, Schema
from stepfast.telemetry import Observer, Sending, metrics_text
from tests.store.scene import signal
from tests.support.databases import connected
from tests.support.engine import PATIENCE, drained, eventually, finished

pytestmark = pytest.mark.empty
QUICK = Settings(poll_interval=0.05, sweep_interval=0.05, inline_wait=0)


class People:
    """A namespace with its roles, and somebody who has each."""

    def __init__(self, url: str, namespace: str, owner: Any) -> None:
        self.namespace = namespace
        self.owner = owner
        self._url = url

    def url(self, role: str) -> str:
        return self._url.replace("postgres@", f"{self.namespace}_{role}_user@")

    @asynccontextmanager
    async def connection(self, role: str) -> AsyncIterator[Any]:
        async with connected(self.url(role)) as connection:
            yield connection

    def app(self, role: str, **options: Any) -> Stepfast:
        return Stepfast(self.url(role), namespace=self.namespace, settings=QUICK, **options)

    async def drop(self) -> None:
        await self.owner.execute(f"DROP SCHEMA {self.namespace} CASCADE")
        for role in ("starter", "worker", "reader"):
            for name in (f"{self.namespace}_{role}_user", f"{self.namespace}_{role}"):
                await self.owner.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
async def people(postgres_url: str) -> AsyncIterator[People]:
    namespace = f"ns{uuid4().hex[:8]}"
    owner = await asyncpg.connect(postgres_url)
    found = People(postgres_url, namespace, owner)
    async with Stepfast(postgres_url, namespace=namespace) as app:
        await app.migrate()
        script = (await app.store()).roles_sql()
        for _ in range(2):  # once more changes nothing
            await owner.execute(script)
        for role in ("starter", "worker", "reader"):
            await owner.execute(f"CREATE ROLE {namespace}_{role}_user LOGIN IN ROLE {namespace}_{role}")
    yield found
    await found.drop()
    await owner.close()


def declare(app: Stepfast) -> Any:
    @app.workflow
    async def child(ctx: Context, n: int) -> int:
        return n + 1

    @app.workflow(max_attempts=1)
    async def parent(ctx: Context, n: int) -> Any:
        at = await ctx.transaction(_look)
        await ctx.set("at", at)
        return [await ctx.call(child, n), await ctx.wait_signal("more")]

    graph = app.dag("graph")

    @graph.step
    async def one(ctx: Any) -> int:
        return 1

    graph.approval("ok", after=["one"])
    return parent


async def _look(connection: Any) -> str:
    return str(await connection.fetchval("SELECT current_user"))


LEFT_OUT = {
    "workers", "past_workers", "tries", "claims", "progress", "queue_starts", "schedules", "remote_steps", "audit",
    "streams", "stream_sources", "stream_items", "questions", "callbacks", "event_order",
    "event_waits", "event_takes", "event_subscriptions", "event_starts",
    "checkpoints", "checkpoint_values", "checkpoint_writes", "session_items",
}  # fmt: skip
"""Tables that a starter has nothing to do with. A new table belongs here, or into `roles.sql`."""


async def test_every_table_is_granted_or_left_out_on_purpose(people: People) -> None:
    async with people.app("worker") as app:
        store: Any = await app.store()
    known = store._schema._known
    for table in made_by(known, "TABLE"):
        name, may = table.rpartition(".")[2], {}
        for role in ("starter", "worker", "reader"):
            may[role] = {
                right
                for right in ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
                if await people.owner.fetchval(
                    f"SELECT has_table_privilege($1, $2, '{right}') "
                    + f"OR has_any_column_privilege($1, $2, '{right}')" * (right in ("SELECT", "INSERT", "UPDATE")),
                    f"{people.namespace}_{role}", table,
                )
            }  # fmt: skip
        all_four = {"SELECT", "INSERT", "UPDATE", "DELETE"}
        assert may["worker"] == ({"SELECT"} if name == "meta" else all_four), name
        assert may["reader"] == {"SELECT"}, name
        locked = {"UPDATE"} if name == "turns" else set[str]()
        assert may["starter"] <= {"SELECT", "INSERT", *locked}, name
        assert bool(may["starter"]) != (name in LEFT_OUT), f"say in roles.sql what a starter may do with {name}"
    functions = {name.rpartition(".")[2] for name in made_by(known, "FUNCTION")}
    assert set(OPERATING) < functions


ID = "'01a1e2dd-8e97-7dba-96fd-cd5dac311e4a'::uuid"
RUN = "INSERT INTO runs (id, workflow, version, queue, status, format, input, seed, created_at"
NEW = f"SELECT {ID}, 'parent', '', 'parent', 'queued', 1, '1', '', 0"
MAIL = "INSERT INTO mailbox (id, run_id, kind, name, format, sent_at, delivered) "
MAIL += f"SELECT {ID}, {ID}"
TIMES = (
    "started_at", "ready_at", "visible_at", "deadline_at", "expires_at", "place", "timeout_ms", "deadline_ms"
)  # fmt: skip
GRAPH = "INSERT INTO run_values (run_id, key, value, format, updated_at)"
MUST_NOT = {
    "starter": [
        "SELECT input FROM runs", "SELECT output FROM runs", "SELECT error FROM runs", "SELECT seed FROM runs",
        "SELECT * FROM runs_readable", "SELECT output FROM steps", "SELECT value FROM mailbox",
        "SELECT value FROM run_values",
        "SELECT * FROM workers", "SELECT * FROM run_tags", "UPDATE runs SET priority = 9", "DELETE FROM runs",
        "SELECT id FROM runs FOR UPDATE", "DELETE FROM mailbox", "UPDATE definitions SET queue = 'mine'",
        "INSERT INTO definitions SELECT * FROM definitions", "UPDATE meta SET value = '99'",
        "UPDATE queues SET paused = true",
        f"SELECT cancel({ID})", f"SELECT resume({ID})", f"SELECT reschedule({ID})", "SELECT complete('x')",
        "SELECT fail('x', 'y')", "SELECT beat('x')", "SELECT * FROM callbacks", "CREATE TABLE mine (a integer)",
        f"{RUN}, parent_id) {NEW}, {ID}", f"{RUN}, origin_id) {NEW}, {ID}",
        f"{RUN}, worker) {NEW}, {ID}", f"{RUN}, output) {NEW}, '1'",
        f"{RUN}, dag_id, dag_step, graph) {NEW}, {ID}, 'one', ''", f"{RUN}, dag_step) {NEW}, 'one'",
        f"{RUN}, parent_position) {NEW}, 1", f"{RUN}, reply_to) {NEW}, {ID}",
        *(f"{RUN}, {time}) {NEW}, {odd}" for time in TIMES for odd in ("9223372036854775807", "-1")),
        f"{RUN}, pending) {NEW}, -1", f"{RUN}, max_attempts) {NEW}, -1", f"{RUN}) {NEW[:-1]}9223372036854775807",
        f"{RUN}) {NEW.replace(' 1, ', ' 3, ')}",
        f"{MAIL}, 'signal', 'more', 1, 9223372036854775807, false", f"{MAIL}, 'signal', 'more', 9, 0, false",
        f"INSERT INTO run_tags (tag, run_id) SELECT 'mine', {ID}",
        f"{GRAPH} SELECT {ID}, '~graph', '[]', 1, 0",
        f"{RUN}) {NEW.replace('queued', 'completed')}", f"{RUN}) {NEW.replace('queued', 'running')}",
        f"{MAIL}, 'cancel', '', 1, 0, false", f"{MAIL}, 'child', 'completed', 1, 0, false",
        f"{MAIL}, 'signal', 'more', 1, 0, true",
        f"INSERT INTO run_values (run_id, key, value, format, updated_at) SELECT {ID}, 'at', '1', 1, 0",
        f"INSERT INTO steps (run_id) SELECT {ID}", f"INSERT INTO workers (id) SELECT {ID}",
    ],
    "worker": [
        "UPDATE meta SET value = '99'", "DELETE FROM meta", "CREATE TABLE mine (a integer)", "DROP TABLE runs",
        "ALTER TABLE runs ADD COLUMN mine text", "TRUNCATE runs", "DROP FUNCTION as_json",
        "ALTER TABLE runs DISABLE ROW LEVEL SECURITY",
        "CREATE TRIGGER mine AFTER INSERT ON runs EXECUTE FUNCTION as_json()",
    ],
    "reader": [
        "SELECT seed FROM runs", "SELECT * FROM runs", "UPDATE runs SET priority = 9", "DELETE FROM runs",
        "SELECT id FROM runs FOR UPDATE", f"{RUN}) {NEW}", f"{MAIL}, 'signal', 'more', 1, 0, false",
        "INSERT INTO run_tags SELECT * FROM run_tags", "SELECT start('parent', '1')",
        f"SELECT cancel({ID})", "SELECT complete('x')", "UPDATE callbacks SET state = 'open'",
        "UPDATE queues SET paused = true", "DELETE FROM schedules", "CREATE TABLE mine (a integer)", "TRUNCATE steps",
    ],
}  # fmt: skip
"""In the schema of the namespace."""


async def test_what_a_role_must_not_do_it_cannot(people: People) -> None:
    async with people.app("worker") as app:
        declare(app)
        await (await app._connect()).store_definitions(list(app.workflows.values()))
    for role, forbidden in MUST_NOT.items():
        async with people.connection(role) as connection:
            await connection.execute(f"SET search_path = {people.namespace}")
            for sql in forbidden:
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(sql)
                    pytest.fail(f"a {role} could: {sql}")


STEP = (
    "INSERT INTO runs (id, workflow, version, queue, status, place, format, input, seed, created_at, graph, dag_id, "
    "dag_step) SELECT $1, 'graph/one', '', 'graph', 'queued', 1, 1, 'null', '', 0, d.graph, d.id, 'more' "
    "FROM runs d WHERE d.id = $2"
)
"""A row that claims to be a step of a dag run."""


async def test_a_starter_adds_nothing_to_a_run_that_another_has_started(people: People) -> None:
    async with people.app("worker") as app:
        declare(app)
        victim, plain = await app.start("graph", {"a": 1}), await app.start("parent", 1)
    async with people.connection("starter") as connection:
        await connection.execute(f"SET search_path = {people.namespace}")
        for sql, *values in (
            (STEP, uuid4(), victim.id),
            ("INSERT INTO run_tags (tag, run_id) VALUES ('urgent', $1)", plain.id),
            ("INSERT INTO run_tags (tag, run_id) VALUES ('urgent', $1)", victim.id),
            ("INSERT INTO run_attributes (name, value, run_id) VALUES ('vip', 'btrue', $1)", victim.id),
            (f"{GRAPH} VALUES ($1, '~graph', '[]', 1, 0)", plain.id),
            ("INSERT INTO run_tags (tag, run_id) VALUES ('urgent', $1)", uuid4()),
        ):  # fmt: skip
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with connection.transaction():
                    await connection.fetchval("SELECT start('graph')")
                    await connection.execute(sql, *values)
                    pytest.fail(f"a starter could: {sql}")


async def test_a_starter_starts_again_what_it_has_started(people: People) -> None:
    async with people.app("worker") as app:
        declare(app)
        await (await app._connect()).store_definitions(list(app.workflows.values()))
    starter = people.app("starter")
    declare(starter)
    async with starter:
        store: Any = await starter.store()
        runs: list[Any] = []
        start = store.start

        async def kept(given: Any, *rest: Any, **options: Any) -> Any:
            runs.extend(given)
            return await start(given, *rest, **options)

        store.start = kept
        await starter.start("graph", tags=["a", "b"], attributes={"vip": True})
        before = await people.owner.fetch(f"SELECT * FROM {people.namespace}.runs ORDER BY id")
        assert len(before) == 3 and len(runs) == 3
        await start(runs)
        assert await people.owner.fetch(f"SELECT * FROM {people.namespace}.runs ORDER BY id") == before
        assert await people.owner.fetchval(f"SELECT count(*) FROM {people.namespace}.run_tags") == 2
        assert await people.owner.fetchval(f"SELECT count(*) FROM {people.namespace}.run_attributes") == 1


class Stamp(Observer):
    """Sends something along with whatever is sent."""

    def sending(self, event: Sending) -> None:
        """Stamp it."""
        event.trace["stamp"] = "1"


async def _handed_on(app: Stepfast) -> bool:
    """Whether the start by name that found a live run has made one."""
    return sum(run.unique == "n" for run in await app.runs(status="completed", limit=100)) == 2


async def test_each_role_can_do_its_work(people: People, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    starter, worker, reader = (people.app(role) for role in ("starter", "worker", "reader"))
    starter.observe(Stamp())  # what is sent along is a column more
    at_start, _ = declare(starter), declare(worker)
    async with starter, worker, reader:
        own = await starter.start(at_start, 1, key="own", tags=["a"])
        assert (await starter.start(at_start, 2, key="own")).id == own.id
        alone = [await starter.start(at_start, 4, unique="n", signal=("more", n)) for n in range(2)]
        assert [run.existed for run in alone] == [False, True]
        graph = await starter.start("graph", {"a": 1})
        async with worker.worker():
            async with people.connection("starter") as connection:
                async with connection.transaction():
                    joined = await starter.start(at_start, 2, key="j", connection=connection)
                    await starter.start_many("graph", [1, 2], connection=connection)
                    by_sql = await connection.fetchval(f"SELECT {people.namespace}.start('parent', '3', key => 's')")
                    again = await connection.fetchval(f"SELECT {people.namespace}.start('parent', '3', key => 's')")
                    await connection.fetchval(f"SELECT {people.namespace}.start('graph', tags => ARRAY['a'])")
                    for run in (own, joined):
                        await run.signal("more", "word", connection=connection)
                    await connection.execute(f"SELECT {people.namespace}.signal($1, 'more', '1')", by_sql)
            await graph.signal("ok", True)  # delivered by a sweep: a starter changes no run
            with pytest.raises(InvalidState, match="no unfinished step"):
                await graph.signal("nothing", True)
            with pytest.raises(RunNotFound):
                await starter.signal(str(uuid4()), "nothing")
            assert again == by_sql
            assert await worker.get(alone[1].id).result(timeout=PATIENCE) == [5, 0]
            await eventually(lambda: _handed_on(reader))
            operated = worker.get(own.id)
            assert await operated.result(timeout=PATIENCE) == [2, "word"]
            assert await operated.get("at") == f"{people.namespace}_worker_user"
            assert await worker.get(str(by_sql)).result(timeout=PATIENCE) == [4, 1]
            assert await reader.get(joined.id).result(timeout=PATIENCE) == [3, "word"]
            assert await reader.get(graph.id).result(timeout=PATIENCE) == {"one": 1, "ok": True}
            late = await worker.start("parent", 9, delay=3600)
            await late.pause()
            await late.resume()
            await late.cancel()
        seen = reader.get(own.id)
        assert ((await seen.info()).output, len(await seen.steps()), len(await seen.activity())) == ([2, "word"], 3, 3)
        assert len(await reader.runs(limit=100)) == 15 and len(await reader.runs(tag="a")) == 2
        assert await reader.queues()
        assert (await reader.stats()).runs
        assert "stepfast_database_up 1" in await metrics_text(reader)
        async with people.connection("reader") as connection:
            assert await connection.fetchval(f"SELECT count(output) FROM {people.namespace}.runs_readable") >= 6
        for refused in (starter.get(own.id).cancel, starter.get(own.id).info, reader.get(own.id).retry):
            with pytest.raises(ConfigurationError, match="lacks a right"):
                await refused()
        with pytest.raises(ConfigurationError, match="lacks a right"):
            await reader.start("parent", 1)
    assert [record.message for record in caplog.records if record.levelno > logging.WARNING] == []


async def test_a_starter_signals_a_chain_without_reading_where_it_goes_on(people: People) -> None:
    """Whoever may not read that leaves the signal with the run that was named, also when the last has ended: it is
    thrown away then."""
    starter, worker = people.app("starter"), people.app("worker")

    @worker.workflow
    async def chain(ctx: Context, n: int) -> Any:
        if n:
            ctx.continue_as(n - 1)
        return [await ctx.wait_signal("more") for _ in range(3)]

    async with starter, worker:
        run = await worker.start(chain, 2)
        ours = starter.get(run.id)
        await worker.drain()
        async with people.connection("starter") as connection:
            for _ in range(2):
                async with connection.transaction():
                    await ours.signal("more", 1, connection=connection)
                    await connection.execute(f"SELECT {people.namespace}.signal($1, 'more', '2')", run.id)
                await ours.signal("more", 3)
                await worker.drain()
        assert await run.result(timeout=PATIENCE) == [1, 2, 3]
        assert await people.owner.fetchval(f"SELECT count(*) FROM {people.namespace}.mailbox") == 0


async def test_a_starter_sends_signals_of_one_id_once_also_along_a_chain(people: People) -> None:
    starter, worker = people.app("starter"), people.app("worker")

    @worker.workflow
    async def chain(ctx: Context, n: int) -> Any:
        if n:
            ctx.continue_as(n - 1)
        return [await ctx.wait_signal("more") for _ in range(3)]

    async with starter, worker:
        run = await worker.start(chain, 2)
        ours = starter.get(run.id)
        await ours.signal("more", 1, id="x")
        await worker.drain()
        async with people.connection("starter") as connection:
            for _ in range(2):
                await ours.signal("more", 2, id="x")
                async with connection.transaction():
                    await ours.signal("more", 3, id="x", connection=connection)
                    await connection.execute(f"SELECT {people.namespace}.signal($1, 'more', '4', id => 's')", run.id)
                await worker.drain()
            async with connection.transaction():
                await ours.signal("more", 5, id="y", connection=connection)
        await worker.drain()
        assert await run.result(timeout=PATIENCE) == [1, 4, 5]


async def test_a_starter_who_sends_again_finds_that_one_further_on_in_a_chain_took_the_signal(people: People) -> None:
    starter, worker = people.app("starter"), people.app("worker")

    @worker.workflow
    async def chain(ctx: Context, n: int) -> Any:
        got = await ctx.wait_signal(["last", "more", "first"][n])
        if n:
            ctx.continue_as(n - 1)
        return got

    async with starter, worker:
        run = await drained(worker, chain, 2)
        sending, mail = await starter.store(), signal(run.id, "more")
        assert (await sending.send(mail)).done
        await starter.get(run.id).signal("first")
        await worker.drain()
        assert (await sending.send(mail, again=True)).done
        left = f"SELECT count(*) FROM {people.namespace}.mailbox"
        assert await people.owner.fetchval(left) == 0
        await starter.get(run.id).signal("last", 3)
        assert await finished(worker, run) == 3


async def test_a_migration_grants_what_it_adds(people: People) -> None:
    app = Stepfast(people._url, namespace=people.namespace)
    async with app:
        store: Any = await app.store()
        ours = store._schema
        schema = f'"{people.namespace}"'
        known = [*ours._known, Migration(9999, "more", f"CREATE TABLE {schema}.more (a integer);\n", 1)]
        roles = Roles(people.namespace, schema, known)
        assert await Schema(schema, known, ours._sql, roles).migrate(people.owner) == ["9999_more"]
    for role in ("worker", "reader"):
        async with people.connection(role) as connection:
            assert await connection.fetchval(f"SELECT count(*) FROM {people.namespace}.more") == 0


def test_the_script_is_printed_without_a_connection_and_without_passwords(sqlite_url: str) -> None:
    printed = CliRunner().invoke(cli, ["migrate", "--roles-sql", "--url", "postgresql://u:secret@nowhere/db"])
    assert printed.exit_code == 0 and printed.output.endswith("COMMIT;\n")
    assert "stepfast_starter" in printed.output
    assert "password" not in printed.output.lower().replace("no passwords", "") and "secret@" not in printed.output
    refused = CliRunner().invoke(cli, ["migrate", "--roles-sql", "--url", sqlite_url])
    assert refused.exit_code != 0 and "SQLite has no roles" in refused.output
    both = CliRunner().invoke(cli, ["migrate", "--roles-sql", "--sql"])
    assert "exclude each other" in both.output
