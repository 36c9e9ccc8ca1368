"""The lifespan of a web application: connected and at work while it lasts, with a lifespan of its own within."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette

from stepfast import ConfigurationError, Stepfast
from stepfast.web import lifespan
from tests.support.engine import PATIENCE

pytestmark = pytest.mark.enough_on("sqlite")


async def test_runs_are_executed_while_the_web_application_lasts(url: str) -> None:
    app = Stepfast(url)
    seen: list[Any] = []

    @app.task
    async def double(x: int) -> int:
        return 2 * x

    @asynccontextmanager
    async def inner(web: Starlette) -> AsyncIterator[dict[str, Any]]:
        run = await app.start(double, 4)
        seen.append(await run.result(timeout=PATIENCE))  # the worker is there before, and after
        yield {"found": web}
        seen.append(await (await app.start(double, 5)).result(timeout=PATIENCE))

    web = Starlette(lifespan=lifespan(app, inner=inner, concurrency=3))
    async with web.router.lifespan_context(web) as state:
        assert state == {"found": web} and seen == [8]
    assert seen == [8, 10] and not app._connections.open


async def test_without_a_worker_runs_wait(url: str) -> None:
    app = Stepfast(url)
    app.task(name="nothing")(lambda: None)
    web = Starlette(lifespan=lifespan(app, worker=False))
    async with web.router.lifespan_context(web):
        run = await app.start("nothing")
        assert await run.status() == "queued" and not await (await app.store()).workers()


async def test_an_error_within_leaves_nothing_open(url: str) -> None:
    app = Stepfast(url)
    web = Starlette(lifespan=lifespan(app, queues=["mail"]))
    with pytest.raises(ZeroDivisionError):
        async with web.router.lifespan_context(web):
            raise ZeroDivisionError
    assert not app._connections.open
    with pytest.raises(ConfigurationError, match=r"worker=False.* takes no concurrency="):
        lifespan(app, worker=False, concurrency=3)
