"""The claimer: exact in number, prompt, in the right order, and nobody's run is left lying."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepfast import Context, Stepfast
from stepfast.settings import Settings
from tests.support.engine import PATIENCE, Calls, Gate, eventually, worked
from tests.support.proxy import Proxy
from tests.support.workflows import task
from tests.worker.conftest import MakeApp
from tests.worker.spying import HeldReply, only_postgres, wrap
from tests.worker.tables import Tables

pytestmark = pytest.mark.warm

HARDLY_EVER = Settings(poll_interval=60, sweep_interval=60)
"""A worker that would wait a minute for its next look: whatever moves with it moves without polling."""


class Crowd:
    """Handlers that stay until they are let go, and how many were in at once."""

    def __init__(self, app: Stepfast, name: str = "stay", **options: Any) -> None:
        self.now = self.most = 0
        self.gate = Gate()
        self.order: list[Any] = []

        async def stay(value: Any) -> None:
            self.now += 1
            self.most = max(self.most, self.now)
            self.order.append(value)
            try:
                await self.gate.passing()
            finally:
                self.now -= 1

        self.workflow = app.task(name=name, **options)(stay)


async def all_results(runs: list[Any]) -> list[Any]:
    return await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), PATIENCE)


# -- how many --------------------------------------------------------------------------------------------------------


async def test_concurrency_is_exact(make_app: MakeApp, tables: Tables) -> None:
    """As many handlers as slots, and never one more."""
    app = make_app(HARDLY_EVER)
    crowd = Crowd(app)
    runs = await app.start_many(crowd.workflow, list(range(30)))
    async with app.worker(concurrency=4):
        await eventually(lambda: crowd.now == 4)
        for _ in range(20):  # room for a fifth to come in by mistake
            await asyncio.sleep(0)
        assert await tables.one("SELECT count(*) FROM [runs] WHERE status = 'running'") == 4
        crowd.gate.open()
        await all_results(runs)
    assert crowd.most == 4
    assert sorted(crowd.order) == list(range(30))


async def test_two_workers_share_the_work_and_no_run_is_taken_twice(make_app: MakeApp, calls: Calls) -> None:
    first, second = make_app(HARDLY_EVER), make_app(HARDLY_EVER)
    for app in (first, second):

        @app.task(name="count")
        async def count(number: int) -> int:
            calls.hit(str(number))
            await asyncio.sleep(0.001)
            return number

    runs = await first.start_many(first.workflows["count"], list(range(200)))
    async with first.worker(concurrency=5), second.worker(concurrency=5):
        assert await all_results(runs) == list(range(200))
    assert set(calls.values()) == {1}


# -- how soon --------------------------------------------------------------------------------------------------------


async def test_a_freed_slot_claims_at_once(make_app: MakeApp, calls: Calls) -> None:
    """Twenty runs through one slot, with a poll of a minute."""
    app = make_app(HARDLY_EVER)

    @app.task
    async def count(number: int) -> int:
        calls.hit("count")
        return number

    runs = await app.start_many(count, list(range(20)))
    async with app.worker(concurrency=1):
        assert await all_results(runs) == list(range(20))


async def test_what_a_claim_left_in_line_for_its_size_is_claimed_at_once(make_app: MakeApp) -> None:
    app = make_app(dataclasses.replace(HARDLY_EVER, claim_bytes=3000))

    @app.task
    async def measure(text: str) -> int:
        return len(text)

    runs = await app.start_many(measure, ["x" * 1000] * 20)
    async with app.worker(concurrency=100):
        assert await all_results(runs) == [1000] * 20


async def test_a_start_during_a_claim_is_not_slept_over(make_app: MakeApp) -> None:
    """The claim's snapshot is older than the start, and its short answer must not be taken for "nothing left"."""
    app = make_app(HARDLY_EVER)
    echo = task(app, "echo")
    store = await app.store()
    async with app.worker():
        await (await app.start(echo, 0)).result(timeout=PATIENCE)
        await eventually(lambda: store.can_wake or store.dialect != "postgres")  # the ear's first look is over
        held = HeldReply(store, "claim")
        first = await app.start(echo, 1)
        assert len(await held.done()) == 1
        second = await app.start(echo, 2)
        held.release()
        assert await all_results([first, second]) == [1, 2]


async def test_a_retry_due_sooner_than_the_poll_is_not_late(make_app: MakeApp, calls: Calls) -> None:
    """Fails twice, then succeeds; the waits are the backoff's, not the poll's."""
    app = make_app(Settings(poll_interval=60, sweep_interval=60, backoff_base=0.02, inline_wait=0))

    @app.task(max_attempts=3)
    async def flaky() -> str:
        if calls.hit("flaky") < 3:
            raise ValueError("not yet")
        return "done"

    async with app.worker():
        run = await app.start(flaky)
        assert await run.result(timeout=PATIENCE) == "done"
    assert calls["flaky"] == 3


# -- in which order --------------------------------------------------------------------------------------------------


async def test_order_holds_over_queues_and_workflows(make_app: MakeApp, tables: Tables) -> None:
    """Rule 32: one line over all lanes."""
    app = make_app(HARDLY_EVER)
    order: list[int] = []

    async def note(number: int) -> None:
        order.append(number)

    kinds = [app.task(name=f"kind {n}", queue=f"queue {n % 3}")(note) for n in range(5)]
    runs = [await app.start(kinds[n % 5], n, priority=n // 20) for n in range(40)]
    await tables.fetch("UPDATE [runs] SET place = CAST(input AS bigint)")  # some were started in the same millisecond
    async with app.worker(concurrency=1):
        await all_results(runs)
    assert order == [*range(20, 40), *range(20)]


@only_postgres
async def test_a_start_that_was_committed_late_is_not_starved(make_app: MakeApp, tables: Tables) -> None:
    """Its place in its queue is older than what the worker has seen claimed. While younger ones keep coming it must be
    found all the same."""
    app = make_app(Settings(poll_interval=0.02))
    gate, order = Gate(), []

    @app.task
    async def note(number: int) -> None:
        order.append(number)
        if number == 5:
            await gate.passing()

    runs = await app.start_many(note, list(range(40)))
    late = await app.start(note, 99)
    await tables.fetch("UPDATE [runs] SET place = NULL WHERE id = ?", late.id)  # not yet visible to anybody
    async with app.worker(concurrency=1) as worker:
        await gate.reached()
        await tables.fetch("UPDATE [runs] SET place = 1 WHERE id = ?", late.id)
        await worker.duties.sweeper.tick(ask_for_lanes=True)
        gate.open()
        await all_results([*runs, late])
    assert order.index(99) < 10


# -- whose -----------------------------------------------------------------------------------------------------------


async def test_a_worker_without_a_list_serves_every_queue(make_app: MakeApp) -> None:
    """Rule 32: ``queues=None``."""
    app = make_app(HARDLY_EVER)
    echo = task(app, "echo")
    runs = [await app.start(echo, n, queue=f"queue {n}") for n in range(10)]
    async with app.worker():
        late = await app.start(echo, 10, queue="another")
        assert await all_results([*runs, late]) == list(range(11))


async def test_a_workflow_nobody_here_knows_is_left_for_others(make_app: MakeApp) -> None:
    """Left alone, not failed, and taken by the first worker that has the code."""
    knows, knows_not = make_app(Settings(poll_interval=0.05)), make_app(Settings(poll_interval=0.05))

    @knows.task(queue="shared")
    async def secret(number: int) -> int:
        return number * 2

    other = task(knows_not, "other", queue="shared")
    run = await knows.start(secret, 21)
    async with knows_not.worker() as worker:
        beside = await knows_not.start(other, 1)
        assert await beside.result(timeout=PATIENCE) == 1
        seen = worker.duties.sweeper.ticks
        await eventually(lambda: worker.duties.sweeper.ticks > seen + 2)
        info = await run.info()
        assert (info.status, info.attempt) == ("queued", 0)
        assert await worked(knows, run) == 42


# -- replies that are lost -------------------------------------------------------------------------------------------


@only_postgres
async def test_a_claim_whose_reply_was_lost_is_asked_for_again(
    url: str, postgres_server: Any, make_app: MakeApp, tables: Tables, calls: Calls
) -> None:
    """Rule 2: the claim was carried out, and the worker never heard of it. With its token it gets the same runs."""
    async with Proxy("127.0.0.1", postgres_server.port) as proxy:
        app = make_app(HARDLY_EVER, at=proxy.url(url))

        @app.task
        async def count(number: int) -> int:
            calls.hit(str(number))
            return number

        runs = await app.start_many(count, [1, 2, 3])
        lost = proxy.swallow(lambda tag: tag == b"UPDATE 3")
        async with app.worker(concurrency=10):
            assert await all_results(runs) == [1, 2, 3]
            assert lost.happened.is_set()
        await app.close()
    assert calls == {"1": 1, "2": 1, "3": 1}
    for run in runs:
        assert await tables.run(run.id, "claim, attempt, losses") == (1, 1, 0)


@only_postgres
async def test_a_history_whose_reply_was_lost_is_asked_for_again(
    url: str, postgres_server: Any, make_app: MakeApp, calls: Calls
) -> None:
    """Rule 2: the claim came through, the records it brings along did not."""
    async with Proxy("127.0.0.1", postgres_server.port) as proxy:
        app = make_app(HARDLY_EVER, at=proxy.url(url))
        gate = Gate()

        @app.workflow
        async def two(ctx: Context) -> str:
            await ctx.step("first", lambda: calls.hit("first"))
            await gate.passing()
            return "done"

        run = await app.start(two)
        async with app.worker(shutdown_grace=0):
            await gate.reached()
        gate.open()

        async def cut_after_the_claim(call: Callable[..., Awaitable[Any]], *args: Any) -> Any:
            if not lost:
                lost.append(proxy.swallow(lambda tag: tag.startswith(b"SELECT")))
            return await call(*args)

        lost: list[Any] = []
        store = await app.store()
        wrap(store, "claim", cut_after_the_claim)
        assert await worked(app, run) == "done"
        assert lost[0].happened.is_set()
        await app.close()
    assert calls["first"] == 1


# -- suspects --------------------------------------------------------------------------------------------------------


@pytest.fixture
async def suspects(make_app: MakeApp, tables: Tables) -> tuple[Stepfast, Crowd, list[Any]]:
    """Five runs that two workers have died with."""
    app = make_app(HARDLY_EVER)
    crowd = Crowd(app)
    runs = await app.start_many(crowd.workflow, [f"suspect {n}" for n in range(5)])
    await tables.fetch("UPDATE [runs] SET losses = 2")
    return app, crowd, runs


@pytest.mark.parametrize(("losses", "slots", "at_once"), [(2, 4, 2), (2, 20, 5), (3, 20, 3), (4, 20, 1)])
async def test_suspects_are_executed_in_groups(
    suspects: tuple[Stepfast, Crowd, list[Any]], tables: Tables, losses: int, slots: int, at_once: int
) -> None:
    """One that kills its process takes the fewer others along the more losses it has; healthy runs go on beside them.
    And others follow those that are done at once."""
    app, crowd, runs = suspects
    await tables.fetch("UPDATE [runs] SET losses = ?", losses)
    healthy = Crowd(app, "healthy")
    beside = await app.start_many(healthy.workflow, list(range(slots - at_once)))
    async with app.worker(concurrency=slots):
        await eventually(lambda: healthy.now == slots - at_once and crowd.now == at_once)
        healthy.gate.open()
        await all_results(beside)
        crowd.gate.open()
        await all_results(runs)
    assert crowd.most == at_once


async def test_the_seat_of_a_suspect_is_free_at_its_first_new_record(make_app: MakeApp, tables: Tables) -> None:
    """From then on it is a run like any other, however long it takes. The next one does not wait for it, nor
    for a poll."""
    app, gate, alone = make_app(HARDLY_EVER), Gate(), Calls()

    @app.workflow
    async def long(ctx: Context, number: int) -> int:
        await ctx.step("begin", lambda: alone.hit("begin"))
        await gate.passing()
        return number

    runs = await app.start_many(long, list(range(5)))
    await tables.fetch("UPDATE [runs] SET losses = 4")
    async with app.worker():
        await eventually(lambda: gate.arrivals == 5)
        gate.open()
        assert await all_results(runs) == list(range(5))
    assert {await tables.one("SELECT sum(losses) FROM [runs]")} == {0}


async def test_a_drain_does_not_wait_for_suspects_of_other_queues(suspects: tuple[Stepfast, Crowd, list[Any]]) -> None:
    """Rule 5: they are not runnable here."""
    app, crowd, _ = suspects
    await asyncio.wait_for(app.drain(queues=["another"]), PATIENCE)
    assert crowd.order == []
