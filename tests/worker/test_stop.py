"""Stopping: no new runs, time for those under way, the rest given back at once, no trace in the table of workers."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stepfast import Context, Stepfast
from stepfast.settings import Settings
from stepfast.worker.shutdown import SIGNALS
from tests.support.engine import PATIENCE, Calls, Gate, eventually, worked
from tests.support.processes import Ledger
from tests.support.proxy import Proxy
from tests.support.workflows import task
from tests.worker.conftest import MakeApp, MakeProcess
from tests.worker.spying import HeldReply, only_postgres
from tests.worker.tables import Tables

QUICK = {"lease": 30, "poll_interval": 0.2}
GIVEN_BACK = ("queued", 1, 0, None)
"""status, attempt, losses, worker of a run that was given back: no attempt used, nothing lost."""
STATE = "status, attempt, losses, worker"

signals = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


async def is_stopping(tables: Tables) -> bool:
    return bool(await tables.one("SELECT count(*) FROM [workers] WHERE state = 'stopping'") == 1)


# -- a process -------------------------------------------------------------------------------------------------------


@signals
async def test_a_signal_lets_handlers_finish(
    program: Callable[..., Stepfast],
    make_process: MakeProcess,
    ledger: Ledger,
    tables: Tables,
    number: signal.Signals,
) -> None:
    """Within the grace time, claiming nothing new; exit 0."""
    app = program()
    run = await app.start(app.workflows["hold"], "gate")
    async with make_process(QUICK) as process:
        await ledger.seen("hold")
        process.signal(number)
        await eventually(lambda: is_stopping(tables))
        late = await app.start(app.workflows["quick"], 1)
        ledger.open("gate")
        assert await process.ended() == 0
    assert await run.status() == "completed"
    assert await late.status() == "queued"
    assert await tables.fetch("SELECT * FROM [workers]") == []


@pytest.mark.parametrize(
    ("number", "handler"),
    [
        (signal.SIGTERM, "hold"),
        (signal.SIGTERM, "block_thread"),
        (signal.SIGTERM, "stubborn"),
        (signal.SIGINT, "hold"),
        # Both signals begin the same stop, and each handler is tried with one of them.
        pytest.param(signal.SIGINT, "block_thread", marks=pytest.mark.thorough),
        pytest.param(signal.SIGINT, "stubborn", marks=pytest.mark.thorough),
    ],
)
async def test_after_the_grace_time_the_rest_is_given_back(
    program: Callable[..., Stepfast],
    make_process: MakeProcess,
    ledger: Ledger,
    tables: Tables,
    number: signal.Signals,
    handler: str,
) -> None:
    """At once, whatever the handler thinks of it; no attempt is used (there is only one), exit 0."""
    app = program()
    runs = [await app.start(app.workflows[handler], f"gate {n}") for n in range(3)]
    async with make_process({**QUICK, "shutdown_grace": 0.2}) as process:
        await ledger.seen("hold", times=3)
        process.signal(number)
        assert await process.ended() == 0
    for run in runs:
        assert await tables.run(run.id, STATE) == GIVEN_BACK
        assert (await run.info()).ready
    assert await tables.fetch("SELECT * FROM [workers]") == []
    for n in range(3):
        ledger.open(f"gate {n}")
    async with app.worker():
        assert [await run.result(timeout=PATIENCE) for run in runs] == [f"gate {n}" for n in range(3)]


@signals
async def test_a_second_signal_does_not_wait(
    program: Callable[..., Stepfast],
    make_process: MakeProcess,
    ledger: Ledger,
    tables: Tables,
    number: signal.Signals,
) -> None:
    """A second signal stops immediately; what runs is given back all the same."""
    app = program()
    run = await app.start(app.workflows["hold"], "gate")
    async with make_process({**QUICK, "shutdown_grace": 600}) as process:
        await ledger.seen("hold")
        process.signal(number)
        await eventually(lambda: is_stopping(tables))
        process.signal(number)
        assert await process.ended() == 0
    assert await tables.run(run.id, STATE) == GIVEN_BACK


async def test_an_idle_process_stops_at_once(make_process: MakeProcess, tables: Tables) -> None:
    async with make_process(QUICK) as process:
        process.signal(signal.SIGTERM)
        assert await process.ended() == 0
    assert await tables.fetch("SELECT * FROM [workers]") == []


@only_postgres
@pytest.mark.parametrize("busy", [False, True])
async def test_a_signal_during_an_outage_stops_too(
    url: str,
    postgres_server: Any,
    program: Callable[..., Stepfast],
    make_process: MakeProcess,
    ledger: Ledger,
    tables: Tables,
    busy: bool,
) -> None:
    """Exit 0 in seconds: what cannot be given back now is found by others after the lease."""
    app = program()
    async with Proxy("127.0.0.1", postgres_server.port) as proxy:
        if busy:
            run = await app.start(app.workflows["hold"], "gate")
        async with make_process(
            {"lease": 30, "poll_interval": 0.1, "shutdown_grace": 0.5}, at=proxy.url(url)
        ) as process:
            if busy:
                await ledger.seen("hold")
            proxy.refuse()
            proxy.cut()
            process.signal(signal.SIGTERM)
            assert await process.ended() == 0, process.log
    if busy:
        assert (await tables.run(run.id, "status"))[0] == "running"


# -- embedded --------------------------------------------------------------------------------------------------------


async def test_an_embedded_worker_stops_like_a_process(make_app: MakeApp, tables: Tables, calls: Calls) -> None:
    """The end of ``async with`` is the signal."""
    app = make_app()
    gate = Gate()

    @app.workflow(max_attempts=1)
    async def work(ctx: Context, name: str) -> str:
        await ctx.step("before", lambda: calls.hit(f"{name} before"))
        if name == "slow" and calls.hit("slow") == 1:
            await gate.passing()
        return name

    quick, slow = await app.start(work, "quick"), await app.start(work, "slow")
    async with app.worker(shutdown_grace=0.05):
        await gate.reached()
        assert await quick.result(timeout=PATIENCE) == "quick"
    assert await tables.run(slow.id, STATE) == GIVEN_BACK
    assert await tables.fetch("SELECT * FROM [workers]") == []
    assert await worked(app, slow) == "slow"
    assert calls["slow before"] == 1


async def test_a_worker_left_by_an_error_gives_back_too(make_app: MakeApp, tables: Tables) -> None:
    app = make_app()
    gate = Gate()
    wait = task(app, "wait", gate=gate, returns=None)
    run = await app.start(wait)
    with pytest.raises(KeyError):
        async with app.worker(shutdown_grace=0):
            await gate.reached()
            raise KeyError("the program around it failed")
    assert await tables.run(run.id, STATE) == GIVEN_BACK
    assert await tables.fetch("SELECT * FROM [workers]") == []


@pytest.mark.parametrize("released", ["during the stop", "never"])
async def test_a_claim_under_way_at_the_stop_leaves_nothing_behind(
    make_app: MakeApp, tables: Tables, released: str
) -> None:
    """Rule 2: the database has given the run to a worker that is leaving. It must not wait for a reaper, nor count
    as lost."""
    app = make_app(Settings(poll_interval=60, sweep_interval=60, lease=2))
    echo = task(app, "echo")
    store = await app.store()
    held = HeldReply(store, "claim")
    async with app.worker(shutdown_grace=0):
        run = await app.start(echo, 1)
        await held.done()
        if released == "during the stop":
            asyncio.get_running_loop().call_soon(held.release)
    status, _, losses, worker = await tables.run(run.id, STATE)
    assert (status, losses, worker) in [("queued", 0, None), ("completed", 0, None)]
    assert await worked(app, run) == 1


async def test_nothing_is_claimed_while_stopping(make_app: MakeApp) -> None:
    """Stops claiming; also when a slot becomes free during the grace time."""
    app = make_app()
    gate, order = Gate(), []

    @app.task
    async def wait(number: int) -> None:
        order.append(number)
        await gate.passing()

    runs = await app.start_many(wait, [1, 2, 3])
    async with app.worker(concurrency=1) as worker:
        await gate.reached()
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        gate.open()
        await stopping
    assert order == [1]
    assert [await run.status() for run in runs] == ["completed", "queued", "queued"]


# -- signals of the process: every worker of the event loop hears them, and whoever heard them before doe


@pytest.fixture
def handlers() -> Iterator[list[int]]:
    """A program that has handlers of its own; what they heard."""
    heard: list[int] = []
    before = {number: signal.signal(number, lambda number, _: heard.append(number)) for number in SIGNALS}
    yield heard
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
async def test_a_signal_ends_all_workers_of_the_loop(handlers: list[int], number: signal.Signals) -> None:
    async with Stepfast("sqlite://") as one, Stepfast("sqlite://") as other:
        works = [asyncio.create_task(app.work()) for app in (one, other)]
        for app in (one, other):
            await eventually((await app.store()).workers)
        signal.raise_signal(number)
        done, _ = await asyncio.wait(works, timeout=PATIENCE)
        assert done == set(works) and handlers == []
        signal.raise_signal(number)
        assert handlers == [number], "the program's own again"


async def test_one_that_leaves_takes_the_signals_from_no_other(handlers: list[int]) -> None:
    async with Stepfast("sqlite://") as one, Stepfast("sqlite://") as other:
        leaves, stays = (asyncio.create_task(app.work()) for app in (one, other))
        for app in (one, other):
            await eventually((await app.store()).workers)
        leaves.cancel()
        await asyncio.wait((leaves,), timeout=PATIENCE)
        assert not stays.done()
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(stays, PATIENCE)
    assert handlers == []
