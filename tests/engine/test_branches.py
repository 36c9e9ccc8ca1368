"""Several lines of work in one run: branch, gather, map. Each replays the same whatever finished first."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextvars import Context as Variables
from contextvars import copy_context
from typing import Any

import pytest

from stepfast import Backoff, Context, ContextMisuse, RetryLater, Settings, StepFailed, Stepfast, SyncContext
from tests.engine.conftest import WAITS, MakeApp
from tests.support.engine import (
    PATIENCE,
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
    worked,
)
from tests.support.waiting import reached
from tests.support.workflows import calling

pytestmark = pytest.mark.enough_on("sqlite")


async def places(app: Stepfast, run_id: str) -> set[tuple[str, int, str]]:
    """What is recorded where."""
    steps = await app.get(run_id).steps()
    assert len({(s.branch, s.position) for s in steps}) == len(steps)
    return {(s.branch, s.position, s.name) for s in steps}


# -- positions -----------------------------------------------------------------------------------------------------


async def test_a_branch_counts_its_own_positions(app: Stepfast) -> None:
    """Design: a position space of its own, nested as deep as the code is."""

    async def inner(ctx: Context, name: str) -> str:
        return await ctx.step(f"{name} in", lambda: name)

    async def outer(ctx: Context, name: str) -> list[str]:
        first = await ctx.step(f"{name} out", lambda: name)
        return [first, *await ctx.gather(ctx.branch(inner, f"{name}1"), ctx.branch(inner, f"{name}2"))]

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        await ctx.step("before", lambda: None)
        both = await ctx.gather(ctx.branch(outer, "a"), ctx.branch(outer, "b"))
        await ctx.step("after", lambda: None)
        return list(both)

    run = await drained(app, order)
    assert await run.result() == [["a", "a1", "a2"], ["b", "b1", "b2"]]
    assert await places(app, run.id) == {
        ("", 0, "before"), ("", 3, "after"),
        ("1", 0, "a out"), ("1/1", 0, "a1 in"), ("1/2", 0, "a2 in"),
        ("2", 0, "b out"), ("2/1", 0, "b1 in"), ("2/2", 0, "b2 in"),
    }  # fmt: skip


async def test_each_item_of_a_map_is_a_branch(app: Stepfast) -> None:
    async def fetch(ctx: Context, url: str) -> str:
        page = await ctx.step("get", lambda: url.upper())
        return await ctx.step("parse", lambda: f"<{page}>")

    @app.workflow
    async def crawl(ctx: Context, urls: list[str]) -> list[str]:
        return await ctx.map(fetch, urls, limit=2)

    run = await drained(app, crawl, ["a", "b", "c"])
    assert await run.result() == ["<A>", "<B>", "<C>"]
    assert await places(app, run.id) == {
        (f"0.{item}", position, name) for item in range(3) for position, name in enumerate(("get", "parse"))
    }


async def test_parallel_branches_replay_whatever_finished_first(app: Stepfast, calls: Calls) -> None:
    """The branch that was made last ends first; after a crash each finds its own."""
    first_may_end, gate = asyncio.Event(), Gate()

    async def slow(ctx: Context) -> list[str]:
        await ctx.step("wait", first_may_end.wait)
        return [await ctx.step("same name", lambda: f"slow {calls.hit('slow')}") for _ in range(2)]

    async def quick(ctx: Context) -> list[str]:
        results = [await ctx.step("same name", lambda: f"quick {calls.hit('quick')}") for _ in range(2)]
        first_may_end.set()
        return results

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        both = await ctx.gather(ctx.branch(slow), ctx.branch(quick))
        await ctx.step("gate", gate.passing)
        return list(both)

    assert await (await replayed(app, gate, order)).result() == [["slow 1", "slow 2"], ["quick 1", "quick 2"]]
    assert calls == {"slow": 2, "quick": 2}


async def test_a_step_name_repeated_in_a_loop_has_distinct_records(app: Stepfast, calls: Calls) -> None:
    """In the main line and in each branch."""
    gate = Gate()

    async def loop(ctx: Context, times: int) -> list[int]:
        return [await ctx.step("same", lambda n: n * 10 + times, n) for n in range(times)]

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        results: list[Any] = [await ctx.step("same", lambda n: n, n) for n in range(3)]
        results += await ctx.gather(ctx.branch(loop, 2), ctx.branch(loop, 3))
        await ctx.step("gate", gate.passing)
        return results

    assert await (await replayed(app, gate, order)).result() == [0, 1, 2, [2, 12], [3, 13, 23]]


async def test_branches_share_nothing_but_what_the_code_shares(app: Stepfast) -> None:
    """Random numbers, times and step keys are each branch's own, and stay what they were."""
    gate = Gate()
    seen: list[list[Any]] = []

    async def branch(ctx: Context, n: int) -> list[Any]:
        drawn = [str(ctx.uuid()), ctx.random(), ctx.step_key]
        await ctx.step("s", lambda: n)
        return [*drawn, str(ctx.uuid()), ctx.now().isoformat()]

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        both = await ctx.gather(ctx.branch(branch, 1), ctx.branch(branch, 2))
        seen.append(list(both))
        await ctx.step("gate", gate.passing)
        return list(both)

    run = await replayed(app, gate, order)
    first, second = await run.result()
    assert seen[0] == seen[1] == [first, second]
    assert not set(map(str, first[:4])) & set(map(str, second[:4]))
    assert first[2] == f"{run.id}:0:0"


async def test_which_steps_are_called_may_depend_on_results(app: Stepfast, calls: Calls) -> None:
    """Conditions are code; the way taken once is taken again."""
    gate = Gate()

    async def cheap(ctx: Context) -> str:
        return await ctx.step("cheap", lambda: f"cheap {calls.hit('cheap')}")

    async def dear(ctx: Context) -> str:
        await ctx.step("ask", lambda: calls.hit("ask"))
        return await ctx.step("dear", lambda: "dear")

    @app.workflow
    async def order(ctx: Context, cents: int) -> str:
        total = await ctx.step("total", lambda: cents * 2)
        result = await ctx.branch(dear if total > 100 else cheap)
        await ctx.step("gate", gate.passing)
        return result

    assert await (await replayed(app, gate, order, 7)).result() == "cheap 1"
    assert calls == {"cheap": 1}


async def test_what_does_nothing_durable_leaves_no_record_and_needs_none(app: Stepfast) -> None:
    """No branches at all, and one that only awaits."""

    async def nothing(ctx: Context, number: int = 0) -> str:
        await asyncio.sleep(0)
        return "nothing"

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        return [await ctx.map(nothing, []), await ctx.gather(), await ctx.branch(nothing)]

    run = await drained(app, order)
    assert await run.result() == [[], [], "nothing"]
    assert await run.steps() == []


# -- waiting -------------------------------------------------------------------------------------------------------


async def test_a_run_is_released_when_every_branch_waits(make_app: MakeApp) -> None:
    """Rule 24: with one still busy it stays; the earliest wake counts."""
    app = make_app(settings=Settings(inline_wait=0))
    gate = Gate()

    async def sleeper(ctx: Context, seconds: float) -> None:
        await ctx.sleep(seconds)

    async def busy(ctx: Context) -> None:
        await ctx.step("gate", gate.passing)
        await ctx.wait_signal("go")

    @app.workflow
    async def order(ctx: Context) -> str:
        await ctx.gather(ctx.branch(sleeper, 3600), ctx.branch(sleeper, 600), ctx.branch(busy))
        return "all"

    run = await app.start(order)
    async with app.worker():
        await gate.reached()
        assert await run.status() == "running"
        gate.open()
        await reached(run, "waiting")
        info = await run.info()
        assert info.due_at is not None and 500 < (info.due_at - info.read_at).total_seconds() <= 600


@WAITS
async def test_a_branch_goes_on_while_others_wait(app: Stepfast) -> None:
    """Signals wake the branch that waits for them, in whatever order they come."""

    async def wait(ctx: Context, name: str) -> str:
        value = await ctx.wait_signal(name)
        await ctx.set(f"got {name}", value)
        return await ctx.step(f"after {name}", lambda: f"{name}{value}")

    order = calling(app, lambda ctx: ctx.map(wait, ["a", "b", "c"]))
    run = await app.start(order)
    async with app.worker():
        for number, name in enumerate("cab"):
            await run.signal(name, number)
            await eventually(lambda name=name: got(app, run.id, name))  # type: ignore[misc]
        assert await run.result(timeout=20) == ["a1", "b2", "c0"]


async def got(app: Stepfast, run_id: str, name: str) -> bool:
    return await app.get(run_id).get(f"got {name}") is not None


async def test_branches_that_wait_for_the_same_signal_each_get_one(app: Stepfast) -> None:
    """First in, first out, none lost and none given twice."""

    async def wait(ctx: Context, number: int) -> Any:
        return await ctx.wait_signal("work")

    order = calling(app, lambda ctx: ctx.map(wait, range(20)))
    run = await app.start(order)
    async with app.worker():
        await asyncio.gather(*(run.signal("work", number) for number in range(20)))
        assert sorted(await run.result(timeout=20)) == list(range(20))


async def test_steps_in_branches_are_retried_and_may_wait_for_it(make_app: MakeApp, calls: Calls) -> None:
    app = make_app(settings=Settings(inline_wait=0))

    def flaky(name: str) -> str:
        if calls.hit(name) == 1:
            raise RetryLater(3600)
        return name

    async def item(ctx: Context, name: str) -> str:
        return await ctx.options(retries=1).step(flaky, name)

    order = calling(app, lambda ctx: ctx.map(item, ["a", "b"]))
    run = await drained(app, order)
    assert await run.status() == "waiting"
    await make_due(app, run.id)
    assert await finished(app, run) == ["a", "b"]
    assert calls == {"a": 2, "b": 2}


# -- many ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3, 10])
async def test_a_map_is_never_above_its_limit(app: Stepfast, limit: int) -> None:
    """A branch counts until it is done, its waits included."""
    now, most = 0, 0

    async def item(ctx: Context, number: int) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await ctx.step("one", lambda: number)
        await ctx.sleep(0.001)
        await ctx.step("two", lambda: number)
        now -= 1
        return number

    order = calling(app, lambda ctx: ctx.map(item, range(30), limit=limit))
    assert await worked(app, await app.start(order), 30) == list(range(30))
    assert most == limit


async def test_an_interrupted_map_goes_on_where_it_was(app: Stepfast, calls: Calls) -> None:
    """Count the calls."""
    gate = Gate()

    async def item(ctx: Context, number: int) -> int:
        if number == 50:
            await ctx.step("gate", gate.passing)
        return await ctx.step("work", lambda: calls.hit(f"item {number}") and number)

    @app.workflow
    async def order(ctx: Context) -> int:
        return sum(await ctx.map(item, range(100), limit=10))

    assert await (await replayed(app, gate, order)).result() == sum(range(100))
    repeated = [name for name, count in calls.items() if count > 1]
    assert len(repeated) <= 10, "only what was in flight"


@pytest.mark.thorough
@pytest.mark.timeout(150)
async def test_ten_thousand_items_are_bounded_in_memory(app: Stepfast) -> None:
    """With a limit, items that are done leave little behind."""

    async def item(ctx: Context, number: int) -> None:
        await ctx.step("work", big)

    async def big() -> None: ...

    @app.workflow
    async def order(ctx: Context) -> int:
        return len(await ctx.map(item, range(10_000), limit=100))

    run = await app.start(order)
    tracemalloc.start()
    try:
        assert await worked(app, run, 120) == 10_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40_000_000
    assert (await run.info()).losses == 0


async def test_thousands_of_recorded_items_are_replayed(app: Stepfast, calls: Calls) -> None:
    gate = Gate()

    async def item(ctx: Context, number: int) -> int:
        return await ctx.step("work", work, number)

    async def work(number: int) -> int:
        calls.hit("work")
        return number

    @app.workflow
    async def order(ctx: Context) -> int:
        total = sum(await ctx.map(item, range(3_000)))
        await ctx.step("gate", gate.passing)
        return total

    run = await app.start(order)
    async with app.worker(shutdown_grace=0):
        await asyncio.wait_for(gate._arrived.wait(), 40)
    assert await finished(app, run, gate) == sum(range(3_000))
    assert calls == {"work": 3_000}


@pytest.mark.parametrize("how", ["a new attempt", "an operator's retry"])
async def test_everything_that_failed_is_done_again_at_once(app: Stepfast, calls: Calls, how: str) -> None:
    """Rule 15 where several are waited for: one more attempt is enough for all of them."""

    async def flaky(number: int) -> int:
        if calls.hit(f"item {number}") == 1 and number != 3:
            raise OSError("once")
        return number

    async def item(ctx: Context, number: int) -> int:
        return await ctx.step(flaky, number)

    parent = calling(
        app,
        lambda ctx: ctx.map(item, range(5)),
        name="parent",
        max_attempts=2 if how == "a new attempt" else 1,
        backoff=Backoff(base=0.001, jitter=False),
    )
    run = await drained(app, parent)
    if how == "an operator's retry":
        await run.retry()
        await app.drain()
    assert await run.result(timeout=20) == [0, 1, 2, 3, 4]
    assert calls == {f"item {n}": 1 if n == 3 else 2 for n in range(5)}


# -- an event loop with an eager task factory: a task begins while it is made. Workers execute runs all t


def begins_at_once(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], *, context: Variables | None = None
) -> asyncio.Task[Any]:
    """What ``asyncio.eager_task_factory`` does from Python 3.12 on, for Python 3.11."""
    tasks: Any = asyncio.tasks
    if not loop.is_running():
        return asyncio.Task(work, loop=loop, context=context)
    around, variables = asyncio.current_task(loop), copy_context() if context is None else context
    with pytest.MonkeyPatch.context() as patch:
        begin: list[Callable[[], None]] = []
        patch.setattr(loop, "call_soon", lambda step, **_: begin.append(step))
        task: asyncio.Task[Any] = tasks._PyTask(work, loop=loop, context=variables)
    if around is not None:
        tasks._leave_task(loop, around)
    try:
        variables.run(begin[0])
    finally:
        if around is not None:
            tasks._enter_task(loop, around)
    return task


FACTORIES: list[Any] = [begins_at_once]
if hasattr(asyncio, "eager_task_factory"):
    FACTORIES.append(asyncio.eager_task_factory)


@pytest.fixture(params=FACTORIES, ids=lambda factory: factory.__name__)
async def eager(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """The loop of the test has such a factory."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(request.param)
    yield
    loop.set_task_factory(None)


@pytest.mark.usefixtures("eager")
async def test_runs_are_executed_whatever_the_task_factory(app: Stepfast) -> None:
    """Tasks, steps, branches, races, children, tasks of the code's own, and plain functions."""
    begun: list[bool] = []

    @app.task
    async def double(number: int) -> int:
        return number * 2

    @app.workflow
    def plain(ctx: SyncContext) -> int:
        return ctx.step("one", lambda: 1)

    @app.workflow
    async def order(ctx: Context) -> list[Any]:
        async def each(ctx: Context, item: int) -> int:
            return await ctx.step("item", lambda: item)

        mapped = await ctx.map(each, [1, 2])
        gathered = await ctx.gather(ctx.step("a", lambda: "a"), ctx.call(double, 2), ctx.sleep(0.001))
        winner, _ = await ctx.first(quick=ctx.sleep(0.001), slow=ctx.sleep(600))
        async with asyncio.TaskGroup() as group:
            own = group.create_task(ctx.options(timeout=60).step("own", double.function, 4))
            begun.append(True)
        return [mapped, gathered, winner, own.result(), await ctx.call(plain)]

    runs = [await app.start(double, 1), await app.start(order), await app.start(double, 2)]
    async with app.worker():
        results = [await run.result(timeout=PATIENCE) for run in runs]
    assert results == [2, [[1, 2], ["a", 4, None], "quick", 8, 1], 4]


# -- branches that fail, and branches of code that was changed or misused


LATER = Backoff(base=600, max=3600)
"""So that a new attempt is made when the test wants it."""
Body = Callable[[Context], Awaitable[Any]]


# -- failures ------------------------------------------------------------------------------------------------------


class Sad:
    """Branches of which some fail, and a count of what they did."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.healthy = asyncio.Event()

    async def branch(self, ctx: Context, name: str) -> str:
        await ctx.step(f"first {name}", lambda: self.calls.hit(f"first {name}"))
        await ctx.step(f"second {name}", lambda: self.second(name))
        return await ctx.step(f"third {name}", lambda: f"{name} {self.calls.hit(f'third {name}')}")

    def second(self, name: str) -> None:
        self.calls.hit(f"second {name}")
        if name.isupper() and not self.healthy.is_set():
            raise ValueError(name)


WAYS: dict[str, Callable[[Context, Sad, list[str]], Awaitable[list[Any]]]] = {
    "gather": lambda ctx, sad, names: ctx.gather(*(ctx.branch(sad.branch, name) for name in names)),
    "map": lambda ctx, sad, names: ctx.map(sad.branch, names),
    "map with a limit": lambda ctx, sad, names: ctx.map(sad.branch, names, limit=1),
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@ways
async def test_the_others_are_settled_before_an_error_surfaces(app: Stepfast, calls: Calls, way: Any) -> None:
    """And the error is the first one in the order of the code."""
    sad = Sad(calls)

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> str:
        try:
            await way(ctx, sad, ["a", "B", "c", "D"])
        except StepFailed as error:
            return f"{error.message} after {calls['third a'] + calls['third c']} others, {calls['second D']} D"
        return "?"

    assert await outcome(app, order) == "B after 2 others, 1 D"


@ways
async def test_a_new_attempt_repeats_only_the_branch_that_failed(app: Stepfast, calls: Calls, way: Any) -> None:
    """Rule 15: the failed record is made anew; its own earlier steps and its siblings are kept."""
    sad = Sad(calls)

    @app.workflow(backoff=LATER)
    async def order(ctx: Context) -> list[Any]:
        before = await ctx.step("before", lambda: calls.hit("before"))
        return [before, *await way(ctx, sad, ["a", "B", "c"])]

    run = await drained(app, order)
    sad.healthy.set()
    await make_due(app, run.id)
    assert await finished(app, run) == [1, "a 1", "B 1", "c 1"]
    assert {name: count for name, count in calls.items() if count > 1} == {"second B": 2}


@ways
async def test_errors_may_be_collected(app: Stepfast, calls: Calls, way: Any) -> None:
    """Return_errors=True, live and replayed."""
    sad, gate = Sad(calls), Gate()

    @app.workflow(max_attempts=1)
    async def order(ctx: Context) -> list[Any]:
        if way is WAYS["gather"]:
            branches = [ctx.branch(sad.branch, name) for name in ("A", "b", "C")]
            results = await ctx.gather(*branches, return_errors=True)
        else:
            results = await ctx.map(sad.branch, ["A", "b", "C"], return_errors=True, limit=2)
        await ctx.step("gate", gate.passing)
        return [f"{type(r).__name__}: {r}" if isinstance(r, Exception) else r for r in results]

    run = await app.start(order)
    await interrupt(app, gate)
    assert await finished(app, run, gate) == [
        "StepFailed: step 'second A' failed: ValueError: A", "b 1", "StepFailed: step 'second C' failed: ValueError: C",
    ]  # fmt: skip
    assert calls["second A"] == calls["second C"] == 1


async def test_a_collected_error_raised_later_forgets_what_came_after_it(app: Stepfast, calls: Calls) -> None:
    """Rule 15: what the code did knowing of the error is made anew, what it had done before is not."""
    sad = Sad(calls)

    @app.workflow(backoff=LATER)
    async def order(ctx: Context) -> list[Any]:
        await ctx.step("before", lambda: calls.hit("before"))
        results = await ctx.map(sad.branch, ["a", "B"], return_errors=True)
        await ctx.step("after", lambda: calls.hit("after"))
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    run = await drained(app, order)
    sad.healthy.set()
    await make_due(app, run.id)
    assert await finished(app, run) == ["a 1", "B 1"]
    assert {name: count for name, count in calls.items() if count > 1} == {"second B": 2, "after": 2}


async def test_a_caught_error_of_a_nested_branch_stays_caught(app: Stepfast, calls: Calls) -> None:
    """Catch is code; a crash later does not call the failed step again."""
    sad, gate = Sad(calls), Gate()

    async def careful(ctx: Context, name: str) -> str:
        try:
            return await ctx.branch(sad.branch, name)
        except StepFailed as error:
            return await ctx.step(f"instead of {name}", str.upper, error.message + "!")

    @app.workflow
    async def order(ctx: Context) -> list[str]:
        results = await ctx.map(careful, ["a", "B"])
        await ctx.step("gate", gate.passing)
        return results

    assert await (await replayed(app, gate, order)).result() == ["a 1", "B!"]
    assert set(calls.values()) == {1}


async def test_an_error_of_the_branchs_own_code_ends_the_attempt(app: Stepfast, calls: Calls) -> None:
    """No step failed, so nothing is forgotten; the code runs again on its records."""

    async def branch(ctx: Context, name: str) -> str:
        await ctx.step(f"step {name}", lambda: calls.hit(f"step {name}"))
        if calls.hit(name) == 1 and name == "b":
            raise KeyError("in the code")
        return name

    order = calling(app, lambda ctx: ctx.map(branch, ["a", "b"]), backoff=LATER)
    run = await drained(app, order)
    await make_due(app, run.id)
    assert await finished(app, run) == ["a", "b"]
    assert calls == {"step a": 1, "step b": 1, "a": 2, "b": 2}


# -- the code was changed, or misused ------------------------------------------------------------------------------


async def branches_in_order(ctx: Context) -> None:
    await ctx.gather(ctx.branch(part, "a"), ctx.branch(part, "b"))


async def part(ctx: Context, name: str) -> None:
    await ctx.step(f"{name} 1", lambda: None)
    await ctx.step(f"{name} 2", lambda: None)


def with_gate(body: Body, gate: Gate) -> Body:
    async def order(ctx: Context) -> None:
        await body(ctx)
        await ctx.step("gate", gate.passing)

    return order


async def swapped(ctx: Context) -> None:
    await ctx.gather(ctx.branch(part, "b"), ctx.branch(part, "a"))


async def one_less(ctx: Context) -> None:
    await ctx.gather(ctx.branch(part, "a"))


async def without_branches(ctx: Context) -> None:
    await part(ctx, "a")


async def longer_first(ctx: Context) -> None:
    async def longer(ctx: Context) -> None:
        await ctx.step("a new one", lambda: None)
        await part(ctx, "a")

    await ctx.gather(ctx.branch(longer), ctx.branch(part, "b"))


@pytest.mark.parametrize("changed", [swapped, one_less, without_branches, longer_first])
async def test_changed_branches_are_noticed(make_app: MakeApp, changed: Body) -> None:
    """With where it was, in which branch, and no attempt burnt."""
    old, new = make_app(), make_app()
    gate = Gate()

    old.workflow(name="order")(with_gate(branches_in_order, gate))
    new.workflow(name="order")(with_gate(changed, gate))
    run = await old.start("order")
    await interrupt(old, gate)
    gate.open()
    await new.drain()
    failed = await failure(new.get(run.id))
    assert (failed.reason, failed.error_type) == ("non_determinism", "NonDeterminismError")
    assert (await new.get(run.id).info()).attempt == 1


async def test_the_context_of_a_branch_is_not_for_others(app: Stepfast) -> None:
    """Rule 18: nor is the outer one for the branch."""

    async def branch(ctx: Context, outer: Context) -> None:
        await outer.step("mixed up", lambda: None)

    order = calling(app, lambda ctx: ctx.branch(branch, ctx), max_attempts=1)
    failed = await failure(await drained(app, order), r"ctx\.branch")
    assert failed.error_type == ContextMisuse.__name__


async def test_a_branch_never_awaited_is_told(app: Stepfast) -> None:
    """Rule 18: by name."""

    async def forgotten(ctx: Context) -> None: ...

    @app.workflow
    async def order(ctx: Context) -> None:
        ctx.branch(forgotten)

    await failure(await drained(app, order), "without awaiting 'forgotten'")


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "2"])
async def test_a_limit_that_makes_no_sense_is_refused(app: Stepfast, limit: Any) -> None:
    async def item(ctx: Context, n: int) -> None: ...

    order = calling(app, lambda ctx: ctx.map(item, [1], limit=limit), max_attempts=1)
    await failure(await drained(app, order), r"the limit of ctx\.map must be a whole number")
