"""Names and namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast import ConfigurationError, Context, Settings, Stepfast, step
from stepfast.model.names import check_name, check_namespace, check_signal


@pytest.mark.parametrize(
    "name", ["a", "order-fulfilment", "Über.Größe/1", "a b", "x" * 200, "名前", "'; DROP TABLE x; --"]
)
def test_any_readable_name_will_do(name: str) -> None:
    assert check_name(name, "the name", 200) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [("", "empty"), ("x" * 201, "201"), ("a\0", "NUL"), ("\ud800", "surrogate"), (5, "string"), (None, "string")],
    ids=repr,
)
def test_what_no_database_keeps_is_refused_by_name(name: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the name.*{why}"):
        check_name(name, "the name", 200)


@pytest.mark.parametrize("name", ["approved", "paid: order 7", "a;b"])
def test_the_name_of_a_signal_may_hold_anything_but_a_comma(name: str) -> None:
    assert check_signal(name, 200) == name
    with pytest.raises(ConfigurationError, match="comma"):
        check_signal(f"{name}, time", 200)


@pytest.mark.parametrize("name", ["stepfast", "_x", "Prod_2", "pgx", "x" * 48])
def test_a_namespace_is_a_plain_identifier(name: str) -> None:
    assert check_namespace(name) == name


@pytest.mark.parametrize("name", ["", "2x", "a-b", "a b", 'a"', "é", "x" * 49, "a\n", "pg_x", None], ids=repr)
def test_anything_else_is_no_namespace(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="namespace"):
        check_namespace(name)


@pytest.mark.parametrize("name", ["a,b", " a", "a ", ","])
def test_a_queue_that_the_command_line_could_not_name_is_refused(name: str) -> None:
    app = Stepfast("sqlite://")
    with pytest.raises(ConfigurationError, match="--queues"):
        app.task(queue=name)
    with pytest.raises(ConfigurationError, match="--queues"):
        app.dag("d", queue=name)


async def test_the_limit_of_names_is_kept_wherever_one_comes_in() -> None:
    """Names of workflows, dags, queues, steps, signals, keys and tags, by the application's own limit."""
    long = "x" * 11

    async def step_with_a_long_name() -> None: ...

    declared = step(name=long)(step_with_a_long_name)
    async with Stepfast("sqlite://", settings=Settings(max_name=10)) as app:

        @app.workflow(name="steps", max_attempts=1)
        async def steps(ctx: Context) -> None:
            await ctx.step(step_with_a_long_name)

        @app.workflow(name="declared", max_attempts=1)
        async def uses_a_declared_step(ctx: Context) -> None:
            await ctx.step(declared)

        dag = app.dag("d")
        dag.approval("ok")
        for declare in (
            lambda: app.workflow(name=long)(steps.function),
            lambda: app.workflow(name="x", queue=long)(steps.function),
            lambda: app.dag(long),
            lambda: app.dag("y", queue=long),
            lambda: dag.step(name=long)(lambda ctx: None),
            lambda: dag.approval(long),
        ):
            with pytest.raises(ConfigurationError, match="at most 10"):
                declare()
        for options in ({"queue": long}, {"key": long}, {"tags": [long]}):
            with pytest.raises(ConfigurationError, match="at most 10"):
                await app.start(steps, **options)
        for queues in ([long], ["a,b"]):
            with pytest.raises(ConfigurationError, match=r"at most 10|--queues"):
                await app.drain(queues=queues)
        run = await app.start(steps)
        with pytest.raises(ConfigurationError, match="at most 10"):
            await run.signal(long)
        other = await app.start(uses_a_declared_step)
        await app.drain()
        for each in (run, other):
            error = (await each.info()).error
            assert error is not None and "at most 10" in error.message


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("x" * 11, {}),
        ("charge", {"compensate": "x" * 11}),
        ("charge", {"group": "x" * 11}),
        ("charge", {"partition": "x" * 11}),
        ("charge", {"partition": "north"}),  # charge@north
    ],
)
async def test_the_limit_of_names_is_kept_by_remote_steps(name: str, options: dict[str, Any]) -> None:
    async with Stepfast("sqlite://", settings=Settings(max_name=10)) as app:

        @app.workflow(max_attempts=1)
        async def order(ctx: Context) -> None:
            await ctx.remote(name, **options)

        run = await app.start(order)
        await app.drain()
        error = (await run.info()).error
        assert error is not None and error.type.endswith("ConfigurationError") and "at most 10" in error.message
        with pytest.raises(ConfigurationError, match="at most 10"):
            app.dag("d").remote("step", handler=name, **options)


async def test_the_limit_of_names_may_be_raised() -> None:
    """What is declared before there is an application has no limit of its own."""
    long = "x" * 300
    async with Stepfast("sqlite://", settings=Settings(max_name=300)) as app:

        @app.workflow(name=long, queue=long)
        async def order(ctx: Context) -> int:
            return await ctx.step(step(name=long)(lambda: 5))

        run = await app.start(order)
        await app.drain()
        assert await run.result() == 5
        assert [each.name for each in await run.steps()] == [long]
        app.dag("d").step(name=long)(lambda ctx: None)
