"""What tests of waiting runs share: letting time pass, killing a worker, cutting wake-ups off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest

from stepfast import Run, RunCancelled, RunInfo, Settings, Stepfast
from stepfast.model.ids import new_id
from stepfast.model.names import CHECKS
from stepfast.store.answers import Wakeups
from stepfast.worker.worker import Worker, interpreter
from tests.store.scene import Rows
from tests.support.engine import PATIENCE, eventually

HARDLY_EVER = Settings(poll_interval=60, sweep_interval=60)
"""With these, what happens soon happens because somebody was woken."""


@asynccontextmanager
async def rows_of(app: Stepfast) -> AsyncIterator[Rows]:
    """The tables themselves."""
    rows = Rows(await app.store(), app.namespace, app.url.text)
    try:
        yield rows
    finally:
        await rows.close()


async def let_pass(app: Stepfast, run: Run[Any], seconds: float) -> None:
    """Let time pass for a run: all its times move into the past, those it wakes by and those it has recorded. Only a
    worker that has not held the run before sees it: others know its records by heart."""
    span = -int(seconds * 1000)
    async with rows_of(app) as rows:
        await rows.fetch(
            "UPDATE [runs] SET visible_at = visible_at + ?, held_due = held_due + ?, deadline_at = deadline_at + ?, "
            "expires_at = expires_at + ? WHERE id = ?",
            *(span,) * 4, run.id,
        )  # fmt: skip
        await rows.fetch(
            "UPDATE [steps] SET started_at = started_at + ?, completed_at = completed_at + ? WHERE run_id = ?",
            span, span, run.id,
        )  # fmt: skip
        sleeping = "SELECT branch, position, output FROM [steps] WHERE kind = 'sleep' AND run_id = ?"
        for branch, position, output in await rows.fetch(sleeping, run.id):
            if "until" in (plan := json.loads(output)):
                text = json.dumps({"until": plan["until"] + span})
                where = "WHERE run_id = ? AND branch = ? AND position = ?"
                await rows.fetch(f"UPDATE [steps] SET output = ? {where}", text, run.id, branch, position)
        await rows.fetch("UPDATE [tries] SET due_at = due_at + ? WHERE run_id = ?", span, run.id)
        for key, value in await rows.fetch("SELECT key, value FROM [run_values] WHERE run_id = ?", run.id):
            if key.startswith(CHECKS):
                kept = json.loads(value)
                kept["due_at"] += span
                kept["began_at"] += span
                text = json.dumps(kept)
                await rows.fetch("UPDATE [run_values] SET value = ? WHERE run_id = ? AND key = ?", text, run.id, key)


async def wake(app: Stepfast, run: Run[Any]) -> None:
    """Wake a run that waits, although its time has not come."""
    async with rows_of(app) as rows:
        await rows.fetch("UPDATE [runs] SET visible_at = 1 WHERE id = ? AND status = 'waiting'", run.id)


async def reached(run: Run[Any], status: str) -> RunInfo:
    """Wait until a run is where the test wants it."""

    async def there() -> RunInfo | None:
        info = await run.info()
        return info if info.status == status else None

    info: RunInfo = await eventually(there)
    return info


async def due(run: Run[Any]) -> datetime:
    """When a run that waits for a time is due."""
    due_at = (await run.info()).due_at
    assert due_at is not None
    return due_at


async def count(app: Stepfast, table: str, run: Run[Any]) -> int:
    """How many rows a table has of a run."""
    async with rows_of(app) as rows:
        [(number,)] = await rows.fetch(f"SELECT count(*) FROM [{table}] WHERE run_id = ?", run.id)
    return int(number)


async def deafen(app: Stepfast) -> None:
    """Nothing is told to other processes any more, and nothing heard from them: polling only. For an application whose
    worker has not begun."""
    store: Any = await app.store()

    async def notify(_wakeups: Wakeups) -> None: ...

    async def listen(_heard: Callable[[Wakeups], None]) -> None:
        await asyncio.Event().wait()

    store.notify, store.listen = notify, listen


@asynccontextmanager
async def doomed(app: Stepfast, **options: Any) -> AsyncIterator[Worker]:
    """A worker that dies when the block ends, as if its process were killed: it gives nothing back and says nothing.
    Then it is found dead."""
    worker = await app._make_worker(None, **options)
    await worker.start()
    try:
        yield worker
    finally:
        await _kill(worker)
    async with rows_of(app) as rows:
        await rows.silence(worker.id)
    await (await app.store()).reap(new_id(), 1000, 5)


async def _kill(worker: Worker) -> None:
    duties = worker.duties
    duties.stopping = duties.claimer.stopped = True
    duties.unsubscribe()
    interpreter.restore(worker)
    for duty in worker._tasks:
        duty.cancel()
    await asyncio.gather(*worker._tasks, return_exceptions=True)
    await duties.mailbox_poller.close()
    duties.executor.lose_all()
    await duties.executor.close()
    await duties.heartbeat.stop()
    worker.left.set()  # else the application would wait for it when it is closed


async def is_cancelled(run: Run[Any]) -> None:
    """It has ended so, for good, and says so to whoever asks."""
    with pytest.raises(RunCancelled, match=run.id):
        await run.result(timeout=PATIENCE)
    info = await run.info()
    assert (info.status, info.reason, info.worker, info.asked) == ("cancelled", "cancelled", None, None)
    assert (info.output, info.due_at, info.ready) == (None, None, False)
    assert info.completed_at is not None
