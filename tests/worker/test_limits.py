"""Limits over several processes, one of which is killed; and slots that limited queues share with others (rule 36)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepfast import Rate, Stepfast
from stepfast.settings import Settings
from stepfast.worker.claimer import Sharing
from tests.support.engine import PATIENCE, Gate, eventually
from tests.support.processes import Ledger
from tests.support.workflows import calling
from tests.worker.conftest import MakeProcess
from tests.worker.spying import HeldReply
from tests.worker.tables import Tables

SETTINGS = {"lease": 1, "sweep_interval": 0.1, "poll_interval": 0.2}
SHORT = Settings(lease=1, sweep_interval=0.1, poll_interval=0.2)


@pytest.mark.empty
@pytest.mark.enough_on("postgres")
async def test_a_limit_holds_over_processes_and_what_a_killed_one_held_is_taken_over(
    program: Callable[..., Stepfast], make_process: MakeProcess, ledger: Ledger, tables: Tables
) -> None:
    app = program(SHORT)
    await app.set_limits("hold", concurrency=3)
    runs = await app.start_many(app.workflows["hold"], ["gate"] * 8)

    async def held() -> list[str]:
        found = await tables.fetch("SELECT worker FROM [runs] WHERE worker IS NOT NULL")
        assert len(found) <= 3
        return [row[0] for row in found]

    async def taken_over(dead: str) -> bool:
        """By the other one, which has two slots."""
        found = await held()
        return len(found) == 2 and dead not in found

    async def full() -> bool:
        return len(await held()) == 3

    async with make_process(SETTINGS, concurrency=2) as first, make_process(SETTINGS, concurrency=2):
        await eventually(full)
        workers = await tables.workers()
        [dead] = [worker for worker, pid in workers.items() if pid == first.pid]
        assert set(await held()) == set(workers)
        first.kill()
        await eventually(lambda: taken_over(dead))
        ledger.open("gate")
        for run in runs:
            assert await run.result(timeout=PATIENCE) == "gate"
            await held()


@pytest.mark.parametrize("priority", [0, 5], ids=["alike", "the limited one more urgent"])
async def test_neither_a_limited_queue_nor_another_starves(url: str, priority: int) -> None:
    """One slot, and a backlog in both queues."""
    app, order = Stepfast(url), list[str]()
    app.queue("mail", concurrency=5, rate=Rate(1000, per=1))

    @app.task
    async def mail(number: int) -> None:
        order.append("mail")

    @app.task
    async def post(number: int) -> None:
        order.append("post")

    async with app:
        mails = await app.start_many(mail, list(range(10)), priority=priority)
        posts = await app.start_many(post, list(range(10)))
        async with app.worker(concurrency=1):
            for run in (*mails, *posts):
                await run.result(timeout=PATIENCE)
    if priority:
        assert order[:10].count("mail") >= 9
    else:
        assert 2 <= order[:12].count("mail") <= 10, order


def test_free_slots_are_shared() -> None:
    sharing = Sharing()
    assert sharing.for_limited(9, 0, None) == 9
    assert sharing.for_limited(9, 5, 0) == 9 and sharing.for_usual(9, 5, 0) == 0
    assert sharing.for_limited(9, -1, 0) == 0 and sharing.for_usual(9, -1, 0) == 9
    assert sharing.for_usual(9, None, 0) == 9
    sharing.took(limited=False)
    assert (sharing.for_limited(9, 0, 0), sharing.for_usual(9, 0, 0), sharing.for_limited(1, 0, 0)) == (5, 4, 1)
    sharing.took(limited=True)
    assert (sharing.for_limited(9, 0, 0), sharing.for_usual(9, 0, 0), sharing.for_limited(1, 0, 0)) == (4, 5, 0)


async def test_a_run_of_a_limited_queue_waits_in_no_slot(url: str, tables: Tables) -> None:
    """Not even for a moment, in which others would stay in memory."""
    app = Stepfast(url, settings=Settings(inline_wait=3600))
    app.queue("nap", concurrency=1)
    nap = calling(app, lambda ctx: ctx.wait_signal("up", type=bool), name="nap")
    async with app, app.worker():
        run = await app.start(nap)
        await eventually(lambda: _is_waiting(tables, run.id))
        await run.signal("up", True)
        assert await run.result(timeout=PATIENCE)


async def _is_waiting(tables: Tables, run_id: str) -> bool:
    return await tables.run(run_id, "status, worker") == ("waiting", None)


async def test_a_place_that_is_freed_while_a_claim_hears_of_a_rate_is_taken_at_once(url: str) -> None:
    """The claim knows only of the key that has to wait for a minute, and the worker would not look for another."""
    app, gate = Stepfast(url, settings=Settings(poll_interval=60, sweep_interval=60)), Gate()
    app.queue("mail", key_concurrency=1, key_rate=Rate(2, per=3600))

    @app.task
    async def mail(hold: bool) -> None:
        if hold:
            await gate.passing()

    async with app, app.worker():
        for _ in range(2):
            await (await app.start(mail, False, concurrency_key="a")).result(timeout=PATIENCE)
        first = await app.start(mail, True, concurrency_key="b")
        await gate.reached()
        second = await app.start(mail, False, concurrency_key="b")
        held = HeldReply(await app.store(), "claim_limited")
        await app.start(mail, False, concurrency_key="a")
        assert not (await held.done()).runs
        gate.open()
        await first.result(timeout=PATIENCE)
        held.release()
        await second.result(timeout=PATIENCE)
