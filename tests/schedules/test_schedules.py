"""Schedules from end to end: declared or made, they start a run for each tick (rules 37 and 39)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from stepfast import Context, InvalidState, ScheduleNotFound, Stepfast
from stepfast.errors import ConfigurationError, ContextMisuse, InvalidInput, UnknownOption, UnknownWorkflow
from stepfast.model.schedules import Missed, ScheduleRow
from stepfast.store.flows.schedules import Make
from tests.engine.conftest import MakeApp
from tests.schedules.conftest import PassBy
from tests.store.scene import Rows
from tests.support.codecs import Salted
from tests.support.engine import PATIENCE, Calls, eventually
from tests.worker.spying import Counted

HOUR = 3600
SQLITE = pytest.mark.enough_on("sqlite")


@dataclass
class Day:
    day: str


def with_report(app: Stepfast, calls: Calls | None = None) -> Any:
    @app.task
    async def report(day: Day) -> str:
        if calls is not None:
            calls.hit(day.day)
        return day.day

    return report


async def keys(app: Stepfast, name: str) -> list[str | None]:
    return [run.key for run in await app.runs(tag=f"schedule:{name}", oldest_first=True)]


async def test_a_declared_schedule_starts_a_run_for_its_tick(app: Stepfast, calls: Calls, pass_by: PassBy) -> None:
    app.schedule("nightly", with_report(app, calls), every=HOUR, input=Day("monday"), tags=["night"], priority=3)
    [info] = await app.schedules()
    assert (info.name, info.workflow, info.every, info.declared, info.awake) == ("nightly", "report", HOUR, True, False)
    await pass_by("nightly", HOUR)
    async with app.worker():
        await eventually(lambda: calls["monday"] == 1)
        [info] = await app.schedules()
    [run] = await app.runs()
    assert info.awake and info.last_at is not None and info.last_run == run.id
    assert run.key == f"nightly@{info.last_at.isoformat(timespec='milliseconds').replace('+00:00', 'Z')}"
    assert (run.tags, run.priority, run.input) == (["night", "schedule:nightly"], 3, {"day": "monday"})
    assert info.next_at == info.last_at + timedelta(hours=1)


@SQLITE
async def test_ticks_come_by_themselves_and_soon(app: Stepfast, calls: Calls) -> None:
    """The worker's timer is set for the next tick: nobody has to wait for a poll."""
    app.schedule("feed", with_report(app, calls), every=0.1, input=Day("x"))
    async with app.worker(poll_interval=30):
        await eventually(lambda: calls["x"] >= 3)
    ends = [run.created_at for run in await app.runs()]
    ticks = [datetime.fromisoformat(str(run.key).partition("@")[2]) for run in await app.runs()]
    assert len(set(ticks)) == len(ticks)
    assert all(timedelta(0) <= end - tick < timedelta(seconds=1) for end, tick in zip(ends, ticks, strict=True))


@SQLITE
async def test_a_schedule_made_at_run_time_needs_no_code(make_app: MakeApp, app: Stepfast, pass_by: PassBy) -> None:
    with_report(app)
    async with app.worker():
        other = make_app()
        info = await other.put_schedule("customer-7", "report", cron="0 6 * * mon", tz="Asia/Tokyo", input={"day": "x"})
        assert (info.declared, info.awake, info.cron, info.tz) == (False, True, "0 6 * * mon", "Asia/Tokyo")
        assert info.next_at is not None and info.times(2) == [info.next_at, info.next_at + timedelta(days=7)]
        await pass_by("customer-7", 8 * 24 * HOUR)
        await eventually(lambda: keys(app, "customer-7"))
        await other.delete_schedule("customer-7")
        assert await other.schedules() == []


@pytest.mark.enough_on("postgres")
async def test_many_workers_start_one_run_for_each_tick(make_app: MakeApp, app: Stepfast, calls: Calls) -> None:
    apps = [app, make_app(), make_app()]
    for each in apps:
        each.schedule("feed", with_report(each, calls), every=0.1, input=Day("x"), missed="all")
    async with apps[0].worker(), apps[1].worker(), apps[2].worker():
        await eventually(lambda: calls["x"] >= 8)
    found = await keys(app, "feed")
    assert len(set(found)) == len(found)
    times = [datetime.fromisoformat(str(key).partition("@")[2]) for key in found]
    assert all(later - tick == timedelta(seconds=0.1) for tick, later in pairwise(times)), times


async def test_a_schedule_sleeps_while_nobody_declares_it(make_app: MakeApp, app: Stepfast, pass_by: PassBy) -> None:
    """Rule 37: the worker that declares it again starts what ``missed`` says."""
    policies: tuple[Missed, ...] = ("skip", "latest", "all")
    report = with_report(app)
    for missed in policies:
        app.schedule(missed, report, every=HOUR, input=Day("x"), missed=missed)
    async with app.worker():
        assert all(info.awake for info in await app.schedules())
    other = make_app()
    with_report(other)
    for missed in policies:
        await pass_by(missed, 3 * HOUR + 1)
    ticks = Counted(await other.store(), "tick")
    async with other.worker():
        assert not any(info.awake for info in await other.schedules())
        await eventually(lambda: len(ticks) > 1)  # none of this is due to its worker
        assert await app.runs() == []
    async with app.worker():
        await eventually(lambda: keys(app, "all"))
    assert [len(await keys(app, missed)) for missed in policies] == [0, 1, 3]


@SQLITE
async def test_what_an_operator_pauses_starts_nothing(app: Stepfast, calls: Calls, pass_by: PassBy) -> None:
    app.schedule("feed", with_report(app, calls), every=0.1, input=Day("x"))
    async with app.worker():
        await eventually(lambda: calls["x"])
        await app.pause_schedule("feed")
        before = len(await keys(app, "feed"))
        [info] = await app.schedules()
        assert info.paused and info.next_at is None
        run = await app.trigger("feed")
        assert await run.result(timeout=PATIENCE) == "x"
        await app.resume_schedule("feed")
        await eventually(lambda: _more(app, before + 2))
    found = await keys(app, "feed")
    assert found.count(None) == 1 and found.index(None) == before, "the pause had begun when it was triggered"


async def _more(app: Stepfast, count: int) -> bool:
    return len(await keys(app, "feed")) > count


@SQLITE
async def test_a_backfill_starts_a_run_for_each_tick_and_twice_is_once(app: Stepfast) -> None:
    app.schedule("nightly", with_report(app), cron="0 3 * * *", tz="Europe/Berlin", input=Day("x"), overlap="skip")
    since, until = datetime(2026, 3, 27, tzinfo=UTC), datetime(2026, 4, 1, tzinfo=UTC)
    told: list[tuple[int, int]] = []
    runs = await app.backfill("nightly", since, until, progress=lambda done, all_: told.append((done, all_)))
    again = await app.backfill("nightly", since, until)
    assert [run.id for run in runs] == [run.id for run in again]
    days = [27, 28, 29, 30, 31]
    hours = [2, 2, 1, 1, 1]  # on the 29th summer begins in Berlin
    wanted = [f"nightly@2026-03-{day}T{hour:02}:00:00Z" for day, hour in zip(days, hours, strict=True)]
    assert await keys(app, "nightly") == wanted
    assert told == [(5, 5)]
    await app.drain()
    assert [await run.result(timeout=PATIENCE) for run in runs] == ["x"] * 5


@SQLITE
async def test_a_backfill_ends_with_the_present_and_is_bounded(app: Stepfast, make_app: MakeApp) -> None:
    app.schedule("hourly", with_report(app), every=HOUR, input=Day("x"))
    now = datetime.now(UTC)
    assert len(await app.backfill("hourly", now - timedelta(hours=3), now + timedelta(days=9))) == 4
    with pytest.raises(ConfigurationError, match=r"more than 100000 ticks in this span"):
        await app.backfill("hourly", now - timedelta(days=365 * 20), now)
    with pytest.raises(ConfigurationError, match="since must be a datetime with a time zone"):
        await app.backfill("hourly", datetime(2026, 1, 1), now)
    assert await app.backfill("hourly", now, now) == []
    with pytest.raises(ConfigurationError, match=r"until .* is before since"):
        await app.backfill("hourly", now, now - timedelta(days=1))


@SQLITE
async def test_jitter_puts_runs_off_by_the_same_on_every_worker(app: Stepfast, pass_by: PassBy) -> None:
    app.schedule("nightly", with_report(app), every=HOUR, input=Day("x"), jitter=timedelta(hours=1))
    await pass_by("nightly", HOUR)
    async with app.worker():
        await eventually(lambda: keys(app, "nightly"))
    [run] = await app.runs()
    tick = datetime.fromisoformat(str(run.key).partition("@")[2])
    assert run.due_at is not None and tick < run.due_at <= tick + timedelta(hours=1)


@SQLITE
async def test_a_graph_can_be_scheduled(app: Stepfast, pass_by: PassBy) -> None:
    chain = app.dag("chain")
    app.schedule("graphs", chain, every=HOUR, input={"a": 1})

    @chain.step()
    async def first(ctx: Any) -> int:
        return int(ctx.input["a"])

    @chain.step(after=["first"])
    async def second(ctx: Any) -> int:
        return int(ctx.outputs["first"]) + 1

    await pass_by("graphs", HOUR)
    async with app.worker():
        await eventually(lambda: keys(app, "graphs"))
        [info] = await app.runs()
        assert await app.get(info.id).result(timeout=PATIENCE) == {"first": 1, "second": 2}
        [other] = [await app.trigger("graphs")]
        assert await other.result(timeout=PATIENCE) == {"first": 1, "second": 2}


async def test_one_that_cannot_be_started_keeps_no_other(
    app: Stepfast, calls: Calls, pass_by: PassBy, caplog: pytest.LogCaptureFixture
) -> None:
    report = with_report(app, calls)
    app.schedule("well", report, every=HOUR, input=Day("well"))
    store = await app.store()
    spoilt = [
        ("lost", "workflow", "'gone'"),
        ("odd", "cron", "'x'"),
        ("torn", "options", "'{'"),
        ("far", "tz", "'Mars'"),
    ]
    for name, column, value in spoilt:
        await app.put_schedule(name, report, every=HOUR, input=Day(name))
        rows = Rows(store, app.namespace, app.url.text)
        await rows.fetch(f"UPDATE [schedules] SET {column} = {value} WHERE name = ?", name)
        await rows.close()
        await pass_by(name, HOUR)
    await pass_by("well", HOUR)
    with caplog.at_level(logging.ERROR, "stepfast"):
        async with app.worker():
            await eventually(lambda: calls["well"])
            await eventually(lambda: _failed(app, 4))
    errors = {info.name: info.error for info in await app.schedules() if info.error}
    assert "gone" in str(errors["lost"]) and "either cron= or every=" in str(errors["odd"]) and "torn" in errors
    assert caplog.text.count("cannot start") == 4


async def test_what_breaks_while_runs_are_started_is_found_one_by_one(
    app: Stepfast, calls: Calls, pass_by: PassBy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is wrong with one schedule: neither the worker breaks, nor do the others wait."""
    report, plan = with_report(app, calls), app._declared.plan
    for name in ("a", "odd", "z"):
        app.schedule(name, report, every=HOUR, input=Day(name))

    async def break_one(row: ScheduleRow) -> Make:
        return (lambda tick: [][tick]) if row.name == "odd" else await plan(row)

    monkeypatch.setattr(app._declared, "plan", break_one)
    for name in ("a", "odd", "z"):
        await pass_by(name, HOUR)
    async with app.worker() as worker:
        await eventually(lambda: calls["a"] and calls["z"])
        await eventually(lambda: _failed(app, 1))
        assert not worker.broken.is_set()
    [error] = [info.error for info in await app.schedules() if info.name == "odd"]
    assert error == "IndexError: list index out of range"


async def _failed(app: Stepfast, count: int) -> bool:
    return sum(info.error is not None for info in await app.schedules()) == count


@SQLITE
async def test_two_versions_of_the_code_the_newest_wins_and_the_log_says_so(
    make_app: MakeApp, app: Stepfast, caplog: pytest.LogCaptureFixture
) -> None:
    newer = make_app()
    app.schedule("nightly", with_report(app), every=HOUR, input=Day("old"))
    newer.schedule("nightly", with_report(newer), every=HOUR, input=Day("new"))
    with caplog.at_level(logging.WARNING, "stepfast"):
        async with app.worker():
            assert "nightly" not in caplog.text
            async with newer.worker():
                [info] = await app.schedules()
                assert info.input == {"day": "new"}
    assert caplog.text.count("'nightly' was stored otherwise than this code declares it") == 1


@SQLITE
async def test_what_a_codec_writes_otherwise_each_time_is_no_change(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    codec = Salted()
    with caplog.at_level(logging.WARNING, "stepfast"):
        for _ in range(2):
            app = make_app(codec=codec)
            app.schedule("nightly", with_report(app), every=HOUR, input=Day("x"))
            async with app.worker():
                [info] = await app.schedules()
                assert info.input == {"day": "x"}
    assert "nightly" not in caplog.text


@SQLITE
async def test_what_cannot_work_is_refused_when_it_is_given(app: Stepfast) -> None:
    report = with_report(app)
    good: dict[str, Any] = {"every": 60, "input": Day("x")}
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ConfigurationError, "ever fires", {"every": None, "cron": "0 0 30 2 *"}),
        (ConfigurationError, "no time zone 'Mars'", {"every": None, "cron": "0 0 * * *", "tz": "Mars"}),
        (ConfigurationError, "no time zone 'Mars'", {"tz": "Mars"}),
        (ConfigurationError, "every must be zero or more", {"every": -1}),
        (ConfigurationError, r"at least 0\.1 seconds", {"every": 0}),
        (ConfigurationError, "either cron= or every=", {"every": None}),
        (ConfigurationError, "either cron= or every=", {"cron": "0 0 * * *"}),
        (ConfigurationError, "missed= must be one of", {"missed": "never"}),
        (ConfigurationError, "overlap= must be one of", {"overlap": "queue"}),
        (ConfigurationError, "jitter must be zero or more", {"jitter": -3}),
        (ConfigurationError, "takes no delay=", {"delay": 3}),
        (ConfigurationError, "priority must be", {"priority": "high"}),
        (InvalidInput, "does not fit", {"input": {"day": 3}}),
        (ConfigurationError, "ever fires", {"every": None, "cron": "0 0 30 2 *", "input": None}),
        (UnknownOption, "did you mean 'cron'", {"crom": "0 0 * * *"}),
    ]
    for error, said, changes in wrong:
        with pytest.raises(error, match=said):
            app.schedule("bad", report, **(good | changes))
        with pytest.raises(error, match=said):
            await app.put_schedule("bad", "report", **(good | changes))
    for name in ("", "x" * 171):
        with pytest.raises(ConfigurationError, match="the name of a schedule"):
            app.schedule(name, report, every=60, input=Day("x"))
    with pytest.raises(UnknownWorkflow, match="reprot"):
        app.schedule("bad", "reprot", every=60)
    with pytest.raises(UnknownWorkflow, match="reprot"):
        await app.put_schedule("bad", "reprot", every=60)
    assert await app.schedules() == []


@SQLITE
async def test_names_are_taken_once(app: Stepfast) -> None:
    report = with_report(app)
    for _ in range(2):
        app.schedule("nightly", report, every=60, input=Day("x"))
    with pytest.raises(ConfigurationError, match="already a schedule named 'nightly'"):
        app.schedule("nightly", report, every=61, input=Day("x"))
    with pytest.raises(ConfigurationError, match="declared in this code: take it out there"):
        await app.delete_schedule("nightly")
    with pytest.raises(ConfigurationError, match="declared in this code"):
        await app.put_schedule("nightly", report, every=61, input=Day("x"))


@SQLITE
async def test_what_is_not_there_or_not_to_be_changed_is_said(make_app: MakeApp, app: Stepfast) -> None:
    app.schedule("nightly", with_report(app), every=HOUR, input=Day("x"))
    other = make_app()
    for call in (other.trigger, other.pause_schedule, other.resume_schedule, other.delete_schedule):
        with pytest.raises(ScheduleNotFound, match="there is no schedule 'nightly'"):
            await call("nightly")
    async with app.worker():
        with pytest.raises(ScheduleNotFound, match="did you mean 'nightly'"):
            await other.trigger("nightyl")
        with pytest.raises(InvalidState, match="declared by the code of live workers"):
            await other.delete_schedule("nightly")
        with pytest.raises(InvalidState, match="declared by the code of live workers"):
            await other.put_schedule("nightly", "report", every=5, input={"day": "x"})
    await other.delete_schedule("nightly")
    assert await other.schedules() == []


@SQLITE
async def test_a_workflow_does_not_trigger_in_its_body(app: Stepfast) -> None:
    app.schedule("nightly", with_report(app), every=HOUR, input=Day("x"))

    @app.workflow
    async def body(ctx: Context) -> str:
        with pytest.raises(ContextMisuse, match=r"app\.trigger was called in the body"):
            await app.trigger("nightly")
        return await ctx.step("trigger", _trigger)

    async def _trigger() -> str:
        return (await app.trigger("nightly")).id

    async with app.worker():
        run = await app.start(body)
        assert await app.get(await run.result(timeout=PATIENCE)).result(timeout=PATIENCE) == "x"


@SQLITE
async def test_the_same_verbs_without_an_event_loop(make_app: MakeApp) -> None:
    app = make_app()
    with_report(app)

    def all_of_them() -> None:
        app.sync.migrate()
        app.sync.put_schedule("x", "report", every=HOUR, input={"day": "x"})
        app.sync.pause_schedule("x")
        assert [info.paused for info in app.sync.schedules()] == [True]
        app.sync.resume_schedule("x")
        run = app.sync.trigger("x")
        now = datetime.now(UTC)
        runs = app.sync.backfill("x", now - timedelta(hours=2), now)
        app.sync.drain()
        assert [each.result() for each in (run, *runs)] == ["x"] * 3
        app.sync.delete_schedule("x")
        app.sync.close()

    await asyncio.to_thread(all_of_them)


@SQLITE
async def test_an_idle_worker_asks_nothing_more_for_its_schedules(app: Stepfast) -> None:
    """Rule 39: when they are due is a part of the question that it asks anyway."""
    app.schedule("nightly", with_report(app), cron="0 3 1 1 *", input=Day("x"))
    looks = Counted(await app.store(), "due_schedules")
    ticks = Counted(await app.store(), "tick")
    async with app.worker(poll_interval=0.02):
        await eventually(lambda: len(ticks) >= 5)
    assert len(looks) == 0


@SQLITE
async def test_a_worker_that_was_declared_dead_declares_its_schedules_again(app: Stepfast, pass_by: PassBy) -> None:
    """What passed while nobody alive declared it was missed, also for the one that was only taken for dead."""
    app.schedule("nightly", with_report(app), every=HOUR, input=Day("x"), missed="skip")
    store = await app.store()
    async with app.worker(lease=0.3) as worker:
        before, [row] = worker.id, await store.schedules(["nightly"])
        rows = Rows(store, app.namespace, app.url.text)
        await rows.fetch("UPDATE [workers] SET state = 'dead', expires_at = 0")
        await eventually(lambda: worker.id != before)
        await eventually(lambda: _woken(app, row.woken_at))
        await rows.close()


async def _woken(app: Stepfast, before: int) -> bool:
    [row] = await (await app.store()).schedules(["nightly"])
    return row.woken_at > before


@SQLITE
async def test_what_was_made_at_run_time_has_missed_what_passed_without_a_worker(
    app: Stepfast, pass_by: PassBy, calls: Calls
) -> None:
    report = with_report(app, calls)
    for missed in ("skip", "latest"):
        await app.put_schedule(missed, report, every=HOUR, input=Day(missed), missed=missed)
        await pass_by(missed, HOUR)
    async with app.worker():
        await eventually(lambda: calls["latest"])
        await eventually(lambda: _coming(app, "skip"))
    assert calls["skip"] == 0


async def _coming(app: Stepfast, name: str) -> bool:
    [row] = await (await app.store()).schedules([name])
    return row.next_at is not None and row.next_at > row.now_ms


@SQLITE
async def test_a_run_tells_its_schedule_and_its_tick(app: Stepfast) -> None:
    app.schedule("nightly", with_report(app), cron="0 3 * * *", input=Day("x"))
    [run] = await app.backfill("nightly", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC))
    info, triggered = await run.info(), await (await app.trigger("nightly")).info()
    assert (info.schedule, info.tick) == ("nightly", datetime(2026, 1, 1, 3, tzinfo=UTC))
    assert (triggered.schedule, triggered.tick) == ("nightly", None)


@SQLITE
async def test_drain_starts_what_is_due(app: Stepfast, calls: Calls, pass_by: PassBy) -> None:
    app.schedule("nightly", with_report(app, calls), every=HOUR, input=Day("x"))
    await pass_by("nightly", HOUR)
    await app.drain()
    assert calls["x"] == 1
