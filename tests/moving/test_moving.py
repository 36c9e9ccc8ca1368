"""A namespace is moved from one database to another: everything in it, and nothing is written in the old place."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stepfast import (
    ConfigurationError,
    Context,
    DatabaseRefused,
    InvalidState,
    NamespaceMoved,
    RunFailed,
    SchemaError,
    Stepfast,
)
from stepfast.model.urls import parse_url
from stepfast.moving import Move, Progress, Side
from stepfast.settings import Settings
from stepfast.store import open_store
from stepfast.store.dialects import _COLUMN
from stepfast.store.migrations import FILLED
from stepfast.store.sql import FOLDER, split_statements
from stepfast.store.tables import META, OWN, Mark, Tables
from tests.support.engine import PATIENCE, eventually
from tests.support.nursery import nursery

PAIRS = [
    ("sqlite", "postgres"),
    ("sqlite", "mariadb"),
    pytest.param("postgres", "sqlite", marks=pytest.mark.thorough),
    pytest.param("mariadb", "postgres", marks=pytest.mark.thorough),
    pytest.param("mariadb", "sqlite", marks=pytest.mark.thorough),
    pytest.param("postgres", "mariadb", marks=pytest.mark.thorough),
]  # fmt: skip
both = pytest.mark.parametrize(("old", "new"), PAIRS, indirect=True)
one_pair = pytest.mark.parametrize(("old", "new"), [("sqlite", "postgres")], indirect=True)


@pytest.fixture
def old(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def new(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@asynccontextmanager
async def side(url: str, namespace: str = "stepfast") -> AsyncIterator[Side]:
    store = open_store(parse_url(url), namespace, Settings())
    await store.open()
    try:
        yield Side(parse_url(url), namespace, store)
    finally:
        await store.close()


@asynccontextmanager
async def mover(old: str, new: str, progress: Progress = lambda what, rows: None) -> AsyncIterator[Move]:
    async with side(old) as source, side(new) as target:
        yield Move(source, target, progress)


async def move(old: str, new: str) -> int:
    async with mover(old, new) as moving:
        plan = await moving.plan()
        found = await moving.execute(plan)
        assert sum(each.rows for each in found.values()) == plan.rows
        return plan.rows


# -- every table and column


def declared() -> dict[str, dict[str, str]]:
    """The tables that the migrations make, with the types of their columns."""
    found: dict[str, dict[str, str]] = {}
    for file in (FOLDER / "migrations").iterdir():
        for statement in split_statements(file.read_text()):
            if table := re.search(r"^CREATE TABLE \{(\w+)\}", statement, re.MULTILINE):
                found[table[1]] = {c["name"].strip(): c["type"] for c in _COLUMN.finditer(statement)}
    return found


TEXTS = ("plain", "É ß 漢 🙂", "blanks at the end  ", "it's \\ \" a %s ? quote", '{"json": [1, "\\u0000"]}')


def filling(columns: dict[str, str], number: int) -> tuple[Any, ...]:
    """A row with a value in each column, and no two rows alike."""
    made: list[Any] = []
    for place, (_, kind) in enumerate(sorted(columns.items())):
        if kind == "uuid":
            made.append(f"01890000-0000-7000-8000-{place:04}{number:08}")
        elif kind in ("text", "varchar"):
            made.append(f"{number} {TEXTS[(place + number) % len(TEXTS)]}"[:20])
        elif kind == "boolean":
            made.append((place + number) % 2)
        else:
            made.append(1000 + 37 * place + number)
    return tuple(made)


async def fill(tables: Tables, rows: int) -> None:
    """So many rows into every table, as a move would write them."""
    mark = Mark(id="made-up", said="this namespace is being filled by a test")
    await tables.close(FILLED, mark)
    described = await tables.describe()
    for name, columns in declared().items():
        if name == META:
            continue
        made = [filling(columns, number) for number in range(rows)]
        assert await tables.write(described[name], made, True, mark, mark), name
    await tables.open(FILLED)


@both
async def test_every_table_and_column_is_moved(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tables, "page_rows", 7)
    async with side(old) as source, side(new) as target:
        await fill(source.store.tables(), 40)
        moving = Move(source, target)
        plan = await moving.plan()
        assert {*plan.sizes} == {*declared()} - {META}, "a table of the migrations is not moved"
        assert {size.rows for size in plan.sizes.values()} == {40}
        await moving.execute(plan)
        there = target.store.tables()
        described = await there.describe()
        for name, columns in declared().items():
            if name == META:
                continue
            assert [*described[name].columns] == sorted(columns), name
            found, after = [], list[Any]()
            while page := await there.page(described[name], after, 50_000):
                found += page
                places = [sorted(columns).index(key) for key in described[name].key]
                after = [page[-1][place] for place in places]
            assert sorted(found, key=repr) == sorted((filling(columns, n) for n in range(40)), key=repr), name


async def test_a_table_that_only_one_database_has_is_named(
    postgres_url: str, sqlite_url: str, mariadb_url: str
) -> None:
    for url in (postgres_url, sqlite_url, mariadb_url):
        async with side(url) as there:
            assert {*await there.store.tables().describe()} - OWN == {*declared()}


# -- runs in every state


def application(url: str) -> Stepfast:
    app = Stepfast(url, settings=Settings(inline_wait=0, lease=5, sweep_interval=0.2), auto_migrate=False)

    @app.workflow
    async def approval(ctx: Context, name: str) -> str:
        await ctx.step(len, name)
        said = await ctx.wait_signal("approved", type=str)
        return f"{name}: {said}"

    @app.workflow
    async def reminder(ctx: Context) -> str:
        await ctx.sleep(1)
        return "woken"

    @app.workflow
    async def parent(ctx: Context) -> str:
        await ctx.set("stage", "waiting")
        ctx.stream("log").send("begun")
        return str(await ctx.call("approval", "child"))

    @app.workflow
    async def paid(ctx: Context) -> Any:
        callback = await ctx.callback("payment")
        await ctx.set("token", callback.token)
        return await callback.result()

    @app.workflow
    async def listener(ctx: Context) -> Any:
        return (await ctx.wait_event("paid", key="7")).data

    @app.workflow(max_attempts=1)
    async def failing(ctx: Context) -> None:
        raise ValueError("no")

    @app.workflow
    async def quick(ctx: Context, number: int) -> int:
        return number + 1

    return app


@both
async def test_runs_in_every_state_go_on_at_the_new_place(old: str, new: str) -> None:
    async with application(old) as app:
        await app.publish("paid", {"cents": 1}, key="another")
        inputs: dict[str, Any] = {
            "approval": "ann", "parent": None, "paid": None, "listener": None, "reminder": None, "failing": None,
            "quick": 1,
        }  # fmt: skip
        runs = {name: await app.start(name, value, key=name) for name, value in inputs.items()}
        await app.drain()
        paused = await app.start("approval", "paused")
        await paused.pause()
        queued, later = await app.start("quick", 41), await app.start("quick", 99, delay=3600)
        await app.put_schedule("nightly", "quick", cron="0 3 * * *", input=7)
        await app.set_limits("default", concurrency=3)
        token = await runs["paid"].get("token")
        before = {run.id: run.status for run in await app.runs(limit=100)}
    await move(old, new)
    with pytest.raises(NamespaceMoved, match="this namespace was moved to"):
        await application(old).start("quick", 1)
    async with application(new) as app:
        assert {run.id: run.status for run in await app.runs(limit=100)} == before
        assert (await app.start("approval", "ann", key="approval")).id == runs["approval"].id
        assert [schedule.name for schedule in await app.schedules()] == ["nightly"]
        assert await app.get(runs["quick"].id).result() == 2
        with pytest.raises(RunFailed, match="no"):
            await app.get(runs["failing"].id).result()
        async with app.worker():
            assert await app.get(queued.id).result(PATIENCE) == 42
            assert await app.get(runs["reminder"].id).result(PATIENCE) == "woken"
            await app.signal(runs["approval"].id, "approved", "yes")
            assert await app.get(runs["approval"].id).result(PATIENCE) == "ann: yes"
            [child] = await app.runs(workflow="approval", status="waiting")
            await app.signal(child.id, "approved", "yes")
            assert await app.get(runs["parent"].id).result(PATIENCE) == "child: yes"
            await app.complete(token, {"cents": 700})
            assert await app.get(runs["paid"].id).result(PATIENCE) == {"cents": 700}
            await app.publish("paid", {"cents": 2}, key="7")
            assert await app.get(runs["listener"].id).result(PATIENCE) == {"cents": 2}
            await app.get(paused.id).resume()
            await app.signal(paused.id, "approved", "at last")
            assert await app.get(paused.id).result(PATIENCE) == "paused: at last"
        assert await app.get(later.id).status() == "queued"
        assert [item.value async for item in app.get(runs["parent"].id).stream("log")] == ["begun"]


# -- the old place refuses writes


@both
async def test_processes_that_were_connected_before_are_refused(old: str, new: str) -> None:
    async with application(old) as app:
        run = await app.start("approval", "ann")
        await app.drain()
        await move(old, new)
        place = new.rpartition("@")[2].rpartition("/")[2]
        for write in (
            lambda: app.start("quick", 1),
            lambda: app.signal(run.id, "approved", "late"),
            run.cancel,
            lambda: app.publish("paid", {}),
        ):
            with pytest.raises(NamespaceMoved, match="this namespace was moved to") as refused:
                await write()
            assert place in str(refused.value)
            assert "secret" not in str(refused.value)
        assert await run.status() == "waiting"  # what is there can be read


@one_pair
async def test_a_worker_is_waited_for_and_otherwise_refused(old: str, new: str) -> None:
    async with application(old) as app, mover(old, new) as moving:
        async with app.worker():
            await eventually(lambda: _workers(app))
            with pytest.raises(InvalidState, match="workers still live"):
                await moving.plan()
            await moving.wait_for_workers(0.1)
            with pytest.raises(InvalidState, match="--wait"):
                await moving.plan()
        await moving.wait_for_workers(PATIENCE)
        assert (await moving.plan()).mark is None


async def _workers(app: Stepfast) -> bool:
    return bool(await (await app.store()).workers())


@pytest.mark.parametrize(("old", "new"), [("sqlite", "postgres"), ("mariadb", "sqlite")], indirect=True)
async def test_a_worker_that_comes_while_the_namespace_is_closed_undoes_the_move(old: str, new: str) -> None:
    async with application(old) as app, mover(old, new) as moving:
        plan = await moving.plan()
        async with app.worker():
            await eventually(lambda: _workers(app))
            with pytest.raises(InvalidState, match="workers still live"):
                await moving.execute(plan)
            run = await app.start("quick", 1)
            assert await run.result(PATIENCE) == 2
    async with application(new) as there:
        assert await (await there.start("quick", 1)).status() == "queued"


# -- interruptions


KILLED = """
import asyncio, os, signal, sys
from stepfast.cli import main
from stepfast.store.tables import Tables
from stepfast.store.postgres.tables import PostgresTables
from stepfast.store.sqlite.tables import SqliteTables
from stepfast.store.mysql.tables import MysqlTables

left = int(sys.argv.pop(1))
Tables.page_rows = 7

def counted(kind, name):
    call = getattr(kind, name)
    async def counting(self, word, *given):
        global left
        if name == "open" and left > 9000:
            os.kill(os.getpid(), signal.SIGKILL)
        done = await call(self, word, *given)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    setattr(kind, name, counting)

for kind in (PostgresTables, SqliteTables, MysqlTables):
    for name in ("close", "open", "write"):
        counted(kind, name)
main()
"""
"""A move that is killed after so many writes; after 9999, when only the opening of the new namespace is left."""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sqlite", "postgres"),
        pytest.param("postgres", "sqlite", marks=pytest.mark.thorough),
        pytest.param("sqlite", "mariadb", marks=pytest.mark.thorough),
    ],
    indirect=True,
)
async def test_a_move_that_is_killed_is_continued(old: str, new: str, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    async with side(old) as source, side(new) as target:
        await fill(source.store.tables(), 20)
        for writes in (1, 2, 9, 60, 9999):
            arguments = [str(tmp_path / "killed.py"), str(writes), "--url", old, "move", "--to", new, "--yes"]
            with open(os.devnull, "r+b") as nothing, open(tmp_path / "said", "wb") as said:
                files = [nothing.fileno(), nothing.fileno(), said.fileno()]
                process = nursery().start(arguments, files, folder=tmp_path, new_session=True)
                ended = await asyncio.to_thread(process.wait, PATIENCE)
            assert ended == -signal.SIGKILL, (tmp_path / "said").read_text()
            with pytest.raises(NamespaceMoved, match="is being filled"):
                await application(new).start("quick", 1)
        with pytest.raises(NamespaceMoved, match="was moved to"):
            await application(old).start("quick", 1)
        moving = Move(source, target)
        plan = await moving.plan()
        assert plan.mark is not None
        assert len(plan.mark.finished) == len(declared()) - 1
        found = await moving.execute(plan)
        assert {each.rows for each in found.values()} == {20}
        with pytest.raises(NamespaceMoved, match="was moved to"):
            await moving.plan()


@pytest.mark.thorough
@one_pair
async def test_two_moves_at_once_do_not_mix(old: str, new: str) -> None:
    async with side(old) as source:
        await fill(source.store.tables(), 600)
    async with mover(old, new) as one, mover(old, new) as other:
        plans = await one.plan(), await other.plan()
        outcomes = await asyncio.gather(one.execute(plans[0]), other.execute(plans[1]), return_exceptions=True)
        assert any(isinstance(outcome, Exception) for outcome in outcomes)
    async with mover(old, new) as third:
        try:
            plan = await third.plan()
        except NamespaceMoved:
            pass  # one of the two came through
        else:
            await third.execute(plan)
    async with side(new) as target:
        assert {await target.store.tables().count(name) for name in declared() if name != META} == {600}


@pytest.mark.thorough
@one_pair
async def test_a_difference_keeps_both_closed(old: str, new: str) -> None:
    async with side(old) as source, side(new) as target:
        await fill(source.store.tables(), 10)
        there = target.store.tables()
        moving = Move(source, target)
        plan = await moving.plan()
        compare = moving.compare

        async def spoil(plan: Any) -> Any:
            mark = await there.mark(FILLED)
            assert mark is not None
            audit = (await there.describe())["audit"]
            columns = declared()["audit"]
            assert await there.write(audit, [filling(columns, 99)], False, mark, mark)
            return await compare(plan)

        moving.compare = spoil  # type: ignore[method-assign]
        with pytest.raises(DatabaseRefused, match=r"differs from the original in audit"):
            await moving.execute(plan)
        await moving.back(force=False)
        assert (await target.store.schema_state()).version == 0
        assert (await source.store.schema_state()).moved is None


# -- the way back


@pytest.mark.parametrize(("old", "new"), [("sqlite", "postgres"), ("mariadb", "sqlite")], indirect=True)
async def test_a_move_is_taken_back(old: str, new: str) -> None:
    async with application(old) as app:
        run = await app.start("quick", 1)
        await app.drain()
        await move(old, new)
        async with mover(old, new) as moving:
            await moving.back(force=False)
        assert await (await app.start("quick", 2)).status() == "queued"
        assert await run.result() == 2
    with pytest.raises(NamespaceMoved, match="was moved to"):
        await application(new).start("quick", 1)


@pytest.mark.thorough
@one_pair
async def test_what_happened_at_the_new_place_is_not_given_up(old: str, new: str) -> None:
    async with application(old) as app:
        await app.start("quick", 1)
    await move(old, new)
    async with application(new) as app:
        await app.start("quick", 2)
    async with mover(old, new) as moving:
        with pytest.raises(InvalidState, match="was written to since the move"):
            await moving.back(force=False)
        async with application(new) as app:
            await app.start("quick", 3)  # it stays open
        await moving.back(force=True)
    async with application(old) as app:
        assert await app.count() == 1


@pytest.mark.thorough
@one_pair
async def test_what_happened_there_is_moved_back(old: str, new: str) -> None:
    async with application(old) as app:
        await app.start("quick", 1)
    await move(old, new)
    async with application(new) as app:
        await app.start("quick", 2)
    async with side(old) as left:
        await left.store.reset()
    await move(new, old)
    async with application(old) as app:
        assert await app.count() == 2


# -- what is refused


@one_pair
async def test_what_cannot_be_moved_is_refused_by_name(old: str, new: str) -> None:
    async with mover(old, old) as same:
        with pytest.raises(ConfigurationError, match="is the same namespace"):
            await same.plan()
    async with application(new) as app:
        await app.start("quick", 1)
    async with mover(old, new) as full:
        with pytest.raises(InvalidState, match="is not empty: there are rows in"):
            await full.plan()
    async with mover("sqlite:///none.db", old) as nothing:
        with pytest.raises(SchemaError, match="there is nothing to move"):
            await nothing.plan()
    async with side(old) as source:
        store: Any = source.store
        await store._write(lambda db: db.execute("UPDATE stepfast_meta SET value = '0' WHERE name = 'version'"))
    async with mover(old, new) as older:
        with pytest.raises(SchemaError, match="there are no Stepfast tables in"):
            await older.plan()


@pytest.mark.parametrize(("old", "new"), [("sqlite", "mariadb")], indirect=True)
async def test_what_mariadb_cannot_keep_is_refused_before_anything_is_written(old: str, new: str) -> None:
    async with Stepfast(old, settings=Settings(max_name=300), auto_migrate=False) as app:
        for given, said in (
            (("n" * 250, 1), "runs.key has texts of more than 200"),
            (("n", "x" * 3_000_000), "packet"),
        ):
            app.workflows.clear()
            quick = app.workflow(_echo)
            run = await app.start(quick, given[1], key=given[0])
            async with mover(old, new) as moving:
                with pytest.raises(ConfigurationError, match=said):
                    await moving.plan()
            await run.cancel()
            await run.delete()
    async with side(new) as target:
        assert await target.store.tables().mark(FILLED) is None


async def _echo(ctx: Context, value: Any) -> Any:
    return value


@pytest.mark.thorough
async def test_a_namespace_is_renamed_within_a_database(postgres_url: str) -> None:
    async with application(postgres_url) as app:
        run = await app.start("quick", 41)
    async with side(postgres_url) as source, side(postgres_url, "renamed") as target:
        moving = Move(source, target)
        await moving.execute(await moving.plan())
        assert (await target.store.run(run.id)) is not None
        await source.store.reset()
        assert (await source.store.schema_state()).version == 0
