"""The journal: one commit for many, none held up by another, each record exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, cast

import pytest

from stepfast import Backoff, Context, Stepfast
from stepfast.errors import DatabaseRefused, LeaseLost
from stepfast.model.ids import new_id
from stepfast.model.records import Batch, FlushAnswer, StepDone, StepWith, Transition
from stepfast.settings import Settings
from stepfast.worker.journal import Journal, UnverifiedWrites
from tests.support.databases import connected
from tests.support.engine import PATIENCE, Calls, Gate, eventually, failure, worked
from tests.support.proxy import SUSPENDED_TAG, Proxy, Swallow
from tests.support.worker_context import make_kit
from tests.support.workflows import task
from tests.worker.conftest import MakeApp
from tests.worker.spying import Counted, HeldReply, only_postgres, wrap
from tests.worker.tables import Tables

HARDLY_EVER = Settings(poll_interval=60, sweep_interval=60)


def steps_workflow(app: Stepfast, calls: Calls, **options: Any) -> Any:
    """Takes a name and a number of steps."""

    @app.workflow(name="steps", **options)
    async def steps(ctx: Context, plan: list[Any]) -> list[int]:
        name, count = plan

        async def work(number: int) -> int:
            calls.hit(f"{name} {number}")
            return number

        return [await ctx.step(work, number) for number in range(count)]

    return steps


async def all_results(runs: list[Any]) -> list[Any]:
    return await asyncio.wait_for(asyncio.gather(*(run.result() for run in runs)), PATIENCE)


# -- group commit ----------------------------------------------------------------------------------------------------


async def test_concurrent_runs_share_their_commits(make_app: MakeApp, calls: Calls) -> None:
    """Design, section 3: never a transaction per step per run."""
    app = make_app(HARDLY_EVER)
    steps = steps_workflow(app, calls)
    flushes = Counted(await app.store(), "flush")
    runs = await app.start_many(steps, [[f"run {n}", 5] for n in range(60)])
    async with app.worker(concurrency=60):
        await all_results(runs)
    records = sum(len(batch.steps) + len(batch.transitions) for _, batch in flushes.calls)
    assert records == 60 * 6
    assert len(flushes) * 5 < records
    assert set(calls.values()) == {1}


async def test_a_step_is_committed_before_the_next_begins(make_app: MakeApp) -> None:
    """Promise 3, and order within a run."""
    app = make_app(HARDLY_EVER)
    committed: set[tuple[str, int]] = set()

    async def watch(call: Callable[..., Awaitable[FlushAnswer]], worker: str, batch: Batch) -> FlushAnswer:
        answer = await call(worker, batch)
        committed.update((step.run_id, step.position) for step in batch.steps)
        return answer

    wrap(await app.store(), "flush", watch)

    @app.workflow
    async def careful(ctx: Context) -> int:
        async def work(number: int) -> int:
            assert number == 0 or (ctx.run_id, number - 1) in committed
            return number

        for number in range(10):
            await ctx.step(work, number)
            assert (ctx.run_id, number) in committed
        return 10

    runs = await app.start_many(careful, [None] * 20)
    async with app.worker():
        assert set(await all_results(runs)) == {10}


async def test_records_are_numbered_in_the_order_of_their_outcomes(make_app: MakeApp, tables: Tables) -> None:
    """Also where parallel steps of one run end in another order than they were called."""
    app = make_app(HARDLY_EVER)
    gates = [Gate() for _ in range(3)]

    @app.workflow
    async def fork(ctx: Context) -> None:
        async def work(number: int) -> None:
            await gates[number].passing()

        await asyncio.gather(*(ctx.step(work, number) for number in range(3)))

    run = await app.start(fork)
    async with app.worker():
        for count, number in enumerate((2, 0, 1), start=1):
            await gates[number].reached()
            gates[number].open()
            await eventually(lambda count=count: _count(tables, count))  # type: ignore[misc]
        await run.result(timeout=PATIENCE)
    rows = await tables.fetch("SELECT position FROM [steps] ORDER BY seq")
    assert [position for (position,) in rows] == [2, 0, 1]


async def _count(tables: Tables, count: int) -> bool:
    return bool(await tables.one("SELECT count(*) FROM [steps]") == count)


# -- alone: no delay, no limit missed --------------------------------------------------------------------------------


class PaperStore:
    """Takes everything down at once, and what it was given in each flush."""

    def __init__(self) -> None:
        self.flushes: list[Batch] = []
        self.open = asyncio.Event()
        self.open.set()

    def hold_next(self) -> None:
        """Let the flush that is under way come to its end, and hold the next one."""
        self.open.set()
        self.open = asyncio.Event()

    async def flush(self, _worker: str, batch: Batch) -> FlushAnswer:
        self.flushes.append(batch)
        await self.open.wait()
        return FlushAnswer(1)


def entry(number: int, output: str = "1") -> StepDone:
    return StepDone(new_id(), 1, "", number, number, "work", "step", "completed", output, None, None, 1, 0, None)


@pytest.fixture
async def paper() -> PaperStore:
    return PaperStore()


class NoRuntime:
    """Who is told of flushes, and does nothing about it."""

    def flushed(self, moves: list[Transition]) -> None: ...

    def joined(self, entries: list[StepWith], answer: FlushAnswer) -> None: ...

    def flush_answered(self, lost: dict[str, int], answer: FlushAnswer) -> None: ...


def make_journal(paper: PaperStore, **settings: Any) -> Journal:
    context = make_kit(paper, **settings)
    return Journal(context, UnverifiedWrites(context.clock, dict), cast(Any, NoRuntime()))


@asynccontextmanager
async def running(journal: Journal) -> AsyncIterator[Journal]:
    """A journal that works until the block ends."""
    task = asyncio.create_task(journal.run())
    yield journal
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_lonely_record_leaves_at_once(paper: PaperStore) -> None:
    """A single run alone is never delayed by batching. No timer: it is on its way after a few turns of the loop."""
    journal = make_journal(paper)
    async with running(journal):
        for number in range(5):
            receipt = journal.record(entry(number))
            for _ in range(4):
                await asyncio.sleep(0)
            assert len(paper.flushes) == number + 1
            assert receipt.done()


async def test_what_waits_while_a_commit_is_under_way_is_the_next_batch(paper: PaperStore) -> None:
    journal = make_journal(paper)
    async with running(journal):
        paper.open.clear()
        first = journal.record(entry(0))
        await eventually(lambda: paper.flushes)
        others = [journal.record(entry(number)) for number in range(1, 11)]
        assert not first.done()
        paper.open.set()
        await asyncio.gather(first, *others)
        assert [len(batch.steps) for batch in paper.flushes] == [1, 10]


@pytest.mark.parametrize(
    ("settings", "size", "most"), [({"flush_records": 10}, 1, 10), ({"flush_bytes": 1000, "flush_records": 50}, 300, 4)]
)
async def test_a_flush_is_bounded(paper: PaperStore, settings: dict[str, int], size: int, most: int) -> None:
    """Rule 8: in records and in bytes; and everything goes, in the order it came."""
    journal = make_journal(paper, **settings)
    receipts = [journal.record(entry(number, "x" * size)) for number in range(100)]
    async with running(journal):
        await asyncio.gather(*receipts)
        sizes = [len(batch.steps) for batch in paper.flushes]
        assert sum(sizes) == 100
        assert max(sizes) <= most
        assert [step.position for batch in paper.flushes for step in batch.steps] == list(range(100))


async def test_one_record_above_the_limit_still_goes(paper: PaperStore) -> None:
    journal = make_journal(paper, flush_bytes=10)
    async with running(journal):
        await journal.record(entry(0, "x" * 1000))


async def test_a_receipt_cannot_be_cancelled(paper: PaperStore) -> None:
    """Rule 19: once in the journal, the commit decides and not somebody's timeout."""
    journal = make_journal(paper)
    async with running(journal):
        paper.open.clear()
        receipt = journal.record(entry(0))
        assert receipt.cancel() is False
        paper.open.set()
        assert await receipt == 1


class RefusingStore(PaperStore):
    """Refuses whatever holds more than one record, and leaves single ones without an answer."""

    async def flush(self, worker: str, batch: Batch) -> FlushAnswer:
        if len(batch.steps) > 1:
            raise DatabaseRefused("one of them")
        return await super().flush(worker, batch)


async def test_nobody_waits_for_a_journal_that_ended_while_it_looked_for_a_bad_record() -> None:
    """A receipt cannot be cancelled: a handler that waits for one which never comes would never end."""
    refusing = RefusingStore()
    refusing.open.clear()
    journal = make_journal(refusing)
    task = asyncio.create_task(journal.run())
    receipts = [journal.record(entry(number)) for number in range(4)]
    await eventually(lambda: refusing.flushes)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [receipt.done() and type(receipt.exception()) for receipt in receipts] == [LeaseLost] * 4


class Memory:
    """A run that believes so much of itself to be stored."""

    def believed(self) -> int:
        return 1


async def test_a_run_that_has_left_is_doubted_until_all_of_it_is_written(paper: PaperStore) -> None:
    """A connection may break between two flushes: what the second one writes must be compared too."""
    context, run = make_kit(paper), Memory()
    unverified = UnverifiedWrites(context.clock, lambda: journal.left)
    journal = Journal(context, unverified, cast(Any, NoRuntime()))
    async with running(journal):
        first, second = (entry(number)._replace(run_id="run") for number in range(2))
        paper.open.clear()
        receipts = [journal.record(first)]
        await eventually(lambda: paper.flushes)
        receipts.append(journal.record(second))
        journal.left["run"] = run
        paper.hold_next()
        await eventually(lambda: len(paper.flushes) == 2)
        assert journal.left == {"run": run}
        unverified.broke()
        assert "run" in unverified.open
        paper.open.set()
        await asyncio.gather(*receipts)
        await eventually(lambda: not journal.left)


async def test_a_timeout_during_the_commit_sees_what_a_replay_sees(make_app: MakeApp, calls: Calls) -> None:
    """Rule 19: the outcome was decided before the timeout of the code around it."""
    app = make_app(HARDLY_EVER)
    gate = Gate()

    @app.workflow
    async def hasty(ctx: Context) -> list[str]:
        try:
            async with asyncio.timeout(0.05):
                first = await ctx.step("first", lambda: "made in time")
        except TimeoutError:
            first = "too late"
        if calls.hit("attempt") == 1:
            seen.append(first)
            await gate.passing()
        return [first]

    seen: list[str] = []
    held = HeldReply(await app.store(), "flush")
    run = await app.start(hasty)
    async with app.worker(shutdown_grace=0):
        await held.done()
        asyncio.get_running_loop().call_later(0.1, held.release)
        await gate.reached()
    gate.open()
    assert await worked(app, run) == seen


# -- rows that somebody holds ----------------------------------------------------------------------------------------


@only_postgres
async def test_a_locked_row_does_not_stop_the_others(url: str, make_app: MakeApp, calls: Calls) -> None:
    """Rule 8: it is stepped over and rides in a later flush."""
    app = make_app(HARDLY_EVER)
    steps = steps_workflow(app, calls)
    gate = Gate()

    @app.workflow
    async def held(ctx: Context) -> str:
        await gate.passing()
        return await ctx.step("work", lambda: "done")

    run = await app.start(held)
    async with connected(url) as somebody:
        async with app.worker():
            await gate.reached()
            async with somebody.transaction():
                await somebody.fetch("SELECT 1 FROM stepfast.runs WHERE id = $1 FOR UPDATE", run.id)
                gate.open()
                others = await app.start_many(steps, [[f"run {n}", 5] for n in range(20)])
                assert await all_results(others) == [list(range(5))] * 20
                assert await run.status() == "running"
            assert await run.result(timeout=PATIENCE) == "done"


# -- refused and lost ------------------------------------------------------------------------------------------------


@only_postgres
@pytest.mark.parametrize("what", ["steps", "runs"])
async def test_a_record_the_database_refuses_fails_alone(make_app: MakeApp, tables: Tables, what: str) -> None:
    """Rule 9: hundreds of others must not hang on it."""
    app = make_app(HARDLY_EVER)

    @app.workflow(max_attempts=1)
    async def give(ctx: Context, value: str) -> str:
        inner = await ctx.step("give", lambda: value if what == "steps" else "fine")
        return value if what == "runs" else inner

    runs = await app.start_many(give, ["fine"] * 25 + ["forbidden"] + ["fine"] * 25)
    await tables.fetch(f"ALTER TABLE [{what}] ADD CONSTRAINT taste CHECK (output <> '\"forbidden\"')")
    async with app.worker(concurrency=51):
        good, bad = runs[:25] + runs[26:], runs[25]
        assert set(await all_results(good)) == {"fine"}
        await failure(bad, "refused")


class LossyNetwork:
    """Loses the reply to a chosen flush, after the database has committed it."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.flushes = 0
        self.lose = 0
        self.order: Swallow | None = None

    async def flush(self, call: Callable[..., Awaitable[FlushAnswer]], worker: str, batch: Batch) -> FlushAnswer:
        self.flushes += 1
        if self.flushes == self.lose:
            self.order = self._proxy.swallow(lambda tag: tag in (SUSPENDED_TAG, b"SELECT 1", b"COMMIT"))
        return await call(worker, batch)


@only_postgres
@pytest.mark.parametrize("lose", range(1, 7))
async def test_a_commit_whose_reply_was_lost_counts_once(
    url: str, postgres_server: Any, make_app: MakeApp, calls: Calls, tables: Tables, lose: int
) -> None:
    """Rule 7: over every commit of a run: failed tries, steps, the end. Nothing is called twice, nothing recorded
    twice, whoever waits for the result hears of it without a poll, and the code is told the times of its records."""
    told: list[datetime] = []
    async with Proxy("127.0.0.1", postgres_server.port) as proxy:
        app = make_app(HARDLY_EVER, at=proxy.url(url))

        @app.workflow
        async def mixed(ctx: Context) -> str:
            async def flaky() -> str:
                if calls.hit("flaky") < 3:
                    raise ValueError("again")
                return "flaky"

            quick = ctx.options(retries=3, backoff=Backoff(base=0.001))
            first = await ctx.step("first", lambda: calls.hit("first"))
            told.append(ctx.now())
            second = await quick.step(flaky)
            told.append(ctx.now())
            third = await ctx.step("third", lambda: calls.hit("third"))
            told.append(ctx.now())
            return f"{first} {second} {third}"

        run = await app.start(mixed)
        network = LossyNetwork(proxy)
        network.lose = lose
        wrap(await app.store(), "flush", network.flush)
        async with app.worker():
            assert await run.result(timeout=PATIENCE) == "1 flaky 1"
            assert network.order is not None and network.order.happened.is_set()
            assert told == [step.completed_at for step in await run.steps()]
        await app.close()
    assert calls == {"first": 1, "flaky": 3, "third": 1}
    assert await tables.run(run.id, "status, claim, attempt, losses") == ("completed", 1, 1, 0)
    assert await tables.one("SELECT count(*) FROM [steps]") == 3
    assert await tables.one("SELECT count(*) FROM [tries]") == 2


@only_postgres
async def test_an_attempt_whose_end_was_lost_on_the_way_is_followed_by_one_more_not_two(
    url: str, postgres_server: Any, make_app: MakeApp, calls: Calls, tables: Tables
) -> None:
    """Rule 7: "failed, try again later" repeated must not count twice."""
    async with Proxy("127.0.0.1", postgres_server.port) as proxy:
        app = make_app(Settings(poll_interval=60, sweep_interval=60, backoff_base=0.02), at=proxy.url(url))

        @app.task(max_attempts=2)
        async def once_bad() -> str:
            if calls.hit("once bad") == 1:
                raise ValueError("again")
            return "good"

        run = await app.start(once_bad)
        network = LossyNetwork(proxy)
        network.lose = 1
        wrap(await app.store(), "flush", network.flush)
        async with app.worker():
            assert await run.result(timeout=PATIENCE) == "good"
            assert network.order is not None and network.order.happened.is_set()
        await app.close()
    assert calls["once bad"] == 2
    assert await tables.run(run.id, "attempt, claim, losses") == (2, 2, 0)


@only_postgres
async def test_a_row_that_somebody_holds_for_long_is_asked_for_less_and_less_often(make_app: MakeApp, url: str) -> None:
    """Rule 8: each flush that meets it is an error in the server's log, also when the run has more than one entry. The
    others are as quick as ever, and the run goes on once its row is let go."""
    app, gate = make_app(), Gate()
    quick = task(app, "quick", returns=None)

    @app.task(max_attempts=1)
    async def held() -> None:
        await gate.passing()
        raise ValueError("two entries: the failed attempt, and the end")

    flushes = Counted(await app.store(), "flush")
    async with connected(url) as connection:
        async with app.worker():
            run = await app.start(held)
            await gate.reached()
            async with connection.transaction():
                await connection.execute("SELECT 1 FROM stepfast.runs WHERE id = $1 FOR UPDATE", run.id)
                gate.open()
                await asyncio.sleep(1)  # nothing happens, and that is what is looked at
                assert len(flushes) < 30
                await (await app.start(quick)).result(timeout=PATIENCE)
            await failure(run, "two entries")
