"""Progress is fire and forget: it is written beside the journal, and no record waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from stepfast import Context, Settings, Stepfast
from stepfast.model.records import StepRunning
from tests.support.engine import PATIENCE, Gate, eventually, failure
from tests.support.waiting import rows_of

SAID = "the progress of steps cannot be written"


def working(app: Stepfast, gate: Gate, again: Gate) -> Any:
    """A workflow whose first step tells of its progress, and stops at gates before and after it tells once more."""

    @app.workflow
    async def load(ctx: Context) -> str:
        async def part() -> str:
            ctx.progress("1 of 9")
            await gate.passing()
            ctx.progress("3 of 9", data={"done": 3})
            await again.passing()
            return "loaded"

        return await ctx.step(part) + await ctx.step("after", lambda: "!")

    return load


async def test_a_failing_write_of_progress_holds_nothing_up(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The database refuses each row. It is logged once and dropped; when rows are taken again, so is the next word."""
    gate, again = Gate(), Gate()
    async with Stepfast(url) as app:
        load = working(app, gate, again)
        run = await app.start(load)
        store = await app.store()
        tell, refused = store.tell_progress, 0

        async def refuse(*arguments: Any) -> None:
            nonlocal refused
            refused += 1
            raise RuntimeError("no space left on device")

        with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
            async with app.worker():
                patch.setattr(store, "tell_progress", refuse)
                await gate.reached()
                await eventually(lambda: refused == 1)
                gate.open()
                await again.reached()
                await eventually(lambda: refused == 2)
                patch.setattr(store, "tell_progress", tell)
                again.open()
                assert await run.result(timeout=PATIENCE) == "loaded!"
    assert sum(SAID in record.getMessage() for record in caplog.records) == 1


async def test_a_lock_on_the_table_of_progress_holds_nothing_up(postgres_url: str) -> None:
    """Another session holds the table for as long as it likes; steps are recorded, and runs end."""
    gate, again = Gate(), Gate()
    gate.open()
    again.open()
    async with Stepfast(postgres_url) as app:
        load = working(app, gate, again)
        async with rows_of(app) as rows:
            await rows.fetch("BEGIN")
            await rows.fetch("LOCK TABLE [progress]")
            runs = [await app.start(load) for _ in range(3)]
            async with app.worker():
                for run in runs:
                    assert await run.result(timeout=PATIENCE) == "loaded!"
                await rows.fetch("ROLLBACK")


async def test_progress_of_an_older_claim_is_not_written(url: str) -> None:
    """What a worker says of a run under an older claim is not written; the latest word of a step is."""
    gate, again = Gate(), Gate()
    async with Stepfast(url, settings=Settings(running_after=60)) as app:
        run = await app.start(working(app, gate, again))
        async with app.worker(shutdown_grace=0) as worker:
            await gate.reached()
            gate.open()
            await again.reached()

            async def told() -> list[Any]:
                return [(step.detail, step.data) for step in await run.steps() if step.detail == "3 of 9"]

            assert await eventually(told) == [("3 of 9", {"done": 3})]
            [execution] = worker.duties.executor.running.values()
            entry = StepRunning(run.id, execution.claim - 1, "", 0, "part", "late", None, 0)
            store = await app.store()
            await store.tell_progress([entry])
            assert [step.detail for step in await run.steps()] == ["3 of 9"]
            entry.claim += 1
            await store.tell_progress([entry])
            assert [step.detail for step in await run.steps()] == ["late"]


async def test_the_last_word_stays_with_a_step_that_has_ended(url: str) -> None:
    """Also of one that failed, where it is wanted most, and if the run has ended before the word is written; and a step
    under way is in its first call."""
    gate, ended = Gate(), asyncio.Event()

    async with Stepfast(url) as app:

        @app.workflow(max_attempts=1)
        async def load(ctx: Context) -> None:
            async def part(upto: int) -> None:
                for number in range(1, upto + 1):
                    ctx.progress(f"{number} of 9", data={"done": number})

            def last() -> None:
                ctx.progress("4 of 9", data={"done": 4})
                raise ValueError("no more")

            async def some() -> None:
                await part(3)
                await gate.passing()

            await ctx.step("all", part, 9)
            await ctx.step("quiet", lambda: None)
            await ctx.step("some", some)
            await ctx.step("last", last)

        run = await app.start(load)
        store = await app.store()
        tell = store.tell_progress

        async def tell_when_all_is_over(entries: Sequence[StepRunning]) -> None:
            if any(entry.name == "last" for entry in entries):
                await ended.wait()
            await tell(entries)

        async def words() -> list[Any]:
            return [(step.name, step.status, step.detail, step.data, step.attempts) for step in await run.steps()]

        async def told(word: str) -> bool:
            return bool((await words())[-1][2] == word)

        known = [("all", "completed", "9 of 9", {"done": 9}, 1), ("quiet", "completed", None, None, 1)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "tell_progress", tell_when_all_is_over)
            async with app.worker():
                await gate.reached()
                await eventually(lambda: told("3 of 9"))
                assert await words() == [*known, ("some", "running", "3 of 9", {"done": 3}, 1)]
                gate.open()
                await failure(run)
                assert (await words())[-1] == ("last", "failed", None, None, 1)
                ended.set()
                await eventually(lambda: told("4 of 9"))
        known.append(("some", "completed", "3 of 9", {"done": 3}, 1))
        assert await words() == [*known, ("last", "failed", "4 of 9", {"done": 4}, 1)]


@pytest.mark.enough_on("sqlite")
async def test_progress_outside_of_steps_is_that_of_the_run(url: str) -> None:
    """A branch that has ended leaves nothing that looks as if it were still at work, and a run that waits waits."""
    gate = Gate()
    async with Stepfast(url, settings=Settings(inline_wait=0)) as app:

        @app.workflow
        async def load(ctx: Context) -> None:
            async def each(ctx: Context, item: int) -> None:
                await ctx.step("part", lambda: None)
                ctx.progress(f"{item} loaded")

            for item in (1, 2):
                await ctx.branch(each, item)
            await ctx.step(gate.passing)
            await ctx.wait_signal("go")

        run = await app.start(load)

        async def words() -> list[Any]:
            return [(step.kind, step.status, step.detail) for step in await run.steps() if step.detail is not None]

        async with app.worker():
            await gate.reached()
            await eventually(words)
            assert await words() == [("workflow", "running", "2 loaded")]
            gate.open()

            async def waits() -> bool:
                return await run.status() == "waiting"

            await eventually(waits)
            assert await words() == [("workflow", "waiting", "2 loaded")]
            await run.signal("go")
            await run.result(timeout=PATIENCE)
        assert await words() == []
