"""Errors of steps: the same live and replayed, recorded, and what a new attempt forgets of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast import (
    Backoff,
    ChildFailed,
    Context,
    InvalidState,
    NonRetryableError,
    Run,
    RunNotFound,
    StepFailed,
    Stepfast,
    SyncContext,
)
from tests.engine.conftest import ON_BOTH
from tests.support.engine import (
    Calls,
    Gate,
    drained,
    eventually,
    failure,
    finished,
    interrupt,
    make_due,
    outcome,
    replayed,
)
from tests.support.workflows import calling, task

pytestmark = pytest.mark.enough_on("sqlite")

AT_ONCE = Backoff(base=0, jitter=False)


class OwnError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def facts(error: StepFailed) -> tuple[Any, ...]:
    return type(error), str(error), error.step, error.error_type, error.message, error.traceback, error.args


async def test_a_failed_step_raises_alike_live_and_replayed(app: Stepfast, calls: Calls) -> None:
    """Rule 14: decided when it is recorded, with type name, message and traceback text."""
    gate = Gate()
    seen: list[tuple[Any, ...]] = []

    async def fail() -> None:
        calls.hit("fail")
        raise OwnError(7)

    @app.workflow
    async def order(ctx: Context) -> str:
        try:
            await ctx.step(fail)
        except StepFailed as error:
            seen.append(facts(error))
        await ctx.step(gate.passing)
        return "caught"

    run = await app.start(order)
    await interrupt(app, gate)
    assert await finished(app, run, gate) == "caught"
    live, replayed = seen
    assert live == replayed
    assert calls["fail"] == 1
    kind, text, name, error_type, message, trace, _ = live
    assert (kind, name, message) == (StepFailed, "fail", "code 7")
    assert error_type.endswith("OwnError") and "OwnError" in text
    assert "raise OwnError(7)" in trace


async def test_an_exhausted_step_is_a_recorded_failure(app: Stepfast, calls: Calls) -> None:
    """Rule 15: a workflow that caught it replays the same way, and goes on."""
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> list[str]:
        results = []
        for name in ("good", "bad", "good again"):
            try:
                results.append(await ctx.step(name, work, name))
            except StepFailed as error:
                results.append(f"{error.step}: {error.message}")
        await ctx.step(gate.passing)
        return results

    async def work(name: str) -> str:
        calls.hit(name)
        if name == "bad":
            raise ValueError("no")
        return name

    run = await replayed(app, gate, order)
    assert await run.result() == ["good", "bad: no", "good again"]
    assert calls == {"good": 1, "bad": 1, "good again": 1}
    assert [s.status for s in await run.steps()] == ["completed", "failed", "completed", "completed"]


async def test_the_error_of_a_step_that_nobody_catches_fails_the_run(app: Stepfast) -> None:
    order = calling(app, lambda ctx: ctx.step("charge", fail_with, OwnError(1)), max_attempts=1)
    run = await drained(app, order)
    await failure(run, r"step 'charge' failed: .*OwnError: code 1")
    info = await run.info()
    assert info.error is not None and info.error.type == "StepFailed"
    [step] = await run.steps()
    assert step.error is not None
    assert (step.status, step.error.message, step.output) == ("failed", "code 1", None)


def fail_with(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("a\0b"), "a\0b"),
        (ValueError("half \ud800 pair"), "half \\ud800 pair"),
        (ValueError("x" * 200_000), "x" * 65536),
        (ValueError(), ""),
        (Unspeakable(), "(no message: __str__ raised RuntimeError)"),
        (KeyError("a", 2), "('a', 2)"),
        (SystemExit(3), "sys.exit(3) was called; a handler cannot end its worker"),
        (asyncio.CancelledError("odd"), "odd"),
        (StopIteration(), "the function raised StopIteration"),
    ],
    ids=["nul", "surrogate", "long", "empty", "unspeakable", "two arguments", "exit", "cancelled", "stop"],
)
async def test_any_error_can_be_kept(app: Stepfast, error: BaseException, message: str) -> None:
    """Whatever a handler raises, its run ends with a reason, and the worker goes on."""
    order = calling(app, lambda ctx: ctx.step("fail", fail_with, error), max_attempts=1)
    other = task(app, "other", returns="fine")
    run, after = await app.start(order), await app.start(other)
    assert await finished(app, after) == "fine"
    assert await run.status() == "failed"
    [step] = await run.steps()
    assert step.error is not None and step.error.message == message


@pytest.mark.parametrize("timeout", [None, 5.0])
@pytest.mark.parametrize("error", [SystemExit(1), asyncio.CancelledError(), KeyError("k")], ids=repr)
async def test_an_async_step_that_ends_oddly_fails_and_can_be_tried_again(
    app: Stepfast, calls: Calls, error: BaseException, timeout: float | None
) -> None:
    """Also within a task of its own, where SystemExit would end the event loop."""

    async def odd() -> str:
        if calls.hit("odd") == 1:
            raise error
        return "second time"

    order = calling(app, lambda ctx: ctx.options(retries=1, backoff=AT_ONCE, timeout=timeout).step(odd), max_attempts=1)
    assert await outcome(app, order) == "second time"


@pytest.mark.parametrize("kind", ["task", "workflow"])
async def test_a_handler_that_exits_or_cancels_itself_does_not_end_the_worker(app: Stepfast, kind: str) -> None:
    """The loop survives any handler error."""

    @app.task(max_attempts=1)
    async def leaving(how: str) -> None:
        raise SystemExit(4) if how == "exit" else asyncio.CancelledError

    @app.workflow(max_attempts=1)
    async def leaving_workflow(ctx: Context, how: str) -> None:
        raise SystemExit(4) if how == "exit" else asyncio.CancelledError

    @app.task(max_attempts=1)
    def leaving_thread(how: str) -> None:
        raise SystemExit(4) if how == "exit" else asyncio.CancelledError

    chosen = [leaving, leaving_thread] if kind == "task" else [leaving_workflow]
    runs = [await app.start(workflow, how) for workflow in chosen for how in ("exit", "cancel")]
    await app.drain()
    assert [await run.status() for run in runs] == ["failed"] * len(runs)


# -- what a new attempt forgets --------------------------------------------------------------------------------


async def test_a_cleanup_step_after_the_error_is_made_anew_too(app: Stepfast, calls: Calls) -> None:
    """Rule 15: what was recorded after the error was raised belongs to the attempt that failed."""

    async def pay() -> str:
        if calls.hit("pay") == 1:
            raise ValueError("declined")
        return "paid"

    @app.workflow(max_attempts=2, backoff=AT_ONCE)
    async def order(ctx: Context) -> list[str]:
        reserved = await ctx.step("reserve", lambda: f"reserved {calls.hit('reserve')}")
        try:
            paid = await ctx.step(pay)
        except StepFailed:
            await ctx.step("release", lambda: calls.hit("release"))
            raise
        return [reserved, paid, await ctx.step("ship", lambda: f"shipped {calls.hit('ship')}")]

    run = await drained(app, order)
    assert await run.result() == ["reserved 1", "paid", "shipped 1"]
    assert calls == {"reserve": 1, "pay": 2, "release": 1, "ship": 1}
    assert [s.name for s in await run.steps()] == ["reserve", "pay", "ship"]


@pytest.mark.parametrize("how", ["from", "while handling", "in a group"])
async def test_an_error_made_of_a_failed_step_forgets_that_step(app: Stepfast, calls: Calls, how: str) -> None:
    """Rule 15: the record whose error ended the attempt, also where the code raised its own instead."""

    async def pay() -> str:
        if calls.hit("pay") == 1:
            raise ValueError("declined")
        return "paid"

    @app.workflow(max_attempts=2, backoff=AT_ONCE)
    async def order(ctx: Context) -> str:
        try:
            return await ctx.step(pay)
        except StepFailed as error:
            if how == "from":
                raise LookupError("own") from error
            if how == "in a group":
                raise ExceptionGroup("several", [error, ValueError("other")]) from None
            raise LookupError("own")  # noqa: B904

    assert await outcome(app, order) == "paid"
    assert calls["pay"] == 2


async def test_a_caught_failure_is_not_forgotten_by_a_later_error(app: Stepfast, calls: Calls) -> None:
    """Rule 15: only the failed record whose error ended the attempt."""

    @app.workflow(max_attempts=2, backoff=AT_ONCE)
    async def order(ctx: Context) -> str:
        try:
            await ctx.step("optional", lambda: fail_with(ValueError(calls.hit("optional"))))
        except StepFailed:
            pass
        if calls.hit("body") == 1:
            raise LookupError("of the body")
        return "done"

    assert await outcome(app, order) == "done"
    assert calls == {"optional": 1, "body": 2}


async def test_steps_completed_in_parallel_are_kept(app: Stepfast, calls: Calls) -> None:
    """Rule 15: one of three fails after the others were recorded."""

    @app.workflow(max_attempts=2, backoff=AT_ONCE)
    async def order(ctx: Context) -> list[str]:
        async def work(name: str) -> str:
            if calls.hit(name) == 1 and name == "b":
                await eventually(lambda: recorded(2))
                raise ValueError("not yet")
            return name

        async def recorded(count: int) -> bool:
            return len([s for s in await app.get(ctx.run_id).steps() if s.status == "completed"]) == count

        return list(await asyncio.gather(*(ctx.step(name, work, name) for name in "abc")))

    assert await outcome(app, order) == ["a", "b", "c"]
    assert calls == {"a": 1, "b": 2, "c": 1}


async def test_steps_still_running_when_the_attempt_fails_record_nothing_more(app: Stepfast, calls: Calls) -> None:
    """Rule 20: gather leaves them running; the next attempt has them to itself."""
    hold = asyncio.Event()

    async def slow() -> str:
        number = calls.hit("slow")
        if number == 1:
            await hold.wait()
            calls.hit("late")
        return f"call {number}"

    async def fail() -> str:
        if calls.hit("fail") == 1:
            raise ValueError("first")
        return "ok"

    order = calling(app, lambda ctx: asyncio.gather(ctx.step(slow), ctx.step(fail)), max_attempts=2, backoff=AT_ONCE)
    run = await app.start(order)
    async with app.worker():
        assert await run.result(timeout=20) == ["call 2", "ok"]
        hold.set()
        await eventually(lambda: calls["late"] == 1)
    assert sorted(str(s.output) for s in await run.steps()) == ["call 2", "ok"]


async def test_an_operators_retry_forgets_the_same(app: Stepfast, calls: Calls) -> None:
    """Rule 15: the failed step and its cleanup are made anew, the rest is kept; a new budget of attempts."""

    async def pay() -> str:
        if calls.hit("pay") <= 2:
            raise ValueError("declined")
        return "paid"

    @app.workflow(max_attempts=2, backoff=AT_ONCE)
    async def order(ctx: Context) -> str:
        await ctx.step("reserve", lambda: calls.hit("reserve"))
        try:
            return await ctx.step(pay)
        except StepFailed:
            await ctx.step("release", lambda: calls.hit("release"))
            raise

    run = await drained(app, order)
    assert await run.status() == "failed"
    assert calls == {"reserve": 1, "pay": 2, "release": 2}
    await run.retry()
    assert await finished(app, run) == "paid"
    assert calls == {"reserve": 1, "pay": 3, "release": 2}
    assert (await run.info()).error is None


async def test_a_failed_step_in_a_plain_def_workflow(app: Stepfast, calls: Calls) -> None:
    """Rules 14 and 30."""

    @app.workflow(max_attempts=2, backoff=AT_ONCE)
    def order(ctx: SyncContext) -> str:
        try:
            ctx.step("optional", lambda: fail_with(OwnError(2)))
        except StepFailed as error:
            message = error.message
        ctx.step("needed", lambda: fail_with(OwnError(3)) if calls.hit("needed") == 1 else None)
        return message

    assert await outcome(app, order) == "code 2"
    assert calls["needed"] == 2


async def test_only_what_ended_badly_can_be_retried(app: Stepfast) -> None:
    """Terminal states change only by an operator's retry, and only failed or cancelled ones."""

    @app.task
    async def mail(ok: bool) -> None:
        if not ok:
            raise NonRetryableError("no")

    done, waiting = await app.start(mail, True), await app.start(mail, True, delay=60)
    await app.drain()
    with pytest.raises(InvalidState, match="completed"):
        await done.retry()
    with pytest.raises(InvalidState, match="queued"):
        await waiting.retry()
    with pytest.raises(RunNotFound):
        await app.get("01977777-7777-7777-8777-777777777777").retry()


async def test_a_traceback_says_as_what_a_failed_step_is_caught(app: Stepfast) -> None:
    """Whoever wrote `except ValueError` around it finds out why that did not help."""

    def declined() -> None:
        raise ValueError("no money")

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        try:
            await ctx.step(declined)
        except ValueError:
            raise AssertionError("never") from None

    run = await drained(app, order)
    error = (await run.info()).error
    assert error is not None and error.traceback is not None
    assert "except StepFailed as error" in error.traceback and "'ValueError'" in error.traceback


async def test_a_nul_in_an_error_keeps_nobody_from_reading_of_it(app: Stepfast) -> None:
    """It is kept; but Postgres takes no part out of a JSON that has one, not even another part."""
    mail = task(app, "mail", error=ValueError("bad\0line"), max_attempts=1)
    run = await drained(app, mail)
    error = (await run.info()).error
    assert error is not None and error.message == "bad\0line"
    assert [(group.workflow, group.error_type) for group in (await app.stats()).failures] == [("mail", "ValueError")]


async def test_the_step_that_failed_is_blamed_and_not_an_undo_that_failed_once(app: Stepfast, calls: Calls) -> None:
    def undo(_output: object) -> None:
        if calls.hit("undo") == 1:
            raise KeyError("not yet")

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> None:
        await ctx.options(compensate=undo).step("reserve", lambda: 1)
        await ctx.step("charge", lambda: fail_with(ValueError("declined")))

    run = await drained(app, order)
    assert (await run.status(), calls["undo"]) == ("compensated", 2)
    [group] = (await app.stats()).failures
    assert (group.step, group.error_type) == ("charge", "ValueError")


# -- code that tolerates some failures, and fails by others: what its next attempt, and an operator's ret


LATER = Backoff(base=600, max=3600)
"""So that a new attempt is made when the test wants it."""


class TooMany(Exception):
    """What the code makes of the failures by itself."""


class Works:
    """Steps and children of which those in capitals fail until they are repaired; what each did is counted."""

    def __init__(self, app: Stepfast, calls: Calls) -> None:
        self.calls = calls
        self.repaired = False

        @app.task(name="child", max_attempts=1)
        async def child(name: str) -> str:
            return self.work(name)

        self.child = child

    def work(self, name: str) -> str:
        self.calls.hit(name)
        if name.isupper() and not self.repaired:
            raise NonRetryableError(name)
        return name

    async def item(self, ctx: Context, name: str) -> str:
        await ctx.step("before", lambda: self.calls.hit(f"before {name}"))
        return await ctx.step("work", self.work, name)

    async def half(self, ctx: Context, names: list[str]) -> list[str]:
        """An item that maps by itself, and fails by an error of its own."""
        return all_of(await ctx.map(self.item, names, return_errors=True))


def all_of(results: list[Any]) -> list[str]:
    failed = [result for result in results if isinstance(result, Exception)]
    if failed:
        raise TooMany(f"{len(failed)} of {len(results)}")
    return results


NAMES = ["a", "B", "c", "D"]


async def by_map(ctx: Context, works: Works) -> list[Any]:
    return await ctx.map(works.item, NAMES, return_errors=True)


async def by_gather(ctx: Context, works: Works) -> list[Any]:
    return await ctx.gather(*(ctx.step("work", works.work, name) for name in NAMES), return_errors=True)


async def by_children(ctx: Context, works: Works) -> list[Any]:
    return await ctx.gather(*(ctx.call(works.child, name) for name in NAMES), return_errors=True)


async def by_children_one_by_one(ctx: Context, works: Works) -> list[Any]:
    results: list[Any] = []
    children = [await ctx.start(works.child, name) for name in NAMES]
    for child in children:
        try:
            results.append(await child.result())
        except ChildFailed as error:
            results.append(error)
    return results


async def by_nested_maps(ctx: Context, works: Works) -> list[Any]:
    return await ctx.map(works.half, [["a", "B", "E"], ["c"], ["D"]], return_errors=True)


def own_error(failed: list[Exception]) -> None:
    raise TooMany(len(failed))


def first_error(failed: list[Exception]) -> None:
    raise failed[0]


def from_last(failed: list[Exception]) -> None:
    raise TooMany(len(failed)) from failed[-1]


def as_group(failed: list[Exception]) -> None:
    raise ExceptionGroup("too many", failed)


def in_context(failed: list[Exception]) -> None:
    try:
        raise failed[0]
    except Exception:
        own_error(failed)


Way = Callable[[Context, Works], Awaitable[list[Any]]]


End = Callable[[list[Exception]], None]


def repeated(calls: Calls) -> set[str]:
    return {name for name, count in calls.items() if count > 1}


def failed_of(results: list[Any]) -> list[Exception]:
    return [each for each in results if isinstance(each, Exception)]


async def retried(app: Stepfast, works: Works, run: Run[Any]) -> Run[Any]:
    """The same run, after what was broken is repaired and an operator has retried it."""
    works.repaired = True
    await run.retry()
    await app.drain()
    return run


async def next_attempt(app: Stepfast, works: Works, run: Run[Any]) -> Run[Any]:
    """The same run, after what was broken is repaired and its next attempt was made."""
    works.repaired = True
    await make_due(app, run.id)
    await app.drain()
    return run


@pytest.mark.parametrize(
    ("way", "end"),
    [
        pytest.param(way, end, id=f"{way.__name__}-{end.__name__}")
        for way in (by_map, by_gather, by_children, by_children_one_by_one, by_nested_maps)
        for end in (own_error, first_error, from_last, as_group, in_context)
        if way is by_map or end in (own_error, as_group)
    ],
)
async def test_a_retry_redoes_all_failures_that_led_to_the_error_and_nothing_else(
    app: Stepfast, calls: Calls, way: Way, end: End
) -> None:
    works = Works(app, calls)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[Any]:
        results = await way(ctx, works)
        if failed := failed_of(results):
            end(failed)
        return results

    run = await drained(app, order)
    assert await run.status() == "failed"
    assert await (await retried(app, works, run)).status() == "completed"
    assert repeated(calls) == {name for name in calls if name.isupper()}
    assert max(calls.values()) == 2


@ON_BOTH
@pytest.mark.parametrize("way", [by_map, by_children], ids=["map", "children"])
async def test_a_retry_redoes_them_where_a_worker_died_between(app: Stepfast, calls: Calls, way: Way) -> None:
    """What the code was given before is known from the records."""
    works, gate = Works(app, calls), Gate()

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[Any]:
        results = await way(ctx, works)
        await gate.passing()
        return all_of(results)

    run = await replayed(app, gate, order)
    await failure(run, "2 of 4")
    assert await (await retried(app, works, run)).result() == NAMES
    assert repeated(calls) == {"B", "D"}


@pytest.mark.parametrize("end", [from_last, as_group, first_error])
async def test_a_new_attempt_redoes_the_failures_that_the_error_carries(app: Stepfast, calls: Calls, end: End) -> None:
    works = Works(app, calls)

    def work(name: str) -> str:
        try:
            return works.work(name)
        except NonRetryableError:
            raise ValueError(name) from None

    async def item(ctx: Context, name: str) -> str:
        return await ctx.step("work", work, name)

    @app.workflow(backoff=LATER)
    async def order(ctx: Context) -> list[Any]:
        results = await ctx.map(item, NAMES, return_errors=True)
        if failed := failed_of(results):
            end(failed)
        return results

    run = await next_attempt(app, works, await drained(app, order))
    carried = {"from_last": {"D"}, "as_group": {"B", "D"}, "first_error": {"B"}}[end.__name__]
    assert repeated(calls) == carried
    assert await run.status() == ("completed" if carried == {"B", "D"} else "queued")


async def test_a_new_attempt_redoes_what_failed_beside_an_error_of_the_code(app: Stepfast, calls: Calls) -> None:
    """The first error is the code's own, and those of the steps beside it were not seen."""
    works = Works(app, calls)

    async def item(ctx: Context, name: str) -> str:
        if name == "own" and calls.hit("own") == 1:
            raise TooMany("in the code")
        return await ctx.step("work", works.work, name)

    async def items(ctx: Context, names: list[str]) -> list[str]:
        return await ctx.map(item, names)

    order = calling(app, lambda ctx: ctx.map(items, [["own", "A"], ["B", "C"], ["D"]]), backoff=LATER)
    run = await next_attempt(app, works, await drained(app, order))
    assert await run.result() == [["own", "A"], ["B", "C"], ["D"]]
    assert (await run.info()).attempt == 2
    assert repeated(calls) == {"own", "A", "B", "C", "D"}


async def test_an_error_that_carries_failures_has_them_redone_whatever_came_between(
    app: Stepfast, calls: Calls
) -> None:
    works = Works(app, calls)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[Any]:
        results = await ctx.map(works.item, NAMES, return_errors=True)
        if failed := failed_of(results):
            await ctx.step("report", lambda: calls.hit("report"))
            raise TooMany(len(failed)) from failed[0]
        await ctx.step("ship", lambda: calls.hit("ship"))
        return results

    run = await retried(app, works, await drained(app, order))
    assert await run.result() == NAMES
    assert repeated(calls) == {"B", "D"}
    assert (calls["report"], calls["ship"]) == (1, 1)


@pytest.mark.parametrize("later", ["a step", "the code"])
async def test_failures_that_the_code_continued_from_stay(app: Stepfast, calls: Calls, later: str) -> None:
    """They are not repeated because of another error, later."""
    works = Works(app, calls)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> int:
        results = await ctx.map(works.item, NAMES, return_errors=True)
        await ctx.step("charge", lambda: calls.hit("charge"))
        if later == "a step":
            await ctx.step("work", works.work, "SHIP")
        elif not works.repaired:
            raise KeyError("a bug")
        return len([each for each in results if isinstance(each, StepFailed)])

    run = await retried(app, works, await drained(app, order))
    assert await run.result() == 2
    assert repeated(calls) <= {"SHIP"}


@pytest.mark.parametrize("end", [own_error, from_last])
@pytest.mark.parametrize("between", ["a step", "a wait", "a child", "a value"])
async def test_a_call_before_an_own_error_is_the_limit(app: Stepfast, calls: Calls, between: str, end: End) -> None:
    """A step or a wait would be made again with the failures: by an error of its own the code says nothing of them, and
    fails again. An error that carries one of them does; a child is not started again, and no record is not either."""
    works = Works(app, calls)
    calling: dict[str, Callable[[Context], Awaitable[Any]]] = {
        "a step": lambda ctx: ctx.step("report", lambda: calls.hit("report")),
        "a wait": lambda ctx: ctx.sleep(0.001),
        "a child": lambda ctx: ctx.call(works.child, "c1"),
        "a value": lambda ctx: ctx.set("failed", 2),
    }

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[Any]:
        results = await ctx.map(works.item, NAMES, return_errors=True)
        if failed := failed_of(results):
            await calling[between](ctx)
            end(failed)
        return results

    run = await retried(app, works, await drained(app, order))
    stays = end is own_error and between in ("a step", "a wait")
    assert await run.status() == ("failed" if stays else "completed")
    assert repeated(calls) == (set() if stays else {"B", "D"})


async def test_each_retry_redoes_what_still_fails(app: Stepfast, calls: Calls) -> None:
    broken = {"B", "D"}

    def work(name: str) -> str:
        calls.hit(name)
        if name in broken:
            raise NonRetryableError(name)
        return name

    async def item(ctx: Context, name: str) -> str:
        return await ctx.step(work, name)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[Any]:
        return all_of(await ctx.map(item, NAMES, return_errors=True))

    run = await drained(app, order)
    for name in ("B", "D"):
        broken.remove(name)
        await run.retry()
        await app.drain()
    assert await run.result() == NAMES
    assert calls == {"a": 1, "B": 2, "c": 1, "D": 3}


async def test_a_gather_of_asyncio_carries_failures_in_a_group(app: Stepfast, calls: Calls) -> None:
    works = Works(app, calls)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[str]:
        branches = [ctx.branch(works.item, name) for name in ("A", "B")]
        results = await asyncio.gather(*branches, return_exceptions=True)
        if failed := failed_of(results):
            raise ExceptionGroup("both", failed)
        return [str(each) for each in results]

    run = await retried(app, works, await drained(app, order))
    assert await run.result() == ["A", "B"]
    assert repeated(calls) == {"A", "B"}
