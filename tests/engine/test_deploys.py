"""Deploys under waiting runs: every wait and composition, with every change of the code, in every kind of deploy
(rule 49).

Nothing new is called before a divergence is told, `check` foretells it, the old code can always go on, and a run that
diverged can be cancelled, which undoes it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from stepfast import Backoff, Context, DagContext, RetryLater, Run, Settings, Stepfast
from tests.engine.conftest import MakeApp
from tests.support.crashing import crash_at, outcome_of
from tests.support.engine import Calls, Gate, drained, eventually, finished, make_due
from tests.support.waiting import rows_of
from tests.support.workflows import listener

HOUR = 3600
SETTINGS = Settings(inline_wait=0, poll_interval=0.05, min_poll_interval=0.02, sweep_interval=0.05)

OLD = "old"
CHANGES = BEFORE, AFTER, WITHIN, REMOVED, RENAMED, HELPER = "before", "after", "within", "removed", "renamed", "helper"


@dataclass
class Deploy:
    """One version of the code, and what it called."""

    app: Stepfast
    change: Callable[[str], str]
    """The change that it makes to the workflow of a name."""
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    answers: bool = False
    """What the outside says to checks and retries."""

    def step(self, case: str, name: str) -> Callable[[], str]:
        def call() -> str:
            self.calls[case, name] += 1
            return name

        return call


Wait = Callable[[Context, Deploy, str, str], Awaitable[Any]]


def new_one(ctx: Context, deploy: Deploy, case: str, change: str) -> dict[str, Any]:
    return {"new": ctx.step("new", deploy.step(case, "new"))} if change == WITHIN else {}


async def signal(ctx: Context, deploy: Deploy, case: str, change: str) -> Any:
    return await ctx.wait_signal("stop" if change == RENAMED else "go")


async def signal_with_timeout(ctx: Context, deploy: Deploy, case: str, change: str) -> Any:
    return await ctx.wait_signal("stop" if change == RENAMED else "go", timeout=10 * HOUR)


async def sleep(ctx: Context, deploy: Deploy, case: str, change: str) -> Any:
    return await ctx.sleep(HOUR)


async def first(ctx: Context, deploy: Deploy, case: str, change: str) -> Any:
    new = new_one(ctx, deploy, case, change)
    go = ctx.wait_signal("stop" if change == RENAMED else "go")
    return (await ctx.first(**new, approval=go, reminder=ctx.sleep(10 * HOUR)))[1]


async def gather(ctx: Context, deploy: Deploy, case: str, change: str) -> Any:
    new = new_one(ctx, deploy, case, change)
    go = ctx.wait_signal("stop" if change == RENAMED else "go")
    return (await ctx.gather(*new.values(), go, ctx.sleep(HOUR)))[-2]


async def map_(ctx: Context, deploy: Deploy, case: str, change: str) -> Any:
    async def item(ctx: Context, number: int) -> Any:
        if change == WITHIN:
            await ctx.step("new", deploy.step(case, "new"))
        return await ctx.wait_signal("stop" if change == RENAMED else "go")

    return (await ctx.map(item, [1, 2]))[0]


async def child(ctx: Context, deploy: Deploy, case: str, change: str) -> Any:
    return await ctx.call("other child" if change == RENAMED else "child")


async def result(ctx: Context, deploy: Deploy, case: str, change: str) -> Any:
    started = await ctx.start("child")
    if change == WITHIN:
        await ctx.step("new", deploy.step(case, "new"))
    return await started.result()


async def until(ctx: Context, deploy: Deploy, case: str, change: str) -> Any:
    def so() -> str | None:
        return "went" if deploy.answers else None

    return await ctx.options(name="stop" if change == RENAMED else "go").wait_until(so, every=HOUR)


async def retry(ctx: Context, deploy: Deploy, case: str, change: str) -> Any:
    def flaky() -> str:
        if not deploy.answers:
            raise ValueError("not yet")
        return "went"

    options = ctx.options(retries=5, backoff=Backoff(base=HOUR, jitter=False))
    return await options.step("stop" if change == RENAMED else "go", flaky)


WAITS: dict[str, Wait] = {
    each.__name__: each
    for each in (signal, signal_with_timeout, sleep, first, gather, map_, child, result, until, retry)
}
NOT_THERE = {(name, WITHIN) for name in WAITS} - {(name, WITHIN) for name in ("first", "gather", "map_", "result")}
NOT_THERE |= {("sleep", RENAMED), ("result", RENAMED)}
CASES = [f"{name} {change}" for name in WAITS for change in CHANGES if (name, change) not in NOT_THERE]
DIVERGING = [case for case in CASES if not case.endswith(AFTER)]


def register(deploy: Deploy) -> None:
    app = deploy.app

    @app.workflow(name="child")
    async def of_another(ctx: Context) -> str:
        return str(await ctx.wait_signal("go"))

    app.workflow(name="other child")(of_another.function)
    for case in CASES:
        app.workflow(name=case)(body(deploy, case))


def body(deploy: Deploy, case: str) -> Callable[[Context], Awaitable[Any]]:
    wait, change = WAITS[case.split()[0]], deploy.change(case)

    def undo(_: str) -> None:
        deploy.calls[case, "undo"] += 1

    async def helper(ctx: Context) -> None:
        if change == HELPER:
            await ctx.step("new", deploy.step(case, "new"))

    async def order(ctx: Context) -> Any:
        await ctx.options(compensate=undo).step("charge", deploy.step(case, "charge"))
        await helper(ctx)
        if change == BEFORE:
            await ctx.step("new", deploy.step(case, "new"))
        went = "went" if change == REMOVED else await wait(ctx, deploy, case, change)
        if change == AFTER:
            await ctx.step("new", deploy.step(case, "new"))
        await ctx.step("ship", deploy.step(case, "ship"))
        return went

    return order


@asynccontextmanager
async def two_versions(url: str) -> AsyncIterator[tuple[Deploy, Deploy]]:
    async with Stepfast(url, settings=SETTINGS) as one, Stepfast(url, settings=SETTINGS) as other:
        old = Deploy(one, lambda case: OLD)
        new = Deploy(other, lambda case: case.split()[1])
        register(old)
        register(new)
        yield old, new


async def started(old: Deploy, cases: list[str]) -> dict[str, Run[Any]]:
    """Each run waits, executed by the old code, which has left."""
    runs = {case: await old.app.start(case) for case in cases}
    await old.app.drain()
    for case, run in runs.items():
        assert await run.status() == "waiting", case
    return runs


async def wake(old: Deploy, new: Deploy, runs: dict[str, Run[Any]]) -> None:
    """All that they wait for comes: signals, time, children, answers."""
    old.answers = new.answers = True
    for kind in ("child", "other child"):
        for found in await old.app.runs(workflow=kind, status="waiting", limit=1000):
            await old.app.get(found.id).signal("go", "went")
    for case, run in runs.items():
        for _ in range(2):
            await run.signal("go", "went")
        if case.split()[0] in ("sleep", "gather", "retry", "until"):
            await make_due(old.app, run.id)


def expected(case: str) -> Any:
    return None if case.startswith("sleep") else "went"


async def statuses(runs: dict[str, Run[Any]]) -> dict[str, tuple[str, str | None]]:
    found = {case: await run.info() for case, run in runs.items()}
    return {case: (info.status, info.reason) for case, info in found.items()}


async def stop_and_go(url: str, cases: list[str]) -> None:
    """The old workers leave, the new ones come: check tells what will diverge, nothing is done by what does, and when
    the old code comes back it goes on as if nothing had been."""
    async with two_versions(url) as (old, new):
        runs = await started(old, cases)
        verdicts = {found.workflow: found.verdict for found in await new.app.check()}
        assert {case: verdicts[case] for case in cases} == {
            case: "diverges" if case in DIVERGING else "fits" for case in cases
        }
        await wake(old, new, runs)
        await new.app.drain()
        assert await statuses(runs) == {
            case: ("failed", "non_determinism") if case in DIVERGING else ("completed", None) for case in cases
        }
        assert {case for case, name in new.calls if case in DIVERGING} == set()
        for case in cases:
            if case in DIVERGING:
                await runs[case].retry()
        await wake(old, new, {case: runs[case] for case in cases if case in DIVERGING})
        await old.app.drain()
        assert await statuses(runs) == dict.fromkeys(cases, ("completed", None))
        assert {case: await run.result() for case, run in runs.items()} == {case: expected(case) for case in cases}
        once = old.calls + new.calls
        assert {case: (once[case, "charge"], once[case, "ship"]) for case in cases} == dict.fromkeys(cases, (1, 1))


async def rolling(url: str, cases: list[str]) -> None:
    """Both live for a while: what the new code does not fit is left to the old one, and nothing fails. (The two cannot
    be told apart by their versions here, because the functions read the same.)"""
    async with two_versions(url) as (old, new):
        runs = await started(old, cases)
        await wake(old, new, runs)
        async with old.app.worker(), new.app.worker():
            await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs.values())), 40)
        assert {case for case, name in new.calls if case in DIVERGING and name == "new"} == set()
        once = old.calls + new.calls
        assert {case: (once[case, "charge"], once[case, "ship"]) for case in cases} == dict.fromkeys(cases, (1, 1))


async def cancelled(url: str, cases: list[str]) -> None:
    """A run that diverged is cancelled: what it did is undone, by whatever code there is."""
    async with two_versions(url) as (old, new):
        runs = await started(old, cases)
        await wake(old, new, runs)
        await new.app.drain()
        for run in runs.values():
            await run.cancel()
        await new.app.drain()
        assert await statuses(runs) == dict.fromkeys(cases, ("compensated", "cancelled"))
        assert {case: new.calls[case, "undo"] for case in cases} == dict.fromkeys(cases, 1)


async def test_old_code_leaves_and_new_code_comes(sqlite_url: str) -> None:
    await stop_and_go(sqlite_url, CASES)


async def test_old_code_and_new_code_work_side_by_side(sqlite_url: str) -> None:
    await rolling(sqlite_url, CASES)


async def test_what_diverged_can_be_cancelled_and_is_undone(sqlite_url: str) -> None:
    await cancelled(sqlite_url, DIVERGING)


SOME = [case for case in CASES if case.split()[0] in ("first", "gather", "retry") and case.split()[1] != HELPER]


@pytest.mark.parametrize("deploy", [stop_and_go, rolling, cancelled])
async def test_a_share_of_it_on_postgres(
    postgres_url: str, deploy: Callable[[str, list[str]], Awaitable[None]]
) -> None:
    await deploy(postgres_url, [case for case in SOME if deploy is not cancelled or case in DIVERGING])


# -- more of the same kind ---------------------------------------------------------------------------------------------


Body = Callable[[Context], Awaitable[Any]]


@asynccontextmanager
async def two_codes(url: str, old: Body, new: Body) -> AsyncIterator[tuple[Stepfast, Stepfast]]:
    async with Stepfast(url, settings=SETTINGS) as one, Stepfast(url, settings=SETTINGS) as other:
        one.workflow(name="order")(old)
        other.workflow(name="order")(new)
        yield one, other


async def test_of_a_slow_step_beside_a_recorded_one_nothing_is_known_but_nothing_new_takes_its_place(
    sqlite_url: str, calls: Calls
) -> None:
    gate, recorded = Gate(), asyncio.Event()

    async def old(ctx: Context) -> Any:
        return len(await ctx.gather(ctx.step("slow", gate.passing), ctx.branch(told)))

    async def told(ctx: Context) -> None:
        await ctx.step("quick", lambda: calls.hit("quick"))
        recorded.set()

    async def new(ctx: Context) -> Any:
        await ctx.step("new", lambda: calls.hit("new"))
        return await old(ctx)

    async with two_codes(sqlite_url, old, new) as (before, after):
        run = await before.start("order")
        async with before.worker(shutdown_grace=0):
            await gate.reached()
            await asyncio.wait_for(recorded.wait(), 20)
        gate.open()
        assert [found.verdict for found in await after.check()] == ["diverges"]
        await after.drain()
        info = await run.info()
        assert (info.reason, calls["new"]) == ("non_determinism", 0)
        assert info.error is not None and "'new'" in info.error.message and "ctx.patched" in info.error.message
        await run.retry()
        await before.drain()
        assert (await run.result(), calls["quick"]) == (2, 1)


async def test_what_one_branch_would_do_waits_for_what_is_recorded_of_the_others(sqlite_url: str, calls: Calls) -> None:
    """Else it would be done by code that is then found not to fit, and done again by the code that does."""

    def code(name: str) -> Body:
        async def going_on(ctx: Context) -> None:
            await ctx.wait_signal("go")
            await ctx.step("next", lambda: calls.hit("next"))

        async def changed(ctx: Context) -> None:
            await ctx.step(name, lambda: calls.hit(name))
            await ctx.sleep(HOUR)

        async def order(ctx: Context) -> None:
            await ctx.gather(ctx.branch(going_on), ctx.branch(changed))

        return order

    async with two_codes(sqlite_url, code("step"), code("renamed")) as (before, after):
        run = await drained(before, "order")
        await run.signal("go")
        await after.drain()
        assert (await run.info()).reason == "non_determinism"
        assert calls == {"step": 1}
        await run.retry()
        await make_due(before, run.id)
        await before.drain()
        assert calls == {"step": 1, "next": 1}


async def test_a_smaller_limit_of_a_map_goes_on_and_what_diverging_code_recorded_does_not_stay(
    sqlite_url: str, calls: Calls
) -> None:
    def code(limit: int, second: str, gate: Gate) -> Body:
        async def item(ctx: Context, number: int) -> None:
            await ctx.step("slow" if number == 0 else second, gate.passing if number == 0 else work)
            await ctx.step("last", lambda: calls.hit(f"last {number}"))

        async def order(ctx: Context) -> str:
            await ctx.map(item, [0, 1], limit=limit)
            return f"limit {limit}"

        return order

    async def work() -> None: ...

    gate = Gate()
    async with two_codes(sqlite_url, code(2, "b", gate), code(1, "changed", gate)) as (before, after):
        run = await before.start("order")
        async with before.worker(shutdown_grace=0):
            await gate.reached()
            await eventually(lambda: calls["last 1"])
        gate.open()
        await after.drain()
        assert (await run.info()).reason == "non_determinism"
        assert {step.name for step in await run.steps()} == {"b", "last"}
        assert calls == {"last 0": 1, "last 1": 1}  # called in its turn, but by code that does not fit
        async with Stepfast(sqlite_url, settings=SETTINGS) as smaller:
            smaller.workflow(name="order")(code(1, "b", gate))
            await run.retry()
            await smaller.drain()
        assert await run.result() == "limit 1"


async def test_calls_in_tasks_of_the_users_own_are_held_too(
    sqlite_url: str, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepfast.engine.history._ELSEWHERE", 1.0)
    gate = Gate()

    async def old(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("slow", work))
            await asyncio.sleep(0.02)  # the code of the line is elsewhere, but comes back
            group.create_task(ctx.step("quick", lambda: calls.hit("quick")))
        return "done"

    async def new(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("new", lambda: calls.hit("new")))

    async def work() -> None:
        if calls.hit("slow") == 1:
            await gate.passing()

    async with two_codes(sqlite_url, old, new) as (before, after):
        run = await before.start("order")
        async with before.worker(shutdown_grace=0):
            await gate.reached()
            await eventually(lambda: recorded_steps(run, 1))
        await after.drain()
        assert ((await run.info()).reason, calls["new"]) == ("non_determinism", 0)
        await run.retry()
        await before.drain()
        assert (await run.result(), calls["slow"], calls["quick"]) == ("done", 2, 1)


async def recorded_steps(run: Run[Any], number: int) -> bool:
    return len([step for step in await run.steps() if step.status == "completed"]) == number


async def test_a_dead_letter_can_be_cancelled_and_is_undone(make_app: MakeApp, calls: Calls) -> None:
    app = make_app(settings=SETTINGS)

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.options(compensate=lambda _: calls.hit("undo")).step("charge", lambda: None)
        await ctx.wait_signal("go")

    harmless = listener(app, name="harmless")
    runs = await drained(app, order), await app.start(harmless)
    for run in runs:
        await fails(app, run.id, "workers_lost")
        await run.cancel()
    await app.drain()
    assert [(i.status, i.reason) for i in [await run.info() for run in runs]] == [
        ("compensated", "cancelled"),
        ("cancelled", "cancelled"),
    ]
    assert calls == {"undo": 1}


async def test_a_dag_run_that_failed_by_changed_code_can_be_cancelled_and_is_undone(
    make_app: MakeApp, calls: Calls
) -> None:
    apps = []
    for name in ("old", "renamed"):
        app = make_app(settings=SETTINGS)
        shop = app.dag("shop")

        @shop.step(compensate=lambda ctx: calls.hit("undo"))
        async def charge(ctx: Any) -> None: ...

        def code(name: str) -> Callable[[Any], Awaitable[None]]:
            async def ship(ctx: Any) -> None:
                await ctx.step(name, lambda: None)
                await ctx.wait_signal("ship")

            return ship

        shop.step(after=["charge"])(code(name))
        apps.append((app, shop))
    [(before, shop), (after, _)] = apps
    run = await drained(before, shop)
    await run.signal("ship", None)
    await after.drain()
    info = await run.info()
    assert (info.status, info.reason, calls["undo"]) == ("failed", "non_determinism", 0)
    await run.cancel()
    await after.drain()
    info = await run.info()
    assert (info.status, info.reason, calls["undo"]) == ("compensated", "cancelled", 1)


async def fails(app: Stepfast, run_id: str, reason: str) -> None:
    """Make the run one that has ended like this."""
    async with rows_of(app) as rows:
        await rows.fetch(
            "UPDATE [runs] SET status = 'failed', reason = ?, undoing = false, losses = 5, completed_at = created_at, "
            "visible_at = NULL, place = NULL, waiting_for = NULL WHERE id = ?",
            reason, run_id,
        )  # fmt: skip


async def test_after_a_crash_the_losers_of_a_race_are_given_up(make_app: MakeApp) -> None:
    app = make_app(settings=SETTINGS)

    async def dawdling(ctx: Context) -> None:
        await ctx.wait_signal("never")

    @app.workflow
    async def order(ctx: Context) -> str:
        race = ctx.first(paid=ctx.wait_signal("paid"), late=ctx.sleep(HOUR), other=ctx.branch(dawdling))
        return (await race)[0]

    run = await drained(app, order)
    await run.signal("paid")
    await crash_at(app, outcome_of("paid", "signal"), written=True)
    assert await finished(app, run) == "paid"
    assert {step.name: step.status for step in await run.steps()} == {
        "paid": "completed", "sleep": "cancelled", "never": "cancelled", "first": "completed",
    }  # fmt: skip


async def test_a_released_run_costs_one_open_record_for_each_call_that_waits(make_app: MakeApp) -> None:
    """And none for what is done at once."""
    app = make_app(settings=SETTINGS)

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step("step", lambda: None)
        await ctx.first(paid=ctx.wait_signal("paid"), late=ctx.sleep(HOUR))

    run = await drained(app, order)
    assert [(step.name, step.status) for step in sorted(await run.steps(), key=lambda step: step.position)] == [
        ("step", "completed"), ("paid", "waiting"), ("sleep", "waiting"), ("first", "waiting"),
    ]  # fmt: skip
    await run.signal("paid")
    await app.drain()
    await run.result()
    assert sorted(step.status for step in await run.steps()) == ["cancelled", "completed", "completed", "completed"]


async def test_check_tells_of_arguments_that_are_not_what_they_were(sqlite_url: str, calls: Calls) -> None:
    """They come of something that no step has recorded."""

    async def order(ctx: Context) -> None:
        await ctx.step("same", print_nothing, 1)
        await ctx.step("other", print_nothing, calls.hit("executed"))
        await ctx.wait_signal("go")

    def print_nothing(_: int) -> None: ...

    async with two_codes(sqlite_url, order, order) as (before, after):
        await before.start("order")
        await before.drain()
        [found] = await after.check()
        assert found.verdict == "fits" and "step 'other'" in found.detail and "'same'" not in found.detail


# -- ``app.check``: which unfinished runs today's code would not fit. (What it says of workflows: test_de


def declare(app: Stepfast, *steps: str, undo: bool = True, gate: str = "ok") -> Stepfast:
    """A dag whose first step has an undo; then a gate, then the others in a row."""
    dag = app.dag("order")

    async def function(ctx: DagContext) -> None: ...

    async def later(ctx: DagContext) -> None:
        raise RetryLater(600)

    first, *others = steps
    dag.step(name=first, compensate=later if undo else None)(function)
    dag.approval(gate, after=[first])
    before = gate
    for name in others:
        dag.step(name=name, after=[before])(function)
        before = name
    return app


async def test_a_dag_run_whose_open_step_was_renamed_would_not_go_on(make_app: MakeApp) -> None:
    run = await declare(make_app(), "reserve", "charge").start("order")
    [found] = await declare(make_app(), "reserve", "pay").check()
    assert (found.id, found.verdict) == (run.id, "diverges")
    assert "'charge'" in found.detail and "'reserve'" not in found.detail


async def test_a_dag_run_whose_settled_step_was_renamed_goes_on(make_app: MakeApp) -> None:
    before = declare(make_app(), "reserve", "charge")
    await before.start("order")
    await before.drain()  # up to the gate
    [found] = await declare(make_app(), "hold", "charge").check()
    assert found.verdict == "fits"
    [found] = await declare(make_app(), "hold", "charge", gate="approved").check()
    assert found.verdict == "diverges" and "'ok'" in found.detail


async def test_a_dag_run_that_is_undone_needs_the_undos(make_app: MakeApp) -> None:
    before = declare(make_app(), "reserve", "charge")
    run = await before.start("order")
    await before.drain()  # up to the gate
    await run.cancel()
    await before.drain()  # the undo wants to be called later
    assert await run.status() == "compensating"
    assert [found.verdict for found in await before.check()] == ["fits"]
    [found] = await declare(make_app(), "reserve", "charge", undo=False).check()
    assert found.verdict == "diverges" and "'reserve'" in found.detail


async def test_a_check_of_few_runs_does_not_ask_for_each_that_never_began(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long queue lies before the run that has begun."""

    @app.workflow
    async def wait(ctx: Context, _: None) -> None:
        await ctx.wait_signal("go")

    run = await drained(app, wait)
    await run.pause()
    await run.resume()
    await run.signal("go")
    await app.start_many(wait, [None] * 200)
    store, asked = await app.store(), list[Any]()
    runs = store.runs

    async def counted(**filters: Any) -> Any:
        asked.append(filters)
        return await runs(**filters)

    monkeypatch.setattr(store, "runs", counted)
    assert [found.id for found in await app.check(limit=1)] == [run.id]
    assert len(asked) < 20
