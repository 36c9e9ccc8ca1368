"""One odd row ends no duty and hides no other row (rule 59): what a role may write, and what a hand may damage."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from typer.testing import CliRunner

from stepfast import Context, Rate, RunInfo, Settings, Stepfast, step
from stepfast.cli import cli
from stepfast.console import console
from stepfast.model.ids import new_id
from stepfast.model.records import WorkerInfo
from stepfast.monitoring.doctor import examine
from stepfast.monitoring.explain import explain
from stepfast.run import Run
from stepfast.store.answers import AuditEntry
from stepfast.store.flows.checkpoints import CheckpointRow, WriteRow, checkpoint_id
from stepfast.worker.worker import Worker
from tests.console.conftest import JSON, TOKEN, browse
from tests.engine.conftest import MakeApp
from tests.support.engine import PATIENCE, drained, eventually
from tests.support.odd_rows import Odd, Oddity, Tables, families, odd_others, odd_runs
from tests.support.workflows import sleeper

pytestmark = pytest.mark.enough_on("postgres", "sqlite")

QUICK = Settings(
    inline_wait=0,
    poll_interval=0.05,
    sweep_interval=0.05,
    backoff_base=0.01,
    lease=1.0,
    heartbeat=0.3,
    retention=None,
    retention_failed=None,
)
"""With a lease that a test waits for, and nothing that is removed: odd ends are old ones, too."""


def declare(app: Stepfast) -> None:
    """Workflows that leave rows in every table."""

    @step(compensate=lambda output, what: None)
    def pack(what: str) -> str:
        return what

    tried: list[int] = []

    def flaky() -> int:
        tried.append(1)
        if len(tried) < 2:
            raise ValueError("once")
        return 1

    @app.task(name="plain")
    async def plain(number: int) -> int:
        return number + 1

    @app.task(name="fails", max_attempts=1)
    async def fails(what: str) -> None:
        raise ValueError(what)

    @app.workflow(name="long")
    async def long(ctx: Context, number: int) -> Any:
        await ctx.step(pack, "box")
        await ctx.set("at", {"n": number})
        ctx.stream("log").send({"n": number})
        ctx.log.info("number %d", number)
        await ctx.options(retries=1).step("flaky", flaky)
        await ctx.sleep(0.001)
        child = await ctx.start("plain", number)
        await ctx.callback("paid", timeout=60, heartbeat=60)
        return [await child.result(), await ctx.wait_signal("go")]

    @app.workflow(name="hears")
    async def hears(ctx: Context) -> Any:
        return [await ctx.wait_event("paid", key="k"), await ctx.wait_event("never")]

    app.on("paid", "plain", input=lambda event: event.data["a"])

    @app.workflow(name="elsewhere")
    async def elsewhere(ctx: Context) -> Any:
        return await ctx.remote("far.away", {"a": 1})

    sleeper(app, name="sleeps", deadline=timedelta(days=3))

    @app.workflow(name="undone", max_attempts=1)
    async def undone(ctx: Context) -> None:
        await ctx.step(pack, "box")
        raise ValueError("sold out")

    dag = app.dag("graph")
    dag.declare(lambda ctx: 1, name="one", compensate=lambda ctx: None)
    dag.approval("ok", after=["one"])
    dag.declare(lambda ctx: ctx.outputs["ok"], name="last", after=["ok"])
    app.queue("narrow", concurrency=1, rate=Rate(100, per=60))
    app.schedule("nightly", "plain", cron="0 3 * * *", input=1)


async def inhabit(app: Stepfast, tables: Tables) -> None:
    """A healthy run of each kind, where it comes to by itself."""
    await app.start("plain", 1, key="one", tags=["a"], attributes={"customer": "c-1"})
    await app.start("fails", "no")
    await app.start("undone")
    long = await app.start("long", 1)
    await app.start("graph", {"a": 1}, tags=["b"])
    await app.start("sleeps")
    await app.start("elsewhere")
    await app.start("hears")
    await app.publish("paid", {"a": 1}, key="k", id="e")
    await drained(app, "plain", 1, queue="narrow", concurrency_key="k")
    store = await app.store()
    await store.register(WorkerInfo(new_id(), "here", 1, None, {"plain": "1"}, concurrency=10, lease_ms=30_000))
    progress = {"run_id": long.id, "branch": "", "position": 90, "name": "pack", "detail": "3 of 9", "data": "{}"}
    times = {"format": 1, "started_at": 1, "updated_at": 2}
    await tables.put([("progress", progress | {"run_id": tables.id(long.id)} | times)])
    deed = AuditEntry(new_id(), "ann", "run.cancel", "all", "here", "{}")
    await store.audit_begin(deed, None)
    await long.signal("other", "kept")
    with contextlib.suppress(TimeoutError):
        await long.ask("why", 1, timeout=0.01)
    await app.start("plain", 5, delay=3600)
    await app.start("plain", 7, key="d", debounce=3600)
    await app.start("plain", 6)
    await app.start("graph", {"a": 2})
    await bereave(tables, (await app.start("plain", 8, queue="orphans")).id)
    await bereave(tables, (await app.start("graph", {"a": 3})).id)
    row = {"claim": 1, "worker": tables.id(new_id())}
    await tables.put([("claims", {"run_id": tables.id(long.id)} | row)])
    gone = {"id": tables.id(new_id()), "host": "there", "pid": 1, "left_at": 2**40}
    await tables.put([("past_workers", gone)])
    point = CheckpointRow(checkpoint_id("t", "", "c"), "t", "", "c", None, None, '{"x": 1}', "{}", 1)
    await store.put_checkpoint(point, [("x", 1, "1")])
    await store.put_checkpoint_writes("t", [WriteRow(point.id, "a", "", 0, "x", "1", 1)], replace=False)
    await store.add_session_items("s", new_id(), ["{}"], 1)


async def bereave(tables: Tables, run_id: str) -> None:
    """Let a run, or the first step of a dag run, be held by a worker that has died."""
    dead = tables.id(new_id())
    held = "status = 'running', worker = {}, executed_by = {}, claim = 1, attempt = 1, place = NULL, started_at = 1"
    which = "(id = {} AND graph IS NULL) OR (dag_id = {} AND dag_step = 'one')"
    values = (dead, dead, tables.id(run_id), tables.id(run_id))
    await tables.execute(f"UPDATE {tables.name('runs')} SET {held} WHERE {which}", *values)


GRAVE = ("internal error", "never", "does not end by itself")
"""Words of log lines that tell of a duty at an end."""


class Faults:
    """What readers could not do, and by which rows."""

    def __init__(self) -> None:
        self.found: list[str] = []

    async def reads(self, what: str, reading: Callable[[], Awaitable[Any]]) -> Any:
        """A reader's answer: it may refuse none."""
        try:
            return await reading()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.found.append(f"{what}: {type(error).__name__}: {str(error)[:150]} ({where.filename}:{where.lineno})")


async def read_lists(app: Stepfast, healthy: list[str], faults: Faults) -> None:
    """Every reader of more than one row; the healthy runs are among those listed."""
    listed: list[str] = []
    page: list[RunInfo] | None = [await app.get(healthy[-1]).info()]
    while page:
        after = page[-1].id if listed else None
        page = await faults.reads("app.runs", partial(app.runs, limit=500, after=after))
        listed += [info.id for info in page or ()]
    if not set(healthy) <= set(listed):
        faults.found.append("app.runs: a healthy run is hidden")
    store = await app.store()
    for what, reading in (
        ("queues", app.queues), ("schedules", app.schedules), ("stats", app.stats), ("workers", store.workers),
        ("check", app.check),
        ("doctor", partial(examine, app, store)), ("audit", partial(store.audit, limit=1000)),
    ):  # fmt: skip
        await faults.reads(what, reading)


async def read_run(app: Stepfast, run_id: str, odd: Oddity, faults: Faults) -> None:
    """Every reader of one run."""
    run = app.get(run_id)
    info = await faults.reads(f"info of {odd}", run.info)
    steps = await faults.reads(f"steps of {odd}", run.steps)
    calls = await faults.reads(f"activity of {odd}", run.activity)
    await faults.reads(f"values of {odd}", run.values)
    await faults.reads(f"questions to {odd}", partial((await app.store()).questions_of, run_id))
    await faults.reads(f"callbacks of {odd}", partial((await app.store()).callbacks_of, run_id))
    await faults.reads(f"log of {odd}", run.logs)
    for name in await faults.reads(f"streams of {odd}", run.streams) or ():
        await faults.reads(f"stream of {odd}", lambda: read_stream(run, name))  # noqa: B023
    if info is not None and steps is not None:
        await faults.reads(f"why of {odd}", lambda: explain(app, info, steps, calls or [], []))


async def read_stream(run: Run[Any], name: str) -> None:
    with contextlib.suppress(TimeoutError):
        async for _ in run.stream(name, timeout=0.05):
            pass


VIEWS = ("runs_readable", "steps_readable", "activity_readable", "workers_readable", "sleeps", "activity")
PAGES = ("/runs", "/queues", "/workers", "/schedules", "/failures", "/system", "/audit")


async def read_pages(app: Stepfast, ids: list[tuple[str, Oddity]], faults: Faults) -> None:
    """The console, as a person has it and as a program."""
    async with browse(console(app, token=TOKEN)) as client:
        paths = [(page, page, headers) for page in PAGES for headers in ({}, JSON)]
        paths += [(f"/runs/{run_id}", f"/runs/… of {odd}", {}) for run_id, odd in ids]
        for path, what, headers in paths:
            answer = await faults.reads(what, partial(client.get, path, headers=headers))
            if answer is not None and answer.status_code != 200:
                faults.found.append(f"{what}: {answer.status_code}")


async def read_by_command(app: Stepfast, ids: list[tuple[str, Oddity]], faults: Faults) -> None:
    """The command line."""
    commands = [["runs", "--limit", "500"], *(["show", run_id, "--activity"] for run_id, _ in ids), ["queues"]]
    for command in commands:
        said = await asyncio.to_thread(CliRunner().invoke, cli, [*command, "--url", app.url.text])
        if said.exit_code:
            faults.found.append(f"stepfast {' '.join(command)}: {said.output[-300:]} {said.exception!r} {ids}")


async def read_all(
    app: Stepfast, tables: Tables, walk: list[Odd], healthy: list[str], faults: Faults, *, pages: int = 1
) -> None:
    """Every reader, of every odd row; of every so many rows the page."""
    ids = [(run_id, odd.oddity) for odd in walk for run_id in (odd.run, odd.step) if run_id is not None]
    await read_lists(app, healthy, faults)
    for run_id, oddity in ids:
        await read_run(app, run_id, oddity, faults)
    await read_pages(app, ids[::pages], faults)
    for view in VIEWS:
        await faults.reads(view, partial(tables.fetch, f"SELECT * FROM {tables.name(view)}"))


async def walked(tables: Tables, *, whole: bool) -> AsyncIterator[Odd]:
    """Odd rows, put among the healthy ones: those that the database takes."""
    found = await families(tables)
    others = [(table, row) for table in tables.apart for row in (await tables.rows(table))[:1]]
    there = {table for family in found for table, _ in family.rows} | {table for table, _ in others}
    missing = {*tables.of_runs, *tables.apart} - there
    assert missing <= ({"remote_steps"} if tables.sqlite else set()), "a table is not walked"
    for odd in itertools.chain(
        odd_runs(tables, found, whole=whole), *(odd_others(tables, table, row, whole=whole) for table, row in others)
    ):
        if await tables.put(odd.rows):
            yield odd


@pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=[pytest.mark.thorough, pytest.mark.timeout(3600)])], ids=["some", "all"]
)
async def test_no_odd_row_ends_a_duty_or_hides_another_row(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture, whole: bool
) -> None:
    app = make_app(settings=QUICK, run_logs="INFO")
    declare(app)
    tables = await Tables.of(app)
    await inhabit(app, tables)
    walk = [odd async for odd in walked(tables, whole=whole)]
    healthy = [(await app.start(name, 41, queue="healthy")).id for name in ("plain", "graph")]
    faults = Faults()
    await read_all(app, tables, walk if whole else walk[::10], healthy, faults)
    caplog.clear()
    async with app.worker() as worker:
        assert await app.get(healthy[0]).result(timeout=PATIENCE) == 42
        await app.get(healthy[1]).signal("ok", 7)
        assert (await app.get(healthy[1]).result(timeout=PATIENCE))["last"] == 7
        for _ in range(3):  # each duty comes by, after whatever it meets first
            ticks = worker.duties.sweeper.ticks
            await eventually(partial(_has_ticked, worker, ticks))
        await eventually(partial(_are_reaped, app, tables))
        assert await (await app.start("plain", 1, queue="healthy")).result(timeout=PATIENCE) == 2
        assert not worker.broken.is_set()
    await read_all(app, tables, walk, healthy, faults, pages=1 if whole else 5)
    faults.found += [
        record.getMessage() + str(record.exc_info)
        for record in caplog.records
        if record.levelno >= logging.ERROR and any(words in record.message for words in GRAVE)
    ]
    await read_by_command(
        app, [(odd.run, odd.oddity) for odd in walk[:: 30 if whole else 100] if odd.run is not None], faults
    )
    await tables.close()
    assert faults.found == []


async def _are_reaped(app: Stepfast, tables: Tables) -> bool:
    """Whether nothing is left with a worker that is not there: after a lease, whatever is odd among it."""
    workers = f"SELECT id FROM {tables.name('workers')} WHERE state <> 'dead'"
    lost = f"SELECT count(*) FROM {tables.name('runs')} WHERE worker IS NOT NULL AND worker NOT IN ({workers})"
    return bool((await tables.fetch(lost))[0][0] == 0)


def _has_ticked(worker: Worker, since: int) -> bool:
    return worker.duties.sweeper.ticks > since + 1


@pytest.mark.enough_on("sqlite")
async def test_a_row_that_claims_to_be_a_step_of_another_run_fails_alone(make_app: MakeApp) -> None:
    app = make_app(settings=QUICK)
    declare(app)
    run = await app.start("graph")
    tables = await Tables.of(app)
    [step] = [row for row in await tables.rows("runs") if row["dag_step"] == "one"]
    odd = {"more": new_id(), None: new_id(), "last": new_id()}
    for name, run_id in odd.items():
        changes = {"id": run_id, "dag_step": name, "dag_id": new_id() if name == "last" else step["dag_id"]}
        assert await tables.put([("runs", step | changes)])
    async with app.worker() as worker:
        await run.signal("ok", 7)
        assert await run.result(timeout=PATIENCE) == {"one": 1, "ok": 7, "last": 7}
        for run_id in odd.values():
            await eventually(partial(_has_failed, app, run_id))
        assert not worker.broken.is_set()
    assert len([told for told in await run.steps() if told.kind == "unknown"]) == 2


async def _has_failed(app: Stepfast, run_id: str) -> bool:
    info = await app.get(run_id).info()
    return (info.status, info.reason) == ("failed", "invalid_input")
