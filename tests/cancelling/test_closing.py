"""Nobody waits for an application that was closed, in whatever thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from stepfast import AppClosed, Context, Settings, Stepfast
from tests.support.engine import PATIENCE, Gate, eventually, failure
from tests.support.workflows import task


@pytest.fixture
def app(url: str) -> Stepfast:
    app = Stepfast(url)

    @app.workflow
    async def wait(ctx: Context, _: None) -> None:
        await ctx.wait_signal("go")

    return app


async def test_waiting_for_a_result_ends_when_the_application_is_closed(app: Stepfast) -> None:
    run = await app.start("wait")
    here, there = asyncio.ensure_future(run.result()), asyncio.ensure_future(app.get(run.id).result())
    watcher = (await app._connect()).watcher
    await eventually(lambda: len(watcher._waiting.get(run.id, ())) == 2)
    await app.close()
    for waiting in (here, there):
        with pytest.raises(AppClosed, match=run.id):
            await asyncio.wait_for(waiting, PATIENCE)
    assert await run.status() == "queued", "used again, it connects anew"
    await app.close()


async def test_waiting_for_a_result_ends_with_whatever_ended_the_watcher(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_ids: object) -> list[object]:
        raise RuntimeError("out of order")

    async with app:
        run = await app.start("wait")
        with monkeypatch.context() as patch:
            patch.setattr(await app.store(), "outcomes", broken)
            with pytest.raises(RuntimeError, match="out of order"):
                await asyncio.wait_for(run.result(), PATIENCE)
        with pytest.raises(TimeoutError):
            await run.result(timeout=0.05)


def test_closing_tells_the_threads_that_wait(app: Stepfast) -> None:
    run = app.sync.start("wait")
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(run.result, timeout) for timeout in (None, 600, None)]
        while len(app.sync._calls) < len(waiting):
            pass
        app.sync.close()
        for result in waiting:
            assert isinstance(result.exception(PATIENCE), AppClosed)
    assert run.id in {info.id for info in app.sync.runs()}, "used again, it connects anew"
    app.sync.close()


def test_the_first_use_from_many_threads_makes_one_thread(app: Stepfast) -> None:
    together = threading.Barrier(8)

    def first_use() -> object:
        together.wait(PATIENCE)
        return app.sync

    with ThreadPoolExecutor(8) as pool:
        made = {id(use.result()) for use in [pool.submit(first_use) for _ in range(8)]}
    assert len(made) == 1
    app.sync.close()


FORK = """
import os, sys
from stepfast import Stepfast, ConfigurationError
app = Stepfast(sys.argv[1])
@app.task(name="wait")
def wait(): ...
run = app.sync.start("wait")
child = os.fork()
if child == 0:
    try:
        ok = run.status() == "queued" and app.sync.runs()
        app.sync.close()
    except ConfigurationError as error:
        ok = "forked" in str(error) and app.url.kind == "sqlite"
    os._exit(0 if ok else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert run.status() == "queued"
app.sync.close()
sys.exit(status)
"""


def test_the_child_of_a_fork_connects_anew_or_says_why_it_cannot(url: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORK, url], timeout=PATIENCE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


async def test_a_watcher_that_had_nobody_to_watch_for_leaves_those_alone_who_came_since() -> None:
    """Its end is told a turn later; by then others may wait, for whom another watches."""
    async with Stepfast("sqlite://") as app:
        quick = task(app, "quick", returns=1)
        async with app.worker():
            assert await (await app.start(quick)).result(timeout=PATIENCE) == 1
            watcher = (await app._connect()).watcher
            old = watcher._task
            assert old is not None
            watcher._look.set()
            await asyncio.wait((old,), timeout=PATIENCE)
            waiting = asyncio.ensure_future(watcher.wait(str(uuid4()), PATIENCE))
            await asyncio.sleep(0)
            watcher._stopped(old)
            assert await (await app.start(quick)).result(timeout=PATIENCE) == 1
            assert not waiting.done()
            waiting.cancel()


async def test_a_start_whose_sender_had_not_begun_is_told_that_the_application_is_closed(app: Stepfast) -> None:
    await app.start("wait")
    starting = asyncio.ensure_future(app.start("wait"))
    starter = (await app._connect()).starter
    while not any(starter._queues.values()):
        await asyncio.sleep(0)  # each turn of the loop is looked at, so that the sender has not begun
    for sending in starter.drop():
        sending.cancel()
    done, _ = await asyncio.wait((starting,), timeout=PATIENCE)
    assert done
    assert isinstance(starting.exception(), AppClosed)
    await app.close()


async def test_a_worker_that_has_not_left_is_stopped_first(url: str) -> None:
    """Its runs go back at once, and nothing is broken."""
    app, other, gate = Stepfast(url, settings=Settings(shutdown_grace=0)), Stepfast(url), Gate()

    async def job(_: None) -> None:
        await gate.passing()

    for each in (app, other):
        each.task(name="job")(job)
    async with app.worker() as worker:
        run = await app.start("job")
        await gate.reached()
        await app.close()
        assert not worker.at_work
    async with other:
        info = await other.get(run.id).info()
        assert (info.status, info.ready, info.attempt, info.losses) == ("queued", True, 1, 0)
        assert await (await other.store()).workers() == []


async def test_work_ends_with_the_application(url: str) -> None:
    app = Stepfast(url)
    working = asyncio.create_task(app.work())
    await eventually(lambda: app._connections.open)
    await eventually((await app.store()).workers)
    await app.close()
    await asyncio.wait_for(working, PATIENCE)


async def test_a_run_cannot_close_the_application_that_executes_it(url: str) -> None:
    """It would wait for its own end until its worker has no more patience."""
    app = Stepfast(url)

    @app.task(max_attempts=1)
    async def bye() -> None:
        await app.close()

    async with app, app.worker():
        failed = await failure((await app.start(bye)), "ContextMisuse")
    assert "would wait for itself" in str(failed)
