"""What tests of the engine share: counting calls, stopping a worker inside a step, waiting for a condition."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stepfast import Run, RunCancelled, RunFailed, Stepfast
from tests.store.scene import Rows

PATIENCE = 20.0
"""Seconds after which a test that waits for something gives up; passing tests never come near it."""


class Calls(Counter[str]):
    """How often each thing was called: ``calls.hit("charge")``."""

    def hit(self, name: str) -> int:
        """Count a call; which one it was, from 1."""
        self[name] += 1
        return self[name]


class Gate:
    """A place at which code stops until the test lets it go on; the test sees it arrive."""

    def __init__(self) -> None:
        self._arrived = asyncio.Event()
        self._open = asyncio.Event()
        self.arrivals = 0

    async def passing(self) -> None:
        """For the code under test: arrive, and wait to be let through."""
        self.arrivals += 1
        self._arrived.set()
        await self._open.wait()

    async def reached(self) -> None:
        """For the test: wait until the code is at the gate, then forget that it was."""
        await asyncio.wait_for(self._arrived.wait(), PATIENCE)
        self._arrived.clear()

    def open(self) -> None:
        """Everybody may pass, now and later."""
        self._open.set()


class ThreadGate:
    """The same for blocking code in a thread, which no cancellation can reach."""

    def __init__(self) -> None:
        self._arrived = threading.Event()
        self._open = threading.Event()

    def passing(self) -> None:
        """For the code under test."""
        self._arrived.set()
        assert self._open.wait(PATIENCE), "nobody opened the gate"

    async def reached(self) -> None:
        """For the test."""
        await eventually(self._arrived.is_set)

    def open(self) -> None:
        """Let it go on."""
        self._open.set()


async def eventually(condition: Callable[[], Any], timeout: float = PATIENCE) -> Any:
    """Ask until the answer is true, and give it; the condition may be async. The longer it takes, the longer are the
    pauses, a tenth of the time at most: asking costs, and other tests want to work."""
    began = time.monotonic()
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        waited = time.monotonic() - began
        assert waited < timeout, f"still not true after {timeout:g} s: {inspect.getsource(condition).strip()}"
        await asyncio.sleep(min(0.003 + waited / 10, 0.05))


def bystander(app: Stepfast) -> Callable[[], Awaitable[None]]:
    """Adds a task to an application whose worker has not begun. What is given back starts one and waits for its end: by
    then the worker has also done whatever else it had to do at once."""

    @app.task
    async def bystander() -> None: ...

    async def comes_and_goes() -> None:
        await (await app.start(bystander)).result(timeout=PATIENCE)

    return comes_and_goes


@asynccontextmanager
async def stopped_at_once(app: Stepfast, **options: Any) -> AsyncIterator[None]:
    """A worker that gives back whatever it is doing when the block ends, as one that is told to hurry does."""
    async with app.worker(shutdown_grace=0, **options):
        yield


async def make_due(app: Stepfast, run_id: str) -> None:
    """Let the time pass that a run waits for: an hour at least, and for what is recorded of its waits too. (A worker
    that remembers the run may not read those records again.)"""
    rows = Rows(await app.store(), app.namespace, app.url.text)
    row = await (await app.store()).run(run_id)
    assert row is not None
    span = max(3_600_000, (row.visible_at or 0) - row.now_ms + 1000)
    try:
        await rows.fetch("UPDATE [tries] SET due_at = due_at - ? WHERE run_id = ?", span, run_id)
        await rows.fetch(
            "UPDATE [steps] SET completed_at = completed_at - ? WHERE run_id = ? AND status = 'waiting'", span, run_id
        )
        await rows.shift(run_id, "visible_at", -span)  # the last: by this one a worker takes the run
    finally:
        await rows.close()


async def finished(app: Stepfast, run: Run[Any], gate: Gate | ThreadGate | None = None) -> Any:
    """The result of a run that comes to its end when workers execute it, and the gate is open."""
    if gate is not None:
        gate.open()
    await app.drain()
    return await run.result(timeout=PATIENCE)


async def worked(app: Stepfast, run: Run[Any], timeout: float = PATIENCE, **options: Any) -> Any:
    """The result of a run, while a worker executes it."""
    async with app.worker(**options):
        return await run.result(timeout=timeout)


async def cancelled(app: Stepfast, run: Run[Any], **options: Any) -> None:
    """Let a worker execute a run that ends as a cancelled one."""
    with pytest.raises(RunCancelled):
        await worked(app, run, **options)


async def interrupt(app: Stepfast, gate: Gate) -> None:
    """Let a worker execute until the gate is reached, then take it away: the run goes back with what it recorded."""
    async with stopped_at_once(app):
        await gate.reached()


async def drained(app: Stepfast, workflow: Any, *args: Any, **options: Any) -> Run[Any]:
    """Start a run, and execute until nothing is ready."""
    run: Run[Any] = await app.start(workflow, *args, **options)
    await app.drain()
    return run


async def outcome(app: Stepfast, workflow: Any, *args: Any, **options: Any) -> Any:
    """The result of a run that ends without waiting for long."""
    return await (await drained(app, workflow, *args, **options)).result(timeout=PATIENCE)


async def replayed(app: Stepfast, gate: Gate, workflow: Any, *args: Any, **options: Any) -> Run[Any]:
    """Start a run, take its worker away at the gate, and let another one replay it."""
    run: Run[Any] = await app.start(workflow, *args, **options)
    await interrupt(app, gate)
    gate.open()
    await app.drain()
    return run


async def failure(run: Run[Any], match: str | None = None) -> RunFailed:
    """The error with which a run failed."""
    with pytest.raises(RunFailed, match=match) as failed:
        await run.result(timeout=PATIENCE)
    return failed.value
