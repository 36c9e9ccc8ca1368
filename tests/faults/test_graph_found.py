"""What the storms over dags have found, each as a scene in which it happens every time."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import Stepfast
from stepfast.engine.execution import Execution
from stepfast.engine.host import current_execution
from stepfast.settings import Settings
from stepfast.worker.queries import StoreQueries
from tests.support.engine import PATIENCE, Gate, eventually, stopped_at_once
from tests.support.waiting import let_pass

SETTINGS = Settings(lease=10, poll_interval=0.1, sweep_interval=0.5, inline_wait=60)


class Finish:
    """The first worker that has all steps of a dag run settled before it stops at the gate, before it knows them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = Gate()
        self.execution: Execution | None = None
        dag_steps, first = StoreQueries.dag_steps, iter([True])

        async def ask(queries: StoreQueries, dag_id: str) -> Any:
            if next(first, False):
                self.execution = current_execution.get()
                await self.gate.passing()
            return await dag_steps(queries, dag_id)

        monkeypatch.setattr(StoreQueries, "dag_steps", ask)


@pytest.fixture
def finish(monkeypatch: pytest.MonkeyPatch) -> Finish:
    return Finish(monkeypatch)


def saga(app: Stepfast, undone: list[str], **options: Any) -> Any:
    dag = app.dag("saga", **options)

    async def undo(ctx: Any) -> None:
        undone.append(ctx.step_name)

    @dag.step(compensate=undo)
    async def book(ctx: Any) -> str:
        return "booked"

    return dag


async def test_a_dag_run_cancelled_while_it_is_finished_by_a_worker_that_dies_is_undone(
    url: str, finish: Finish
) -> None:
    """The next worker heeded the wish before it had looked at the steps: cancelled, and nothing undone."""
    app, undone = Stepfast(url, settings=SETTINGS), list[str]()
    async with app:
        run = await app.start(saga(app, undone))
        async with stopped_at_once(app):
            await finish.gate.reached()
            await run.cancel()
        await app.drain()
        assert (await run.status(), undone) == ("compensated", ["book"])


async def test_a_dag_run_cancelled_while_it_is_finished_is_undone(url: str, finish: Finish) -> None:
    """The wish was granted, and is heard by whoever is about to finish the run."""
    app, undone = Stepfast(url, settings=SETTINGS), list[str]()
    async with app:
        run = await app.start(saga(app, undone))
        async with app.worker():
            await finish.gate.reached()
            await run.cancel()
            await eventually(lambda: finish.execution is not None and finish.execution.asked == "cancel")
            finish.gate.open()
            await eventually(lambda: undone == ["book"])
            await eventually(lambda: _has(run, "compensated"))


async def test_the_deadline_of_a_dag_run_whose_steps_are_done_undoes_nothing(url: str, finish: Finish) -> None:
    """It passed while the run was being finished: failed, with a step that was completed and not undone."""
    app, undone = Stepfast(url, settings=SETTINGS), list[str]()
    async with app:
        run = await app.start(saga(app, undone, deadline=600))
        async with app.worker():
            await finish.gate.reached()
            await let_pass(app, run, 601)
            finish.gate.open()
            assert await run.result(timeout=PATIENCE) == {"book": "booked"}
    assert undone == []


async def _has(run: Any, status: str) -> bool:
    return bool(await run.status() == status)
