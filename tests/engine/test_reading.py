"""Reading runs: handles, results, facts, lists with filters and pages, progress and the activity log."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import socket
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepfast import (
    Backoff,
    ConfigurationError,
    Context,
    NonRetryableError,
    RunNotFound,
    Settings,
    Stepfast,
    SyncContext,
    results,
    step,
)
from stepfast.engine.function_spec import by_name, parameter_names
from stepfast.info import ExecutedBy
from tests.engine.conftest import ON_BOTH, ON_SQLITE, MakeApp
from tests.support.engine import PATIENCE, Calls, Gate, ThreadGate, drained, eventually, failure
from tests.support.waiting import rows_of
from tests.support.workflows import calling, task

pytestmark = ON_SQLITE

NOWHERE = "01977777-7777-7777-8777-777777777777"


# -- one run -----------------------------------------------------------------------------------------------------


async def test_the_facts_of_a_completed_run(app: Stepfast) -> None:
    @app.workflow
    async def order(ctx: Context, name: str) -> dict[str, str]:
        return {"hello": await ctx.step("say", lambda: name)}

    before = datetime.now(UTC)
    run = await app.start(order, "Ann")
    assert await run.status() == "queued"
    await app.drain()
    info = await run.info()
    assert (info.status, info.input, info.output) == ("completed", "Ann", {"hello": "Ann"})
    assert (info.workflow, info.version, info.attempt, info.losses) == ("order", order.version, 1, 0)
    assert (info.reason, info.error, info.waiting_for, info.worker, info.parent) == (None, None, None, None, None)
    assert info.started_at is not None and info.completed_at is not None
    assert before - timedelta(seconds=5) < info.created_at <= info.started_at <= info.completed_at
    assert info.created_at.tzinfo is UTC


@ON_BOTH
async def test_a_running_run_names_its_worker(app: Stepfast) -> None:
    gate = Gate()
    order = calling(app, lambda ctx: ctx.step(gate.passing))
    run = await app.start(order)
    async with app.worker() as worker:
        await gate.reached()
        info = await run.info()
        assert (info.status, info.worker, info.output, info.completed_at) == ("running", worker.id, None, None)
        gate.open()


async def test_a_handle_is_made_without_a_query_and_asks_when_asked(app: Stepfast) -> None:
    mail = task(app, "mail")
    started = await drained(app, mail, "a")
    handle = app.get(started.id.upper())
    assert handle.id == started.id
    assert await handle.result() == "a"
    nobody = app.get(NOWHERE)
    for question in (nobody.status, nobody.info, nobody.steps, nobody.activity, nobody.result):
        with pytest.raises(RunNotFound, match=NOWHERE):
            await question()


async def test_a_result_can_be_awaited_before_during_and_after(app: Stepfast) -> None:
    gate = Gate()
    mail = task(app, "mail", gate=gate, returns="sent")
    run = await app.start(mail)
    waiters = [asyncio.create_task(app.get(run.id).result()) for _ in range(5)]
    async with app.worker():
        await gate.reached()
        with pytest.raises(TimeoutError, match=run.id):
            await run.result(timeout=0.01)
        gate.open()
        assert await asyncio.wait_for(asyncio.gather(*waiters), PATIENCE) == ["sent"] * 5
    assert await run.result(timeout=0) == "sent"


async def test_a_result_comes_soon_after_the_end(make_app: MakeApp) -> None:
    worker, waiter = make_app(), make_app()

    @worker.task
    async def mail(number: int) -> float:
        return time.monotonic()

    ages: list[float] = []
    async with worker.worker():
        while len(ages) < 20 and min(ages, default=1) >= 0.25:  # one that waits for polls is never so quick
            ended = await waiter.get((await worker.start(mail, len(ages))).id).result()
            ages.append(time.monotonic() - ended)
    assert min(ages) < 0.25


@pytest.mark.parametrize("timeout", [-1, "1", float("nan")], ids=repr)
async def test_a_bad_timeout_of_result_is_refused(app: Stepfast, timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match="timeout"):
        await app.get(NOWHERE).result(timeout=timeout)


async def test_a_failed_run_raises_what_is_known(app: Stepfast) -> None:
    mail = task(app, "mail", error=NonRetryableError("no such address"))
    run = await drained(app, mail)
    for handle in (run, app.get(run.id)):
        await failure(handle, "no such address")
    info = await run.info()
    assert info.error is not None
    assert (info.error.type, info.error.message) == ("NonRetryableError", "no such address")
    assert info.error.traceback is not None and "Traceback" in info.error.traceback
    assert info.output is None


# -- lists -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def listed(app: Stepfast) -> Stepfast:
    """Twelve runs: mails and orders, some failed, some later, some tagged."""

    @app.task(max_attempts=1)
    async def mail(number: int) -> None:
        if number % 3 == 0:
            raise ValueError("no")

    order = task(app, "order", returns=None, queue="shop")
    for number in range(6):
        await app.start(mail, number, tags=["even" if number % 2 == 0 else "odd"], key=f"mail-{number}")
    for number in range(6):
        await app.start(order, number, queue="vip" if number == 0 else None, delay=3600 if number > 3 else None)
    await app.drain()
    return app


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, [5, 4, 3, 2, 1, 0, 5, 4, 3, 2, 1, 0]),
        ({"workflow": "mail"}, [5, 4, 3, 2, 1, 0]),
        ({"status": "failed"}, [3, 0]),
        ({"status": "queued"}, [5, 4]),
        ({"queue": "vip"}, [0]),
        ({"queue": "shop", "status": "completed"}, [3, 2, 1]),
        ({"tag": "even"}, [4, 2, 0]),
        ({"tag": "odd", "status": "failed"}, [3]),
        ({"workflow": "order", "limit": 2}, [5, 4]),
        ({"tag": "none such"}, []),
        ({"workflow": "none such"}, []),
        ({"reason": "code"}, [3, 0]),
        ({"key": "mail-4"}, [4]),
    ],
    ids=str,
)
async def test_runs_are_listed_newest_first_by_filters(
    listed: Stepfast, filters: dict[str, Any], found: list[int]
) -> None:
    assert [info.input for info in await listed.runs(**filters)] == found


@pytest.mark.parametrize("filters", [{}, {"tag": "even"}, {"status": "failed"}, {"workflow": "mail"}], ids=str)
@pytest.mark.parametrize("by", ["run", "id"])
@ON_BOTH
async def test_pages_by_keyset_give_each_run_once(listed: Stepfast, filters: dict[str, Any], by: str) -> None:
    whole = [info.id for info in await listed.runs(**filters)]
    paged: list[str] = []
    after: Any = None
    while page := await listed.runs(**filters, after=after, limit=2):
        assert len(page) <= 2
        paged += [info.id for info in page]
        after = page[-1] if by == "run" else page[-1].id
        await listed.start("mail", 1, tags=["even"])
    assert paged == whole


@pytest.mark.parametrize(
    "filters",
    [
        {"status": "done"},
        {"limit": 0},
        {"limit": 10_001},
        {"limit": "5"},
        {"after": "x"},
        {"limit": 1.5},
        {"tag": "a\0b"},
        {"queue": 5},
        {"key": b"k"},
        {"workflow": "\ud800"},
    ],
    ids=str,
)
@pytest.mark.enough_on("sqlite")
async def test_bad_filters_are_refused(app: Stepfast, filters: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        await app.runs(**filters)


# -- steps, progress, activity ---------------------------------------------------------------------------------


@ON_BOTH
async def test_a_step_that_takes_long_is_listed_as_running(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(running_after=0.05, poll_interval=0.05))
    gate = Gate()

    @app.workflow
    async def order(ctx: Context) -> None:
        await ctx.step("quick", lambda: 1)
        await ctx.step("slow", gate.passing)

    run = await app.start(order)

    async def listed() -> Any:
        steps = await run.steps()
        return steps if len(steps) == 2 else None

    async with app.worker():
        await gate.reached()
        quick, slow = await eventually(listed)
        assert (quick.name, quick.status) == ("quick", "completed")
        assert (slow.name, slow.status, slow.output, slow.completed_at) == ("slow", "running", None, None)
        gate.open()
        await run.result(timeout=PATIENCE)
    assert [(s.name, s.status) for s in await run.steps()] == [("quick", "completed"), ("slow", "completed")]


async def test_the_latest_word_of_progress_wins_and_does_not_leak(app: Stepfast) -> None:
    gate = Gate()

    @app.workflow
    async def order(ctx: Context, name: str) -> None:
        async def work() -> None:
            ctx.progress(f"{name}: 10 of 100")
            await ctx.progress(f"{name}: 70 of 100", {"done": 70})
            await gate.passing()

        await ctx.step(work)

    one, other = await app.start(order, "one"), await app.start(order, "other")

    async def said() -> Any:
        found = [await run.steps() for run in (one, other)]
        return found if all(found) else None

    async with app.worker():
        await eventually(lambda: gate.arrivals == 2)
        for [told], name in zip(await eventually(said), ("one", "other"), strict=True):
            assert (told.name, told.status, told.detail) == ("work", "running", f"{name}: 70 of 100")
            assert told.data == {"done": 70}
        gate.open()


async def test_progress_from_a_blocking_step(app: Stepfast) -> None:
    gate = ThreadGate()

    @app.workflow
    def order(ctx: SyncContext) -> None:
        def work() -> None:
            ctx.progress("half \ud800 way\0", 0.5)
            gate.passing()

        ctx.progress("of the run itself")
        ctx.step(work)

    run = await app.start(order)

    async def both() -> Any:
        steps = await run.steps()
        return steps if len(steps) == 2 else None

    async with app.worker():
        await gate.reached()
        own, told = await eventually(both)
        assert (own.name, own.status, own.detail) == ("order", "running", "of the run itself")
        assert (told.name, told.status, told.detail, told.data) == ("work", "running", "half \\ud800 way\\0", 0.5)
        gate.open()
        await run.result(timeout=PATIENCE)
    assert [(s.name, s.status) for s in await run.steps()] == [("work", "completed")]


@ON_BOTH
async def test_the_log_tells_every_call_in_start_order(app: Stepfast) -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    @app.workflow
    async def order(ctx: Context) -> int:
        total = await ctx.step(add, 1, 2)
        await ctx.step("kw", add, a=total, b=4)
        return await ctx.step("none", lambda: 0)

    run = await drained(app, order)
    log = await run.activity()
    assert [(a.name, a.position, a.status, a.parameters, a.result) for a in log] == [
        ("add", 0, "completed", {"a": 1, "b": 2}, 3),
        ("kw", 1, "completed", {"a": 3, "b": 4}, 7),
        ("none", 2, "completed", None, 0),
    ]
    assert [a.started_at for a in log] == sorted(a.started_at for a in log)
    assert all(timedelta(0) <= a.duration < timedelta(seconds=10) for a in log)


async def test_parameters_that_are_not_json_are_left_out_of_the_log(app: Stepfast) -> None:
    order = calling(app, lambda ctx: ctx.step("odd", lambda thing: "fine", object()))
    run = await drained(app, order)
    assert await run.result() == "fine"
    assert [a.parameters for a in await run.activity()] == [None]


async def test_the_largest_parameters_are_kept_as_size_and_digest(make_app: MakeApp) -> None:
    app = make_app(settings=Settings(argument_bytes=1000))
    text, table = "é" * 300, list(range(500))
    order = calling(app, lambda ctx: ctx.step("odd", lambda text, table, few: len(table), text, table, "few"))
    run = await drained(app, order)
    [call] = await run.activity()
    digest = {"bytes": len(json.dumps(table, separators=(",", ":")))}
    assert call.parameters == {"text": text, "table": call.parameters["table"], "few": "few"}
    assert call.parameters["table"].items() >= digest.items() and len(call.parameters["table"]["sha256"]) == 64


@pytest.mark.parametrize("where", ["app", "step", "options"])
async def test_parameters_are_not_kept_where_it_is_said(make_app: MakeApp, where: str) -> None:
    app = make_app(record_arguments=False if where == "app" else None)
    tried: list[int] = []

    @step(record_arguments=False if where == "step" else None)
    async def charge(card: str) -> None:
        tried.append(1)
        if len(tried) == 1:
            raise ValueError("again")

    @app.workflow
    async def order(ctx: Context) -> None:
        options = ctx.options(
            retries=1, backoff=Backoff(base=0), record_arguments=False if where == "options" else None
        )
        await options.step(charge, "4111-1111")

    run = await drained(app, order)
    assert await run.status() == "completed"
    assert [a.parameters for a in await run.activity()] == [None, None]


@ON_BOTH
async def test_a_long_history_is_listed_whole(app: Stepfast) -> None:
    async def same(number: int) -> int:
        return number

    order = calling(app, lambda ctx: asyncio.gather(*(ctx.step(same, n) for n in range(1201))))
    run = await drained(app, order)
    assert sorted(s.output for s in await run.steps()) == list(range(1201))
    assert len(await run.activity()) == 1201


async def test_each_call_in_the_log_has_an_id_that_stays(app: Stepfast, calls: Calls) -> None:
    @app.workflow(backoff=Backoff(base=0, jitter=False))
    async def flaky(ctx: Context) -> None:
        await ctx.step("a", lambda: 1)
        await ctx.options(retries=1, backoff=Backoff(base=0, jitter=False)).step("b", fail_thrice)

    def fail_thrice() -> None:
        if calls.hit("b") <= 3:
            raise ValueError("again")

    run = await drained(app, flaky)
    ids = [call.id for call in await run.activity()]
    assert len(ids) == len(set(ids)) >= 5
    assert [call.id for call in await run.activity()] == ids


@ON_BOTH
async def test_a_run_that_cannot_be_read_does_not_keep_the_others_from_being_listed(app: Stepfast) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    broken, whole = await app.start(double, 1), await app.start(double, 2)
    await app.drain()
    async with rows_of(app) as rows:
        await rows.set(broken.id, "input", "{broken")
    listed = {info.id: info for info in await app.runs()}
    assert (listed[whole.id].input, listed[whole.id].output) == (2, 4)
    assert listed[broken.id].status == "completed"
    assert "cannot be read" in listed[broken.id].input


@ON_BOTH
async def test_a_list_leaves_large_payloads_out_and_says_so(app: Stepfast) -> None:
    @app.task
    async def fill(number: int) -> str:
        return "x" * number

    @app.task
    async def measure(text: str) -> int:
        return len(text)

    small, large = await app.start(fill, 1), await app.start(fill, 10_000)
    fed = await drained(app, measure, "y" * 10_000)
    for filters in ({}, {"status": "completed"}, {"oldest_first": True}):
        listed = {info.id: info for info in await app.runs(**filters)}
        assert [(run.input, run.output, run.left_out) for run in (listed[r.id] for r in (small, large, fed))] == [
            (1, "x", ()), (10_000, None, ("output",)), (None, 10_000, ("input",)),
        ]  # fmt: skip
    [shown] = await app.runs(workflow="measure")
    assert shown.left_out == ("input",)
    whole = await fed.info()
    assert (whole.input, whole.left_out) == ("y" * 10_000, ())


@ON_BOTH
async def test_a_check_replays_a_run_whose_input_lists_leave_out(app: Stepfast) -> None:
    @app.workflow
    async def measure(ctx: Context, text: str) -> int:
        await ctx.step(str(len(text)), lambda: 1)
        await ctx.sleep(3600)
        return len(text)

    await drained(app, measure, "y" * 10_000)
    assert [found.verdict for found in await app.check()] == ["fits"]


@ON_BOTH
async def test_the_log_of_a_run_with_very_many_calls_is_whole(app: Stepfast) -> None:
    nothing = task(app, "nothing", returns=None)
    run = await app.start(nothing)
    async with rows_of(app) as rows:
        await rows.fetch(
            "INSERT INTO [tries] (run_id, branch, position, attempt, number, claim, name, error, format, started_at, "
            "completed_at) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10500) "
            "SELECT r.id, '', 0, 1, n.i, 1, 'a', '{}', 1, n.i, n.i FROM [runs] r CROSS JOIN n"
        )
    assert [call.attempt for call in await run.activity()] == list(range(1, 10_501))


# -- a result that is waited for while its run is removed: RunNotFound, also beside others who wait in th


async def test_a_run_that_was_removed_is_not_found_beside_other_waiters(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "_GONE_AFTER", 0.02)
    monkeypatch.setattr(results, "_GONE_EVERY", 60.0)

    @app.task
    async def job() -> None:
        pass

    waited_for, quick, removed = await app.start(job, delay=3600), await app.start(job), await app.start(job)
    watching = (await app._connect()).watcher
    other = asyncio.create_task(waited_for.result())
    await eventually(lambda: _looked(watching, waited_for.id))
    await app.drain()
    await quick.delete()
    await removed.delete()
    with pytest.raises(RunNotFound):
        await quick.result(timeout=0.05)  # at its timeout, if not before
    with pytest.raises(RunNotFound):
        async with asyncio.timeout(PATIENCE):
            await removed.result()
    other.cancel()
    await asyncio.wait([other])
    assert watching._gone_at == {}


async def _looked(watching: results.Watcher, run_id: str) -> bool:
    """Whether it was looked for the run: the next time is far away."""
    return watching._gone_at.get(run_id, 0.0) > asyncio.get_running_loop().time() + 30


# -- waiting for the result of a run that nobody will take: said after a moment, and in the TimeoutError


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs for which somebody looked for workers."""
    seen: list[str] = []
    look = results.NoWorkerWarning._look

    async def counted(self: results.NoWorkerWarning, run_id: str) -> object:
        seen.append(run_id)
        return await look(self, run_id)

    monkeypatch.setattr(results.NoWorkerWarning, "_look", counted)
    monkeypatch.setattr(results, "SOON", 0.02)
    monkeypatch.setattr(results, "_AT_MOST_EVERY", 3600.0)
    return seen


async def test_a_timeout_says_that_nobody_will_take_the_run(app: Stepfast, looks: list[str]) -> None:
    ship = task(app, "ship", returns=None)
    run = await app.start(ship)
    with pytest.raises(TimeoutError, match=r"within 0\.01 s; it is queued; there is no live worker"):
        await run.result(timeout=0.01)
    assert looks == [run.id]


async def test_whoever_waits_is_told_once(app: Stepfast, looks: list[str], caplog: pytest.LogCaptureFixture) -> None:
    ship = task(app, "ship", returns=None)
    task(app, "other", returns=None)
    runs = await app.start_many(ship, [None] * 20)
    async with app.worker(queues=["other"]):
        for run in runs:
            with pytest.raises(TimeoutError, match="no live worker serves queue 'ship'"):
                await run.result(timeout=0.05)
    [line] = [record for record in caplog.records if "it is queued" in record.getMessage()]
    assert (line.run_id, line.workflow, line.attempt) == (runs[0].id, "ship", 0)  # type: ignore[attr-defined]
    assert line.getMessage().startswith(
        f"run {runs[0].id}: it is queued; no live worker serves queue 'ship': start one with `"
    )
    assert len(looks) == 1 + len(runs)  # one for the log, and one for each error


async def test_nothing_is_said_of_a_run_that_somebody_has(
    app: Stepfast, looks: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    ship = task(app, "ship", gate=gate, returns=None)
    run = await app.start(ship)
    async with app.worker():
        await gate.reached()
        with pytest.raises(TimeoutError, match="it continues, and result\\(\\) may be called again"):
            await run.result(timeout=0.05)
        gate.open()
        await run.result(timeout=20)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# -- the activity log tells arguments by the names of the parameters, in Python and in the views


@ON_BOTH
async def test_arguments_have_names_in_the_log_and_in_the_views(app: Stepfast) -> None:
    async def fetch(url: str, *others: str, depth: int = 1) -> str:
        return url

    def book(connection: Any, order: str) -> None:
        pass

    async def report(ctx: Any, rows: int) -> int:
        ctx.progress("counting", {"rows": rows})
        return rows

    @app.workflow
    async def crawl(ctx: Context) -> None:
        await ctx.step(fetch, "a", "b", "c", depth=2)
        await ctx.transaction(book, "o-1")
        await ctx.step(report, ctx, 3)
        await ctx.set("done", {"pages": 3})

    run = await drained(app, crawl)
    assert [call.parameters for call in await run.activity()] == [
        {"url": "a", "others": ["b", "c"], "depth": 2}, {"order": "o-1"}, {"rows": 3},
    ]  # fmt: skip
    async with rows_of(app) as rows:
        for view in ("activity_readable", "steps_readable"):
            found = await rows.fetch(f"SELECT parameters FROM [{view}] ORDER BY position")
            assert json.loads(found[0][0])["url"] == "a", view
        [(value, key)] = await rows.fetch("SELECT value, key FROM [values_readable]")
        assert (json.loads(value), key) == ({"pages": 3}, "done")
        progress = await rows.fetch("SELECT name, detail, data FROM [progress_readable]")
        assert [(name, detail, json.loads(data)) for name, detail, data in progress] in (
            [], [("report", "counting", {"rows": 3})],
        )  # fmt: skip


@ON_BOTH
def test_names_are_found_for_whatever_can_be_called() -> None:
    class Mailer:
        def send(self, to: str) -> None: ...

        def __call__(self, to: str) -> None: ...

    def plain(a: int, /, **more: int) -> None: ...

    assert by_name(parameter_names(Mailer().send), ("x",), {}) == {"to": "x"}
    assert by_name(parameter_names(Mailer()), ("x",), {}) == {"to": "x"}
    assert by_name(parameter_names(functools.partial(Mailer().send)), (), {"to": "x"}) == {"to": "x"}
    assert by_name(parameter_names(plain), (1,), {"b": 2}) == {"a": 1, "b": 2}
    assert by_name(parameter_names(plain), (1,), {"a": 2}) == {"args": (1,), "kwargs": {"a": 2}}
    assert by_name(parameter_names(plain), (1, 2), {}) == {"a": 1, "args": (2,)}
    assert by_name(parameter_names(dict), (1,), {}) == {"args": (1,)}


# -- who executed what is known for as long as the run is kept: the worker, its host and its process


RELEASES = Settings(inline_wait=0)
"""Every wait gives its slot back."""


def declare(app: Stepfast) -> Any:
    """Two steps, with a wait for a signal between them."""

    async def early() -> str:
        return "early"

    async def late() -> str:
        return "late"

    @app.workflow
    async def flow(ctx: Context) -> str:
        await ctx.step(early)
        await ctx.wait_signal("go")
        return await ctx.step(late)

    return flow


def here(found: ExecutedBy | None) -> str:
    """The id of a worker of this process."""
    assert found is not None
    assert (found.host, found.pid) == (socket.gethostname(), os.getpid())
    return found.worker


@ON_BOTH
async def test_every_claim_keeps_its_worker_after_the_end(make_app: MakeApp) -> None:
    one, other = make_app(settings=RELEASES), make_app(settings=RELEASES)
    run = await one.start(declare(one))
    again = other.get(run.id)
    declare(other)
    assert (await run.info()).executed_by is None
    await one.drain()
    first = here((await run.info()).executed_by)
    await run.signal("go")
    await other.drain()
    info = await again.info()
    second = here(info.executed_by)
    assert (info.status, info.worker) == ("completed", None)
    assert first != second
    assert {step.name: here(step.executed_by) for step in await run.steps()} == {
        "early": first, "go": second, "late": second,
    }  # fmt: skip
    assert [here(call.executed_by) for call in await run.activity()] == [first, second, second]
    async with rows_of(one) as rows:
        found = await rows.fetch("SELECT name, executed_by, host, pid FROM [steps_readable] ORDER BY seq")
        mine = (socket.gethostname(), os.getpid())
        assert [(name, str(who), *where) for name, who, *where in found] == [
            ("early", first, *mine), ("go", second, *mine), ("late", second, *mine),
        ]  # fmt: skip
        found = await rows.fetch("SELECT executed_by FROM [activity_readable] ORDER BY position")
        assert [str(who) for (who,) in found] == [first, second, second]
        [(who, host, pid)] = await rows.fetch("SELECT executed_by, host, pid FROM [runs_readable]")
        assert (str(who), host, pid) == (second, *mine)
        found = await rows.fetch("SELECT first_claim, last_claim, executed_by FROM [claims_readable] ORDER BY 1")
        assert [(begin, end, str(who)) for begin, end, who in found] == [(1, 1, first), (2, 2, second)]
        assert await rows.fetch("SELECT 1 FROM [workers]") == []


async def test_claims_of_one_worker_leave_no_row(app: Stepfast) -> None:
    broken = task(app, "broken", error=ValueError("no"), max_attempts=2)
    run = await drained(app, broken)
    assert len({here(call.executed_by) for call in await run.activity()}) == 1
    async with rows_of(app) as rows:
        assert await rows.fetch("SELECT * FROM [claims]") == []


async def test_limited_queues_and_steps_of_dags_keep_it_too(make_app: MakeApp) -> None:
    def declare_all(app: Stepfast) -> tuple[Any, Any]:
        flow = declare(app)
        app.queue("flow", concurrency=1)
        dag = app.dag("dag")

        async def load(ctx: Any) -> str:
            return "loaded"

        dag.declare(load)
        return flow, dag

    one, other = make_app(settings=RELEASES), make_app(settings=RELEASES)
    flow, dag = declare_all(one)
    run, graph = await one.start(flow), await one.start(dag)
    await one.drain()
    declare_all(other)
    await other.get(run.id).signal("go")
    await other.drain()
    assert len({here(step.executed_by) for step in await run.steps()}) == 2
    [load] = await graph.steps()
    assert here(load.executed_by) == here((await graph.info()).executed_by)


async def test_it_goes_with_the_run(make_app: MakeApp) -> None:
    one, other = make_app(settings=RELEASES), make_app(settings=RELEASES)
    run = await drained(one, declare(one))
    declare(other)
    await run.signal("go")
    await other.drain()
    await run.delete()
    async with rows_of(one) as rows:
        assert await rows.fetch("SELECT * FROM [claims]") == []
        await rows.fetch("UPDATE [past_workers] SET left_at = 1")
        await one.drain()  # a worker that leaves takes those along that no run can name
        assert len(await rows.fetch("SELECT * FROM [past_workers]")) == 1
