"""Options of steps: on ``@step``, for one call by ``ctx.options``, and which of them wins."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepfast import Backoff, ConfigurationError, Context, DagContext, Stepfast, SyncContext, step
from tests.support.engine import Calls, drained, failure, outcome

pytestmark = pytest.mark.enough_on("sqlite")

AT_ONCE = Backoff(base=0, jitter=False)


async def test_options_hold_for_one_call_only(app: Stepfast, calls: Calls) -> None:
    async def flaky(number: int) -> int:
        if calls.hit("flaky") < 3:
            raise ValueError("not yet")
        return number

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> int:
        value = await ctx.options(name="careful", retries=2, backoff=AT_ONCE).step(flaky, 5)
        calls["flaky"] = 0
        return await ctx.step(flaky, value)

    run = await drained(app, order)
    await failure(run, "not yet")
    assert [(s.name, s.status, s.attempts) for s in await run.steps()] == [
        ("careful", "completed", 3),
        ("flaky", "failed", 1),
    ]


async def test_a_context_with_options_is_a_context() -> None:
    async with Stepfast("sqlite://") as app:

        @app.workflow
        async def order(ctx: Context) -> None:
            careful = ctx.options(name="one", timeout=5)
            assert type(careful) is Context
            assert (careful.run_id, careful.step_key, careful.now()) == (ctx.run_id, ctx.step_key, ctx.now())
            await careful.step("labelled", asyncio.sleep, 0)
            await careful.step(asyncio.sleep, 0)
            await careful.options(name="two").step(asyncio.sleep, 0)
            await ctx.step("plain", asyncio.sleep, 0)

        run = await drained(app, order)
        await run.result()
        assert [each.name for each in await run.steps()] == ["labelled", "one", "two", "plain"]


async def test_a_context_of_a_dag_step_keeps_its_facts_with_options() -> None:
    async with Stepfast("sqlite://") as app:
        dag = app.dag("facts")

        @dag.step
        async def look(ctx: DagContext) -> list[Any]:
            careful = ctx.options(retries=1)
            await careful.step(asyncio.sleep, 0)
            return [careful.input, careful.step_name, careful.run_id == ctx.run_id]

        assert await outcome(app, dag, 7) == {"look": [7, "look", True]}


async def test_options_of_the_call_go_before_those_of_the_function(app: Stepfast, calls: Calls) -> None:
    @step(name="own name", retries=5, backoff=AT_ONCE)
    async def flaky() -> None:
        calls.hit("flaky")
        raise ValueError("never")

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.options(retries=1).step(flaky)

    run = await drained(app, order)
    assert await run.status() == "failed"
    assert calls["flaky"] == 2
    assert [s.name for s in await run.steps()] == ["own name"]


async def test_a_label_goes_before_every_other_name(app: Stepfast) -> None:
    @step(name="declared")
    async def work() -> int:
        return 1

    @app.workflow
    async def order(ctx: Context) -> int:
        await ctx.step(work)
        await ctx.options(name="optioned").step(work)
        await ctx.step("labelled", work)
        return await ctx.options(name="optioned").step("labelled", work)

    run = await drained(app, order)
    assert [s.name for s in await run.steps()] == ["declared", "optioned", "labelled", "labelled"]


async def test_options_work_in_a_plain_def_workflow(app: Stepfast, calls: Calls) -> None:
    def flaky() -> str:
        if calls.hit("flaky") < 2:
            raise ValueError("not yet")
        return "done"

    @app.workflow
    def order(ctx: SyncContext) -> str:
        return ctx.options(name="careful", retries=1, backoff=AT_ONCE).step(flaky)

    run = await drained(app, order)
    assert await run.result() == "done"
    assert [(s.name, s.attempts) for s in await run.steps()] == [("careful", 2)]


async def test_a_declared_step_called_directly_is_just_the_function(calls: Calls) -> None:
    @step(retries=5)
    async def work(number: int, plus: int = 1) -> int:
        """What it does."""
        calls.hit("work")
        return number + plus

    assert await work(1) == 2
    assert await work(1, plus=5) == 6
    assert calls["work"] == 2
    assert (getattr(work, "__name__", None), work.__doc__) == ("work", "What it does.")


@pytest.mark.parametrize(
    "options",
    [
        {"retries": -1},
        {"retries": 1.5},
        {"retries": True},
        {"retries": "3"},
        {"timeout": -1},
        {"timeout": "10"},
        {"timeout": float("nan")},
        {"timeout": timedelta(seconds=-1)},
        {"backoff": 5},
        {"name": ""},
        {"name": "a\0b"},
        {"name": 5},
    ],
    ids=str,
)
def test_bad_options_of_a_step_are_refused_where_they_are_written(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        step(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"timeout": -1},
        {"timeout": "1"},
        {"deadline": float("inf")},
        {"deadline": True},
        {"backoff": 1.0},
        {"queue": ""},
        {"queue": 7},
        {"name": "\ud800"},
    ],
    ids=repr,
)
def test_bad_options_of_a_workflow_are_refused_where_they_are_written(options: dict[str, Any]) -> None:
    app = Stepfast("sqlite://")

    async def order() -> None: ...

    with pytest.raises(ConfigurationError):
        app.task(**options)(order)


def test_an_unknown_option_is_refused_by_name() -> None:
    app = Stepfast("sqlite://")
    with pytest.raises(TypeError, match="retrys"):
        step(retrys=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="attempts"):
        app.task(attempts=3)  # type: ignore[call-overload]
