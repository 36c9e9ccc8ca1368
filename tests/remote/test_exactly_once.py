"""What goes wrong between workers and engines that know no more than the contract, and does not here.

Each test sets up the scene in which somebody else's worker or engine would lose, repeat or block something.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import asyncpg
import pytest

from stepfast.errors import LeaseLost
from stepfast.remote import RemoteTask, SqlTransport, Task, task_store
from tests.remote.scene import quick_worker, result_of, results_of, slow_worker
from tests.remote.tables import Tables
from tests.support.engine import PATIENCE, Gate, eventually


def task(seq: int, attempt: int = 1, input: str = "null") -> Task:
    return Task(f"run:{seq}", "run", seq, "echo", "echo", input, attempt)


LOST_THE_RACE = asyncpg.UniqueViolationError, asyncpg.DuplicateTableError, asyncpg.DuplicateObjectError
"""What happens to those who make a table that somebody else is just making."""


async def claims(tables: Tables) -> list[tuple[Any, ...]]:
    return await tables.fetch("SELECT step_id, attempt, claimed_by FROM [tasks] ORDER BY step_id")


# -- attempts ----------------------------------------------------------------------------------------------------------


async def test_a_failure_that_an_earlier_attempt_left_does_not_swallow_the_result_of_this_one(
    url: str, tables: Tables
) -> None:
    await tables.put_result("run:0", "failed", error='{"message": "old"}')
    await tables.put_task("run:0", input="new", attempt=2)
    async with quick_worker(url):
        await eventually(lambda: _has(tables, "run:0", "completed"))
    result = (await tables.results())["run:0"]
    assert (result["output"], result["error"]) == ("new", None)


async def test_what_was_completed_stays_completed(url: str, tables: Tables) -> None:
    await tables.put_result("run:0", "completed", output='"first"')
    await tables.put_task("run:0", input="second", attempt=2)
    async with quick_worker(url):
        await eventually(lambda: _none_left(tables))
    assert (await tables.results())["run:0"]["output"] == "first"


async def test_a_new_attempt_takes_the_place_of_what_the_last_one_left(transport: SqlTransport, tables: Tables) -> None:
    await transport.dispatch([task(0), task(1), task(2)])
    await tables.fetch("UPDATE [tasks] SET claimed_by = 'somebody', claimed_at = 1")
    await tables.put_result("run:0", "failed")
    await tables.put_result("run:1", "completed", output="1")
    await transport.dispatch([task(0, 2, '"again"'), task(1, 2), task(2, 1, '"not again"')])
    assert await claims(tables) == [("run:0", 2, None), ("run:1", 2, None), ("run:2", 1, "somebody")]
    assert await tables.fetch("SELECT input FROM [tasks] ORDER BY step_id") == [('"again"',), ("null",), ("null",)]
    assert list(await tables.results()) == ["run:1"]


async def test_a_worker_that_still_has_the_last_attempt_writes_nothing(
    url: str, transport: SqlTransport, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    gate, seen = Gate(), []
    worker = quick_worker(url)

    @worker.handle("slow")
    async def slow(input: Any, task: RemoteTask) -> int:
        seen.append(task.attempt)
        if task.attempt == 1:
            await gate.passing()
            raise ValueError("too late")
        return task.attempt

    await transport.dispatch([Task("run:0", "run", 0, "slow", "echo", None)])
    async with worker:
        await gate.reached()
        await transport.dispatch([Task("run:0", "run", 0, "slow", "echo", None, 2)])
        assert (await result_of(tables, "run:0"))["output"] == 2
        gate.open()
        await eventually(lambda: worker.running == 0)
    assert (await tables.results())["run:0"]["status"] == "completed"
    assert seen == [1, 2]
    [told] = [record for record in caplog.records if "is not written: its task is gone" in record.getMessage()]
    assert (told.run_id, told.step_id) == ("run", "run:0")  # type: ignore[attr-defined]


# -- one transaction ---------------------------------------------------------------------------------------------------


async def test_a_result_and_the_end_of_its_task_are_seen_together(
    url: str, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of a task is made to fail for a while: then its result is not there either."""
    await _forbid_deletes(tables)
    await tables.put_task("run:0", input=1)
    await tables.put_task("run:1", input=2)
    async with quick_worker(url):
        await eventually(lambda: "recording results: " in caplog.text)
        assert await tables.results() == {}
        assert await tables.tasks() == ["run:0", "run:1"]
        await _allow_deletes(tables)
        await results_of(tables, 2)
    assert await tables.tasks() == []


async def test_what_a_foreign_worker_deleted_too_much_is_found_missing(transport: SqlTransport, tables: Tables) -> None:
    await transport.dispatch([task(0), task(1), task(2)])
    await tables.put_result("run:1", "completed", output="1")
    await tables.fetch("DELETE FROM [tasks] WHERE step_id IN ('run:0', 'run:1')")
    assert await transport.lost(["run:0", "run:1", "run:2", "other:0"]) == ["run:0", "other:0"]
    await transport.dispatch([task(0)])
    assert await transport.lost(["run:0", "run:1", "run:2"]) == []


# -- leases ------------------------------------------------------------------------------------------------------------


async def test_a_task_that_takes_longer_than_its_lease_is_done_once(url: str, tables: Tables) -> None:
    gate, calls = Gate(), list[Any]()
    workers = [slow_worker(url, gate, calls, lease=3) for _ in range(2)]
    await tables.put_task("run:0", "slow", 1)
    async with workers[0], workers[1]:
        await gate.reached()
        began = (await tables.fetch("SELECT claimed_at FROM [tasks]"))[0][0]

        async def longer_than_a_lease() -> bool:
            return bool((await tables.fetch("SELECT claimed_at FROM [tasks]"))[0][0] > began + 3000)

        await eventually(longer_than_a_lease)
        gate.open()
        await result_of(tables, "run:0")
    assert calls == [1]


async def test_no_more_is_claimed_than_there_are_free_slots(url: str, tables: Tables) -> None:
    gate = Gate()
    worker = slow_worker(url, gate, concurrency=2, batch=10)
    for number in range(5):
        await tables.put_task(f"run:{number}", "slow", created_at=number)
    async with worker:
        await gate.reached()
        await eventually(lambda: worker.running == 2)
        held = [row[0] for row in await claims(tables) if row[2] is not None]
        assert held == ["run:0", "run:1"]
        gate.open()
        await results_of(tables, 5)


async def test_what_a_dead_worker_held_is_taken_over(url: str, tables: Tables) -> None:
    await tables.put_task("run:0", input=7)
    await tables.put_task("run:1", input=8)
    await tables.fetch("UPDATE [tasks] SET claimed_by = 'dead', claimed_at = 1 WHERE step_id = 'run:0'")
    held = await tables.now()
    await tables.fetch("UPDATE [tasks] SET claimed_by = 'alive', claimed_at = ? WHERE step_id = 'run:1'", held)
    async with quick_worker(url):
        assert (await result_of(tables, "run:0"))["output"] == 7
    assert await claims(tables) == [("run:1", 1, "alive")]


async def test_the_worker_s_own_clock_decides_nothing(
    url: str, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await tables.now()
    monkeypatch.setattr(time, "time", lambda: 5.0)
    monkeypatch.setattr(time, "time_ns", lambda: 5)
    gate = Gate()
    worker = slow_worker(url, gate)
    await tables.put_task("run:0", "slow")
    async with worker:
        await gate.reached()
        assert before <= (await tables.fetch("SELECT claimed_at FROM [tasks]"))[0][0] <= await tables.now()
        gate.open()
        result = await result_of(tables, "run:0")
    assert before <= result["started_at"] <= result["created_at"] <= await tables.now()


# -- values ------------------------------------------------------------------------------------------------------------


async def test_values_that_are_no_json_fail_their_own_step_and_no_other(url: str, tables: Tables) -> None:
    worker = quick_worker(url)

    @worker.handle("make")
    async def make(input: str) -> Any:
        odd = {"object": object(), "nan": float("nan"), "deep": _nested(500), "surrogate": "\ud800"}
        return odd[input]

    await tables.put_task("run:0", raw="{not json", created_at=1)
    await tables.put_task("run:1", raw="NaN", created_at=2)
    for number, name in enumerate(("object", "nan", "deep", "surrogate"), 2):
        await tables.put_task(f"run:{number}", "make", name, created_at=number)
    await tables.put_task("run:9", input="fine", created_at=100)
    async with worker:
        results = await results_of(tables, 7)
    assert results.pop("run:9")["output"] == "fine"
    assert {result["status"] for result in results.values()} == {"failed"}
    assert {result["error"]["retryable"] for result in results.values()} == {False}
    assert "nan is not a JSON number" in results["run:3"]["error"]["message"]
    assert await tables.tasks() == []


# -- engines beside each other -----------------------------------------------------------------------------------------


async def test_results_of_others_are_left_alone(transport: SqlTransport, tables: Tables) -> None:
    await tables.put_result("run:0", "completed", output="1")
    await tables.put_result("other:0", "completed", output="2")
    found = await transport.results(["run:0", "run:1"])
    assert [(result.step_id, result.output) for result in found] == [("run:0", "1")]
    await transport.remove(found)
    assert list(await tables.results()) == ["other:0"]


async def test_only_the_result_that_was_read_is_removed(transport: SqlTransport, tables: Tables) -> None:
    await tables.put_result("run:0", "failed", created_at=1)
    found = await transport.results(["run:0"])
    await tables.fetch("UPDATE [results] SET status = 'completed', created_at = 2")
    await transport.remove(found)
    assert list(await tables.results()) == ["run:0"]


async def test_cancelling_takes_back_what_nobody_has_begun(transport: SqlTransport, tables: Tables) -> None:
    await transport.dispatch([task(0), task(1), task(2)])
    await tables.fetch(
        "UPDATE [tasks] SET claimed_by = 'w', claimed_at = ? WHERE step_id = 'run:1'", await tables.now()
    )
    await tables.fetch("UPDATE [tasks] SET claimed_by = 'dead', claimed_at = 1 WHERE step_id = 'run:2'")
    assert await transport.cancel(["run:0", "run:1", "run:2", "run:9"]) == ["run:0", "run:2"]
    assert await tables.tasks() == ["run:1"]


async def test_a_handler_whose_task_is_gone_is_ended(
    url: str, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    gate, ended = Gate(), asyncio.Event()
    worker = quick_worker(url, lease=0.6)

    @worker.handle("slow")
    async def slow(input: Any) -> None:
        try:
            await gate.passing()
        finally:
            ended.set()

    await tables.put_task("run:0", "slow")
    async with worker:
        await gate.reached()
        await tables.fetch("DELETE FROM [tasks]")
        await asyncio.wait_for(ended.wait(), 20)
        await eventually(lambda: worker.running == 0)
    assert await tables.results() == {}
    [told] = [record for record in caplog.records if "is not this worker's any more" in record.getMessage()]
    assert (told.run_id, told.step_id) == ("run", "run:0")  # type: ignore[attr-defined]


# -- the tables --------------------------------------------------------------------------------------------------------


async def test_many_make_the_tables_at_once_with_others_who_take_no_lock(url: str) -> None:
    mine = [SqlTransport(url) for _ in range(6)]
    others = [await Tables(url).open() for _ in range(4)]
    script = [part for part in mine[0].script().split(";\n") if "CREATE TABLE" in part]

    async def foreign(tables: Tables) -> None:
        for statement in script:
            with contextlib.suppress(*LOST_THE_RACE):
                await tables.fetch(statement)

    try:
        await asyncio.gather(*(one.open() for one in mine), *(foreign(one) for one in others))
        await mine[0].dispatch([task(0)])
        assert await others[0].tasks() == ["run:0"]
    finally:
        await asyncio.gather(*(one.close() for one in mine), *(one.close() for one in others))


async def test_tables_that_somebody_is_just_making_are_no_error(postgres_url: str) -> None:
    """Who takes no lock has not committed yet: our own statement does not see the table, and then stumbles over it."""
    transport, other, operator = SqlTransport(postgres_url), await Tables(postgres_url).open(), Tables(postgres_url)
    await operator.open()
    await other.fetch("BEGIN")
    await other.fetch(transport.script().split(";\n")[0])
    opening = asyncio.create_task(transport.open())
    try:
        await eventually(lambda: _waits(operator, 1))
        await other.fetch("COMMIT")
        await asyncio.wait_for(opening, PATIENCE)
        assert await transport.lost(["run:0"]) == ["run:0"]
    finally:
        await asyncio.gather(opening, return_exceptions=True)
        await asyncio.gather(transport.close(), other.close(), operator.close())


async def test_only_one_of_ours_makes_the_tables(postgres_url: str) -> None:
    first, second = SqlTransport(postgres_url), SqlTransport(postgres_url)
    blocker, operator = await Tables(postgres_url).open(), await Tables(postgres_url).open()
    await blocker.fetch("BEGIN")
    await blocker.fetch(first.script().split(";\n")[0])
    opening = [asyncio.create_task(first.open())]
    try:
        await eventually(lambda: _waits(operator, 1))
        opening.append(asyncio.create_task(second.open()))
        await eventually(lambda: _waits(operator, 2))
    finally:
        await blocker.fetch("ROLLBACK")
        await asyncio.gather(*opening)
        await asyncio.gather(*(one.close() for one in (first, second, blocker, operator)))


async def _waits(tables: Tables, count: int) -> bool:
    """Whether so many sessions wait for a lock."""
    sql = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return len(await tables.fetch(sql)) == count


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


async def _has(tables: Tables, step_id: str, status: str) -> bool:
    return bool((await tables.results())[step_id]["status"] == status)


async def _none_left(tables: Tables) -> bool:
    return not await tables.tasks()


async def _forbid_deletes(tables: Tables) -> None:
    if tables.is_mysql:
        await tables.fetch(
            "CREATE TRIGGER forbidden BEFORE DELETE ON [tasks] FOR EACH ROW SIGNAL SQLSTATE '45000' "
            "SET MESSAGE_TEXT = 'not now'"
        )
    else:
        await tables.fetch(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$"
        )
        await tables.fetch("CREATE TRIGGER forbidden BEFORE DELETE ON [tasks] FOR EACH ROW EXECUTE FUNCTION refuse()")


async def _allow_deletes(tables: Tables) -> None:
    await tables.fetch("DROP TRIGGER forbidden" + ("" if tables.is_mysql else " ON [tasks]"))


async def test_a_result_is_put_off_while_an_engine_reads_the_failure_before_it(url: str, tables: Tables) -> None:
    """Their engine sends the next attempt out first, and then deletes the row of the last failure."""
    await tables.put_result("run:0", "failed")
    await tables.fetch("UPDATE [results] SET claimed_by = 'engine', claimed_at = ?", await tables.now())
    done = asyncio.Event()
    worker = quick_worker(url)

    @worker.handle("note")
    async def note(input: Any) -> str:
        done.set()
        return "second"

    await tables.put_task("run:0", "note", attempt=2)
    await tables.put_task("run:1", input="beside it")
    async with worker:
        await done.wait()
        assert (await result_of(tables, "run:1"))["output"] == "beside it"
        assert (await tables.results())["run:0"]["status"] == "failed"
        await tables.fetch("DELETE FROM [results] WHERE step_id = 'run:0'")
        assert (await result_of(tables, "run:0"))["output"] == "second"
    assert await tables.tasks() == []


async def test_a_result_is_not_put_off_for_ever(url: str, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_store, "_PUT_OFF", 0.1)
    await tables.put_result("run:0", "failed")
    await tables.fetch("UPDATE [results] SET claimed_by = 'engine', claimed_at = ?", await tables.now() + 1_000_000)
    await tables.put_task("run:0", attempt=2)
    async with quick_worker(url):
        await eventually(lambda: _has(tables, "run:0", "completed"))


async def test_no_code_ends_without_an_outcome(url: str, tables: Tables) -> None:
    worker = quick_worker(url)

    class Mute(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    class Rare(BaseException):
        pass

    @worker.handle("raise")
    def fail(input: str) -> None:
        raise {"mute": Mute, "rare": Rare, "lease": LeaseLost, "stop": StopIteration}[input]("x")

    @worker.handle("later")
    def later(input: Any) -> Any:
        return asyncio.sleep(0, "awaited")

    await tables.put_task("run:0", raw="[" * 100_000, created_at=1)
    for number, name in enumerate(("mute", "rare", "lease", "stop"), 1):
        await tables.put_task(f"run:{number}", "raise", name)
    await tables.put_task("run:9", "later")
    async with worker:
        results = await results_of(tables, 6)
    assert results.pop("run:9")["output"] == "awaited"
    assert {result["status"] for result in results.values()} == {"failed"}
    assert results["run:0"]["error"]["retryable"] is False
    assert results["run:1"]["error"]["message"] == "Mute"
