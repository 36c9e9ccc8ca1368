"""A remote worker stops in good order, whoever stops it and how: what is done is recorded, the rest is given back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import Settings
from stepfast.errors import InvalidState, WorkerBroken
from stepfast.remote import RemoteWorker
from stepfast.remote.task_store import Serving
from tests.remote.scene import quick_worker, result_of
from tests.remote.tables import Tables
from tests.support.engine import Gate, ThreadGate, eventually
from tests.support.worker_context import StandingClock


async def owners(tables: Tables) -> list[tuple[Any, ...]]:
    return await tables.fetch("SELECT step_id, claimed_by, claimed_at FROM [tasks] ORDER BY step_id")


def slow_worker(url: str, gate: Gate, **options: Any) -> RemoteWorker:
    worker = quick_worker(url, **options)

    @worker.handle("slow")
    async def slow(input: Any) -> str:
        await gate.passing()
        return "done"

    return worker


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
