"""Threads for blocking code: quick calls share few of them, and calls that block never hold each other up."""

from __future__ import annotations

import asyncio
import gc
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from contextvars import ContextVar, copy_context

import pytest

from stepfast.worker.threads import Threads

PATIENCE = 20.0


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads("test")
    yield made
    made.close()


async def test_quick_calls_share_few_threads(threads: Threads) -> None:
    done = [threads.submit(threading.get_ident) for _ in range(300)]
    used = set(await asyncio.wait_for(asyncio.gather(*done), PATIENCE))
    assert threading.get_ident() not in used
    assert len(used) < 30


async def test_calls_that_wait_for_each_other_all_get_a_thread(threads: Threads) -> None:
    """None of them would end if one had to wait for another's thread."""
    meeting = threading.Barrier(40)
    done = [threads.submit(lambda: meeting.wait(PATIENCE)) for _ in range(40)]
    await asyncio.wait_for(asyncio.gather(*done), PATIENCE)


async def test_calls_that_come_while_one_blocks_are_done(threads: Threads) -> None:
    gate = threading.Event()
    blocked = threads.submit(lambda: gate.wait(PATIENCE))
    for number in range(20):
        assert await asyncio.wait_for(threads.submit(lambda: number), PATIENCE) == number  # noqa: B023
    assert not blocked.done()
    gate.set()
    assert await asyncio.wait_for(blocked, PATIENCE)


async def test_blocking_calls_go_on_side_by_side(threads: Threads) -> None:
    """Also those that come one by one after others were seen to block: never more at once than were asked for."""
    running, most, lock, meeting = 0, 0, threading.Lock(), threading.Barrier(10)

    def busy() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meeting.wait(PATIENCE)  # what blocking code does
        with lock:
            running -= 1

    for _ in range(3):
        await asyncio.wait_for(asyncio.gather(*(threads.submit(busy) for _ in range(10))), PATIENCE)
    assert most == 10


def test_a_line_stands_still_if_looks_that_come_in_time_find_it_so(threads: Threads) -> None:
    threads._awake, threads._counted_since, threads._moved_at = 1, 10.0, 10.0
    assert not threads._stands_still(10.002), "once may be chance"
    threads._counted_since = 10.002
    assert threads._stands_still(10.004)
    threads._counted_since, threads._taken = 10.004, 1000
    assert not threads._stands_still(10.006), "it has moved"


def test_looks_that_come_late_say_little_on_a_busy_machine(threads: Threads) -> None:
    """The thread may have been kept from working by what kept the loop from looking; but not for ever."""
    threads._awake, threads._moved_at = 1, 10.0
    for late in (10.005, 10.01, 10.015, 10.02):
        threads._counted_since = late - 0.005
        assert not threads._stands_still(late)
    threads._counted_since = 10.02
    assert not threads._stands_still(10.03)
    threads._counted_since = 10.03
    assert threads._stands_still(10.04)


def test_quick_calls_end_what_slow_ones_prolong(threads: Threads) -> None:
    """Each call has a thread of its own for as long as some of them block."""
    threads._wide_until = time.monotonic() + 0.1
    threads._notice(0.01)
    assert threads._wide_until > time.monotonic() + 0.5
    for _ in range(63):
        threads._notice(0.0)
    assert threads._wide_until
    threads._notice(0.0)
    assert not threads._wide_until


async def test_errors_come_back(threads: Threads) -> None:
    def fails() -> None:
        raise ValueError("no")

    def stops() -> None:
        raise StopIteration

    with pytest.raises(ValueError, match="no"):
        await threads.submit(fails)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.submit(stops)


async def test_a_call_that_nobody_waits_for_any_more_ends_in_silence(threads: Threads) -> None:
    gate = threading.Event()
    given_up = threads.submit(lambda: gate.wait(PATIENCE))
    given_up.cancel()
    gate.set()
    assert await asyncio.wait_for(threads.submit(lambda: 1), PATIENCE) == 1


def test_a_loop_that_closes_first_does_no_harm() -> None:
    threads, gate, left = Threads("test"), threading.Event(), threading.Event()

    def late() -> None:
        gate.wait(PATIENCE)
        left.set()

    async def leave() -> None:
        threads.submit(late)

    asyncio.run(leave())
    gate.set()
    assert left.wait(PATIENCE)
    threads.close()


async def test_a_thread_that_is_busy_when_its_pool_closes_goes_when_it_is_done() -> None:
    threads, gate, begun = Threads("test"), threading.Event(), asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def busy() -> threading.Thread:
        loop.call_soon_threadsafe(begun.set_result, None)
        gate.wait(PATIENCE)
        return threading.current_thread()

    working = threads.submit(busy)
    await asyncio.wait_for(begun, PATIENCE)
    threads.close()
    gate.set()
    thread = await asyncio.wait_for(working, PATIENCE)
    thread.join(5)  # an idle one would wait for twice as long
    assert not thread.is_alive()


class LateBell(queue.SimpleQueue[bool]):
    """A bell that is rung in the very moment in which an idle thread has waited long enough."""

    def __init__(self) -> None:
        super().__init__()
        self.late = 1

    def get(self, block: bool = True, timeout: float | None = None) -> bool:
        if timeout is not None and self.late:
            self.late -= 1
            while self.empty():
                time.sleep(0.0005)
            raise queue.Empty
        return super().get(block, timeout)


async def test_a_thread_that_is_woken_when_its_patience_ends_is_woken_once(threads: Threads) -> None:
    """What was left of the ring woke it again, and from then on all calls stayed in the backlog for ever."""
    threads._bell = LateBell()
    for n in range(20):
        async with asyncio.timeout(20):
            assert await threads.submit(lambda n=n: n) == n  # type: ignore[misc]
        while threads._awake > 0:  # it is idle again
            await asyncio.sleep(0)
        assert (threads._awake, threads._idle) == (0, 1)


async def test_calls_are_done_however_soon_idle_threads_leave(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.worker.threads._KEEP_IDLE", 0.001)
    async with asyncio.timeout(60):
        for n in range(300):
            assert await threads.submit(lambda n=n: n) == n  # type: ignore[misc]
            await asyncio.sleep(0.001)
    assert threads._awake in (0, 1)


async def test_a_look_at_the_backlog_keeps_nothing_of_the_run_that_caused_it() -> None:
    class Ours:
        """What a run has in its context."""

    mine: ContextVar[Ours] = ContextVar("mine")
    threads, go_on = Threads("test"), threading.Event()
    context, ours = copy_context(), Ours()
    context.run(mine.set, ours)
    gone = weakref.ref(ours)
    waiting = [context.run(threads.submit, go_on.wait) for _ in range(3)]
    assert threads._watching is not None
    threads.close()
    go_on.set()
    async with asyncio.timeout(PATIENCE):
        assert [await one for one in waiting] == [True, True, True]
    del context, ours
    gc.collect()
    assert gone() is None
