"""Promises: what tasks wait for that are woken many at a time."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from stepfast.engine.host import Promise, wake_all

here: ContextVar[str] = ContextVar("here")


def promises(count: int) -> list[Promise[int]]:
    loop = asyncio.get_running_loop()
    return [Promise(loop) for _ in range(count)]


def keep(kept: list[Promise[int]]) -> None:
    loop = asyncio.get_running_loop()
    for value, promise in enumerate(kept):
        promise.keep(value)
    loop.call_soon(wake_all, loop, iter(kept))


async def test_all_who_wait_go_on_in_one_turn_and_in_order() -> None:
    made, order = promises(3), list[int]()

    async def wait(promise: Promise[int]) -> None:
        order.append(await promise)

    tasks = [asyncio.create_task(wait(promise)) for promise in reversed(made)]
    await asyncio.sleep(0)
    keep(made)
    await asyncio.sleep(0)
    assert order == [0, 1, 2]
    await asyncio.gather(*tasks)


async def test_each_goes_on_in_its_own_context() -> None:
    made, seen = promises(2), list[str]()

    async def wait(promise: Promise[int], name: str) -> None:
        here.set(name)
        await promise
        seen.append(here.get())

    tasks = [asyncio.create_task(wait(promise, name)) for promise, name in zip(made, "ab", strict=True)]
    await asyncio.sleep(0)
    keep(made)
    await asyncio.gather(*tasks)
    assert seen == ["a", "b"]


async def test_what_was_kept_before_is_not_waited_for() -> None:
    (promise,) = promises(1)
    promise.keep(5)
    assert await promise == 5
    told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    promise.add_done_callback(lambda kept: told.set_result(kept.result()))
    assert await told == 5


async def test_an_error_is_raised_where_it_is_waited_for() -> None:
    (promise,) = promises(1)
    asyncio.get_running_loop().call_soon(promise.fail, ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await promise
    assert isinstance(promise.exception(), ValueError)


async def test_a_cancelled_task_gives_its_promise_up() -> None:
    (promise,) = promises(1)

    async def wait() -> int:
        return await promise

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert promise.cancelled()
    promise.keep(5)
    assert promise.cancelled()


async def test_everybody_who_asks_is_told() -> None:
    (promise,) = promises(1)
    told: list[int] = []

    def first(kept: Promise[int]) -> None:
        told.append(1)

    def second(kept: Promise[int]) -> None:
        told.append(2)

    def third(kept: Promise[int]) -> None:
        told.append(3)

    for function in (first, second, third):
        promise.add_done_callback(function)
    assert promise.remove_done_callback(second) == 1
    keep([promise])
    await asyncio.sleep(0.01)
    assert told == [1, 3]


async def test_who_still_waits_is_told_of_a_failure_though_the_first_has_gone() -> None:
    promise, told = Promise[int](asyncio.get_running_loop()), list[object]()
    promise.add_done_callback(print)
    promise.add_done_callback(told.append)
    assert promise.remove_done_callback(print) == 1
    promise.fail(ValueError("no"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert told == [promise]


async def test_a_wait_with_a_limit_takes_it_for_a_future() -> None:
    kept, other = promises(2)
    asyncio.get_running_loop().call_soon(keep, [kept])
    done, pending = await asyncio.wait({kept, other}, return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
    assert done == {kept}
    assert pending == {other}


def test_who_ends_the_event_loop_leaves_the_others_to_be_woken() -> None:
    loop, order = asyncio.new_event_loop(), list[int]()
    made: list[Promise[int]] = [Promise(loop) for _ in range(3)]
    tasks: list[asyncio.Task[None]] = []

    async def wait(promise: Promise[int]) -> None:
        order.append(await promise)
        if order == [0]:
            raise SystemExit

    async def begin() -> None:
        tasks.extend(asyncio.create_task(wait(promise)) for promise in made)
        await asyncio.sleep(0)
        keep(made)
        await asyncio.sleep(10)

    try:
        with pytest.raises(SystemExit):
            loop.run_until_complete(begin())
        loop.run_until_complete(asyncio.wait(tasks))
        assert order == [0, 1, 2]
        assert isinstance(tasks[0].exception(), SystemExit)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
