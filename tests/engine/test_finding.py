"""A run is found by the key that it was started with."""

from __future__ import annotations

import asyncio

import pytest

from stepfast import ConfigurationError, RunNotFound, Stepfast
from tests.engine.conftest import ON_BOTH, MakeApp
from tests.support.engine import finished
from tests.support.workflows import task

pytestmark = ON_BOTH


async def test_a_run_is_found_by_its_key(make_app: MakeApp) -> None:
    app, elsewhere = make_app(), make_app()

    @app.task
    async def greet(name: str) -> tuple[str, int]:
        return name, 1

    other = task(app, "other", returns=None)
    run = await app.start(greet, "ada", key="k-1")
    await app.start(other, "eve", key="k-2")
    found = await app.find(greet, key="k-1")
    assert found.id == run.id
    assert await finished(app, found) == ("ada", 1)
    assert await (await app.find("greet", key="k-1")).result() == ("ada", 1)
    assert await (await elsewhere.find("greet", key="k-1")).result() == ["ada", 1]
    assert await asyncio.to_thread(lambda: app.sync.find(greet, key="k-1").result()) == ("ada", 1)
    with pytest.raises(RunNotFound, match="there is no run of workflow 'greet' with the key 'k-2'"):
        await app.find(greet, key="k-2")
    await run.delete()
    with pytest.raises(RunNotFound):
        await app.find(greet, key="k-1")


async def test_a_run_that_waits_for_more_starts_is_found_until_it_begins(app: Stepfast) -> None:
    """Then its key is free for the next."""
    index = task(app, "index")
    run = await app.start(index, "a", key="k", debounce=60)
    assert (await app.find(index, key="k")).id == run.id
    await run.reschedule(delay=0)
    assert await finished(app, run) == "a"
    with pytest.raises(RunNotFound):
        await app.find(index, key="k")


async def test_what_is_no_workflow_or_key_is_refused(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError, match="takes a workflow or its name"):
        await app.find(print, key="k")  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="the key"):
        await app.find("w", key="")
