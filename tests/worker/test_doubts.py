"""Doubts come with a broken connection, and go with what they are about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stepfast import Context, Stepfast
from stepfast.engine.host import Promise
from stepfast.model.records import Batch, BeatAnswer, FlushAnswer
from stepfast.worker.journal import UnverifiedWrites
from stepfast.worker.threads import REAL
from stepfast.worker.worker import WorkerRuntime
from tests.support.engine import PATIENCE, Gate, eventually
from tests.support.waiting import reached
from tests.support.workflows import calling


class Memory:
    """A run that believes so much of itself to be stored."""

    def believed(self) -> int:
        return 1


def test_what_is_not_held_any_more_is_not_doubted_for_ever() -> None:
    held: dict[str, Any] = {"kept": Memory(), "lost": Memory(), "claimed anew": Memory()}
    unverified = UnverifiedWrites(REAL, lambda: held)
    unverified.broke()
    del held["lost"]
    held["claimed anew"] = Memory()  # what was doubted of the claim before says nothing of this one
    unverified.forget_unheld()
    assert unverified.open == {"kept": held["kept"]}


def test_a_refused_word_of_an_older_claim_ends_no_doubt_about_the_newer() -> None:
    unverified, batch = UnverifiedWrites(REAL, lambda: {"run": Memory()}), Batch()
    batch.claims["run"] = 1
    unverified.broke()
    unverified.asking()
    unverified.compared(batch, FlushAnswer(1, lost={"run"}))
    assert "run" in unverified.open
    unverified.compared(batch, FlushAnswer(1))
    assert "run" not in unverified.open


@pytest.mark.parametrize("how", ["refused", "declared dead"])
async def test_what_was_not_written_at_its_release_is_not_remembered(how: str) -> None:
    """Open records go out with a run that is released, and are remembered before they are stored."""
    app = Stepfast("sqlite://")
    async with app, app.worker() as worker:
        cache = worker.duties.executor.cache
        parting: Promise[int] = Promise(asyncio.get_running_loop())
        parting.keep(1)
        cache.put("run", 1, [], parting)
        if how == "refused":
            worker.duties.flush_answered({"run": 1}, FlushAnswer(1, lost={"run"}))
        else:
            worker.duties.beat_answered(BeatAnswer(False), {})
        assert cache.take("run", 2) is None


async def test_a_doubted_run_that_is_lost_leaves_nothing_behind() -> None:
    """Nothing more is written of it, so no flush would ever end the doubt."""
    app, gate = Stepfast("sqlite://"), Gate()
    work = calling(app, lambda ctx: gate.passing(), name="work")
    run = await app.start(work)
    async with app, app.worker(poll_interval=0.05) as worker:
        await eventually(lambda: gate.arrivals == 1)
        worker.duties.claimer.stopped = True  # it is not to come back here, which would end the doubt
        worker.duties._connection_broke()
        assert run.id in worker.duties.unverified.open
        worker.duties.executor.lose(run.id)
        await eventually(lambda: not worker.duties.unverified.open)


async def leave_slowly(meanwhile: Callable[[WorkerRuntime, str], object]) -> bool:
    """Whether the records of a run are remembered that has gone to wait, its handler coming to its end only after
    something has happened meanwhile."""
    app, gate = Stepfast("sqlite://"), Gate()

    @app.workflow
    async def work(ctx: Context) -> None:
        await ctx.step("one", lambda: None)
        try:
            await ctx.wait_signal("go")
        finally:
            await gate.passing()

    run = await app.start(work)
    async with app, app.worker(poll_interval=0.05) as worker:
        await gate.reached()
        await reached(run, "waiting")
        handler = worker.duties.executor.running[run.id].task
        assert handler is not None
        meanwhile(worker.duties, run.id)
        gate.open()
        await asyncio.wait_for(handler, PATIENCE)
        return run.id in worker.duties.executor.cache


async def test_a_run_whose_handler_is_slow_to_end_is_remembered_if_nothing_breaks() -> None:
    assert await leave_slowly(lambda duties, run_id: None)


async def test_a_run_that_is_doubted_when_its_handler_ends_is_not_remembered() -> None:
    """Its last flush came before the break: none would ever compare what is remembered."""
    assert not await leave_slowly(lambda duties, run_id: duties._connection_broke())


async def test_a_run_that_was_lost_before_its_handler_ends_is_not_remembered() -> None:
    """Nobody holds it, so a break in between casts no doubt upon it."""

    def lose_it_first(duties: WorkerRuntime, run_id: str) -> None:
        duties.executor.lose(run_id)
        duties._connection_broke()

    assert not await leave_slowly(lose_it_first)
