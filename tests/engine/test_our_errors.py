"""Errors of this library, and those that end processes, raised by the code of a run: they are its own errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stepfast import (
    Context,
    DatabaseRefused,
    DatabaseUnavailable,
    LeaseLost,
    RunFailed,
    SchemaError,
    StepFailed,
    Stepfast,
    SyncContext,
)
from stepfast.settings import Settings
from tests.support.engine import PATIENCE, Calls, failure, worked
from tests.support.workflows import calling, task

pytestmark = pytest.mark.enough_on("sqlite")

QUICK = Settings(backoff_base=0.001, poll_interval=0.05)
RAISED: list[BaseException] = [
    DatabaseUnavailable("of another application"),
    DatabaseRefused("of another application"),
    SchemaError("of another application"),
    LeaseLost("made by the code"),
    StepFailed("made", error_type="X", message="by the code"),
    KeyboardInterrupt("typed by nobody"),
    SystemExit(3),
]
raised = pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)


async def fails(app: Stepfast, workflow: Any) -> RunFailed:
    """The error a run ends with; and the worker works on."""
    after = task(app, "after", returns="alive")
    run = await app.start(workflow)
    async with app.worker() as worker:
        caught = await failure(run)
        assert await (await app.start(after)).result(timeout=PATIENCE) == "alive"
        assert not worker.broken.is_set()
    assert "engine" not in str(caught)
    return caught


@pytest.fixture
async def app() -> AsyncIterator[Stepfast]:
    async with Stepfast("sqlite://", settings=QUICK) as app:
        yield app


@raised
@pytest.mark.parametrize("kind", ["async", "thread", "bounded"])
async def test_in_a_step(app: Stepfast, error: BaseException, kind: str) -> None:
    calls = Calls()

    async def in_loop() -> None:
        calls.hit("step")
        raise error

    def in_thread() -> None:
        calls.hit("step")
        raise error

    @app.workflow(max_attempts=1)
    async def work(ctx: Context) -> None:
        timeout = 10 if kind == "bounded" else None
        await ctx.options(name="step", retries=1, timeout=timeout).step(in_thread if kind == "thread" else in_loop)

    failed = await fails(app, work)
    assert calls["step"] == 2
    assert "step 'step' failed" in str(failed)


@raised
async def test_in_a_transaction(error: BaseException, url: str) -> None:
    calls, app = Calls(), Stepfast(url, settings=QUICK)

    def write(_connection: Any) -> None:
        calls.hit("write")
        raise error

    async def write_async(connection: Any) -> None:
        await (connection if hasattr(connection, "execute") else connection.cursor()).execute("SELECT 1")
        write(connection)

    work = calling(
        app,
        lambda ctx: ctx.options(name="write", retries=1).transaction(write if "sqlite" in url else write_async),
        name="work",
        max_attempts=1,
    )
    async with app:
        failed = await fails(app, work)
    assert calls["write"] == 2
    assert "step 'write' failed" in str(failed) or "transaction 'write' failed" in str(failed)


@raised
async def test_in_the_body_of_a_workflow(app: Stepfast, error: BaseException) -> None:
    calls = Calls()

    @app.workflow(max_attempts=2)
    async def work(ctx: Context) -> None:
        await ctx.step("before", lambda: calls.hit("before"))
        calls.hit("body")
        raise error

    await fails(app, work)
    assert calls == {"before": 1, "body": 2}


@raised
async def test_in_a_later_check(app: Stepfast, error: BaseException) -> None:
    calls = Calls()

    async def ready() -> bool:
        number = calls.hit("ready")
        if number == 2:
            raise error
        return number > 2

    work = calling(app, lambda ctx: ctx.options(retries=1).wait_until(ready, every=0.001), name="work", max_attempts=1)
    assert await worked(app, await app.start(work)) is True
    assert calls["ready"] == 3


@pytest.mark.parametrize("error", [*RAISED, BaseException("odd")], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_what_was_done_before_is_undone(app: Stepfast, error: BaseException, kind: str) -> None:
    undone: list[int] = []

    @app.workflow(max_attempts=1, name="async")
    async def in_loop(ctx: Context) -> None:
        await ctx.options(compensate=undone.append).step("charge", lambda: 1)
        raise error

    @app.workflow(max_attempts=1, name="plain")
    def in_thread(ctx: SyncContext) -> None:
        ctx.options(compensate=undone.append).step("charge", lambda: 1)
        raise error

    await fails(app, in_loop if kind == "async" else in_thread)
    assert undone == [1]


@raised
@pytest.mark.parametrize("way", ["branch", "map", "gather", "first"])
async def test_in_a_branch(app: Stepfast, error: BaseException, way: str) -> None:
    async def branch(ctx: Context, *_: Any) -> None:
        await ctx.step("in it", lambda: 1)
        raise error

    @app.workflow(max_attempts=1)
    async def work(ctx: Context) -> None:
        if way == "branch":
            await ctx.branch(branch)
        elif way == "map":
            await ctx.map(branch, [1, 2])
        elif way == "gather":
            await ctx.gather(ctx.branch(branch), ctx.step("other", lambda: 2))
        else:
            await ctx.first(one=ctx.branch(branch), late=ctx.sleep(60))

    await fails(app, work)


@raised
async def test_in_a_plain_workflow(app: Stepfast, error: BaseException) -> None:
    calls = Calls()

    async def in_loop() -> None:
        calls.hit("loop")
        raise error

    def in_thread() -> None:
        calls.hit("thread")
        raise error

    @app.workflow(max_attempts=1)
    def work(ctx: SyncContext) -> None:
        for step in (in_loop, in_thread):
            try:
                ctx.step(step)
            except StepFailed:
                calls.hit("caught")
        raise error

    await fails(app, work)
    assert calls == {"loop": 1, "thread": 1, "caught": 2}


async def test_a_made_error_beside_a_real_one(app: Stepfast) -> None:
    calls = Calls()

    async def flaky() -> int:
        if calls.hit("flaky") == 1:
            raise ValueError("once")
        return 1

    @app.workflow(max_attempts=2)
    async def work(ctx: Context) -> int:
        try:
            return await ctx.step(flaky)
        except StepFailed as error:
            raise StepFailed("mine", error_type="X", message="made") from error

    assert await worked(app, await app.start(work)) == 1
    assert calls["flaky"] == 2
    await asyncio.sleep(0)
