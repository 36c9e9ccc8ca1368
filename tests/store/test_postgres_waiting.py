"""What is Postgres's own about waiting: row locks, snapshots, lost commits, and sessions that users work in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from stepfast.errors import ConfigurationError, ContextMisuse, DatabaseUnavailable
from stepfast.model.ids import new_id
from stepfast.model.records import Claimed, Lane, Mail, NewRun, RunShape
from stepfast.settings import Settings
from stepfast.store import Store
from stepfast.store.answers import KeysHeld
from tests.store.conftest import Stores
from tests.store.scene import DAY, Scene, completed, joint, move, new_run, signal, step, waiting


@pytest.fixture(params=["postgres", "postgres12"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Only here."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@asynccontextmanager
async def somebody(stores: Stores) -> AsyncIterator[Any]:
    """Another connection to the same database."""
    connection = await asyncpg.connect(stores.url.text)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def locked(stores: Stores, run_id: str) -> AsyncIterator[None]:
    async with somebody(stores) as connection, connection.transaction():
        await connection.execute("SELECT 1 FROM stepfast.runs WHERE id = $1 FOR NO KEY UPDATE", run_id)
        yield


async def until_waiting(watcher: Any) -> None:
    """Until some client of this database waits for a lock."""
    query = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' "
        "AND cardinality(pg_blocking_pids(pid)) > 0"
    )
    async with asyncio.timeout(20):
        while not await watcher.fetch(query):
            await asyncio.sleep(0.01)


async def asleep(scene: Scene, **changes: Any) -> Claimed:
    """A run that waits for mail and nothing else."""
    run = await scene.running()
    await scene.flush(waiting(run, None, **({"waiting_for": "signal"} | changes)))
    return run


async def test_a_worker_that_leaves_waits_for_rows_that_somebody_holds(scene: Scene, stores: Stores) -> None:
    """One of its own transactions may be rolling back at that moment. Nothing names the worker when it has left; the
    rows that are free do not wait for those that are not."""
    leaver = await scene.add_worker()
    held, free = [await scene.running(worker=leaver) for _ in range(2)]
    async with somebody(stores) as watcher:
        async with locked(stores, held.id):
            leaving = asyncio.create_task(scene.store.unregister(leaver))
            await until_waiting(watcher)
            assert (await scene.info(free.id)).ready
        await leaving
    info = await scene.info(held.id)
    assert (info.status, info.ready, info.losses, info.worker) == ("queued", True, 0, None)
    assert [row.id for row in await scene.store.workers()] == [scene.worker]


# -- delivering -----------------------------------------------------------------------------------------------


async def test_a_signal_meets_its_run_as_it_is_when_the_lock_is_there(scene: Scene, stores: Stores) -> None:
    """The sender waits for somebody who writes to the row: what that one has written is what is decided on, and the run
    stands in its queue by the time at which it became ready."""
    run = await scene.running()
    async with somebody(stores) as watcher:
        async with somebody(stores) as other, other.transaction():
            await other.execute(
                "UPDATE stepfast.runs SET wakes = 5, worker = NULL, status = 'waiting' WHERE id = $1", run.id
            )
            sending = asyncio.ensure_future(scene.store.send(signal(run.id)))
            await until_waiting(watcher)
            then = await watcher.fetchval("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        answer = await sending
    assert (answer.status, answer.done, answer.lane) == ("waiting", True, Lane("order", "order", 0))
    assert (await scene.rows.get(run.id, "wakes"), await scene.rows.get(run.id, "status")) == (6, "queued")
    assert await scene.rows.get(run.id, "place") >= then


async def test_a_signal_reaches_no_run_that_ends_while_it_waits_for_the_lock(scene: Scene, stores: Stores) -> None:
    run = await scene.running()
    async with somebody(stores) as watcher:
        async with somebody(stores) as other, other.transaction():
            await other.execute("UPDATE stepfast.runs SET worker = NULL, status = 'completed' WHERE id = $1", run.id)
            sending = asyncio.ensure_future(scene.store.send(signal(run.id)))
            await until_waiting(watcher)
        answer = await sending
    assert (answer.status, answer.done) == ("completed", False)
    assert await scene.rows.fetch("SELECT count(*) FROM [mailbox]") == [(0,)]


async def test_mail_is_counted_once_however_many_deliver_it(scene: Scene, stores: Stores, twin: Store) -> None:
    runs = [await asleep(scene) for _ in range(5)]
    third = await stores.open()
    for n in range(200):
        await scene.post(signal(runs[n % 5].id))

    async def deliver(store: Store) -> int:
        moved = 0
        while (await store.tick(scene.worker, ["order"], False)).mail:
            moved += (await store.deliver(7)).moved
        return moved

    moved = await asyncio.gather(*(deliver(store) for store in (scene.store, twin, third)))
    assert sum(moved) == 200
    assert [await scene.rows.get(run.id, "wakes") for run in runs] == [40] * 5
    assert len(await scene.claim()) == 5


async def test_mail_that_arrives_while_somebody_delivers_is_not_forgotten(scene: Scene, twin: Store) -> None:
    run = await asleep(scene)
    sent = asyncio.Event()

    async def send() -> None:
        for n in range(100):
            mail = signal(run.id)
            await (scene.post(mail) if n % 2 else scene.store.send(mail))
        sent.set()

    async def deliver() -> None:
        while not sent.is_set() or (await twin.deliver(10)).moved:
            await asyncio.sleep(0)

    async with asyncio.timeout(60):
        await asyncio.gather(send(), deliver())
    assert await scene.rows.get(run.id, "wakes") == 100
    assert len((await scene.mailbox(run.id)).mail) == 100


async def test_mail_for_a_locked_run_waits_and_keeps_none_from_the_others(scene: Scene, stores: Stores) -> None:
    """Not even when there is more of it than one call takes."""
    held, free = await asleep(scene), await asleep(scene)
    for _ in range(10):
        await scene.post(signal(held.id))
    await scene.post(signal(free.id))
    async with locked(stores, held.id):
        delivery = await scene.store.deliver(5)
        assert (delivery.moved, len(delivery.lanes)) == (1, 1)
        assert [run.id for run in await scene.claim()] == [free.id]
        assert (await scene.store.deliver(5)).moved == 0
        assert (await scene.store.tick(scene.worker, ["order"], True)).mail
    assert [(await scene.store.deliver(5)).moved for _ in range(3)] == [5, 5, 0]
    assert await scene.rows.get(held.id, "wakes") == 10


async def test_mail_for_a_run_that_is_gone_is_removed(scene: Scene) -> None:
    await scene.post(signal(new_id()))
    run = await asleep(scene)
    await scene.post(signal(run.id))
    assert (await scene.deliver()).moved == 2
    assert not (await scene.store.tick(scene.worker, ["order"], True)).mail
    assert len((await scene.mailbox(run.id)).mail) == 1


@pytest.mark.parametrize("kind", ["signal", "cancel"])
async def test_mail_follows_a_run_that_went_on_as_another(scene: Scene, stores: Stores, kind: str) -> None:
    """It was inserted by a transaction that was open while the run was continued."""
    run = await scene.running()
    successor = NewRun(new_id(), RunShape("order", "v1", "order"), "{}", origin=run.id)
    async with somebody(stores) as connection:
        async with connection.transaction():
            await scene.store.send_within(connection, signal(run.id, kind=kind))
            end = move(run, "completed", reason="continued", output=f'"{successor.id}"', successor=successor)
            await scene.flush(end)
    await scene.deliver()
    row = await scene.info(successor.id)
    if kind == "cancel":
        assert row.status == "cancelled"
    else:
        assert len((await scene.mailbox(successor.id)).mail) == 1
        assert await scene.rows.get(successor.id, "wakes") == 1
    assert (await scene.mailbox(run.id)).mail == []


async def test_the_end_of_a_child_meets_its_parent_going_to_sleep(scene: Scene, twin: Store) -> None:
    """Whichever is first, the parent is woken."""
    for _ in range(30):
        parent, [child] = await scene.family()
        await asyncio.gather(
            scene.flush_through(waiting(parent, None, waiting_for="child", awaits=1)),
            scene.flush_through(move(child, "completed", output="1", child=True)),
            twin.deliver(10),
        )
        await twin.deliver(10)
        [again] = await scene.claim()
        assert (again.id, again.ends) == (parent.id, 1)
        await scene.flush(completed(again))


async def test_a_signal_sent_again_after_it_was_taken_is_not_sent_twice(scene: Scene, run: Claimed) -> None:
    """The sender's reply was lost, and the run was quick."""
    mail = signal(run.id)
    await scene.store.send(mail)
    await scene.flush(joint(run, 0, kind="signal", takes=[mail.id]))
    assert (await scene.store.send(mail, again=True)).done
    assert (await scene.mailbox(run.id)).mail == []
    assert await scene.rows.get(run.id, "wakes") == 1


# -- keys -------------------------------------------------------------------------------------------------------


async def test_the_wait_for_a_held_key_has_a_bound_and_says_what_it_was_for(scene: Scene, stores: Stores) -> None:
    store = await stores.open(settings=Settings(command_timeout=0.5))
    async with somebody(stores) as connection, connection.transaction():
        [theirs] = await scene.store.start_within(connection, [new_run(key="k")])
        with pytest.raises(KeysHeld):
            await scene.store.start([new_run(key="k"), new_run(key="free")], at_once=True)
        with pytest.raises(DatabaseUnavailable, match=r"open transaction .* within 0\.5 s"):
            await store.start([new_run(key="k"), new_run(key="free")])
        assert await scene.store.runs() == []
    assert await scene.store.start([new_run(key="k")], at_once=True) == [theirs]


# -- operators and owners ---------------------------------------------------------------------------------------


async def test_a_pause_that_was_taken_back_holds_nobody(scene: Scene, run: Claimed) -> None:
    """The owner had seen the mark and was about to say that the run is held."""
    await scene.store.pause(run.id)
    await scene.store.resume(run.id)
    await scene.flush(move(run, "paused", delay_ms=DAY, wakes=run.wakes))
    assert [again.id for again in await scene.claim()] == [run.id]


async def test_a_cancellation_is_not_lost_in_a_pause(scene: Scene, run: Claimed) -> None:
    """The owner had seen the mark of a pause, and a cancellation took its place."""
    await scene.store.pause(run.id)
    await scene.store.cancel(run.id)
    await scene.flush(move(run, "paused", wakes=run.wakes))
    [again] = await scene.claim()
    assert (again.id, again.asked) == (run.id, "cancel")


async def test_a_start_whose_reply_was_lost_is_not_barred_by_a_later_cancellation(scene: Scene, run: Claimed) -> None:
    entry = joint(run, 0, starts=[new_run("mail")])
    await scene.flush(entry)
    await scene.store.cancel(run.id)
    before = await scene.rows.dump()
    answer = await scene.flush(entry, joint(run, 1, starts=[new_run("mail")]))
    assert (answer.barred, answer.lost) == ({run.id}, set())
    assert await scene.rows.dump() == before
    assert (await scene.flush(entry)).barred == set()


async def test_senders_operators_and_the_journal_do_not_wait_in_a_circle(scene: Scene, twin: Store) -> None:
    """A parent and its children, with everything at once; nothing is lost and nothing is stuck."""
    async with asyncio.timeout(90):
        for _ in range(5):
            parent, children = await scene.family(8)
            mail = [signal(run.id) for run in (parent, *children)]
            await asyncio.gather(
                *(twin.send(m) for m in mail),
                *(scene.flush_through(move(c, "completed", output="1", child=True)) for c in children[:4]),
                *(scene.flush_through(waiting(c, None, waiting_for="signal")) for c in children[4:]),
                scene.flush_through(waiting(parent, None, waiting_for="child", awaits=8)),
                *(twin.cancel(c.id) for c in children[4:]),
                *(store.deliver(3) for store in (scene.store, twin) for _ in range(3)),
                twin.cancel(parent.id),
            )
            for run in await scene.claim(20):
                assert run.asked == "cancel" or run.id == parent.id
                await scene.flush_through(move(run, "cancelled", reason="cancelled", child=run.parent_id is not None))
            await scene.deliver()
            statuses = {(await scene.info(run.id)).status for run in (parent, *children)}
            assert statuses == {"completed", "cancelled"}
            assert not (await scene.store.tick(scene.worker, ["order"], True)).mail


# -- transactions -----------------------------------------------------------------------------------------------


async def transact(scene: Scene, run: Claimed, call: Any, timeout: float | None = 30) -> Any:
    def record(result: Any) -> Any:
        return step(run, 0, str(result), kind="transaction")

    made, _ = await scene.store.transact(scene.worker, run.id, run.claim, ("", 0), call, record, timeout)
    return made


@pytest.fixture
async def notes(scene: Scene) -> Scene:
    await scene.rows.fetch("CREATE TABLE notes (id integer PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
    return scene


async def written(scene: Scene) -> list[int]:
    return [number for (number,) in await scene.rows.fetch("SELECT id FROM notes ORDER BY id")]


async def test_a_commit_that_was_still_under_way_is_found_at_the_end(notes: Scene, stores: Stores) -> None:
    """Its reply was lost, the function is called again, and only then does the server finish the first."""
    run = await notes.running()

    async def again(connection: Any) -> int:
        await connection.execute("INSERT INTO notes VALUES (2)")
        await notes.flush(step(run, 0, '"first"'))
        return 2

    assert (await transact(notes, run, again)).output == '"first"'
    assert await written(notes) == []


async def test_an_error_that_the_function_swallowed_is_its_error(notes: Scene) -> None:
    """Postgres takes nothing more in such a transaction; that is no outage, and trying for ever would not help."""
    run = await notes.running()

    async def careless(connection: Any) -> None:
        with pytest.raises(asyncpg.UndefinedTableError):
            await connection.execute("SELECT 1 FROM nowhere")

    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await transact(notes, run, careless)
    assert await notes.store.steps(run.id) == []


async def test_what_a_deferred_constraint_says_comes_out_as_it_is(notes: Scene) -> None:
    run = await notes.running()

    async def twice(connection: Any) -> None:
        await connection.execute("INSERT INTO notes VALUES (1), (1)")

    with pytest.raises(asyncpg.UniqueViolationError):
        await transact(notes, run, twice)
    assert (await written(notes), await notes.store.steps(run.id)) == ([], [])


@pytest.mark.parametrize("when", ["in a statement", "before the record"])
async def test_a_connection_that_breaks_is_an_outage(notes: Scene, stores: Stores, when: str) -> None:
    run = await notes.running()

    async def broken(connection: Any) -> None:
        await connection.execute("INSERT INTO notes VALUES (1)")
        pid = await connection.fetchval("SELECT pg_backend_pid()")
        async with somebody(stores) as other:
            await other.execute("SELECT pg_terminate_backend($1)", pid)
        if when == "in a statement":
            await connection.execute("SELECT pg_sleep(5)")

    with pytest.raises(DatabaseUnavailable):
        await transact(notes, run, broken)
    assert (await written(notes), await notes.store.steps(run.id)) == ([], [])

    async def fine(connection: Any) -> int:
        await connection.execute("INSERT INTO notes VALUES (1)")
        return 1

    assert (await transact(notes, run, fine)).output == "1"
    assert await written(notes) == [1]


@pytest.mark.parametrize("how", ["COMMIT AND CHAIN", "COMMIT; BEGIN", "ROLLBACK; BEGIN", "COMMIT"])
async def test_after_a_function_that_ended_its_transaction_the_connection_is_good(notes: Scene, how: str) -> None:
    run = await notes.running()

    async def ends(connection: Any) -> None:
        await connection.execute(how)

    for _ in range(6):  # more than there are connections
        with pytest.raises(ContextMisuse, match="committed or rolled back"):
            await transact(notes, run, ends)
    assert await notes.store.steps(run.id) == []
    assert (await transact(notes, run, lambda connection: connection.fetchval("SELECT 5"))).output == "5"


async def test_a_session_is_clean_for_the_next_function(notes: Scene) -> None:
    run = await notes.running()

    async def messy(connection: Any) -> None:
        await connection.execute("SET search_path = nowhere; SET statement_timeout = 1")
        raise ValueError("after that")

    async def looks(connection: Any) -> str:
        found = [await connection.fetchval(f"SHOW {name}") for name in ("search_path", "statement_timeout", "jit")]
        await connection.execute("SET search_path = nowhere; SET statement_timeout = 60000")
        return repr(found)

    with pytest.raises(ValueError):
        await transact(notes, run, messy)
    first = await transact(notes, run, looks)
    again = await notes.again(run)
    with pytest.raises(BaseException, match="no longer"):  # the record of another claim
        await transact(notes, again, looks)
    assert "nowhere" not in (first.output or "")
    assert "'0'" in (first.output or "")


async def test_only_a_few_functions_work_at_once_and_the_rest_wait(notes: Scene) -> None:
    busy = most = 0

    async def works(connection: Any) -> int:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await connection.execute("SELECT pg_sleep(0.02)")
        busy -= 1
        return 1

    await notes.start_many(12)
    runs = await notes.claim(12)
    await asyncio.gather(*(transact(notes, run, works) for run in runs))
    assert 1 < most <= 4


# -- callers' connections ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
async def test_a_session_of_sqlalchemy_that_has_said_nothing_yet_is_joined(
    scene: Scene, stores: Stores, commits: bool
) -> None:
    """SQLAlchemy begins late: written past it, our rows would be outside of its transaction."""
    engine = create_async_engine(stores.url.text.replace("postgresql://", "postgresql+asyncpg://"))
    waits = await asleep(scene)
    try:
        async with AsyncSession(engine) as session:
            [run_id] = await scene.store.start_within(session, [new_run("mail", tags=("red",))])
            assert (await scene.store.send_within(session, signal(waits.id))).done
            assert await scene.store.run(run_id) is None
            await (session.commit() if commits else session.rollback())
        assert (await scene.store.run(run_id) is not None) == commits
        assert (await scene.store.deliver(10)).moved == commits
    finally:
        await engine.dispose()


async def test_an_engine_that_commits_by_itself_starts_all_or_none(scene: Scene, stores: Stores) -> None:
    engine = create_async_engine(
        stores.url.text.replace("postgresql://", "postgresql+asyncpg://"), isolation_level="AUTOCOMMIT"
    )
    refused = new_run("mail", input="\0")
    try:
        async with engine.connect() as connection:
            with pytest.raises(Exception, match="0x00"):
                await scene.store.start_within(connection, [new_run(), refused])
            assert await scene.store.runs() == []
            [run_id] = await scene.store.start_within(connection, [new_run()])
            assert await scene.store.run(run_id) is not None
    finally:
        await engine.dispose()


async def test_a_closed_connection_and_a_wrong_one_are_named(scene: Scene, stores: Stores) -> None:
    async with somebody(stores) as connection:
        pass
    with pytest.raises(DatabaseUnavailable, match="closed"):
        await scene.store.start_within(connection, [new_run()])
    with pytest.raises(ConfigurationError, match=r"asyncpg.*not builtins\.str"):
        await scene.store.send_within("postgresql://", Mail(new_id(), new_id(), "signal", "go", None))


async def test_the_caller_s_own_trouble_is_the_caller_s(scene: Scene, stores: Stores) -> None:
    """A serialisation failure must reach whoever can begin the transaction again."""
    async with somebody(stores) as connection:
        with pytest.raises(asyncpg.SerializationError):
            async with connection.transaction(isolation="repeatable_read"):
                await connection.execute("SELECT 1")
                await scene.start(key="k")
                await scene.store.start_within(connection, [new_run(key="k")])
