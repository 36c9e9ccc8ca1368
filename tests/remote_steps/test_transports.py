"""A transport is an interface: one that is no database does as well."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from stepfast import Backoff, Context, DatabaseUnavailable, RemoteStepError, RunCancelled, Stepfast
from stepfast.model.remote_steps import Result, Task
from stepfast.model.urls import parse_url
from stepfast.remote import SqlTransport, Transport
from stepfast.transports import _make
from stepfast.worker.remote_dispatcher import backoff_pause
from tests.remote_steps.conftest import QUICK, echoing_worker, start_shop
from tests.remote_steps.memory import MemoryTransport, echo
from tests.support.codecs import Backwards
from tests.support.engine import eventually


def failing_once(task: Task) -> Result:
    if task.attempt == 1:
        return Result(task.step_id, task.run_id, task.seq, "failed", None, '{"message": "once"}', None)
    return echo(task)


def test_a_transport_without_settings_of_its_own_has_those_of_the_application() -> None:
    """An application with a short lease would else have looked for leftovers before the transport takes them for such,
    and never again."""
    mine, own, url = replace(QUICK, lease=3), replace(QUICK, lease=7), parse_url("postgresql://db/shop")
    for transport, expected in (
        (SqlTransport("postgresql://db/steps"), mine),
        (SqlTransport("postgresql://db/steps", settings=own), own),
        (None, mine),
    ):
        made = _make(transport, url, None, mine)
        assert isinstance(made, SqlTransport) and made.settings == expected


async def test_remote_steps_go_over_a_transport_in_memory(sqlite_url: str) -> None:
    transport = MemoryTransport(failing_once)
    as_promised: Transport = transport
    async with Stepfast(sqlite_url, transport=as_promised, settings=QUICK) as app:

        @app.workflow
        async def shop(ctx: Context) -> list[int]:
            calls = (ctx.remote("echo", n, type=int, retries=1, backoff=Backoff(base=0)) for n in range(50))
            return await ctx.gather(*calls)

        run = await app.start(shop)
        async with app.worker():
            assert await run.result(timeout=20) == list(range(50))
            await eventually(lambda: not transport.done)
    assert len(transport.sent) == 100
    assert transport.tasks == {}


async def test_a_step_that_the_transport_refuses_fails_alone(sqlite_url: str) -> None:
    transport = MemoryTransport(echo)
    transport.largest = 100
    async with Stepfast(sqlite_url, transport=transport, settings=QUICK) as app:

        @app.workflow
        async def shop(ctx: Context) -> list[Any]:
            calls = (ctx.remote("echo", "x" * n) for n in (1, 200, 2, 3, 300, 4))
            found = await ctx.gather(*calls, return_errors=True)
            return [each.message if isinstance(each, RemoteStepError) else each for each in found]

        run = await app.start(shop)
        async with app.worker():
            refused = "the transport refuses it: it is too large"
            assert await run.result(timeout=20) == ["x", refused, "xx", "xxx", refused, "xxxx"]


async def test_a_result_that_the_database_refuses_keeps_no_other(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As a trigger of the owner's may. Its step comes to its timeout."""
    async with Stepfast(sqlite_url, transport=MemoryTransport(echo), settings=QUICK) as app:

        @app.workflow
        async def shop(ctx: Context) -> list[Any]:
            calls = (ctx.remote("echo", n, timeout=2) for n in range(6))
            found = await ctx.gather(*calls, return_errors=True)
            return [type(each).__name__ if isinstance(each, Exception) else each for each in found]

        store: Any = await app.store()
        odd = "CREATE TRIGGER odd BEFORE INSERT ON stepfast_mailbox WHEN NEW.kind = 'remote' AND NEW.value = '2' "
        odd += "BEGIN SELECT RAISE(ABORT, 'an odd row'); END"
        await store._writer.do(lambda database: database.execute(odd).fetchall())
        run = await app.start(shop)
        async with app.worker():
            found = await run.result(timeout=20)
    assert found[:2] + found[3:] == [0, 1, 3, 4, 5] and "Timeout" in found[2]
    [told] = [line for line in caplog.messages if "the database refuses its result" in line]
    assert f"{run.id}:2" in told


async def test_drain_sends_what_is_to_be_sent_and_brings_what_has_come(sqlite_url: str) -> None:
    transport = MemoryTransport(echo)
    async with Stepfast(sqlite_url, transport=transport, settings=QUICK) as app:

        @app.workflow
        async def shop(ctx: Context) -> Any:
            return await ctx.remote("echo", 1) + await ctx.remote("echo", 2)

        run = await app.start(shop)
        await asyncio.wait_for(app.drain(), 20)
        assert await run.result(timeout=1) == 3


async def test_a_step_of_another_transport_is_left_to_workers_that_have_it(sqlite_url: str) -> None:
    ours, theirs = MemoryTransport(echo, "ours"), MemoryTransport(echo, "theirs")

    async def shop(ctx: Context) -> Any:
        return await ctx.remote("echo", 1)

    async with Stepfast(sqlite_url, transport=ours, settings=QUICK) as app:
        app.workflow(shop)
        ours.serve = lambda task: None
        run = await app.start("shop")
        async with app.worker():
            await eventually(lambda: ours.tasks)
    async with Stepfast(sqlite_url, transport=theirs, settings=QUICK) as other:
        async with other.worker() as worker:
            ticks = worker.duties.sweeper.ticks
            await eventually(lambda: worker.duties.sweeper.ticks > ticks + 3)
        assert theirs.sent == []
    ours.done = {id_: echo(task) for id_, task in ours.tasks.items()}
    async with Stepfast(sqlite_url, transport=ours, settings=QUICK) as app:
        app.workflow(shop)
        async with app.worker():
            assert await app.get(run.id).result(timeout=20) == 1


async def test_the_timeout_of_a_step_that_is_sent_anew_counts_anew(sqlite_url: str) -> None:
    transport = MemoryTransport()
    settings = replace(QUICK, inline_wait=0.0)
    async with Stepfast(sqlite_url, transport=transport, settings=settings) as app:
        run = await start_shop(app, 1, timeout=3600)
        async with app.worker():
            await eventually(lambda: transport.tasks)
            await run.cancel()
            await eventually(lambda: not transport.tasks)
            store: Any = await app.store()
            await store._writer.do(
                lambda database: database.execute("UPDATE stepfast_steps SET completed_at = 1").fetchall()
            )
            await run.retry()
            await eventually(lambda: transport.tasks)
            await run.pause()
            await eventually(lambda: _has_status(run, "paused"))
            transport.done = {id_: echo(task) for id_, task in transport.tasks.items()}
            await run.resume()
            assert await run.result(timeout=20) == 1


async def _has_status(run: Any, status: str) -> bool:
    return bool(await run.status() == status)


@pytest.mark.parametrize("codec", [None, "reversed"])
async def test_workers_elsewhere_read_plain_json_whatever_the_codec(sqlite_url: str, codec: str | None) -> None:
    transport = MemoryTransport(echo)
    chosen = Backwards() if codec else None
    async with Stepfast(sqlite_url, transport=transport, codec=chosen, settings=QUICK) as app:

        @app.workflow
        async def shop(ctx: Context) -> Any:
            try:
                await ctx.remote("echo", "x", type=int)
            except RemoteStepError as error:
                return [await ctx.remote("echo", {"a": 1}), error.retryable]

        run = await app.start(shop)
        async with app.worker():
            assert await run.result(timeout=20) == [{"a": 1}, False]
        assert [task.input for task in transport.sent] == ['"x"', '{"a":1}']
        told = [(call.status, call.parameters, call.result) for call in await run.activity()]
        assert told == [("failed", "x", None), ("completed", {"a": 1}, {"a": 1})]


async def test_a_transport_that_cannot_be_reached_holds_nobody_up(sqlite_url: str) -> None:
    """Steps lie in the outbox until it can. Meanwhile their runs wait as they would for a worker, without a slot."""

    class Away(MemoryTransport):
        reachable = False

        async def open(self) -> None:
            if not self.reachable:
                raise DatabaseUnavailable("nobody answers")

    transport, quick = Away(echo), replace(QUICK, outage_backoff_max=0.1)
    async with Stepfast(sqlite_url, transport=transport, settings=quick) as app:

        @app.workflow
        async def shop(ctx: Context, number: int) -> int:
            return await ctx.remote("echo", number, type=int)

        @app.task
        async def other() -> str:
            return "done"

        async with app.worker(concurrency=1):
            runs = await app.start_many(shop, [1, 2, 3])
            assert await (await app.start(other)).result(timeout=20) == "done"

            async def all_wait() -> bool:
                return [await run.status() for run in runs] == ["waiting"] * 3

            await eventually(all_wait)
            await runs[0].cancel()
            with pytest.raises(RunCancelled):
                await runs[0].result(timeout=20)
            transport.reachable = True
            assert [await run.result(timeout=20) for run in runs[1:]] == [2, 3]
    assert [task.input for task in transport.sent] in (["2", "3"], ["3", "2"])


async def test_a_transport_that_raises_harms_no_worker(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It may be the application's own, and raise whatever it likes."""

    class Wayward(MemoryTransport):
        raised = 0

        async def results(self, step_ids: Sequence[str], connection: Any = None) -> list[Result]:
            if self.raised < 2:
                self.raised += 1
                raise ZeroDivisionError("a bug of mine")
            return await super().results(step_ids)

    async with Stepfast(sqlite_url, transport=Wayward(echo), settings=QUICK) as app:
        run = await start_shop(app, 1)
        async with app.worker():
            assert await run.result(timeout=20) == 1
    assert "a bug of mine; trying again" in caplog.text


async def test_what_is_being_sent_when_the_worker_stops_is_sent(sqlite_url: str) -> None:
    """Its row says so already: otherwise it would lie there until somebody misses it."""

    class Slow(MemoryTransport):
        sending, go = asyncio.Event(), asyncio.Event()

        async def dispatch(self, tasks: Sequence[Task], connection: Any = None) -> None:
            self.sending.set()
            await self.go.wait()
            await super().dispatch(tasks)

    transport = Slow()
    async with Stepfast(sqlite_url, transport=transport, settings=QUICK) as app:

        @app.workflow
        async def shop(ctx: Context) -> Any:
            return await ctx.remote("echo", 1)

        await app.start(shop)
        async with app.worker(shutdown_grace=0):
            await asyncio.wait_for(transport.sending.wait(), 20)
            asyncio.get_running_loop().call_later(0.1, transport.go.set)
        assert len(transport.sent) == 1


async def test_a_step_that_takes_long_to_be_sent_is_sent_once(sqlite_url: str) -> None:
    """Its row says that it is out, and another worker does not find it there: it is on its way."""
    began, looks, go = asyncio.Event(), list[float](), asyncio.Event()

    class Slow(MemoryTransport):
        calls = 0

        async def dispatch(self, tasks: Sequence[Task], connection: Any = None) -> None:
            self.calls += 1
            began.set()
            await go.wait()
            await super().dispatch(tasks)

        async def results(self, step_ids: Sequence[str], connection: Any = None) -> list[Result]:
            looks.append(time.monotonic())
            return await super().results(step_ids)

    transport = Slow(echo)
    settings = replace(QUICK, sweep_interval=0.02, poll_interval=0.02)
    async with Stepfast(sqlite_url, transport=transport, settings=settings) as app:
        run = await start_shop(app, 1)
        async with app.worker(), app.worker():
            await asyncio.wait_for(began.wait(), 20)
            late = time.monotonic() + 10 * settings.sweep_interval
            await eventually(lambda: transport.calls > 1 or sum(look > late for look in looks) > 3)
            go.set()
            assert await run.result(timeout=20) == 1
    assert transport.calls == 1


async def test_looking_for_results_takes_half_of_the_time_at_most_however_often_steps_are_sent(sqlite_url: str) -> None:
    """With many steps waiting a look takes long, and each step that goes out asks for another one."""
    looks: list[float] = []

    class Slow(MemoryTransport):
        async def results(self, step_ids: Sequence[str], connection: Any = None) -> list[Result]:
            began = time.monotonic()
            await asyncio.sleep(0.03)
            looks.append(time.monotonic() - began)
            return await super().results(step_ids)

    async with Stepfast(sqlite_url, transport=Slow(), settings=replace(QUICK, inline_wait=0.0)) as app:

        @app.workflow
        async def shop(ctx: Context) -> Any:
            return await ctx.remote("nobody")

        async with app.worker():
            began = time.monotonic()
            while len(looks) < 15:
                await app.start(shop)
                await asyncio.sleep(0.005)
            passed = time.monotonic() - began
    assert sum(looks) < 0.7 * passed


async def test_an_application_that_makes_no_tables_makes_none_for_the_transport(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its run waits until an operator has made them, and the log says how."""
    tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'durable_transport%'"
    async with Stepfast(postgres_url, settings=QUICK, auto_migrate=False) as app:

        @app.workflow
        async def shop(ctx: Context) -> int:
            return await ctx.remote("echo", 1, type=int)

        run, store = await app.start(shop), app.store
        async with app.worker():
            await eventually(lambda: "run `stepfast migrate --transport`" in caplog.text)
            opened: Any = await store()
            assert (await opened._with_connection(lambda each: each.fetchval(tables))) == 0
            async with SqlTransport(postgres_url):
                pass  # as the operator does
            async with echoing_worker(postgres_url):
                assert await run.result(timeout=20) == 1


async def test_a_transport_that_is_told_to_makes_its_tables_all_the_same(postgres_url: str) -> None:
    app = Stepfast(postgres_url, settings=QUICK, auto_migrate=False, transport=SqlTransport(create=True))
    async with app:
        run = await start_shop(app, 1, type=int)
        async with app.worker(), echoing_worker(postgres_url):
            assert await run.result(timeout=20) == 1


# -- the courier: how often it looks for results of remote steps


@pytest.mark.parametrize(
    ("looked", "moved", "seconds"),
    [
        (0.001, True, 0.05),  # the pace itself
        (0.4, False, 1.6),  # ten thousand steps wait, and nothing comes: a fifth of the time is spent looking
        (0.4, True, 0.4),  # something comes: half of it
        (45.0, False, 5.0),  # the database was away: no reason to be away, too
        (45.0, True, 5.0),
    ],
)
def test_it_rests_by_what_looking_costs_but_never_for_longer_than_a_sweep(
    looked: float, moved: bool, seconds: float
) -> None:
    assert backoff_pause(0.05, looked, moved, 5.0) == pytest.approx(seconds)


def test_a_pace_slower_than_a_sweep_is_kept() -> None:
    assert backoff_pause(9.0, 0.001, False, 5.0) == 9.0
