"""Cancelling a call at an exact moment: when it waits for the n-th time, or when the n-th message passes the proxy."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest

from stepfast import Context, DagContext, DatabaseUnavailable, InvalidState, Run, RunInfo, Settings, Stepfast
from stepfast.model.status import TERMINAL
from stepfast.worker import worker
from tests.support.engine import PATIENCE, eventually
from tests.support.proxy import Proxy

SOON = 9.0
"""Seconds within which a call that was cancelled is over. What the driver would wait for takes ten and more."""
BOUNDS = {"_GIVE_BACK": 0.5, "_SIGN_OFF": 0.5, "_CLOSE": 0.5}
"""Seconds for which a worker that leaves waits for a silent database. Usually it takes more time; but here it leaves a
hundred times."""
SETTINGS = Settings(
    lease=2, heartbeat=0.4, sweep_interval=0.2, poll_interval=0.2, shutdown_grace=0.1, outage_backoff_max=0.2
)

WAITS, MESSAGES = "waits", "messages"
"""What is counted until the moment comes."""
NOTHING, CUT, SILENCE = "nothing", "cut", "silence"
"""What happens to the network at that moment."""


@dataclass(frozen=True)
class Moment:
    """When a call is cancelled, how often, and what happens to the network then."""

    counted: str
    number: int
    fault: str = NOTHING
    times: int = 1


@dataclass
class Scene:
    """A database, perhaps behind a proxy, and an application on it."""

    url: str
    proxy: Proxy | None
    app: Stepfast = field(init=False)
    made: int = 0

    def __post_init__(self) -> None:
        self.app = self.new_app()

    def new_app(self) -> Stepfast:
        app = Stepfast(self.url if self.proxy is None else self.proxy.url(self.url), settings=SETTINGS)

        @app.workflow(name="wait")
        async def wait(ctx: Context, _: None) -> None:
            await ctx.wait_signal("go")

        @app.task(name="quick")
        async def quick(_: None) -> None: ...

        graph = app.dag("graph")
        graph.approval("ok")

        @graph.step(after=["ok"])
        async def then(ctx: DagContext) -> None: ...

        return app

    def name(self) -> str:
        """One that was not used before."""
        self.made += 1
        return f"n{self.made}"

    def strike(self, fault: str) -> None:
        if self.proxy is not None and fault == CUT:
            self.proxy.cut()
        elif self.proxy is not None and fault == SILENCE:
            self.proxy.stall()

    def calm(self) -> None:
        if self.proxy is not None:
            self.proxy.passing = None
            self.proxy.resume()


@asynccontextmanager
async def scene_on(url: str) -> AsyncIterator[Scene]:
    """On Postgres behind a proxy. Afterwards nothing may be left: no connection, thread, task or worker."""
    threads, tasks = _threads(), asyncio.all_tasks()
    async with AsyncExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, seconds in BOUNDS.items():
            patch.setattr(worker, name, seconds)
        proxy = None
        if url.startswith("postgres"):
            host, port = url.rpartition("@")[2].partition("/")[0].split(":")
            proxy = await stack.enter_async_context(Proxy(host, int(port)))
            tasks = asyncio.all_tasks()
        scene = Scene(url, proxy)
        yield scene
        scene.calm()
        await everything_ends(scene)
        await scene.app.close()
        await eventually(lambda: _threads() <= threads)
        await eventually(lambda: not [t for t in asyncio.all_tasks() - tasks if "Proxy" not in repr(t.get_coro())])
        if proxy is not None:
            await _disconnected(url)


async def trial(scene: Scene, call: Callable[[], Coroutine[Any, Any, Any]], moment: Moment) -> bool:
    """Make the call, and cancel it at that moment; False if it was over before. A refusal is an end like any other."""
    came = asyncio.Event()
    asked: list[bool] = []

    def now() -> None:
        came.set()
        scene.strike(moment.fault)
        _cancel(task, moment.times, asked)

    task = asyncio.create_task(_Counted(call(), moment.number if moment.counted == WAITS else 0, now).run())
    if moment.counted == MESSAGES:
        assert scene.proxy is not None
        scene.proxy.passing = _after(moment.number, lambda: None if task.done() else now())
    try:
        await _either(task, came)
        await asyncio.wait({task}, timeout=SOON)
        assert task.done(), f"it goes on: {task}"
        if not any(asked):
            task.exception()
            return False
        assert task.cancelled(), f"it ended otherwise: {task}"
        return True
    finally:
        task.cancel()
        scene.calm()


async def _either(task: asyncio.Task[Any], came: asyncio.Event) -> None:
    """Until it is over, or is cancelled."""
    coming = asyncio.create_task(came.wait())
    try:
        await asyncio.wait({task, coming}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    finally:
        coming.cancel()


def _cancel(task: asyncio.Task[Any], times: int, asked: list[bool]) -> None:
    """At the next turn of the loop, and again while it unwinds. Whether it could still be asked is noted: its last
    message may have come in the turn before, and then it is over."""

    def cancel() -> None:
        asked.append(task.cancel())
        if times > 1:
            _cancel(task, times - 1, asked)

    asyncio.get_running_loop().call_soon(cancel)


def _after(number: int, act: Callable[[], None]) -> Callable[[], None]:
    left = number

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            act()

    return count


class _Counted:
    """Drives a coroutine, and acts when it waits for the n-th time."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], number: int, act: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._waits = _after(number, act)

    async def run(self) -> Any:
        return await self

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Callable[[Any], Any] = self._coroutine.send
        value: Any = None
        while True:
            try:
                waits_for = resume(value)
            except StopIteration as end:
                return end.value
            self._waits()
            try:
                value, resume = (yield waits_for), self._coroutine.send
            except BaseException as error:
                value, resume = error, self._coroutine.throw


SERVICES = frozenset({"stepfast-results", "stepfast-streams", "stepfast-answers", "stepfast-listen", "stepfast-notify"})
"""Tasks of an application that is in use, one of each."""


async def no_task_left(before: set[asyncio.Task[Any]], after: str) -> None:
    """Nothing is under way any more but what was before, and what an application does for all its callers."""

    def left() -> list[asyncio.Task[Any]]:
        known = {task.get_name() for task in before}
        return [
            task
            for task in asyncio.all_tasks() - before - {asyncio.current_task()}
            if task.get_name() not in SERVICES | known and "Proxy" not in repr(task.get_coro())
        ]

    until = time.monotonic() + PATIENCE
    while found := left():
        assert time.monotonic() < until, f"when {after}, these were left: {found}"
        await asyncio.sleep(0.002)


# -- what must be so afterwards ----------------------------------------------------------------------------------


async def patiently(call: Callable[[], Awaitable[Any]]) -> Any:
    """The answer of an application some of whose connections may have been cut."""
    for _ in range(20):
        try:
            return await call()
        except DatabaseUnavailable:
            await asyncio.sleep(0.02)
    return await call()


async def everything_ends(scene: Scene) -> None:
    """Every run that was started comes to its end, as soon as somebody works and it is told to go on. No worker is
    left."""
    app = scene.app
    async with app.worker():
        fewest, until = sys.maxsize, 0.0
        while left := await patiently(lambda: _told_to_go_on(app)):
            if len(left) < fewest:  # thousands take their time: what counts is that they become fewer
                fewest, until = len(left), time.monotonic() + PATIENCE
            assert time.monotonic() < until, f"these do not end: {left}"
    store = await app.store()

    async def nobody() -> bool:
        await store.reap("00000000-0000-7000-8000-000000000000", 1000, 5)
        return not await store.workers()

    await eventually(lambda: patiently(nobody))


async def _told_to_go_on(app: Stepfast) -> list[RunInfo]:
    """The runs that have not ended."""
    open_runs = [info for info in await app.runs(limit=10_000) if info.status not in TERMINAL]
    for info in open_runs:
        run: Run[Any] = app.get(info.id)
        name = "ok" if info.workflow == "graph" else "go"
        for wish in (run.resume, lambda run=run, name=name: run.signal(name, True)):
            try:
                await wish()
            except InvalidState:
                pass  # it is not held; or it has ended meanwhile
    return open_runs


async def _disconnected(url: str) -> None:
    """The server knows of no connection but the one that asks."""
    watch = await asyncpg.connect(url)
    sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

    async def alone() -> bool:
        return bool(await watch.fetchval(sql) == 0)

    try:
        await eventually(alone)
    finally:
        await watch.close()


def _threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("stepfast")}
