"""Uses of a context that could not be replayed: refused at once, saying what to write instead."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from stepfast import (
    Backoff,
    ConfigurationError,
    Context,
    ContextMisuse,
    RunFailed,
    Settings,
    Stepfast,
    SyncContext,
    UnknownOption,
)
from stepfast.model.urls import redact
from tests.support.engine import Calls, drained, failure, outcome
from tests.support.workflows import calling, task

pytestmark = pytest.mark.enough_on("sqlite")


async def work(number: int = 0) -> int:
    return number


async def misused(app: Stepfast) -> RunFailed:
    """How the run of the workflow "order" fails: for good, at its first attempt."""
    run = await drained(app, "order")
    with pytest.raises(RunFailed) as caught:
        await run.result()
    assert (await run.info()).attempt == 1
    return caught.value


CALLS = {
    "step": lambda ctx: ctx.step(work, 1),
    "sleep": lambda ctx: ctx.sleep(0),
    "signal": lambda ctx: ctx.wait_signal("go"),
    "value": lambda ctx: ctx.set("it", 1),
    "check": lambda ctx: ctx.wait_until("x", lambda: 1),
}


@pytest.mark.parametrize(("where", "said"), [("tasks", "ctx.branch"), ("a step", "from inside")])
@pytest.mark.parametrize("call", CALLS)
async def test_a_context_called_from_another_task_or_inside_a_step_is_refused(
    app: Stepfast, call: str, where: str, said: str
) -> None:
    """Rule 18: at once, naming ctx.branch; no retry can help, and nothing is done."""

    @app.workflow
    async def order(ctx: Context) -> None:
        async def elsewhere() -> None:
            await CALLS[call](ctx)

        await (asyncio.gather(elsewhere(), elsewhere()) if where == "tasks" else ctx.step("outer", elsewhere))

    error = await misused(app)
    assert (error.error_type, error.reason) == ("ContextMisuse" if where == "tasks" else "StepFailed", "code")
    assert said in error.message and (where == "tasks" or "'outer'" in error.message)
    [run] = await app.runs()
    assert await app.get(run.id).get("it", "nothing") == "nothing"


async def test_steps_called_in_the_workflow_may_be_awaited_in_other_tasks(app: Stepfast) -> None:
    """Rule 18: the position was taken in the workflow itself."""

    @app.workflow
    async def order(ctx: Context) -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(awaiting(ctx.step(work, n))) for n in range(3)]
        return [task.result() for task in tasks]

    async def awaiting(call: Any) -> int:
        result: int = await call
        return result

    assert await outcome(app, order) == [0, 1, 2]


async def test_a_context_called_from_another_thread_is_refused(app: Stepfast) -> None:
    """Rule 18, for blocking code."""
    refused: list[str] = []

    @app.workflow
    async def order(ctx: Context) -> None:
        def elsewhere() -> None:
            try:
                ctx.step(work)
            except ContextMisuse as error:
                refused.append(str(error))

        await asyncio.to_thread(elsewhere)

    run = await drained(app, order)
    assert await run.status() == "completed"
    assert len(refused) == 1 and "ctx.branch" in refused[0]


async def test_a_step_left_unawaited_fails_the_run_by_name(app: Stepfast, calls: Calls) -> None:
    """Rule 18."""

    @app.workflow
    async def order(ctx: Context) -> str:
        ctx.step("forgotten", lambda: calls.hit("forgotten"))
        await ctx.step(work)
        return "done"

    error = await misused(app)
    assert "'forgotten'" in error.message and "await" in error.message
    assert calls["forgotten"] == 0


async def test_a_step_awaited_twice_is_refused_by_name(app: Stepfast, calls: Calls) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        call = ctx.step("twice", lambda: calls.hit("twice"))
        await call
        await call

    error = await misused(app)
    assert "'twice'" in error.message
    assert calls["twice"] == 1


async def test_a_call_that_races_with_itself_is_refused_by_name(app: Stepfast, calls: Calls) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        call = ctx.step("twice", lambda: calls.hit("twice"))
        await ctx.first(one=call, other=call)

    error = await misused(app)
    assert error.error_type == "ContextMisuse"
    assert "'twice'" in error.message and "one and other" in error.message
    assert calls["twice"] == 0


async def test_calls_without_a_record_are_refused_in_a_race_by_name() -> None:
    async with Stepfast("sqlite://") as app:

        @app.workflow
        async def order(ctx: Context) -> None:
            await ctx.first(both=ctx.gather(ctx.step(work)), late=ctx.sleep(60))  # type: ignore[arg-type]

        error = await misused(app)
    assert "both is ctx.gather(…), which leaves none" in error.message and "ctx.branch" in error.message


@pytest.mark.parametrize("way", ["branch", "map"])
async def test_a_branch_that_is_a_plain_def_is_refused_by_name(app: Stepfast, way: str) -> None:
    def plain(ctx: Context, number: int) -> int:
        return number

    @app.workflow
    async def order(ctx: Context) -> None:
        await (ctx.branch(plain, 1) if way == "branch" else ctx.map(plain, [1, 2]))  # type: ignore[arg-type]

    error = await misused(app)
    assert error.error_type == "ContextMisuse"
    assert "'plain'" in error.message and "async def" in error.message


async def test_a_branch_may_be_any_callable_that_gives_something_to_await(app: Stepfast) -> None:
    async def item(ctx: Context, number: int) -> int:
        return await ctx.step(work, number)

    order = calling(app, lambda ctx: ctx.map(lambda ctx, number: item(ctx, number), [1, 2]))
    assert await outcome(app, order) == [1, 2]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda ctx: ctx.options(retrie=3).step(work), "did you mean 'retries'"),
        (lambda ctx: ctx.options(retries=-1).step(work), "zero or more"),
        (lambda ctx: ctx.options(timeout="5").step(work), "the timeout of a step"),
        (lambda ctx: ctx.step("", work), "must not be empty"),
        (lambda ctx: ctx.first(ctx.sleep(0), ctx.sleep(5)), "ctx.first takes its calls by name"),
        (lambda ctx: ctx.options(retries=3).sleep(0), "ctx.sleep takes a name, and no other options"),
        (lambda ctx: ctx.options(name="n").wait_signal("go"), "ctx.wait_signal takes no options of steps"),
        (lambda ctx: ctx.options(retries=3).gather(ctx.step(work)), "ctx.gather takes no options of steps"),
        (lambda ctx: ctx.sleep("soon"), "ctx.sleep"),
        (lambda ctx: ctx.wait_signal("paid", timeout=-1), "ctx.wait_signal"),
        (lambda ctx: ctx.start("order", prioritty=3), "did you mean 'priority'"),
        (lambda ctx: ctx.start("order", priority="high"), "priority must be"),
    ],
)
async def test_a_wrong_option_in_the_body_ends_the_run_at_once(wrong: Any, said: str) -> None:
    async with Stepfast("sqlite://", settings=Settings(max_attempts=3)) as app:

        @app.workflow
        async def order(ctx: Context) -> None:
            await wrong(ctx)

        error = await misused(app)
    assert said in error.message
    assert error.reason == "code"


async def test_a_wrong_option_in_a_plain_def_ends_the_run_at_once() -> None:
    async with Stepfast("sqlite://") as app:

        @app.workflow
        def order(ctx: SyncContext) -> None:
            ctx.options(retry=3).step(work)  # type: ignore[call-arg]

        error = await misused(app)
    assert (error.error_type, error.reason) == ("UnknownOption", "code")


async def test_a_step_inside_a_step_of_a_plain_def_workflow_is_refused(app: Stepfast, calls: Calls) -> None:
    @app.workflow
    def order(ctx: SyncContext) -> None:
        def outer() -> None:
            ctx.step("inner", lambda: calls.hit("inner"))

        ctx.step(outer)

    error = await misused(app)
    assert "'outer' called ctx.step from inside" in error.message
    assert calls["inner"] == 0


@pytest.mark.parametrize("verb", ["start", "start_many"])
async def test_starting_in_the_body_of_a_workflow_is_refused(app: Stepfast, verb: str) -> None:
    """Rule 21: every replay would start another; the message names ctx.start. Nothing is started."""
    mail = task(app, "mail", returns=None)
    calling(app, lambda ctx: app.start(mail, "a") if verb == "start" else app.start_many(mail, ["a"]))
    error = await misused(app)
    assert f"app.{verb}" in error.message and "ctx.start" in error.message
    assert await app.runs(workflow=mail) == []


async def test_starting_in_the_body_of_a_plain_def_workflow_is_refused(app: Stepfast) -> None:
    """Rule 21, through the face without an event loop."""
    mail = task(app, "mail", returns=None)

    @app.workflow
    def order(ctx: SyncContext) -> None:
        app.sync.start(mail, "a")

    error = await misused(app)
    assert "ctx.start" in error.message
    assert await app.runs(workflow=mail) == []


async def test_starting_inside_a_step_or_a_task_is_allowed(app: Stepfast) -> None:
    """Rule 21: a step is recorded, and a task has no replay."""
    mail = task(app, "mail")

    @app.task
    async def relay(to: str) -> str:
        return (await app.start(mail, to)).id

    @app.workflow
    async def order(ctx: Context) -> str:
        async def send() -> str:
            return (await app.start(mail, "step")).id

        return await ctx.step(send)

    one, other = await app.start(order), await app.start(relay, "task")
    await app.drain()
    assert await app.get(await one.result()).result() == "step"
    assert await app.get(await other.result()).result() == "task"


async def test_a_context_kept_beyond_the_end_of_its_run_refuses_every_call(app: Stepfast) -> None:
    """Rule 20."""
    kept: list[Context] = []

    @app.workflow
    async def order(ctx: Context) -> None:
        kept.append(ctx)

    run = await drained(app, order)
    assert await run.status() == "completed"
    with pytest.raises(BaseException, match="over"):
        kept[0].step(work)
    with pytest.raises(BaseException, match="over"):
        kept[0].progress("too late")


def test_two_workflows_of_one_name_are_refused() -> None:
    app = Stepfast("sqlite://")
    app.task(name="mail")(lambda: 1)
    with pytest.raises(ConfigurationError, match="'mail'"):
        app.task(name="mail")(lambda: 2)


@pytest.mark.parametrize("way", ["set", "gather", "branch"])
async def test_a_call_without_a_record_that_is_not_awaited_fails_the_run_by_name(app: Stepfast, way: str) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        if way == "set":
            ctx.set("progress", 1)
        elif way == "gather":
            ctx.gather(ctx.step(work))
        else:
            await ctx.branch(forgetful)

    async def forgetful(ctx: Context) -> None:
        ctx.set("progress", 1)

    error = await misused(app)
    assert error.error_type == "ContextMisuse"
    assert ("ctx.gather(…)" if way == "gather" else "ctx.set('progress', …)") in error.message


async def test_a_value_may_be_set_beside_other_calls(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> Any:
        first = await ctx.gather(ctx.set("a", 1), ctx.step(work, 2), ctx.gather(ctx.step(work, 3)))
        await asyncio.gather(ctx.set("b", 2), ctx.set("c", 3))
        return first

    run = await drained(app, order)
    assert await run.result() == [None, 2, [3]]
    assert [await run.get(key) for key in "abc"] == [1, 2, 3]


async def test_a_value_that_is_set_twice_by_one_call_is_refused(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context) -> None:
        setting = ctx.set("a", 1)
        await setting
        await setting

    error = await misused(app)
    assert "ctx.set('a', …) was awaited twice" in error.message


async def test_every_call_may_be_a_task_of_a_group() -> None:
    async with Stepfast("sqlite://") as app:

        @app.workflow
        async def order(ctx: Context) -> list[Any]:
            async with asyncio.TaskGroup() as group:
                both = group.create_task(ctx.gather(ctx.step(work, 1), ctx.step(work, 2)))
                group.create_task(ctx.set("state", "halfway"))
                one = group.create_task(ctx.step(work, 3))
            return [*both.result(), one.result()]

        run = await drained(app, order)
        assert await run.result() == [1, 2, 3]
        assert await run.get("state") == "halfway"


@pytest.mark.parametrize("plain", [False, True], ids=["async def", "def"])
@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda ctx: ctx.sleep(), "sleep() missing 1 required positional argument"),
        (lambda ctx: ctx.wait_signal("go", timeot=3), "unexpected keyword argument 'timeot'"),
        (lambda ctx: ctx.patched(), "patched() missing 1 required positional argument"),
    ],
)
async def test_a_call_that_python_itself_refuses_ends_the_run_at_once(
    app: Stepfast, plain: bool, call: Any, said: str
) -> None:
    if plain:

        @app.workflow(name="order")
        def plain_order(ctx: SyncContext) -> None:
            call(ctx)
    else:

        @app.workflow(name="order")
        async def async_order(ctx: Context) -> None:
            await call(ctx)

    error = await misused(app)
    assert error.error_type == "ContextMisuse"
    assert said in error.message


async def test_a_type_error_of_other_code_is_tried_again(app: Stepfast) -> None:
    @app.workflow(max_attempts=2, backoff=Backoff(base=0, jitter=False))
    async def order(ctx: Context) -> None:
        await work(1, 2)  # type: ignore[call-arg]

    run = await drained(app, order)
    info = await run.info()
    assert (info.attempt, info.status) == (2, "failed")


@pytest.mark.parametrize("kind", ["task", "step"])
async def test_the_sync_face_is_refused_in_a_running_event_loop(app: Stepfast, kind: str) -> None:
    @app.task
    async def mail(to: str) -> str:
        return f"sent to {to}"

    async def blocks() -> None:
        app.sync.start(mail, "a").result(timeout=1)

    app.task(max_attempts=3)(blocks)
    calling(app, lambda ctx: ctx.step(blocks), name="step", max_attempts=1)
    run = await drained(app, "blocks" if kind == "task" else "step")
    with pytest.raises(RunFailed, match=r"write `await app.start\(…\)` here, or call app.sync in a thread"):
        await run.result()
    assert (await run.info()).attempt == 1
    with pytest.raises(ContextMisuse, match=r"write `await run.status\(…\)`"):
        app.sync.get(run.id).status()


# -- what is said to code that calls wrongly: what was wrong, where, and what to write instead


async def test_several_inputs_are_refused_with_a_sentence(app: Stepfast) -> None:
    @app.task
    async def add(numbers: list[int]) -> int:
        return sum(numbers)

    untyped: Any = app
    said = r"app\.start takes one input, but was given 2 .* as one value: .* Options go by name"
    with pytest.raises(UnknownOption, match=said):
        await untyped.start(add, 1, 2)
    with pytest.raises(UnknownOption, match=said):
        await asyncio.to_thread(untyped.sync.start, "add", 1, 2)
    said = r"app\.start_many takes one list of inputs, but was given 2"
    with pytest.raises(UnknownOption, match=said):
        await untyped.start_many(add, [1], [2])
    with pytest.raises(UnknownOption, match=said):
        await asyncio.to_thread(untyped.sync.start_many, "add", [1], [2])


@pytest.mark.parametrize("called", ["start", "start_many"])
async def test_an_input_given_by_name_is_not_taken_for_a_slip(app: Stepfast, called: str) -> None:
    add = task(app, "add")
    start: Any = getattr(app, called)
    with pytest.raises(UnknownOption) as refused:
        await start(add, *([[]] if called == "start_many" else []), a=1)
    assert f"app.{called} has no option 'a'" in str(refused.value)
    assert "did you mean" not in str(refused.value)
    assert "the input is one value" in str(refused.value)
    with pytest.raises(UnknownOption, match="did you mean 'priority'"):
        await start(add, [], priorty=1)


@pytest.mark.parametrize("called", ["map", "branch", "gather", "first"])
async def test_calls_that_a_plain_def_does_not_have(app: Stepfast, called: str) -> None:
    @app.workflow
    def order(ctx: SyncContext) -> None:
        getattr(ctx, called)(1, [2])

    run = await drained(app, order)
    failed = await failure(run, rf"ctx\.{called} is not for a plain def .* async def")
    assert failed.error_type == "ContextMisuse"
    assert (await run.info()).attempt == 1, "no other attempt can help"


async def test_a_name_that_no_context_has_stays_an_attribute_error(app: Stepfast) -> None:
    @app.workflow(max_attempts=1)
    def order(ctx: SyncContext) -> None:
        ctx.mapp([1])  # type: ignore[attr-defined]

    await failure(await drained(app, order), "'SyncContext' object has no attribute 'mapp'")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda ctx: ctx.wait_signal("go", timeout=-1), "the timeout of ctx.wait_signal must be zero or more seconds"),
        (lambda ctx: ctx.sleep(-1), "the duration of ctx.sleep must be zero or more seconds"),
        (lambda ctx: ctx.wait_until("x", lambda: 0, every=-1), "every of ctx.wait_until must be zero or more seconds"),
        (
            lambda ctx: ctx.map(print, [1], max_failures=1.0),
            "max_failures of ctx.map must be a whole number of at least 0",
        ),
        (
            lambda ctx: ctx.map(print, [1], min_successful=0),
            "min_successful of ctx.map must be a whole number of at leas",
        ),
        (lambda ctx: ctx.gather(ctx.sleep(0), limit=0), "the limit of ctx.gather must be a whole number of at least 1"),
        (lambda ctx: ctx.gather(ctx.set("a", 1), max_failures=1), "takes calls of the context that leave a record"),
        (
            lambda ctx: ctx.wait_until("x", lambda: 0, max_checks=0),
            "max_checks of ctx.wait_until must be a whole number",
        ),
        (lambda ctx: ctx.wait_until("x", lambda: 0, timeout=-1), "the timeout of ctx.wait_until must be zero or more"),
    ],
)
async def test_a_span_that_makes_no_sense_is_named(app: Stepfast, call: Callable[[Any], Any], said: str) -> None:
    order = calling(app, lambda ctx: call(ctx), max_attempts=1)
    await failure(await drained(app, order), said)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:/x", "sqlite:/x"),
        ("sqlite:stepfast.db", "sqlite:stepfast.db"),
        ("postgresql:/me:secret@host/db", "postgresql:***"),
        ("sqlite:/x?password=secret", "sqlite:***"),
        ("me:secret@host", "***"),
    ],
)
def test_a_url_that_lacks_a_slash_is_shown_as_far_as_it_may_be(url: str, shown: str) -> None:
    assert redact(url) == shown
    with pytest.raises(ConfigurationError) as refused:
        Stepfast(url)
    assert repr(shown) in str(refused.value)
    assert "secret" not in str(refused.value)


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def test_an_async_def_behind_a_plain_decorator_is_told_from_a_plain_def(app: Stepfast) -> None:
    with pytest.raises(ConfigurationError) as refused:

        @app.workflow
        @plain
        async def order(ctx: Context) -> None: ...

    said = str(refused.value)
    assert "is an async def, but a decorator has wrapped it in a plain def" in said
    assert "async def wrapper" in said
    assert "SyncContext" not in said
