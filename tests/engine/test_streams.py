"""Streams: what runs send while they work arrives once, in order, also when workers die (rule 62)."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta
from typing import Any

import pytest

import stepfast
from stepfast import (
    Context,
    ContextMisuse,
    DatabaseUnavailable,
    InvalidInput,
    RunFailed,
    RunNotFound,
    Stepfast,
    StreamFull,
    StreamItem,
    SyncContext,
    step,
)
from stepfast.run import Run
from stepfast.testing import crash_everywhere
from tests.engine.conftest import ON_BOTH, MakeApp, with_settings
from tests.support.crashing import crash_at, outcome_of
from tests.support.engine import PATIENCE, Calls, Gate, ThreadGate, drained, eventually, finished, interrupt
from tests.worker.spying import Counted, only_postgres, wrap

LONGEST = 20.0
"""Seconds without an item after which a test gives up."""


async def items(run: Run[Any], name: str = "s", **options: Any) -> list[StreamItem[Any]]:
    return [item async for item in run.stream(name, timeout=LONGEST, **options)]


async def values(run: Run[Any], name: str = "s", **options: Any) -> list[Any]:
    return [item.value for item in await items(run, name, **options)]


async def test_a_reader_sees_items_while_the_step_works(app: Stepfast) -> None:
    gate = Gate()

    @step
    async def talk() -> None:
        out = stepfast.stream("s")
        out.send("a")
        out.send({"b": None})
        await gate.passing()
        out.send("c")

    @app.workflow
    async def chat(ctx: Context) -> None:
        await ctx.step(talk)

    async with app.worker():
        run = await app.start(chat)
        reader = run.stream("s", timeout=LONGEST)
        assert [(await anext(reader)).value for _ in range(2)] == ["a", {"b": None}]
        assert await run.status() == "running"
        gate.open()
        assert [item.value async for item in reader] == ["c"]
        assert await run.streams() == ["s"]


async def test_items_are_read_on_from_an_offset(app: Stepfast) -> None:
    @app.workflow
    async def count(ctx: Context) -> None:
        out = ctx.stream("s")
        for number in range(450):
            out.send(number)

    run = await drained(app, count)
    found = await items(run, type=int)
    assert [item.value for item in found] == list(range(450))
    assert sorted(item.offset for item in found) == [item.offset for item in found]
    assert await values(run, after=found[447].offset) == [448, 449]
    assert (found[0].attempt, found[0].restarted) == (1, False)
    with pytest.raises(InvalidInput, match="offset of an item"):
        await values(run, after="7")


async def test_a_replay_sends_nothing_again(app: Stepfast, calls: Calls) -> None:
    """Items before the last record are passed over, those after it found stored, also in branches."""
    gate = Gate()

    @app.workflow
    async def chat(ctx: Context) -> None:
        out = ctx.stream("s")
        out.send("begin")
        await ctx.sleep(0.001)
        out.send("middle")

        async def part(ctx: Context, n: int) -> None:
            ctx.stream("s").send(f"part {n}")
            await ctx.sleep(0.001)
            ctx.stream("parts").send(n)

        await ctx.map(part, [1, 2])
        out.send("late")
        await out.flush()
        if calls.hit("end") == 1:
            await gate.passing()
        out.send("end")

    run = await app.start(chat)
    await interrupt(app, gate)
    await finished(app, run, gate)
    assert calls["end"] == 2
    told = await values(run)
    assert (
        told[:2] == ["begin", "middle"] and told[-2:] == ["late", "end"] and sorted(told[2:4]) == ["part 1", "part 2"]
    )
    assert len(told) == 6
    assert sorted(await values(run, "parts")) == [1, 2]


async def test_a_step_that_is_tried_again_says_so(app: Stepfast, calls: Calls) -> None:
    @step(retries=1, backoff=stepfast.Backoff(base=0.001))
    async def talk() -> None:
        out = stepfast.stream("s")
        out.send("a")
        out.send("b")
        if calls.hit("talk") == 1:
            raise OSError("the line broke")

    @app.workflow
    async def chat(ctx: Context) -> None:
        ctx.stream("s").send("hello")
        await ctx.step(talk)

    run = await drained(app, chat)
    assert [(i.value, i.attempt, i.restarted) for i in await items(run)] == [
        ("hello", 1, False), ("a", 1, False), ("b", 1, False), ("a", 2, True), ("b", 2, False),
    ]  # fmt: skip


async def test_a_step_whose_worker_died_says_that_it_began_again(app: Stepfast, calls: Calls) -> None:
    @step
    async def talk() -> None:
        out = stepfast.stream("s")
        for number in range(3):
            out.send(number)
        await out.flush()
        calls.hit("talk")

    @app.workflow
    async def chat(ctx: Context) -> None:
        await ctx.step(talk)
        await ctx.sleep(0.001)
        await ctx.step("again", talk)

    run = await app.start(chat)
    await crash_at(app, outcome_of("talk"), written=False)
    await app.drain()
    assert [(i.value, i.attempt, i.restarted) for i in await items(run)] == [
        (0, 1, False), (1, 1, False), (2, 1, False),
        (0, 1, True), (1, 1, False), (2, 1, False),
        (0, 1, False), (1, 1, False), (2, 1, False),
    ]  # fmt: skip


async def test_a_lost_reply_stores_no_item_twice(app: Stepfast) -> None:
    """The flush is committed, and the worker, which does not know, writes it again."""

    @app.workflow
    async def chat(ctx: Context) -> None:
        out = ctx.stream("s")
        out.send(1)
        await ctx.step("a", lambda: None)
        out.send(2)
        await ctx.step("b", lambda: None)

    store, lost = await app.store(), 0
    flush = store.flush

    async def losing(worker: str, batch: Any) -> Any:
        nonlocal lost
        answer = await flush(worker, batch)
        if batch.streams and not lost:
            lost += 1
            raise stepfast.DatabaseUnavailable("the connection broke before the reply came")
        return answer

    store.flush = losing  # type: ignore[method-assign]
    run = await drained(app, chat)
    assert lost == 1 and await values(run) == [1, 2]


async def test_a_plain_step_sends_from_its_thread(app: Stepfast) -> None:
    @step
    def talk(count: int) -> int:
        out = stepfast.stream("s")
        for number in range(count):
            out.send(number)
        out.flush()
        out.close()
        return count

    @app.workflow
    def chat(ctx: SyncContext, count: int) -> int:
        ctx.stream("log").send("begin")
        return ctx.step(talk, count)

    run = await app.start(chat, 1200)
    async with app.worker():
        assert await values(run, type=int) == list(range(1200))
        assert await values(run, "log") == ["begin"]


async def test_a_stream_that_is_closed_ends_before_its_run(app: Stepfast) -> None:
    gate = Gate()

    @app.task
    async def talk() -> None:
        out = stepfast.stream("s")
        out.send(1)
        out.close()
        await gate.passing()

    async with app.worker():
        run = await app.start(talk)
        assert await values(run) == [1]
        assert await run.status() == "running"
        gate.open()


async def test_readers_follow_a_run_that_goes_on_as_another(app: Stepfast) -> None:
    @app.workflow
    async def talk(ctx: Context, number: int) -> None:
        ctx.stream("s").send(number)
        ctx.stream(f"only {number}").send(number)
        if number < 2:
            ctx.continue_as(number + 1)

    run = await drained(app, talk, 0)
    found = await items(run)
    assert [item.value for item in found] == [0, 1, 2]
    assert [await values(run, after=item.offset) for item in found] == [[1, 2], [2], []]
    assert await run.streams() == ["only 0", "only 1", "only 2", "s"]


async def test_steps_of_a_dag_send_to_the_streams_of_their_run(app: Stepfast) -> None:
    dag = app.dag("talks")

    @dag.step()
    async def first(ctx: Any) -> None:
        for number in range(50):
            ctx.stream("s").send(("first", number))

    @dag.step()
    async def second(ctx: Any) -> None:
        for number in range(50):
            stepfast.stream("s").send(("second", number))

    run = await drained(app, dag)
    told = await values(run)
    for name in ("first", "second"):
        assert [number for who, number in told if who == name] == list(range(50))


@with_settings(max_stream_items=5, max_stream_item=100, max_stream_bytes=200)
async def test_too_much_is_refused_by_name(app: Stepfast, calls: Calls) -> None:
    @app.workflow
    async def many(ctx: Context) -> None:
        for number in range(6):
            ctx.stream("s").send(number)

    @app.workflow
    async def large(ctx: Context) -> None:
        ctx.stream("s").send("x" * 99)

    @app.workflow
    async def heavy(ctx: Context) -> None:
        for _ in range(3):
            ctx.stream("s").send("x" * 90)

    for workflow, setting in ((many, "max_stream_items"), (large, "max_stream_item"), (heavy, "max_stream_bytes")):
        run = await drained(app, workflow)
        with pytest.raises(RunFailed, match=setting) as failed:
            await run.result(timeout=PATIENCE)
        assert failed.value.error_type == "StreamFull"
    assert issubclass(StreamFull, stepfast.NonRetryableError)


@with_settings(max_stream_items=5)
async def test_a_stream_that_filled_up_under_an_earlier_claim_takes_no_more(app: Stepfast) -> None:
    @step
    async def talk() -> None:
        for number in range(3):
            stepfast.stream("s").send(number)

    @app.workflow
    async def many(ctx: Context) -> None:
        await ctx.step(talk)
        await ctx.sleep(timedelta(seconds=0.01))
        await ctx.step("again", talk)

    run = await app.start(many)
    await crash_at(app, outcome_of("talk"), written=True)
    await app.drain()
    with pytest.raises(RunFailed, match="max_stream_items"):
        await run.result(timeout=PATIENCE)
    assert await values(run) == [0, 1, 2, 0, 1]


@with_settings(max_stream_items=2, inline_wait=0)
async def test_only_one_step_is_ended_by_a_stream_that_is_full(app: Stepfast) -> None:
    @step
    async def talk() -> None:
        for number in range(2):
            stepfast.stream("s").send(number)

    @app.workflow
    async def chat(ctx: Context) -> str:
        ctx.stream("s").send("begin")
        await ctx.sleep(0.05)
        with pytest.raises(stepfast.StepFailed, match="max_stream_items"):
            await ctx.step(talk)
        return await ctx.step("after", lambda: "well")

    assert await (await drained(app, chat)).result(timeout=PATIENCE) == "well"


async def test_a_thread_that_returns_has_sent_its_items(make_app: MakeApp) -> None:
    """Also if the event loop hears that it has returned, with another, before it hears of the item. So have its lines
    of the log."""
    first, second = ThreadGate(), ThreadGate()
    app = make_app(run_logs="INFO")

    @app.task
    def returns() -> None:
        first.passing()

    @app.task
    def sends() -> None:
        second.passing()
        stepfast.stream("s").send("last")
        logging.getLogger("shop").warning("last line")

    async with app.worker() as worker:
        run = await app.start(sends)
        await app.start(returns)
        await first.reached()
        await second.reached()
        threads: Any = worker.duties.executor._threads._threads
        for gate, count in ((first, 1), (second, 2)):  # while the event loop is held up
            gate.open()
            until = time.monotonic() + PATIENCE
            while len(threads._done) < count:
                assert time.monotonic() < until
                time.sleep(0.001)
        assert await values(run) == ["last"]
        assert [line.message for line in await run.logs()] == ["last line"]


async def test_a_try_that_is_over_sends_nothing(app: Stepfast) -> None:
    kept: list[Any] = []

    @step
    async def talk() -> None:
        kept.append(stepfast.stream("s"))
        kept[0].send(1)

    @app.workflow
    async def chat(ctx: Context) -> None:
        await ctx.step(talk)
        with pytest.raises(BaseException, match="is over"):
            kept[0].send(2)

    run = await drained(app, chat)
    await run.result(timeout=PATIENCE)
    assert await values(run) == [1]
    with pytest.raises(stepfast.ContextMisuse, match="outside of a run"):
        stepfast.stream("s")


async def test_a_reader_is_told_what_it_waits_for_in_vain(app: Stepfast) -> None:
    @app.workflow
    async def silent(ctx: Context) -> None:
        await ctx.wait_signal("never")

    run = await app.start(silent)
    with pytest.raises(TimeoutError, match="no item"):
        [item async for item in run.stream("s", timeout=0.05)]
    reading = asyncio.create_task(values(run))
    await asyncio.sleep(0)
    await run.cancel()
    assert await asyncio.wait_for(reading, PATIENCE) == []
    await run.delete()
    with pytest.raises(RunNotFound):
        await values(run)


async def test_readers_of_one_stream_share_the_query(app: Stepfast) -> None:
    gate = Gate()

    @app.task
    async def talk() -> None:
        stepfast.stream("s").send(1)
        await gate.passing()
        stepfast.stream("s").send(2)

    store = await app.store()
    pages, asked = store.stream_pages, 0

    async def counting(places: Any) -> Any:
        nonlocal asked
        asked += 1
        assert len(set(places)) == len(places) <= 2
        return await pages(places)

    store.stream_pages = counting  # type: ignore[method-assign]
    async with app.worker():
        run = await app.start(talk)
        readers = [run.stream("s", timeout=LONGEST) for _ in range(200)]
        assert {item.value for item in await asyncio.gather(*map(anext, readers))} == {1}
        second = [asyncio.ensure_future(anext(reader)) for reader in readers]
        gate.open()
        assert {item.value for item in await asyncio.gather(*second)} == {2}
    assert asked < 100


@only_postgres
@with_settings(poll_interval=60)
async def test_a_reader_asks_once_for_each_item_and_hears_of_the_end(app: Stepfast) -> None:
    """One that has all that is there waits for news, and does not ask again; also of the end it is told at once."""
    gates = [Gate() for _ in range(9)]

    @app.workflow
    async def talk(ctx: Context) -> None:
        for number, gate in enumerate(gates):
            ctx.stream("s").send(number)
            await ctx.step(f"after {number}", gate.passing)

    async with app.worker():
        store = await app.store()
        pages, ends = Counted(store, "stream_pages"), Counted(store, "stream_ends")
        reader = (await app.start(talk)).stream("s", timeout=LONGEST)
        for number, gate in enumerate(gates):
            assert (await anext(reader)).value == number
            await gate.reached()
            gate.open()
        assert await anext(reader, None) is None
    assert len(pages) <= 2 * len(gates) + 6, "one for the item, and one for the record after it at most"
    assert len(ends) <= 4, ends.calls


async def test_a_reader_comes_to_the_end_while_other_streams_are_busy(app: Stepfast) -> None:
    """Also if the database was away when the wake-up of the end came."""
    gate, over = Gate(), asyncio.Event()

    @app.workflow
    async def quiet(ctx: Context) -> None:
        await ctx.step("wait", gate.passing)

    @app.task
    async def busy() -> None:
        while not over.is_set():
            stepfast.stream("s").send(1)
            await asyncio.sleep(0.005)

    async def fail_once(call: Any, *args: Any) -> Any:
        if failed or not gate._open.is_set():
            return await call(*args)
        failed.append(1)
        raise DatabaseUnavailable("away for a moment")

    failed: list[int] = []
    async with app.worker():
        await app.start(busy)
        run = await app.start(quiet)
        await gate.reached()
        reading = asyncio.create_task(values(run))
        wrap(await app.store(), "stream_ends", fail_once)
        await eventually(lambda: app._connections.made().streams._waiting)  # type: ignore[union-attr]
        gate.open()
        assert await asyncio.wait_for(reading, LONGEST / 2) == []
        over.set()
    assert failed


async def test_items_go_with_their_run(app: Stepfast) -> None:
    @app.task
    async def talk() -> None:
        stepfast.stream("s").send(1)

    run = await drained(app, talk)
    await run.delete()
    store = await app.store()
    assert await store.stream_names(run.id) == [] and await store.stream_pages([(run.id, "s", 0, 9)]) == {}


async def test_a_thread_reads_a_stream(app: Stepfast) -> None:
    @app.task
    async def talk() -> None:
        for number in range(3):
            stepfast.stream("s").send(number)

    def read(run_id: str) -> list[Any]:
        with_names = app.sync.get(run_id)
        return [*with_names.streams(), *(item.value for item in with_names.stream("s", timeout=LONGEST))]

    run = await drained(app, talk)
    assert await asyncio.to_thread(read, run.id) == ["s", 0, 1, 2]


@pytest.mark.enough_on("sqlite")
async def test_a_crash_at_any_commit_leaves_each_item_once() -> None:
    app = Stepfast("sqlite://")

    @step
    async def talk(number: int) -> int:
        stepfast.stream("steps").send(number)
        return number

    @app.workflow
    async def chat(ctx: Context) -> list[int]:
        ctx.stream("s").send("begin")
        found = [await ctx.step(talk, n) for n in range(2)]
        ctx.stream("s").send(found)
        await ctx.sleep(60)
        ctx.stream("s").send("end")
        return found

    report = await crash_everywhere(app, chat)
    assert report.crashes >= 8


@ON_BOTH
async def test_a_transaction_does_not_wait_for_the_commit_of_items(app: Stepfast) -> None:
    """It would wait for itself: what a run records is stored after its transaction, and SQLite has one writer."""

    def write(connection: Any) -> str:
        out = stepfast.stream("s")
        out.send("within")
        with pytest.raises(ContextMisuse, match="cannot wait"):
            out.flush()
        return "done"

    async def write_async(connection: Any) -> str:
        return write(connection)

    @app.workflow
    async def chat(ctx: Context) -> str:
        return await ctx.transaction(write if app.url.kind == "sqlite" else write_async)

    run = await drained(app, chat)
    assert (await run.result(timeout=PATIENCE), await values(run)) == ("done", ["within"])


@pytest.mark.enough_on("sqlite")
async def test_what_comes_before_a_transaction_is_stored_before_it() -> None:
    """A transaction commits beside the journal. A worker that dies between the two must not lose what the record of the
    transaction says was stored: items, and the way that was taken at a change of the code."""
    app = Stepfast("sqlite://")

    def write(connection: Any) -> int:
        return 1

    async def part(ctx: Context, number: int) -> bool:
        new = ctx.patched("a change")
        ctx.stream("s").send(number)
        await ctx.transaction(write)
        return new

    @app.workflow
    async def chat(ctx: Context) -> list[bool]:
        return [await part(ctx, 1), *await ctx.map(part, [2, 3])]

    report = await crash_everywhere(app, chat)
    assert report.result == [True] * 3


@pytest.mark.enough_on("sqlite")
@with_settings(max_stream_items=1, inline_wait=0)
async def test_a_full_stream_does_not_undo_what_a_transaction_has_committed(app: Stepfast) -> None:
    def write(connection: Any) -> str:
        stepfast.stream("s").send("no room")
        return "done"

    async def write_async(connection: Any) -> str:
        return write(connection)

    @app.workflow
    async def chat(ctx: Context) -> str:
        ctx.stream("s").send("first")
        await ctx.sleep(0.3)
        return await ctx.transaction(write if app.url.kind == "sqlite" else write_async)

    async with app.worker():
        run = await app.start(chat)
        assert await run.result(timeout=PATIENCE) == "done"
    assert ([step.status for step in await run.steps()], await values(run)) == (["completed"] * 2, ["first"])
