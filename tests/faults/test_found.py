"""What the storms have found, each as a scene in which it happens every time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepfast import Context, Stepfast
from stepfast.engine.concurrency import FirstCall
from stepfast.engine.execution import Execution
from stepfast.engine.host import current_execution
from stepfast.engine.waits import RunMailbox
from stepfast.settings import Settings
from tests.support.engine import PATIENCE, Gate, eventually, stopped_at_once

SETTINGS = Settings(lease=10, poll_interval=0.1, sweep_interval=0.5, inline_wait=60)


async def test_mail_that_comes_in_the_turn_in_which_the_run_would_be_released(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was handed to the code, which had not gone on yet, and the run said that it had seen all wakes: slept over."""
    app = Stepfast(url, settings=SETTINGS)
    executions: list[Execution] = []

    @app.workflow
    async def listens(ctx: Context) -> str:
        execution = current_execution.get()
        assert execution is not None
        executions.append(execution)
        return str(await ctx.wait_signal("word"))

    put = RunMailbox.put

    def put_and_look(self: RunMailbox, box: Any, *how: Any) -> None:
        put(self, box, *how)
        if box.mail:
            executions[-1].waits.release()  # the moment was over just now

    monkeypatch.setattr(RunMailbox, "put", put_and_look)
    async with app, app.worker():
        run = await app.start(listens)
        await eventually(lambda: executions and executions[0].waits.reader.listens)
        await run.signal("word", "hello")
        assert await run.result(timeout=PATIENCE) == "hello"


async def test_a_race_won_by_a_signal_while_a_step_was_being_recorded(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are on record, the step first; the signal is taken, so it has won, also for a worker that finds no verdict.
    Otherwise nobody would ever have seen the signal."""
    app = Stepfast(url, settings=SETTINGS)
    flushing, may_flush, verdict = asyncio.Event(), asyncio.Event(), Gate()

    async def quick() -> str:
        return "done"

    @app.workflow
    async def races(ctx: Context) -> list[Any]:
        return list(await ctx.first(word=ctx.wait_signal("word"), step=ctx.step(quick)))

    record_winner = FirstCall._record_winner

    async def gated(self: FirstCall, name: str) -> None:
        if verdict.arrivals == 0:
            await verdict.passing()
        await record_winner(self, name)

    monkeypatch.setattr(FirstCall, "_record_winner", gated)
    async with app:
        store = await app.store()
        flush = store.flush

        async def slow(worker: str, batch: Any) -> Any:
            if batch.steps:
                flushing.set()
                await may_flush.wait()
            return await flush(worker, batch)

        store.flush = slow  # type: ignore[method-assign]
        async with stopped_at_once(app):
            run = await app.start(races)
            await flushing.wait()  # the record of the step is under way
            took = asyncio.Event()
            take = RunMailbox.take

            def taking(self: RunMailbox, kind: str, key: str) -> Any:
                mail = take(self, kind, key)
                if mail is not None:
                    took.set()
                return mail

            sort = RunMailbox._sort

            def sorting(self: RunMailbox, mail: Any) -> None:
                sort(self, mail)
                took.set()

            monkeypatch.setattr(RunMailbox, "take", taking)
            monkeypatch.setattr(RunMailbox, "_sort", sorting)
            await run.signal("word", "hello")
            await asyncio.wait_for(took.wait(), PATIENCE)
            await asyncio.sleep(0.05)  # the code has it, and its record is in the journal
            may_flush.set()
            await verdict.reached()
        async with app.worker():
            assert await run.result(timeout=PATIENCE) == ["word", "hello"]


async def test_a_change_that_was_met_before_a_wait_is_met_again_after_it(url: str) -> None:
    """The records of a released run are remembered; that of the change was not among them."""
    app = Stepfast(url, settings=Settings(lease=10, poll_interval=0.1, inline_wait=0))

    async def note(word: str) -> str:
        return word

    @app.workflow
    async def changed(ctx: Context) -> list[str]:
        way = "new" if ctx.patched("a change") else "old"
        first = await ctx.step(way, note, way)
        await ctx.sleep(0.01)
        return [first, await ctx.step(note, way)]

    async with app, app.worker():
        assert await (await app.start(changed)).result(timeout=PATIENCE) == ["new", "new"]
