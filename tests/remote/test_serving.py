"""A remote worker serves tasks: what it is given, what it writes, and in which words it fails."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from stepfast.errors import NonRetryableError
from stepfast.remote import FatalError, RemoteTask
from tests.remote.scene import quick_worker, result_of, results_of
from tests.remote.tables import Tables
from tests.support.engine import eventually

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

    @worker.handle("note")
    async def note(input: int) -> None:
        seen.append(input)

    async with worker:
        await results_of(tables, 5)
    assert seen == [4, 3, 2, 1, 0]


async def test_two_workers_do_each_task_once(url: str, tables: Tables) -> None:
    seen: list[int] = []
    workers = [quick_worker(url), quick_worker(url)]
    for worker in workers:

        @worker.handle("note")
        async def note(input: int) -> None:
            seen.append(input)

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
