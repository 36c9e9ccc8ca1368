"""A duty breaks, which is a bug: the worker leaves at once, gives its runs back, and who relies on it hears of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import Stepfast, WorkerBroken
from stepfast.settings import Settings
from tests.support.engine import PATIENCE, Gate, eventually
from tests.support.workflows import task
from tests.worker.conftest import MakeApp
from tests.worker.heartbeats import beating
from tests.worker.spying import wrap
from tests.worker.tables import Tables

QUICK = Settings(poll_interval=0.05, sweep_interval=0.05, lease=30)
BROKEN = {"tick": "sweeper", "claim": "claimer", "flush": "journal"}
duties = pytest.mark.parametrize("method", list(BROKEN))


def waiting(app: Stepfast, gate: Gate) -> Any:
    return task(app, "wait", gate=gate)


class Break:
    """From now on a method of the store raises what no duty expects."""

    def __init__(self, store: Any, method: str) -> None:
        self.now = False
        wrap(store, method, self._call)

    async def _call(self, call: Any, *args: Any) -> Any:
        if self.now:
            raise ZeroDivisionError("a bug")
        return await call(*args)


async def begin(app: Stepfast, wait: Any, gate: Gate) -> Any:
    """A run in a slot; its handle."""
    run = await app.start(wait, "first")
    await gate.reached()
    return run


async def break_it(app: Stepfast, method: str, wait: Any, gate: Gate) -> None:
    """From here on the worker may break at any moment, and end whoever called this."""
    Break(await app.store(), method).now = True
    if method == "claim":
        await app.start(wait, "second")
    elif method == "flush":
        gate.open()


@duties
async def test_the_block_of_an_embedded_worker_ends(make_app: MakeApp, tables: Tables, method: str) -> None:
    """The body waits for something else for ever: it is ended, and the reason comes out of the block."""
    app = make_app(QUICK)
    gate = Gate()
    wait = waiting(app, gate)
    with pytest.raises(WorkerBroken, match=BROKEN[method]) as caught:
        async with asyncio.timeout(PATIENCE), app.worker(shutdown_grace=30):
            run = await begin(app, wait, gate)
            await break_it(app, method, wait, gate)
            await asyncio.Event().wait()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
    assert await tables.run(run.id, "status, attempt, losses, worker") == ("queued", 1, 0, None)
    assert await tables.fetch("SELECT * FROM [workers]") == []
    assert not beating()


@pytest.mark.parametrize("raised", [KeyError("of the body"), None])
async def test_it_comes_in_place_of_what_the_body_raised(make_app: MakeApp, raised: Exception | None) -> None:
    """Also if the body turns its own end into another error, or into none."""
    app = make_app(QUICK)
    gate = Gate()
    wait = waiting(app, gate)
    with pytest.raises(WorkerBroken):
        async with app.worker():
            await begin(app, wait, gate)
            await break_it(app, "tick", wait, gate)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if raised is not None:
                    raise raised from None
    await asyncio.sleep(0)  # nothing of it comes late


async def test_it_leaves_even_if_the_body_does_not_end(make_app: MakeApp, tables: Tables) -> None:
    """A body that ignores its end keeps nothing from going back."""
    app = make_app(QUICK)
    gate = Gate()
    wait = waiting(app, gate)
    with pytest.raises(WorkerBroken):
        async with app.worker():
            run = await begin(app, wait, gate)
            await break_it(app, "tick", wait, gate)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

            async def gone() -> bool:
                return not await tables.fetch("SELECT * FROM [workers]")

            await eventually(gone)
            assert (await tables.run(run.id, "status"))[0] == "queued"


async def test_who_is_cancelled_meanwhile_hears_of_that(make_app: MakeApp) -> None:
    """A cancellation from outside is not lost behind it."""
    app = make_app(QUICK)
    gate, broken = Gate(), asyncio.Event()
    wait = waiting(app, gate)

    async def body() -> None:
        async with app.worker():
            await begin(app, wait, gate)
            await break_it(app, "tick", wait, gate)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                broken.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(body())
    await asyncio.wait_for(broken.wait(), PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, PATIENCE)


async def test_work_and_drain_raise_it(make_app: MakeApp, tables: Tables) -> None:
    app = make_app(QUICK)
    gate = Gate()
    wait = waiting(app, gate)
    fault = Break(await app.store(), "tick")
    run = await app.start(wait, "one")
    for work in (app.work, app.drain):
        fault.now = False
        task = asyncio.create_task(work())
        await gate.reached()
        fault.now = True
        with pytest.raises(WorkerBroken):
            await asyncio.wait_for(task, PATIENCE)
        assert await tables.run(run.id, "status, attempt, losses") == ("queued", 1, 0)
    assert await tables.fetch("SELECT * FROM [workers]") == []
    assert not beating()


async def test_a_heartbeat_that_cannot_begin_is_told(make_app: MakeApp, tables: Tables) -> None:
    app = make_app(QUICK)
    waiting(app, Gate())
    store = await app.store()

    def pulse(_patience: float) -> Any:
        raise ZeroDivisionError("a bug")

    store.pulse = pulse  # type: ignore[assignment, method-assign]
    with pytest.raises(WorkerBroken, match="heartbeat"):
        async with asyncio.timeout(PATIENCE), app.worker():
            await asyncio.Event().wait()
    assert await tables.fetch("SELECT * FROM [workers]") == []
