"""SIGKILL of the engine and of workers, at every place where a message and a record could part."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from typing import Any

import pytest

from stepfast import Context, Stepfast
from stepfast.remote import RemoteTask
from tests.sqs.conftest import QUICK, Scene
from tests.support.engine import eventually

COUNT = 12


async def killed(*arguments: str) -> None:
    """Run a program until it has killed itself."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.sqs.crashing", *arguments)
    try:
        assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def shop_of(app: Stepfast) -> None:
    @app.workflow
    async def shop(ctx: Context, count: int) -> list[Any]:
        return await ctx.gather(*(ctx.remote("echo", n) for n in range(count)))


PLACES = [
    "before sending",
    *(pytest.param(p, marks=pytest.mark.thorough) for p in ("after sending", "before recording", "before deleting")),
]


@pytest.mark.parametrize("place", PLACES)
async def test_an_engine_that_is_killed_loses_nothing(
    scene: Scene, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.remote.sqs.transport._HIDDEN", 3)
    account, app = scene.account, scene.app()
    shop_of(app)
    run = await app.start("shop", COUNT)
    calls: Counter[str] = Counter()
    worker = scene.worker("echo")
    worker._handlers.clear()

    @worker.handle("echo")
    async def echo(input: Any, task: RemoteTask) -> Any:
        calls[task.step_id] += 1
        return input

    async with worker:
        await killed("engine", scene.store, account.endpoint, account.prefix, place)
        async with app.worker():
            assert await run.result(timeout=60) == list(range(COUNT))
            await eventually(lambda: not account.count("tasks-echo") and not account.count("results"), 60)
    if place == "before sending":
        assert set(calls.values()) == {1}, "nothing was sent, so nothing is done twice"
    assert len(calls) == COUNT
    assert [step.attempts for step in await run.steps()] == [1] * COUNT


@pytest.mark.thorough
async def test_what_a_killed_worker_had_is_done_by_another(scene: Scene) -> None:
    account, app = scene.account, scene.app(QUICK)
    shop_of(app)
    run = await app.start("shop", 3)
    async with app.worker():
        for _ in range(2):
            await killed("worker", account.endpoint, account.prefix)
        async with scene.worker():
            assert await run.result(timeout=60) == [0, 1, 2]
            await eventually(lambda: not account.count("tasks-echo") and not account.count("results"))
