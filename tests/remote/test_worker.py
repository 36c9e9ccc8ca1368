"""A remote worker: what it serves and writes, how it fails, stops, and is fenced."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from stepfast import Settings
from stepfast.errors import InvalidState, NonRetryableError, WorkerBroken
from stepfast.remote import FatalError, RemoteTask, SqlTransport, Task
from stepfast.remote import worker as remote_worker
from stepfast.remote.protocol import TaskOutcome
from stepfast.remote.task_store import Database, Recorded, Serving, located, open_database
from stepfast.store.mysql import transactions as mysql
from stepfast.store.postgres import transactions as postgres
from tests.remote.scene import quick_worker, result_of, results_of, slow_worker
from tests.remote.tables import Tables
from tests.support.engine import Gate, ThreadGate, eventually
from tests.support.proxy import Proxy
from tests.support.worker_context import StandingClock

VALUES = [None, False, 0, "", "Grüße 🎈 \u0000 end", [1, 2.5, "x"], {"a": {"b": None}}, "x" * 200_000, 2**60]


async def test_a_task_is_done_and_its_result_takes_its_place(url: str, tables: Tables) -> None:
    before = await tables.now()
    await tables.put_task("run-1:0", input={"n": 1})
    async with quick_worker(url):
        result = await result_of(tables, "run-1:0")
    assert await tables.tasks() == []
    assert (result["run_id"], result["seq"], result["status"]) == ("run-1", 0, "completed")
    assert (result["output"], result["error"]) == ({"n": 1}, None)
    assert before <= result["started_at"] <= result["created_at"] <= await tables.now()


async def test_values_come_back_as_they_went(url: str, tables: Tables) -> None:
    for number, value in enumerate(VALUES):
        await tables.put_task(f"run:{number}", input=value)
    async with quick_worker(url):
        results = await results_of(tables, len(VALUES))
    assert [results[f"run:{number}"]["output"] for number in range(len(VALUES))] == VALUES


async def test_an_input_that_is_sql_null_is_none(url: str, tables: Tables) -> None:
    await tables.put_task("run:0")
    await tables.fetch("UPDATE [tasks] SET input = NULL")
    async with quick_worker(url):
        assert (await result_of(tables, "run:0"))["output"] is None
    assert await tables.fetch("SELECT output FROM [results]") == [("null",)]


async def test_a_plain_function_runs_in_a_thread_and_is_told_of_its_task(url: str, tables: Tables) -> None:
    worker = quick_worker(url, group="pipe:line")
    seen: list[Any] = []

    @worker.handle("pipe:line")
    def serve(input: Any, task: RemoteTask) -> str:
        seen.append((input, task, threading.current_thread() is threading.main_thread()))
        return "done"

    await tables.put_task("run:-1", "pipe:line", 7, group="pipe-line", attempt=3)
    async with worker:
        assert (await result_of(tables, "run:-1"))["output"] == "done"
    assert seen == [(7, RemoteTask("run:-1", "run", "pipe:line", 3), False)]


async def test_inputs_are_typed_by_annotation(url: str, tables: Tables) -> None:
    worker = quick_worker(url)

    @worker.handle("sum")
    async def total(input: Order) -> Order:
        return Order(input.id, input.cents + 1)

    await tables.put_task("run:0", "sum", {"id": "o-1", "cents": 5})
    await tables.put_task("run:1", "sum", {"id": "o-1", "cents": "many"})
    async with worker:
        results = await results_of(tables, 2)
    assert results["run:0"]["output"] == {"id": "o-1", "cents": 6}
    assert results["run:1"]["error"]["retryable"] is False
    assert "cents" in results["run:1"]["error"]["message"]


@dataclass
class Order:
    id: str
    cents: int


async def test_how_errors_are_written(url: str, tables: Tables) -> None:
    worker = quick_worker(url)

    @worker.handle("plain")
    async def plain(input: Any) -> None:
        raise ValueError("it rains")

    @worker.handle("fatal")
    def fatal(input: Any) -> None:
        raise FatalError("card declined", code="declined")

    @worker.handle("final")
    async def final(input: Any) -> None:
        raise NonRetryableError("never")

    @worker.handle("gives up")
    async def gives_up(input: Any) -> None:
        raise asyncio.CancelledError

    @worker.handle("leaves")
    def leaves(input: Any) -> None:
        raise SystemExit("bye \ud800")

    for number, name in enumerate(("plain", "fatal", "final", "gives up", "leaves", "nobody")):
        await tables.put_task(f"run:{number}", name)
    async with worker:
        results = await results_of(tables, 6)
    errors = [results[f"run:{number}"]["error"] for number in range(6)]
    assert {results[f"run:{number}"]["status"] for number in range(6)} == {"failed"}
    assert errors[0].keys() == {"message", "stack"} and errors[0]["message"] == "it rains"
    assert "ValueError: it rains" in errors[0]["stack"]
    assert errors[1] == {"message": "card declined", "code": "declined", "retryable": False}
    assert errors[2] == {"message": "never", "retryable": False}
    assert errors[3]["message"] == "" and "retryable" not in errors[3]
    assert errors[4]["message"] == "bye \\ud800"
    assert errors[5] == {"message": "no handler for nobody", "retryable": False}
    assert await tables.tasks() == []


async def test_a_handler_that_cancels_its_own_task_has_failed(url: str, tables: Tables) -> None:
    """Rule 60, elsewhere: else the task would be done again when its lease is over, for ever."""
    worker = quick_worker(url)

    @worker.handle("cancels")
    async def cancels(input: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    await tables.put_task("run:0", "cancels")
    async with worker:
        result = await result_of(tables, "run:0")
        assert result["status"] == "failed"
        assert "the handler of 'cancels': its task was cancelled by its own code" in result["error"]["message"]
        await eventually(lambda: worker.running == 0)


async def test_only_the_tasks_of_its_own_group_are_taken_and_capitals_count(url: str, tables: Tables) -> None:
    await tables.put_task("run:0", group="Echo")
    await tables.put_task("run:1", group="echo@eu")
    await tables.put_task("run:2", group="echo")
    async with quick_worker(url):
        await result_of(tables, "run:2")
    assert await tables.tasks() == ["run:0", "run:1"]


async def test_the_oldest_come_first(url: str, tables: Tables) -> None:
    for number in range(5):
        await tables.put_task(f"run:{number}", "note", number, created_at=10 - number)
    worker = quick_worker(url, concurrency=1)
    seen: list[int] = []

    worker.handle("note")(seen.append)
    async with worker:
        await results_of(tables, 5)
    assert seen == [4, 3, 2, 1, 0]


async def test_two_workers_do_each_task_once(url: str, tables: Tables) -> None:
    seen: list[int] = []
    workers = [quick_worker(url), quick_worker(url)]
    for worker in workers:
        worker.handle("note")(seen.append)
    for number in range(60):
        await tables.put_task(f"run:{number}", "note", number)
    async with workers[0], workers[1]:
        await results_of(tables, 60)
    assert sorted(seen) == list(range(60))


@pytest.mark.parametrize("option", [{"batch": 0}, {"concurrency": True}, {"lease": 0}, {"poll_interval": float("inf")}])
def test_options_that_cannot_work_are_refused(option: dict[str, Any]) -> None:
    from stepfast import errors

    with pytest.raises(errors.ConfigurationError, match=next(iter(option))):
        quick_worker("postgresql://nobody@nowhere/nothing", **option)


# -- stops


async def owners(tables: Tables) -> list[tuple[Any, ...]]:
    return await tables.fetch("SELECT step_id, claimed_by, claimed_at FROM [tasks] ORDER BY step_id")


@pytest.mark.timeout(45)  # a stop that loses a task waits for ever on a clock that stands
async def test_a_worker_goes_by_the_clock_that_it_is_given(url: str, tables: Tables) -> None:
    """It has found nothing, and asks again when that clock has moved by its pause."""
    worker, clock = quick_worker(url, poll_interval=3600), StandingClock()
    worker._options = worker._options._replace(clock=clock)
    async with worker:
        await eventually(lambda: clock.pending)
        await tables.put_task("run:0", "echo")

        async def there() -> bool:
            clock.advance(600)
            return "run:0" in await tables.results()

        await eventually(there)


async def test_a_stop_waits_for_handlers_and_records_what_they_did(url: str, tables: Tables) -> None:
    gate = Gate()
    worker = slow_worker(url, gate, settings=Settings(min_poll_interval=60))  # it does not look again by itself
    await tables.put_task("run:0", "slow")
    await worker.start()
    await gate.reached()
    stop = asyncio.create_task(worker.stop())
    await tables.put_task("run:1")  # nobody takes it any more
    await asyncio.sleep(0)
    gate.open()
    await stop
    assert (await tables.results())["run:0"]["output"] == "done"
    assert await owners(tables) == [("run:1", None, None)]


async def test_what_is_not_done_when_the_grace_is_over_goes_back_at_once(url: str, tables: Tables) -> None:
    gate = Gate()
    await tables.put_task("run:0", "slow")
    async with slow_worker(url, gate, shutdown_grace=0.05):
        await gate.reached()
    assert await owners(tables) == [("run:0", None, None)]
    assert await tables.results() == {}


async def test_a_plain_function_that_does_not_return_is_left_behind(url: str, tables: Tables) -> None:
    gate = ThreadGate()
    worker = quick_worker(url, shutdown_grace=0.05)

    @worker.handle("slow")
    def slow(input: Any) -> None:
        gate.passing()

    await tables.put_task("run:0", "slow")
    async with worker:
        await gate.reached()
    gate.open()
    assert await owners(tables) == [("run:0", None, None)]


async def test_a_worker_that_is_hurried_waits_no_longer(url: str, tables: Tables) -> None:
    gate = Gate()
    worker = slow_worker(url, gate, shutdown_grace=60)
    await tables.put_task("run:0", "slow")
    await worker.start()
    await gate.reached()
    stop = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    worker.hurry()
    await asyncio.wait_for(stop, 20)
    assert await owners(tables) == [("run:0", None, None)]


async def test_a_run_that_is_cancelled_ends_as_cancelled_and_leaves_nothing_behind(url: str, tables: Tables) -> None:
    gate = Gate()
    worker = slow_worker(url, gate, shutdown_grace=0.05)
    await tables.put_task("run:0", "slow")
    run = asyncio.create_task(worker.run())
    await gate.reached()
    for _ in range(3):
        run.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, 20)
    assert await owners(tables) == [("run:0", None, None)]
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("stepfast-remote")]


@pytest.mark.parametrize("moment", range(0, 45, 9))
async def test_a_start_can_be_cancelled_at_any_moment(url: str, tables: Tables, moment: int) -> None:
    worker = quick_worker(url, shutdown_grace=0.05)
    start = asyncio.create_task(worker.start())
    for _ in range(moment):
        await asyncio.sleep(0)
    start.cancel()
    try:
        await asyncio.wait_for(start, 20)
    except asyncio.CancelledError:
        pass
    await worker.stop()
    await tables.put_task("run:0")
    async with worker:
        await result_of(tables, "run:0")


async def test_a_worker_can_work_again_and_not_twice_at_once(url: str, tables: Tables) -> None:
    worker = quick_worker(url)
    for number in range(2):
        await tables.put_task(f"run:{number}")
        async with worker:
            await result_of(tables, f"run:{number}")
            with pytest.raises(InvalidState):
                await worker.start()
    await worker.stop()


async def test_a_worker_whose_duty_broke_says_so(url: str, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Serving, "claim", broken)
    said = "worker of group 'echo' broke and gave its tasks back, because claiming ended with ZeroDivisionError"
    with pytest.raises(WorkerBroken, match=said) as caught:
        await asyncio.wait_for(quick_worker(url).run(), 20)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_a_task_that_came_with_a_claim_under_way_is_given_back(
    url: str, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is told to stop while its claim is being answered."""
    gate, claim = Gate(), Serving.claim

    async def late(self: Serving, most: int) -> Any:
        tasks = await claim(self, most)
        if tasks:
            await gate.passing()
        return tasks

    monkeypatch.setattr(Serving, "claim", late)
    worker = quick_worker(url, shutdown_grace=0.05)
    hold = asyncio.Event()

    @worker.handle("hold")
    async def never(input: Any) -> None:
        await hold.wait()

    await tables.put_task("run:0", "hold")
    await worker.start()
    await gate.reached()
    stop = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    gate.open()
    await stop
    assert await owners(tables) == [("run:0", None, None)]
    assert worker.running == 0
    await eventually(lambda: worker.running == 0)


# -- calls that are cancelled


TASKS = [Task(f"run:{n}", "run", n, "echo", "echo", None, 2) for n in range(3)]


async def test_a_call_can_be_cancelled_at_any_moment(transport: SqlTransport, tables: Tables) -> None:
    """More often than there are connections: one that stayed behind would be missed. A call that was asked to end says
    so, also if the server's answer came at the same moment."""
    cancelled = 0
    for moment in range(240):
        call = asyncio.create_task(transport.dispatch(TASKS))
        for _ in range(moment):
            await asyncio.sleep(0)
        asked = call.cancel()
        await asyncio.wait((call,), timeout=20)
        assert call.cancelled() == asked, f"at moment {moment}"
        cancelled += asked
    assert cancelled
    await asyncio.wait_for(transport.dispatch(TASKS), 20)
    assert await transport.lost([task.step_id for task in TASKS]) == []


def proxy_of(url: str, tables: Tables) -> Proxy:
    host, _, port = url.rpartition("@")[2].partition("/")[0].partition(":")
    return Proxy(host, int(port), protocol="raw" if tables.is_mysql else "postgres")


async def test_a_stop_is_bounded_while_the_network_is_silent(
    url: str, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_CLAIM_ENDS", "_LAST_RESULTS", "_GIVE_BACK"):
        monkeypatch.setattr(remote_worker, name, 0.2)
    for one in (mysql, postgres):
        monkeypatch.setattr(one, "PATIENCE", 0.2)
    gate = Gate()
    async with proxy_of(url, tables) as proxy:
        worker = slow_worker(proxy.url(url), gate, shutdown_grace=0.1)
        await tables.put_task("run:0", "slow")
        await worker.start()
        await gate.reached()
        proxy.stall()
        await asyncio.wait_for(worker.stop(), 20)
        proxy.resume()
    assert await tables.tasks() == ["run:0"]
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("stepfast-remote")]


@pytest.mark.thorough
async def test_a_worker_behind_pgbouncer(postgres_url: str) -> None:
    from tests.support.pgbouncer import pgbouncer

    with pgbouncer(postgres_url) as url:
        async with quick_worker(url, settings=Settings(lease=5)):
            tables = await Tables(postgres_url).open()
            for number in range(30):
                await tables.put_task(f"run:{number}")
            for number in range(30):
                await result_of(tables, f"run:{number}")
            await tables.close()


# -- the fence


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
    await late.give_back_unknown([])
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
