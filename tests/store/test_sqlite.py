"""What is SQLite's own: the writer's group commit, several processes on one file, errors in one sentence, plans."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from stepfast.errors import ConfigurationError, DatabaseUnavailable, SchemaError
from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store.dialects import SQLITE
from stepfast.store.sql import load_all
from stepfast.store.sqlite import SqliteStore
from stepfast.store.sqlite.connections import older
from stepfast.store.sqlite.writer import Writer
from tests.store.scene import Rows, Scene, new_run, step
from tests.support.nursery import crowd


def sqlite_store(url: str, **settings: Any) -> SqliteStore:
    return SqliteStore(parse_url(url), "stepfast", Settings(**settings))


@pytest.fixture
async def store(sqlite_url: str) -> AsyncIterator[SqliteStore]:
    store = sqlite_store(sqlite_url)
    await store.open()
    await store.migrate()
    yield store
    await store.close()


@pytest.fixture
async def scene(store: SqliteStore) -> Scene:
    scene = Scene(store, Rows(store))
    scene.worker = await scene.add_worker()
    return scene


def writer_of(store: SqliteStore) -> Writer:
    assert store._writer is not None
    return store._writer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


class Held:
    """Keeps the writer thread busy in a job until released, so that the next jobs gather behind it."""

    def __init__(self, writer: Writer) -> None:
        self._busy = threading.Event()
        self._release = threading.Event()
        self._task = asyncio.create_task(writer.do(self._work))

    def _work(self, _: sqlite3.Connection) -> None:
        self._busy.set()
        assert self._release.wait(30)

    async def __aenter__(self) -> Held:
        await asyncio.to_thread(self._busy.wait, 30)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._release.set()
        await self._task


async def commits(store: SqliteStore) -> list[str]:
    """Every COMMIT of the writer from now on."""
    seen: list[str] = []
    await writer_of(store).do(
        lambda db: db.set_trace_callback(lambda text: seen.append(text) if text == "COMMIT" else None)
    )
    return seen


# -- group commit ------------------------------------------------------------------------------------------


async def test_what_waits_goes_out_in_one_transaction(store: SqliteStore) -> None:
    seen = await commits(store)
    async with Held(writer_of(store)):
        seen.clear()
        starts = [asyncio.create_task(store.start([new_run()])) for _ in range(50)]
        await asyncio.sleep(0)
    await asyncio.gather(*starts)
    assert seen.count("COMMIT") == 2, "the one under way, and one for all that had gathered"
    assert len(await store.runs(limit=100)) == 50


async def test_one_that_fails_is_rolled_back_alone(store: SqliteStore) -> None:
    def fail(database: sqlite3.Connection) -> None:
        database.execute("INSERT INTO stepfast_meta (name, value) VALUES ('half', 'done')")
        raise KeyError("on purpose")

    async with Held(writer_of(store)):
        first = asyncio.create_task(store.start([new_run()]))
        bad = asyncio.create_task(writer_of(store).do(fail))
        last = asyncio.create_task(store.start([new_run()]))
        await asyncio.sleep(0)
    with pytest.raises(KeyError, match="on purpose"):
        await bad
    await asyncio.gather(first, last)
    assert len(await store.runs()) == 2
    half = "SELECT 1 FROM stepfast_meta WHERE name = 'half'"
    assert await writer_of(store).do(lambda database: database.execute(half).fetchall()) == []


async def test_nobody_hears_of_success_when_the_whole_group_is_rolled_back(store: SqliteStore) -> None:
    """As SQLite itself does when the disk is full or broken."""

    def spoil(database: sqlite3.Connection) -> None:
        database.execute("ROLLBACK")
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    async with Held(writer_of(store)):
        first = asyncio.create_task(store.start([new_run()]))
        spoiled = asyncio.create_task(writer_of(store).do(spoil))
        last = asyncio.create_task(store.start([new_run()]))
        await asyncio.sleep(0)
    for job in (first, spoiled, last):
        with pytest.raises(DatabaseUnavailable, match="full"):
            await job
    assert await store.runs() == []
    assert await store.start([new_run()]), "the writer goes on"


async def test_a_heartbeat_goes_to_the_front_and_rides_in_the_next_commit(scene: Scene, store: SqliteStore) -> None:
    writer = writer_of(store)
    beats: list[Any] = []
    seen = await commits(store)
    async with Held(writer):
        beat_at = "SELECT running FROM stepfast_workers"
        jobs = [asyncio.create_task(writer.do(lambda db: beats.extend(db.execute(beat_at))))]
        await asyncio.sleep(0)
        seen.clear()
        beat = asyncio.create_task(asyncio.to_thread(scene.beat, None, 17))
        await until(lambda: len(writer._queue._jobs) == 2)
    assert (await beat).alive
    await asyncio.gather(*jobs)
    assert beats == [(17,)], "the job that came first was done after the heartbeat"
    assert seen.count("COMMIT") == 2


async def test_a_heartbeat_does_not_wait_for_ever(scene: Scene, store: SqliteStore) -> None:
    pulse = store.pulse(patience=0.01)
    async with Held(writer_of(store)):
        with pytest.raises(DatabaseUnavailable, match="within"):
            await asyncio.to_thread(pulse.beat, scene.worker, 0)
    assert (await asyncio.to_thread(store.pulse().beat, scene.worker, 0)).alive


async def test_callers_of_another_event_loop_are_served_too(store: SqliteStore) -> None:
    def elsewhere() -> list[str]:
        return asyncio.run(store.start([new_run()]))

    ids = await asyncio.gather(*(asyncio.to_thread(elsewhere) for _ in range(5)), store.start([new_run()]))
    assert len({run_id for answer in ids for run_id in answer}) == 6
    assert len(await store.runs()) == 6


async def test_a_cancelled_caller_disturbs_nobody(store: SqliteStore) -> None:
    async with Held(writer_of(store)):
        gone = asyncio.create_task(store.start([new_run()]))
        stays = asyncio.create_task(store.start([new_run()]))
        await asyncio.sleep(0)
        gone.cancel()
    assert await stays
    assert len(await store.runs()) == 2, "the job of the cancelled caller was done all the same"


async def test_a_closed_store_says_so(sqlite_url: str) -> None:
    store = sqlite_store(sqlite_url)
    for _ in range(2):
        await store.open()
        pulse = store.pulse()
        await store.close()
        with pytest.raises(DatabaseUnavailable, match="closed"):
            await store.runs()
        with pytest.raises(DatabaseUnavailable, match="closed"):
            await store.start([new_run()])
        with pytest.raises(DatabaseUnavailable, match="closed"):
            pulse.beat("x", 0)


# -- several processes -------------------------------------------------------------------------------------


async def test_a_file_locked_for_too_long_is_unavailable_and_then_available_again(sqlite_url: str) -> None:
    store = sqlite_store(sqlite_url, command_timeout=0.05)
    await store.open()
    await store.migrate()
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnavailable, match="locked"):
            await store.start([new_run()])
        assert await store.runs() == [], "readers do not wait for the writer of another process"
        other.execute("ROLLBACK")
    assert await store.start([new_run()])
    await store.close()


async def test_a_locked_file_is_waited_for(store: SqliteStore, sqlite_url: str) -> None:
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        starts = [asyncio.create_task(store.start([new_run()])) for _ in range(3)]
        done, _ = await asyncio.wait(starts, timeout=0.05)
        assert not done
        other.execute("ROLLBACK")
    await asyncio.gather(*starts)


CROWD = """
import asyncio, os, sys
from tests.store.scene import VERSIONS, Batch, completed, new_id, step, WorkerInfo, Lane
from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store import open_store

async def main():
    store = open_store(parse_url(sys.argv[1]), "stepfast", Settings())
    await store.open()
    worker = new_id()
    await store.register(WorkerInfo(worker, "h", 1, None, VERSIONS, 10, 30_000))
    os.write(3, b".")
    sys.stdin.read()
    token = commits = 0
    while True:
        token += 1
        runs = await store.claim(worker, token, [(Lane("order", "order", 0), 0)], VERSIONS, 5)
        if not runs:
            break
        for position in range(3):
            await store.flush(worker, Batch(steps=[step(run, position) for run in runs]))
        answer = await store.flush(worker, Batch(transitions=[completed(run) for run in runs]))
        assert not answer.lost
        commits += 5
    await store.close()
    print(commits)

asyncio.run(main())
"""


async def test_processes_share_a_file_and_none_starves(scene: Scene, store: SqliteStore, sqlite_url: str) -> None:
    """Rule 38."""
    await scene.start_many(600)
    shares = [int(out) for out in await asyncio.to_thread(crowd, 3, CROWD, sqlite_url)]
    assert sum(shares) == 600 // 5 * 5
    assert min(shares) > 0, f"a process never got the lock: {shares}"
    assert await scene.rows.fetch("SELECT count(*) FROM [runs] WHERE status = 'completed' AND claim = 1") == [(600,)]
    assert await scene.rows.fetch("SELECT count(*) FROM [steps]") == [(1800,)]


async def test_what_others_commit_before_the_writer_looks_around_is_heard(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener's first word must not come before the writer knows what it compares with later."""
    go, after = threading.Event(), Writer._after

    def held(writer: Writer, served: bool) -> None:
        assert go.wait(30)
        after(writer, served)

    listener, other, heard = sqlite_store(sqlite_url), sqlite_store(sqlite_url), asyncio.Queue[Any]()
    async with closing_both(listener, other):
        writer = writer_of(listener)
        monkeypatch.setattr(writer, "_after", lambda served: held(writer, served))
        listening = asyncio.create_task(listener.listen(heard.put_nowait))
        async with asyncio.timeout(30):
            await heard.get()
            await other.start([new_run()])
            go.set()
            assert (await heard.get()).anything
        listening.cancel()


async def test_a_listener_whose_first_word_fails_hears_all_the_same(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be locked for too long just then."""
    listener, other, heard = sqlite_store(sqlite_url), sqlite_store(sqlite_url), asyncio.Queue[Any]()
    async with closing_both(listener, other):
        writer, begin = writer_of(listener), Writer._begin

        def refused_once() -> None:
            monkeypatch.setattr(writer, "_begin", lambda: begin(writer))
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error

        monkeypatch.setattr(writer, "_begin", refused_once)
        listening = asyncio.create_task(listener.listen(heard.put_nowait))
        async with asyncio.timeout(30):
            await heard.get()
            await other.start([new_run()])
            assert (await heard.get()).anything
        listening.cancel()


@asynccontextmanager
async def closing_both(*stores: SqliteStore) -> AsyncIterator[None]:
    for store in stores:
        await store.open()
    try:
        yield
    finally:
        for store in stores:
            await store.close()


# -- errors in one sentence --------------------------------------------------------------------------------


async def refusal(path: Path) -> str:
    store = sqlite_store(f"sqlite:///{path}")
    with pytest.raises(ConfigurationError) as caught:
        await store.open()
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert "there is no folder" in await refusal(tmp_path / "nowhere" / "stepfast.db")


async def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert "is a folder" in await refusal(tmp_path)


async def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, " * 1000)
    assert "not a usable database" in await refusal(path)
    assert path.read_text().startswith("Dear reader")


@pytest.mark.empty
async def test_missing_tables_are_told_with_the_remedy(sqlite_url: str) -> None:
    store = sqlite_store(sqlite_url)
    await store.open()
    with pytest.raises(SchemaError, match="stepfast migrate"):
        await store.start([new_run()])
    with pytest.raises(SchemaError, match="stepfast migrate"):
        await store.runs()
    await store.close()


async def test_the_file_is_left_tidy(sqlite_url: str) -> None:
    store = sqlite_store(sqlite_url)
    await store.open()
    await store.migrate()
    await store.close()
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# -- plans (rules 31 and 32) -------------------------------------------------------------------------------

HOT = {
    "ready": "runs_ready", "next_lane": "runs_ready", "suspects": "runs_suspect",
    "held": "COVERING INDEX stepfast_runs_worker", "claimed": "runs_worker", "duties": "runs_due",
    "lock_due": "runs_due",
    "lock_lost": "runs_worker", "runs_of_workflow": "runs_workflow", "runs_at_rest": "runs_at_rest",
    "history": "PRIMARY KEY", "steps": "PRIMARY KEY", "complete": "sqlite_autoindex_stepfast_runs",
    "change": "sqlite_autoindex_stepfast_runs", "lock_runs": "sqlite_autoindex_stepfast_runs", "by_keys": "runs_key",
    "counters": "sqlite_autoindex_stepfast_runs", "mail": "SEARCH m USING PRIMARY KEY",
    "undelivered": "mailbox_undelivered", "delivered": "SEARCH m USING PRIMARY KEY (run_id=? AND id=?)",
    "take_mail": "SEARCH stepfast_mailbox USING PRIMARY KEY (run_id=? AND id=?)",
    "tell_parents": "sqlite_autoindex_stepfast_runs", "tell_children": "SEARCH c USING INDEX stepfast_runs_parent",
    "recorded_step": "PRIMARY KEY (run_id=? AND branch=? AND position=?)",
    "runs_running": "SEARCH w USING COVERING INDEX stepfast_runs_worker",
    "ended_kin": "SEARCH c USING INDEX stepfast_runs_parent",
    "remove_steps": "SEARCH stepfast_steps USING PRIMARY KEY (run_id=?)",
    "remove_run_attributes": "SEARCH stepfast_run_attributes USING PRIMARY KEY (run_id=?)",
    "runs_with_attributes": "SEARCH stepfast_run_attributes USING COVERING INDEX stepfast_run_attributes_value",
    "runs_of_parent": "SEARCH stepfast_runs USING INDEX stepfast_runs_parent",
    "remove_run_tags": "SEARCH stepfast_run_tags USING PRIMARY KEY (tag=? AND run_id=?)",
}  # fmt: skip
NO_SORTING = ("ready", "next_lane", "suspects", "runs_of_workflow", "runs_at_rest", "undelivered")


async def plan_of(store: SqliteStore, name: str) -> list[str]:
    """How SQLite goes about a statement, whatever it is given: by name, by number or in order."""
    text = re.sub(r"--.*", "", store._sql[name])
    named = set(re.findall(r":(\w+)", text))
    numbered = [int(number) for number in re.findall(r"\?(\d+)", text)]
    values: Any = dict.fromkeys(named, 1) if named else (1,) * (max(numbered) if numbered else text.count("?"))
    rows = await store._read(lambda database: database.execute(f"EXPLAIN QUERY PLAN {text}", values).fetchall())
    return [row[3] for row in rows]


@pytest.mark.parametrize("name", HOT)
async def test_no_hot_statement_walks_the_table(store: SqliteStore, name: str) -> None:
    plan = await plan_of(store, name)
    assert any(HOT[name] in line for line in plan), plan
    whole = re.compile(
        r"SCAN (stepfast_runs|stepfast_mailbox|r|q|was|p|child)\b"
        r"(?!.*USING (COVERING )?INDEX stepfast_(runs_(worker|suspect|ready)|mailbox_undelivered))"
    )
    assert [line for line in plan if whole.match(line)] == []
    if name in NO_SORTING:
        assert not any("TEMP B-TREE" in line for line in plan), plan


async def test_every_statement_is_one_that_sqlite_understands(store: SqliteStore) -> None:
    """Those that are written in Postgres' words, too. (On Postgres the overloads have a test that tries them all.)"""
    for name in store._sql:
        if not name.startswith("script_"):
            await plan_of(store, name)


async def test_the_tick_s_question_about_mail_looks_at_undelivered_mail_only(store: SqliteStore) -> None:
    [line] = [line for line in await plan_of(store, "duties") if "mailbox" in line]
    assert "stepfast_mailbox_undelivered" in line


async def test_a_claim_costs_the_same_with_thousands_of_unknown_runs_in_line(scene: Scene, store: SqliteStore) -> None:
    """Counted in steps of SQLite's virtual machine, not in time."""

    async def cost() -> int:
        count = 0

        def tell() -> int:
            nonlocal count
            count += 1
            return 0

        await writer_of(store).do(lambda db: db.set_progress_handler(tell, 1))
        assert len(await scene.claim(5, lanes=lanes)) == 5
        await writer_of(store).do(lambda db: db.set_progress_handler(None, 0))
        return count

    await scene.start_many(50, queue="shared")
    lanes = await scene.lanes()
    alone = await cost()
    await scene.start_many(5000, "unknown", queue="shared", priority=9)
    await scene.start_many(5000, queue="shared", delay_ms=60_000)
    crowded = await cost()
    assert crowded < alone * 1.5
    assert await scene.lanes() == lanes


async def test_a_payload_is_measured_in_bytes_by_every_release_of_sqlite(store: SqliteStore) -> None:
    """Those before 3.43 have no function for it, and none of the statements may ask for one."""
    statements = load_all(SQLITE, {})
    assert sum("octet_length" in text for text in statements.values()) > 10
    assert not [name for name, text in statements.items() if "octet_length" in older(text)]
    [row] = await writer_of(store).do(
        lambda db: db.execute(older("SELECT octet_length(a) FROM (SELECT '€' AS a)")).fetchall()
    )
    assert row == (3,)


async def test_a_census_and_statistics_cost_the_same_however_much_there_is(scene: Scene, store: SqliteStore) -> None:
    """Counted in steps of SQLite's virtual machine: each stops at its bound."""
    questions = {
        "census": (20,), "census_queues": (20,), "stats_ended": (20, 10**12), "stats_open": (20,),
        "stats_failures": (20, 10**12), "stats_steps": (20, 10**12, 20),
    }  # fmt: skip

    def ask(database: sqlite3.Connection) -> dict[str, int]:
        counts = dict.fromkeys(questions, 0)
        for name, values in questions.items():

            def tell(name: str = name) -> int:
                counts[name] += 1
                return 0

            database.set_progress_handler(tell, 1)
            database.execute(store._sql[name], values).fetchall()
        database.set_progress_handler(None, 0)
        return counts

    async def fill(number: int) -> None:
        for priority in (0, 1):
            await scene.start_many(number, queue="shared", priority=priority)
        await scene.start_many(number, delay_ms=60_000)
        for status in ("waiting", "failed", "completed"):
            await scene.start_many(number, "report")
            await scene.rows.fetch(
                "UPDATE [runs] SET status = ?, place = NULL, completed_at = created_at "
                "WHERE workflow = 'report' AND status = 'queued'", status,
            )  # fmt: skip

    await fill(50)
    alone = await store._read(ask)
    await fill(1000)
    crowded = await store._read(ask)
    assert {name: count for name, count in crowded.items() if count > alone[name] * 1.5 + 100} == {}


async def test_few_and_many_entries_pass_the_same_fence(scene: Scene, store: SqliteStore) -> None:
    await scene.start_many(40)
    runs = await scene.claim(40)
    for some in (runs[:2], runs):
        assert (await scene.flush(*(step(run, len(some)) for run in some))).lost == set()


# -- the file -----------------------------------------------------------------------------------------------


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    """It holds what users pass to their workflows; the logs beside it too."""
    path = tmp_path / "new.db"
    store = await opened(path)
    try:
        await store.migrate()
        files = sorted(tmp_path.iterdir())
        assert [file.name for file in files] == ["new.db", "new.db-shm", "new.db-wal"]
        assert [mode_of(file) for file in files] == [0o600] * 3
    finally:
        await store.close()


async def test_a_file_keeps_the_mode_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    path.touch()
    path.chmod(0o660)
    store = await opened(path)
    try:
        await store.migrate()
        assert {mode_of(file) for file in tmp_path.iterdir()} == {0o660}
    finally:
        await store.close()


async def test_a_file_of_somebody_elses_is_left_as_it_is_until_it_gets_our_tables(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("CREATE TABLE notes (text)")
    before = path.read_bytes()
    store = await opened(path)
    try:
        await store.schema_state()
        await store.doctor()
        assert path.read_bytes() == before
        assert [file.name for file in tmp_path.iterdir()] == ["theirs.db"]
        await store.migrate()
        assert (await store.schema_state()).pending == []
        assert Path(f"{path}-wal").exists()
    finally:
        await store.close()
    with closing(sqlite3.connect(path)) as theirs:
        assert theirs.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def opened(path: Path) -> SqliteStore:
    store = sqlite_store(f"sqlite:///{path}")
    await store.open()
    return store
