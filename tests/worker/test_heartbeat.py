"""Heartbeats: whoever lives keeps what it holds, whatever its handlers do; whoever lost its lease stops."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepfast import Context, Stepfast
from stepfast.errors import DatabaseUnavailable
from stepfast.model.records import BeatAnswer
from stepfast.settings import Settings
from stepfast.store import Store
from stepfast.worker.heartbeat import LoopWatch
from tests.support.engine import PATIENCE, Calls, Gate, eventually
from tests.support.processes import Ledger
from tests.support.proxy import Proxy
from tests.support.worker_context import StandingClock, make_kit
from tests.support.workflows import task
from tests.worker.conftest import MakeApp, MakeProcess
from tests.worker.spying import HeldReply, only_postgres
from tests.worker.tables import Tables

LEASE = 3.0
SHORT = Settings(lease=LEASE, heartbeat=0.4, sweep_interval=0.1, poll_interval=0.2)
PROCESS = {"lease": LEASE, "heartbeat": 0.4, "sweep_interval": 0.1, "poll_interval": 0.2}


async def leases_over(tables: Tables, count: float = 1.2) -> None:
    """Wait until so many leases have passed by the database's own clock: heartbeats of anybody living tell it."""
    now = "SELECT max(beat_at) FROM [workers]"
    began = await tables.one(now)
    await eventually(lambda: _passed(tables, now, began + count * LEASE * 1000))


async def _passed(tables: Tables, now: str, moment: float) -> bool:
    return bool(await tables.one(now) > moment)


# -- what does not cost a lease --------------------------------------------------------------------------------------


@pytest.mark.enough_on("sqlite")
@pytest.mark.parametrize("handler", ["hold", "block_loop", "block_thread"])
async def test_a_long_handler_keeps_its_lease(
    program: Callable[..., Stepfast], make_process: MakeProcess, ledger: Ledger, tables: Tables, handler: str
) -> None:
    """Also one that blocks the event loop for longer than the lease, while another worker reaps."""
    app = program(SHORT)
    async with make_process(PROCESS):
        run = await app.start(app.workflows[handler], "gate")
        await ledger.seen("hold")
        async with app.worker(queues=["nothing here"]):
            await leases_over(tables)
            ledger.open("gate")
            assert await run.result(timeout=PATIENCE) == "gate"
    assert await tables.run(run.id, "claim, attempt, losses") == (1, 1, 0)
    assert len(ledger.lines("hold")) == 1


@only_postgres
async def test_an_exhausted_pool_costs_no_lease(make_app: MakeApp, tables: Tables) -> None:
    """Rule 3: the heartbeat has a connection of its own."""
    app, other = make_app(SHORT, pool_size=1), make_app(SHORT)
    gate = Gate()

    @app.workflow
    async def wait(ctx: Context) -> str:
        await gate.passing()
        return await ctx.step("work", lambda: "done")

    run = await app.start(wait)
    async with app.worker(), other.worker():
        await gate.reached()
        store: Any = await app.store()
        async with store._pool.acquire():
            await leases_over(tables)
            gate.open()
            await eventually(lambda: _is(tables, run.id, "completed"))
    assert await tables.run(run.id, "claim, losses") == (1, 0)


async def _is(tables: Tables, run_id: str, status: str) -> bool:
    return bool((await tables.run(run_id, "status"))[0] == status)


async def test_a_heartbeat_tells_how_many_run(make_app: MakeApp) -> None:
    """Health numbers of a worker."""
    app = make_app(SHORT)
    gate = Gate()
    wait = task(app, "wait", gate=gate, returns=None)
    store = await app.store()
    runs = await app.start_many(wait, [1, 2, 3])
    async with app.worker(concurrency=7):
        await eventually(lambda: _running(store, 3))
        [worker] = await store.workers()
        assert (worker.state, worker.concurrency, worker.lease_ms) == ("live", 7, 3000)
        gate.open()
        await asyncio.gather(*(run.result(timeout=PATIENCE) for run in runs))
        await eventually(lambda: _running(store, 0))
    assert await store.workers() == []


async def _running(store: Store, count: int) -> bool:
    return [worker.running for worker in await store.workers()] == [count]


# -- what a worker that lost its lease does --------------------------------------------------------------------------


@only_postgres
@pytest.mark.parametrize("fault", ["reset", "stall"])
async def test_a_worker_that_cannot_beat_stops_its_handlers(
    url: str, postgres_server: Any, make_app: MakeApp, tables: Tables, fault: str
) -> None:
    """Rule 3: after a lease without a beat others may own its runs. Cut off or met with silence, it is the same."""
    async with Proxy("127.0.0.1", postgres_server.port) as proxy:
        app = make_app(
            Settings(lease=LEASE, sweep_interval=0.1, poll_interval=0.2, command_timeout=3, connect_timeout=10),
            at=proxy.url(url),
        )
        gate, stopped = Gate(), asyncio.Event()

        @app.task
        async def wait() -> str:
            try:
                await gate.passing()
            except BaseException:
                stopped.set()
                raise
            return "done"

        run = await app.start(wait)
        async with app.worker(shutdown_grace=0):
            await gate.reached()
            if fault == "reset":
                proxy.refuse()
                proxy.cut()
            else:
                proxy.stall()
            await asyncio.wait_for(stopped.wait(), PATIENCE)
            # It counts its lease from when it sent its last beat, the database from when that came: a little later.
            await eventually(lambda: _is_expired(tables))
            gate.open()
            proxy.refuse(False)
            proxy.resume()
            assert await run.result(timeout=PATIENCE) == "done"
        await app.close()


async def _is_expired(tables: Tables) -> bool:
    now = int(time.time() * 1000)
    return bool(await tables.one("SELECT count(*) FROM [workers] WHERE expires_at < ?", now) == 1)


async def test_a_worker_taken_for_dead_writes_nothing_and_goes_on_under_a_new_id(
    program: Callable[..., Stepfast], make_process: MakeProcess, ledger: Ledger, tables: Tables
) -> None:
    """A zombie. Frozen beyond its lease, its run is given to another; thawed, it is refused."""
    app = program(SHORT)
    plan = {"name": "a", "n": 3, "hold": 1, "gate": "gate"}
    run = await app.start(app.workflows["chain"], plan)
    async with make_process(PROCESS, concurrency=2) as zombie:
        await ledger.seen("step a 1")
        before = await tables.workers()
        async with app.worker():
            zombie.freeze()
            await ledger.seen("step a 1", times=2)  # here, by the worker in this process
            zombie.thaw()
            await eventually(lambda: _has_new_id(tables, zombie.pid, before))
            ledger.open("gate")
            assert await run.result(timeout=PATIENCE) == [0, 1, 2]
        again = await app.start(app.workflows["quick"], 7)
        assert await again.result(timeout=PATIENCE) == 7
        assert ledger.lines("quick") == [f"quick 7 {zombie.pid}"]
    assert await tables.run(run.id, "status, claim, attempt") == ("completed", 2, 1)
    assert len(ledger.lines("step a 0")) == 1
    claims = await tables.fetch("SELECT position, claim FROM [steps] ORDER BY position")
    assert claims == [(0, 1), (1, 2), (2, 2)]


async def test_two_beats_that_found_it_dead_renew_it_once(
    make_app: MakeApp, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    """A blocked loop hears of both at once. The second was asked under the id that it has no more: renewed again, the
    worker would lose what it claimed under the first new id."""
    app = make_app(Settings(lease=1.0))
    async with app.worker() as worker:
        first, heartbeat, told = worker.id, worker.duties.heartbeat, list[object]()
        tell = heartbeat._tell
        heartbeat._tell = lambda *said: told.append(said) or tell(*said)  # type: ignore[func-returns-value, method-assign]
        await tables.fetch("UPDATE [workers] SET state = 'dead'")
        told.clear()
        until = time.monotonic() + PATIENCE
        while len(told) < 2 and time.monotonic() < until:
            heartbeat.hurry()
            time.sleep(0.01)  # nothing else is done in this loop meanwhile
        await eventually(lambda: worker.id != first)
    assert sum("declared dead" in record.getMessage() for record in caplog.records) == 1
    await app.close()


async def test_a_beat_that_was_asked_before_the_new_id_is_registered_renews_nothing(make_app: MakeApp) -> None:
    """With beats that are hurried and a slow database it would be renewed again and again, and never claim. Also if the
    answer comes only after the new id is registered: what was claimed since would be lost."""
    app = make_app(Settings(lease=60.0))
    pulse = WilfulPulse(await app.store())
    async with app.worker() as worker:
        held, duties = HeldReply(await app.store(), "register"), worker.duties
        duties.beat_answered(BeatAnswer(False), {})
        second = worker.id
        await held.done()
        pulse.dead = True
        pulse.flowing.clear()
        duties.heartbeat.hurry()
        await eventually(lambda: pulse.asked and pulse.asked[-1] == second)
        held.release()
        await eventually(lambda: not duties.claimer.paused)
        count = len(pulse.beats)
        pulse.flowing.set()
        await eventually(lambda: len(pulse.beats) > count)
        pulse.dead = False
        duties.heartbeat.hurry()
        await eventually(lambda: len(pulse.beats) > count + 1)
        assert worker.id == second
    await app.close()


async def test_of_two_new_ids_only_the_last_begins_to_claim(make_app: MakeApp, tables: Tables) -> None:
    """Declared dead once more while the first new id is being registered: what is claimed before the second one is
    registered would be taken by anybody."""
    app = make_app(Settings(lease=60.0))
    async with app.worker() as worker:
        store, duties = await app.store(), worker.duties
        first = HeldReply(store, "register")
        duties.beat_answered(BeatAnswer(False), {})
        await first.done()
        second = HeldReply(store, "register")
        duties.beat_answered(BeatAnswer(False), {})
        await second.done()
        first.release()
        for _ in range(20):
            await asyncio.sleep(0)
        assert (duties.claimer.paused, worker._context.me.registered) == (True, False)
        second.release()
        await eventually(lambda: not duties.claimer.paused)
        assert worker._context.me.registered and worker.id in map(str, await tables.workers())
    await app.close()


async def _has_new_id(tables: Tables, pid: int, before: dict[str, int]) -> bool:
    now = await tables.workers()
    return any(worker not in before and found == pid for worker, found in now.items())


async def test_a_run_that_names_the_worker_without_its_knowledge_is_given_back(
    make_app: MakeApp, tables: Tables, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule 2: a stray, as a lost claim leaves it. No loss, no attempt."""
    app = make_app(SHORT)

    @app.task
    async def count() -> int:
        return calls.hit("count")

    run = await app.start(count, delay=3600)
    async with app.worker() as worker:
        await tables.fetch(
            "UPDATE [runs] SET status = 'running', worker = ?, claim = 1, token = 999, attempt = 1, visible_at = NULL "
            "WHERE id = ?", worker.id, run.id,
        )  # fmt: skip
        assert await run.result(timeout=PATIENCE) == 1
    assert await tables.run(run.id, "claim, attempt, losses") == (2, 1, 0)
    (told,) = (record for record in caplog.records if "given back" in record.getMessage())
    assert told.getMessage() == f"run {run.id}: stored as ours, but not executed here; given back"
    assert getattr(told, "run_id", None) == run.id


@only_postgres
async def test_a_claim_whose_reply_takes_long_is_not_taken_for_a_stray(
    make_app: MakeApp, tables: Tables, calls: Calls
) -> None:
    """Rule 2: the run is on its way into a slot. Given back now, it would be executed twice at once."""
    app = make_app(Settings(lease=LEASE, sweep_interval=0.1, poll_interval=60))

    @app.task
    async def count() -> int:
        return calls.hit("count")

    store = await app.store()
    async with app.worker():
        held = HeldReply(store, "claim")
        run = await app.start(count)
        await held.done()
        await leases_over(tables)
        held.release()
        assert await run.result(timeout=PATIENCE) == 1
    assert await tables.run(run.id, "claim, attempt, losses") == (1, 1, 0)
    assert calls["count"] == 1


async def test_heartbeats_that_fail_are_said_in_the_log(make_app: MakeApp, caplog: pytest.LogCaptureFixture) -> None:
    """The first failure, then that a lease has passed, then that they succeed again: each once."""
    app = make_app(Settings(lease=0.4, heartbeat=0.1, sweep_interval=0.1, poll_interval=0.2))
    pulse = WilfulPulse(await app.store())
    caplog.set_level(logging.INFO, "stepfast")
    async with app.worker():
        pulse.failing = True
        await eventually(lambda: "no heartbeat has succeeded for a whole lease (0.4 s)" in caplog.text)
        refused = pulse.refused
        await eventually(lambda: pulse.refused > refused + 1)
        pulse.failing = False
        await eventually(lambda: "heartbeats succeed again" in caplog.text)
    told = [record.getMessage() for record in caplog.records if "heartbeat" in record.getMessage()]
    assert len(told) == 3
    assert told[0].endswith("a heartbeat failed, and is tried again: DatabaseUnavailable: told to fail")


# -- when to reap ----------------------------------------------------------------------------------------------------


class WilfulPulse:
    """A heartbeat that can be told to fail or to hang."""

    def __init__(self, store: Store) -> None:
        self._make = store.pulse
        self.failing = self.dead = False
        self.refused = 0
        self.asked: list[str] = []
        self.flowing = threading.Event()
        self.flowing.set()
        self.beats: list[float] = []
        store.pulse = self._pulse  # type: ignore[assignment, method-assign]

    def _pulse(self, *args: Any) -> WilfulPulse:
        self._pulse_itself = self._make(*args)
        return self

    def beat(self, worker: str, running: int) -> BeatAnswer:
        if self.failing:
            self.refused += 1
            raise DatabaseUnavailable("told to fail")
        self.asked.append(worker)
        dead = self.dead
        self.flowing.wait()
        answer = BeatAnswer(False) if dead else self._pulse_itself.beat(worker, running)
        self.beats.append(time.monotonic())
        return answer

    def close(self) -> None:
        self._pulse_itself.close()


class Reaps:
    """When a store was asked to reap."""

    def __init__(self, store: Store) -> None:
        self._reap = store.reap
        self.times: list[float] = []
        store.reap = self.reap  # type: ignore[assignment, method-assign]

    async def reap(self, *args: Any) -> Any:
        self.times.append(time.monotonic())
        return await self._reap(*args)


@pytest.fixture
async def dead_worker(make_app: MakeApp, tables: Tables) -> None:
    """A worker long dead, waiting to be found."""
    app = make_app(SHORT)
    await app.migrate()
    await tables.fetch(
        "INSERT INTO [workers] (id, host, pid, workflows, concurrency, lease_ms, state, started_at, beat_at, "
        "expires_at) VALUES (?, 'gone', 1, '{}', 1, 1000, 'live', 0, 0, 1)", "00000000-0000-7000-8000-000000000001",
    )  # fmt: skip


@pytest.mark.enough_on("sqlite")
@pytest.mark.usefixtures("dead_worker")
async def test_a_worker_reaps_only_after_a_lease_of_its_own_beats(make_app: MakeApp) -> None:
    """Rule 3: the first to come back after an outage must not reap everybody."""
    app = make_app(SHORT)
    store = await app.store()
    reaps, pulse = Reaps(store), WilfulPulse(store)
    began = time.monotonic()
    async with app.worker():
        await eventually(lambda: reaps.times)
        assert reaps.times[0] - began >= LEASE
        pulse.failing = True
        await asyncio.sleep(LEASE)  # the length of the outage
        pulse.failing = False
        over, known = time.monotonic(), len(reaps.times)
        await eventually(lambda: len(reaps.times) > known and reaps.times[-1] > over)
        assert next(moment for moment in reaps.times if moment > over) - over >= LEASE


@pytest.mark.enough_on("sqlite")
@pytest.mark.usefixtures("dead_worker")
async def test_a_worker_whose_beat_hangs_does_not_reap(make_app: MakeApp) -> None:
    """Rule 3: no error, but no beat either: its own lease may be over, and so may be everybody's."""
    app = make_app(SHORT)
    store = await app.store()
    reaps, pulse = Reaps(store), WilfulPulse(store)
    async with app.worker() as worker:
        await eventually(lambda: reaps.times)
        pulse.flowing.clear()
        await asyncio.sleep(LEASE * 1.5)  # the length of the silence
        seen, ticks = len(reaps.times), worker.duties.sweeper.ticks
        await eventually(lambda: worker.duties.sweeper.ticks > ticks + 3)
        assert len(reaps.times) == seen
        pulse.flowing.set()
        over = time.monotonic()
        await eventually(lambda: len(reaps.times) > seen)
        assert reaps.times[seen] - over >= LEASE * 0.9


# -- code that blocks the event loop is named in the log by the thread of the heartbeat; and its end is t


QUICK = Settings(blocked_after=1.0)
HERE = Path(__file__).name


class Lines(logging.Handler):
    """What the log says of the event loop; kept in the thread that says it."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.of: list[tuple[object, ...]] = []
        """The ids of the run that each line is about."""
        self.blocked = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "event loop" in record.getMessage():
            self.said.append(record.getMessage())
            self.of.append(tuple(getattr(record, name, None) for name in ("run_id", "workflow", "attempt", "step")))
            self.blocked.set()


@pytest.fixture
def lines() -> Lines:
    return Lines()


def logger_for(lines: Lines) -> logging.Logger:
    logger = logging.getLogger("stepfast.test_heartbeat")
    logger.handlers = [lines]
    return logger


def line_of(function: Callable[..., object], text: str) -> int:
    """The line of a function that holds these words."""
    source, first = inspect.getsourcelines(function)
    return first + next(index for index, line in enumerate(source) if text in line)


@pytest.mark.parametrize("way", ["step", "bounded step", "branch", "body"])
async def test_the_step_and_the_line_are_named(lines: Lines, way: str) -> None:
    app = Stepfast("sqlite://", settings=QUICK, logger=logger_for(lines))

    async def blocking() -> None:
        assert lines.blocked.wait(PATIENCE)  # blocks the loop until it was noticed

    async def branch(ctx: Context) -> None:
        await ctx.step("charge", blocking)

    @app.workflow(name="shop")
    async def work(ctx: Context) -> None:
        if way == "body":
            await blocking()
        elif way == "branch":
            await ctx.gather(ctx.branch(branch), ctx.step("other", lambda: 1))
        else:
            await ctx.options(name="charge", timeout=60 if way == "bounded step" else None).step(blocking)

    run = await app.start(work)
    async with app, app.worker():
        await run.result(timeout=PATIENCE)
        await eventually(lambda: len(lines.said) == 2)
    said, over = lines.said
    assert f"by run {run.id} (shop)" in said
    assert ("step 'charge'" in said) == (way != "body")
    assert lines.of == [(run.id, "shop", 1, None if way == "body" else "charge")] * 2
    assert f"at {HERE}:{line_of(blocking, 'lines.blocked')} in blocking" in said
    assert "moves again" in over


async def test_a_loop_that_moves_is_left_alone(lines: Lines) -> None:
    app = Stepfast("sqlite://", settings=QUICK, logger=logger_for(lines))

    @app.task
    def busy() -> None:
        time.sleep(1.5)  # in a thread, which blocks nobody

    run = await app.start(busy)
    async with app, app.worker():
        await run.result(timeout=PATIENCE)
    assert lines.said == []


async def test_it_is_not_said_again_and_again(lines: Lines) -> None:
    """One long block, and another soon after: one warning."""
    clock = StandingClock()
    context = replace(make_kit(blocked_after=5), logger=logger_for(lines))
    context.me.clock = clock
    watch = LoopWatch(context, threading.get_ident())

    def block() -> None:
        for _ in range(5):
            clock.time += 2
            looking = threading.Thread(target=watch.examine)
            looking.start()
            looking.join()

    watch.examine()
    block()
    await eventually(lambda: len(lines.said) == 2)
    watch.examine()
    block()
    await asyncio.sleep(0)
    assert len(lines.said) == 2
    assert sys._current_frames()
