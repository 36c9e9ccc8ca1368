"""The janitor: what ended long ago goes by itself, and looking for it costs next to nothing."""

from __future__ import annotations

import logging

import pytest

from stepfast import RunNotFound, Stepfast
from stepfast.model.retention import Ended, Keep, Weight
from stepfast.settings import Settings
from stepfast.worker import pruner
from stepfast.worker.pruner import (
    CALM,
    IDLE,
    LONGEST,
    MOST,
    PERIOD,
    Progress,
    Pruner,
    RemovalPace,
    due_of,
    next_share,
    rest_after,
)
from stepfast.worker.threads import REAL
from tests.store.scene import DAY, Rows
from tests.support.engine import PATIENCE, drained, eventually
from tests.support.waiting import rows_of
from tests.support.worker_context import make_kit
from tests.support.workflows import task
from tests.worker.conftest import MakeApp
from tests.worker.spying import Counted

pytestmark = pytest.mark.enough_on("sqlite")
EVERYWHERE = pytest.mark.enough_on("sqlite", "postgres")


async def aged(app: Stepfast, run_id: str, days: int) -> None:
    async with rows_of(app) as rows:
        for column in ("created_at", "completed_at"):
            await rows.shift(run_id, column, -days * DAY)


@EVERYWHERE
async def test_a_worker_removes_what_ended_longer_ago_than_the_retention(
    make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stepfast")
    app = make_app(Settings(poll_interval=0.05, sweep_interval=0.05))

    @app.task(max_attempts=1)
    async def echo(number: int) -> int:
        return 1 // number

    async with app.worker():
        runs = await app.start_many(echo, [1, 1, 0, 0], keys=["a", "b", "c", "d"])
        for run in runs:
            await eventually(lambda: _ended(app, run.id))  # noqa: B023
        await aged(app, runs[0].id, 31)
        await aged(app, runs[1].id, 29)
        await aged(app, runs[2].id, 89)
        await aged(app, runs[3].id, 91)
        await eventually(lambda: _left(app, 2))
        assert [await app.get(run.id).status() for run in runs[1:3]] == ["completed", "failed"]
        with pytest.raises(RunNotFound, match="may have been pruned"):
            await runs[0].info()
        again = await app.start(echo, 1, key="a")
        assert again.id != runs[0].id and await again.result(timeout=PATIENCE) == 1
    said = [record.getMessage() for record in caplog.records if "are kept" in record.getMessage()]
    told = "ended runs are kept for 30 days, failed ones for 90 days (settings retention, retention_failed)"
    assert said == [f"{told}; then workers remove them"]


async def _ended(app: Stepfast, run_id: str) -> bool:
    return (await app.get(run_id).info()).completed_at is not None


async def _left(app: Stepfast, count: int) -> bool:
    return len(await app.runs()) == count


async def test_runs_are_kept_for_ever_where_the_settings_say_so(make_app: MakeApp) -> None:
    kept = Pruner(make_kit(retention=None, retention_failed=None))
    await kept.run()  # it ends at once: nobody is asked, for there is no store


async def test_it_walks_over_the_oldest_once_and_then_goes_on_from_there(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that stay, old as they are, are not looked at every minute."""
    monkeypatch.setattr(pruner, "_WINDOW", 4)
    monkeypatch.setattr(pruner, "_BATCH", 2)
    app = make_app()
    echo = task(app, "echo")
    runs = await app.start_many(echo, range(30))
    store = await app.store()
    rows = Rows(store, "stepfast", app.url.text)
    for run in runs[:20]:
        await rows.shift(run.id, "created_at", -40 * DAY)
    ended = [runs[5].id, *(run.id for run in runs[9:15])]
    for run_id in ended:
        await rows.fetch("UPDATE [runs] SET status = 'completed', completed_at = created_at WHERE id = ?", run_id)
    looks = Counted(store, "ended_page")
    cleaner = Pruner(make_kit(store))
    assert await cleaner.look() == len(ended)
    first = len(looks)
    assert first >= 6
    assert await cleaner.look() == 0
    assert len(looks) - first <= 3, "the head, and what may be old by now"
    late = runs[2].id
    await rows.fetch("UPDATE [runs] SET status = 'completed', completed_at = created_at WHERE id = ?", late)
    assert await cleaner.look() == 1, "the oldest of all are always looked at"
    cleaner._again_at = 0.0
    await rows.fetch("UPDATE [runs] SET status = 'completed', completed_at = created_at WHERE id = ?", runs[8].id)
    assert await cleaner.look() == 1
    await rows.close()


async def test_who_finds_gone_what_it_had_found_leaves_the_rest_to_whoever_took_it(make_app: MakeApp) -> None:
    """Between two portions nobody holds a lock that would tell that somebody is at it."""
    app = make_app()
    echo = task(app, "echo")
    await app.start_many(echo, range(3))
    await app.drain()
    store = await app.store()
    one, other = [pruner.Remover(store, Keep(0, 0), REAL, pace=RemovalPace()) for _ in range(2)]
    found, seen = await one.look(pruner.FIRST), await other.look(pruner.FIRST)
    assert await other.remove(seen.free[:2]) == 2
    assert await one.remove(found.free) == 1, "some of it was left"
    assert await one.remove(found.free) is None
    assert await pruner.Remover(store, Keep(0, 0), REAL).remove(found.free) == 0, "an operator goes on"


@pytest.mark.parametrize("parent_first", [False, True])
async def test_large_families_go_in_portions(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, parent_first: bool
) -> None:
    monkeypatch.setattr(pruner, "_BATCH", 2)
    monkeypatch.setattr(pruner, "_PORTION", Weight(3, 1000))
    app = make_app()

    @app.workflow
    async def parent(ctx, number: int) -> int:  # type: ignore[no-untyped-def]
        for each in range(5):
            await ctx.call(child, each)
        if number:
            raise ValueError(number)
        return number

    child = task(app, "child")
    first = await drained(app, parent, 0)
    assert await first.result(timeout=PATIENCE) == 0
    store = await app.store()
    rows = Rows(store, "stepfast", app.url.text)
    await rows.fetch("UPDATE [runs] SET completed_at = completed_at - ?", 100 * DAY)
    transactions = Counted(store, "remove")
    if parent_first:
        page = await store.ended_page(pruner.FIRST, 100, Keep(0, 0), 100)
        found = sorted(page.runs, key=lambda run: run.id != first.id)
        assert await pruner.Remover(store, Keep(0, 0), REAL, pace=RemovalPace()).remove(found) == 6, (
            "some went as its kin"
        )
    else:
        assert await Pruner(make_kit(store)).look() == 6
    assert len(transactions) >= 3
    assert await rows.fetch("SELECT 1 FROM [steps]") == []
    await rows.close()


# -- how fast old runs are removed: little while others work, more where what is due grows


START = Progress(5_000_000.0, 1000.0)


def later(seconds: float, passed: float) -> Progress:
    """So many seconds later, when the moments of so many seconds have passed by."""
    return Progress(START.at + seconds, START.due + passed)


def ended(completed_at: int, status: str = "completed") -> Ended:
    return Ended(str(completed_at), status, None, completed_at, 1, None, None, None, None, None, False)


@pytest.mark.parametrize("share", [CALM, IDLE, MOST, 0.5])
def test_work_and_rest_make_the_share(share: float) -> None:
    took = 0.003
    assert took / (took + rest_after(took, share)) == pytest.approx(share)


def test_no_rest_is_longer_than_a_minute() -> None:
    assert rest_after(100.0, CALM) == LONGEST


def test_the_share_becomes_what_would_have_kept_up_and_some_more() -> None:
    assert next_share(0.1, START, later(PERIOD, PERIOD)) == pytest.approx(0.125)
    assert next_share(0.1, START, later(PERIOD, PERIOD * 1.25)) == pytest.approx(0.1)
    assert next_share(CALM, START, later(PERIOD, PERIOD * 0.1)) == 2 * CALM, "at most twice"
    assert next_share(CALM, START, later(PERIOD, -PERIOD)) == 2 * CALM
    assert next_share(MOST, START, later(PERIOD, 0)) == MOST
    assert next_share(0.2, START, later(PERIOD, PERIOD * 100)) == 0.1, "at least half"
    assert next_share(CALM, START, later(PERIOD, PERIOD * 100)) == CALM


def test_a_large_backlog_that_shrinks_is_no_reason_to_hurry() -> None:
    """Who sets a shorter retention has a year of runs to go, and nobody is in a hurry."""
    pace = RemovalPace()
    for minute in range(10):
        pace.came_to(later(60 * minute, 3600 * minute))
    assert pace.share == CALM


def test_many_that_ended_at_once_are_no_reason_to_hurry_before_they_are_later_than_they_may_be() -> None:
    first = Progress(1000.0, 1000.0)
    pace = RemovalPace(may_be_late=600)
    for minute in range(10):
        pace.came_to(Progress(first.at + 60 * minute, first.due + minute))
        assert pace.share == CALM
    for minute in range(10, 13):
        pace.came_to(Progress(first.at + 60 * minute, first.due + minute))
    assert pace.share > CALM


def test_it_takes_more_of_the_time_until_it_keeps_up() -> None:
    """Four times as much comes as can be removed in the calm share of the time."""
    pace, seconds, passed, behind = RemovalPace(), 0.0, 0.0, list[float]()
    for _ in range(20):
        pace.came_to(later(seconds, passed))
        seconds, passed = seconds + PERIOD, passed + PERIOD * pace.share / (4 * CALM)
        behind.append(seconds - passed)
    assert behind[3:] == sorted(behind[3:], reverse=True), "from then on it catches up"
    assert behind[-1] < 0 < behind[0]


def test_it_judges_once_in_a_while_and_forgets_when_nothing_is_due_any_more() -> None:
    pace = RemovalPace()
    pace.came_to(START)
    pace.came_to(later(PERIOD / 2, 0))
    assert pace.share == CALM
    pace.came_to(later(PERIOD, 0))
    assert pace.share == 2 * CALM
    pace.caught_up()
    assert pace.share == CALM
    pace.came_to(later(10 * PERIOD, 0))
    assert pace.share == CALM


def test_it_takes_more_of_the_time_while_nobody_executes_anything() -> None:
    pace = RemovalPace()
    pace.busy = False
    assert pace.share == IDLE
    pace.busy = True
    assert pace.share == CALM


def test_runs_are_due_by_how_they_ended_and_a_few_that_were_kept_longer_do_not_count() -> None:
    keep = Keep(1000, 3000)
    assert due_of([ended(5000), ended(7000), ended(9000)], keep) == 8.0
    assert due_of([ended(5000, "failed")], keep) == 8.0
    assert due_of([ended(10), ended(9000), ended(9000)], keep) == 10.0
