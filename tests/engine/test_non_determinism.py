"""Code that changed under a run: noticed, told with both steps and both lines, and repairable."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast import Context, NonDeterminismError, Stepfast
from stepfast.engine.history import PAGE
from tests.engine.conftest import MakeApp
from tests.support.engine import Calls, Gate, eventually, failure, interrupt

pytestmark = pytest.mark.enough_on("sqlite")

Body = Callable[[Context], Awaitable[object]]


async def work() -> str:
    return "done"


def register(app: Stepfast, body: Body, **options: Any) -> None:
    """The code of the workflow "order" in one application; another application has other code under that name."""
    app.workflow(name="order", **options)(body)


def line_of(body: Body, text: str) -> str:
    lines, start = inspect.getsourcelines(body)
    [number] = [n for n, line in enumerate(lines) if text in line]
    return f"test_non_determinism.py:{start + number}"


class Scene:
    """A run with steps a, b and c recorded, interrupted before its end."""

    def __init__(self, make_app: MakeApp) -> None:
        self.make_app = make_app
        self.gate = Gate()
        self.recorded = make_app()

        async def order(ctx: Context) -> str:
            for name in ("a", "b", "c"):
                await ctx.step(name, work)  # recorded here
            await ctx.step("gate", self.gate.passing)
            return "as recorded"

        self.body = order
        register(self.recorded, order, max_attempts=5)

    async def interrupted(self) -> str:
        run = await self.recorded.start("order")
        await interrupt(self.recorded, self.gate)
        self.gate.open()
        return run.id

    def changed(self, body: Body) -> Stepfast:
        app = self.make_app()
        register(app, body, max_attempts=5)
        return app


@pytest.fixture
def scene(make_app: MakeApp) -> Scene:
    return Scene(make_app)


async def renamed(ctx: Context) -> None:
    await ctx.step("a", work)
    await ctx.step("bee", work)  # now here
    await ctx.step("c", work)


async def reordered(ctx: Context) -> None:
    await ctx.step("a", work)
    await ctx.step("c", work)  # now here
    await ctx.step("b", work)


async def inserted(ctx: Context) -> None:
    await ctx.step("a", work)
    await ctx.step("new", work)  # now here
    await ctx.step("b", work)
    await ctx.step("c", work)


async def removed(ctx: Context) -> None:
    await ctx.step("a", work)
    await ctx.step("c", work)  # now here


@pytest.mark.parametrize(
    ("body", "now"),
    [(renamed, "bee"), (reordered, "c"), (inserted, "new"), (removed, "c")],
    ids=["renamed", "reordered", "inserted", "removed"],
)
async def test_a_changed_order_of_steps_ends_the_run_and_says_where(scene: Scene, body: Body, now: str) -> None:
    run_id = await scene.interrupted()
    app = scene.changed(body)
    await app.drain()
    caught = await failure(app.get(run_id))
    error = caught
    assert error.reason == "non_determinism"
    assert error.error_type is not None and error.error_type.endswith("NonDeterminismError")
    assert "step 'b'" in error.message and f"step {now!r}" in error.message
    assert line_of(scene.body, "recorded here") in error.message
    assert line_of(body, "now here") in error.message
    assert "ctx.patched" in error.message and PAGE in error.message


async def test_a_step_removed_at_the_end_is_noticed_too(scene: Scene) -> None:
    async def shorter(ctx: Context) -> str:
        await ctx.step("a", work)
        await ctx.step("b", work)
        return "too early"

    run_id = await scene.interrupted()
    app = scene.changed(shorter)
    await app.drain()
    caught = await failure(app.get(run_id), "'c'")
    assert caught.reason == "non_determinism"
    assert line_of(scene.body, "recorded here") in caught.message


async def test_steps_added_after_the_last_record_are_no_divergence(scene: Scene) -> None:
    async def longer(ctx: Context) -> str:
        for name in ("a", "b", "c"):
            await ctx.step(name, work)
        return await ctx.step("one more", work)

    run_id = await scene.interrupted()
    app = scene.changed(longer)
    await app.drain()
    assert await app.get(run_id).result() == "done"


async def test_a_divergence_burns_no_retries_and_runs_nothing(scene: Scene, calls: Calls) -> None:
    async def other(ctx: Context) -> None:
        calls.hit("attempt")
        await ctx.step("another", lambda: calls.hit("another"))

    run_id = await scene.interrupted()
    app = scene.changed(other)
    await app.drain()
    info = await app.get(run_id).info()
    assert (info.status, info.reason, info.attempt) == ("failed", "non_determinism", 1)
    assert calls == {"attempt": 1}
    assert [s.name for s in await app.get(run_id).steps()] == ["a", "b", "c"]


async def test_swallowing_the_error_changes_nothing(scene: Scene, calls: Calls) -> None:
    """Rule 20: the context is closed; every further call raises it again, and the result is discarded."""
    seen: list[BaseException] = []

    async def stubborn(ctx: Context) -> str:
        for _ in range(3):
            try:
                await ctx.step("another", lambda: calls.hit("another"))
            except Exception as error:
                seen.append(error)
        return "all is well"

    run_id = await scene.interrupted()
    app = scene.changed(stubborn)
    await app.drain()
    info = await app.get(run_id).info()
    assert (info.status, info.reason, info.output) == ("failed", "non_determinism", None)
    assert [type(error) for error in seen] == [NonDeterminismError] * 3
    assert calls["another"] == 0


async def test_an_operator_can_retry_after_the_code_was_put_right(scene: Scene) -> None:
    run_id = await scene.interrupted()
    broken = scene.changed(renamed)
    await broken.drain()
    assert await broken.get(run_id).status() == "failed"
    await broken.get(run_id).retry()
    await scene.recorded.drain()
    assert await scene.recorded.get(run_id).result() == "as recorded"


async def test_a_divergence_in_a_plain_def_workflow(make_app: MakeApp) -> None:
    """Rule 30."""
    gate = Gate()
    one, other = make_app(), make_app()

    def first(ctx: object) -> None:
        ctx.step("a", lambda: 1)  # type: ignore[attr-defined]
        ctx.step("gate", gate.passing)  # type: ignore[attr-defined]

    def second(ctx: object) -> str:
        try:
            ctx.step("other", lambda: 1)  # type: ignore[attr-defined]
        except Exception:
            pass
        return "swallowed"

    one.workflow(name="order")(first)
    other.workflow(name="order")(second)
    run = await one.start("order")
    await interrupt(one, gate)
    await other.drain()
    caught = await failure(run, r"'a' .*'other'")
    assert caught.reason == "non_determinism"
    assert len(re.findall(r"test_non_determinism\.py:\d+", caught.message)) == 2


async def test_a_loop_that_turns_once_less_is_noticed(make_app: MakeApp) -> None:
    gate = Gate()
    one, other = make_app(), make_app()

    def looping(turns: int) -> Body:
        async def order(ctx: Context) -> None:
            for _ in range(turns):
                await ctx.step("turn", work)
            await ctx.step("gate", gate.passing)

        return order

    register(one, looping(3))
    register(other, looping(2))
    run = await one.start("order")
    await interrupt(one, gate)
    await other.drain()
    await failure(run, r"'turn' .*'gate'")


# -- rule 22: while the recorded code still runs somewhere, the run goes back to it --------------------------------


async def test_while_a_worker_with_the_recorded_code_lives_the_run_goes_back_to_it(scene: Scene) -> None:
    """Rule 22: a rolling deployment must not fail the runs of the old code."""
    run_id = await scene.interrupted()
    new = scene.changed(renamed)
    handle = new.get(run_id)

    async def given_back() -> bool:
        info = await handle.info()
        return info.status == "queued" and info.due_at is not None

    async with scene.recorded.worker(queues=["elsewhere"]):  # lives, but does not take this run
        async with new.worker(shutdown_grace=0):
            await eventually(given_back)
        info = await handle.info()
        assert (info.error, info.reason, info.attempt) == (None, None, 1)
        await scene.recorded.drain()
    assert await handle.result() == "as recorded"


async def test_when_no_worker_has_the_recorded_code_the_run_ends(scene: Scene) -> None:
    """Rule 22: a live worker with yet other code does not help."""
    run_id = await scene.interrupted()
    async with scene.changed(reordered).worker(queues=["elsewhere"]):
        app = scene.changed(renamed)
        await app.drain()
        assert (await app.get(run_id).info()).reason == "non_determinism"


async def test_a_divergence_of_the_very_code_that_recorded_is_not_given_back(make_app: MakeApp) -> None:
    """Rule 22: code that does not do the same twice ends, even with many workers that have it."""
    gate, names = Gate(), iter("ab")
    app = make_app()

    async def fickle(ctx: Context) -> None:
        await ctx.step(next(names), work)
        await ctx.step("gate", gate.passing)

    register(app, fickle)
    run = await app.start("order")
    await interrupt(app, gate)
    async with app.worker(queues=["elsewhere"]):
        await app.drain()
    assert (await run.info()).reason == "non_determinism"
