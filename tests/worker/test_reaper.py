"""The reaper: what dead workers held is ready again by itself, counted as a loss and not as an attempt."""

from __future__ import annotations

from collections.abc import Callable

from stepfast import Stepfast
from stepfast.model.records import Beat
from stepfast.settings import Settings
from stepfast.worker.reaper import SilenceTracker
from tests.support.engine import PATIENCE, eventually, failure
from tests.support.processes import Ledger
from tests.worker.conftest import MakeProcess
from tests.worker.tables import Tables

LEASE = 3.0
SHORT = Settings(lease=LEASE, heartbeat=0.4, sweep_interval=0.1, poll_interval=0.2, max_losses=2)
PROCESS = {"lease": LEASE, "heartbeat": 0.4, "sweep_interval": 0.1, "poll_interval": 0.2, "max_losses": 2}


async def test_the_runs_of_a_killed_worker_go_on_elsewhere(
    program: Callable[..., Stepfast], make_process: MakeProcess, ledger: Ledger, tables: Tables
) -> None:
    """No operator, no attempt used (there is only one), one loss; and those of the living stay."""
    app = program(SHORT)
    stays = await app.start(app.workflows["hold"], "stays")
    lost = [await app.start(app.workflows["hold"], f"lost {n}", queue="doomed") for n in range(3)]
    async with make_process(PROCESS, queues=["hold"]) as living, make_process(PROCESS, queues=["doomed"]) as dead:
        await ledger.seen("hold stays")
        await ledger.seen("hold lost", times=3)
        dead.kill()
        async with app.worker(queues=["doomed"]) as worker:
            await ledger.seen("hold lost", times=6)
            for run in lost:
                assert await tables.run(run.id, "status, attempt, losses, claim") == ("running", 1, 1, 2)
            assert await tables.run(stays.id, "attempt, losses, claim") == (1, 0, 1)
            for gate in ("stays", "lost 0", "lost 1", "lost 2"):
                ledger.open(gate)
            for run in (stays, *lost):
                await run.result(timeout=PATIENCE)
            assert living.pid in (await tables.workers()).values()
            assert len(await tables.workers()) == 2, worker.id


async def test_a_worker_that_seldom_polls_reaps_in_time(
    program: Callable[..., Stepfast], make_process: MakeProcess, ledger: Ledger
) -> None:
    """Within lease and one sweep, however long the poll."""
    app = program(Settings(lease=LEASE, sweep_interval=0.1, poll_interval=60))
    run = await app.start(app.workflows["hold"], "gate")
    async with make_process(PROCESS) as dead:
        await ledger.seen("hold")
        async with app.worker():
            dead.kill()
            ledger.open("gate")
            assert await run.result(timeout=PATIENCE) == "gate"


async def test_a_run_that_kills_its_workers_is_a_dead_letter(
    program: Callable[..., Stepfast], make_process: MakeProcess, ledger: Ledger, tables: Tables
) -> None:
    """Rule 5: bounded, listed, and an operator can try again after the fix."""
    app = program(SHORT)
    run = await app.start(app.workflows["poison"], {"gate": "fixed"})
    async with app.worker(queues=["nothing here"]):
        for times in (1, 2):
            victim = make_process(PROCESS).launch()
            await ledger.seen("poison", times=times)
            assert await victim.ended() == -9
            await eventually(lambda times=times: _losses(tables, run.id, times))  # type: ignore[misc]
        await failure(run, "workers_lost")
        [letter] = await app.runs(status="failed", reason="workers_lost")
        assert (letter.id, letter.attempt, letter.losses) == (run.id, 1, 2)
        ledger.open("fixed")
        await run.retry()
        async with make_process(PROCESS):
            assert await run.result(timeout=PATIENCE) == "survived"


async def test_losses_count_since_the_last_new_record(
    program: Callable[..., Stepfast], make_process: MakeProcess, ledger: Ledger, tables: Tables
) -> None:
    """Rule 5: a run that gets on between two losses starts counting anew, so that it survives daily deploys."""
    app = program(SHORT)
    plan = {"name": "a", "n": 4, "hold": 1, "gate": "first"}
    run = await app.start(app.workflows["chain"], plan)
    async with app.worker(queues=["nothing here"]):
        async with make_process(PROCESS) as victim:
            await ledger.seen("step a 1")
            victim.kill()  # it had recorded step 0
        await eventually(lambda: _losses(tables, run.id, 1))
        await tables.fetch("UPDATE [runs] SET losses = 1 WHERE id = ?", run.id)
        ledger.open("first")
        await tables.fetch(
            "UPDATE [runs] SET input = ? WHERE id = ?", '{"name": "a", "n": 4, "hold": 2, "gate": "second"}', run.id
        )
        async with make_process(PROCESS) as victim:
            await ledger.seen("step a 2")
            victim.kill()  # it had recorded step 1
        await eventually(lambda: _ready(tables, run.id))
        assert await tables.run(run.id, "losses, attempt") == (1, 1)
        ledger.open("second")
        async with make_process(PROCESS):
            assert await run.result(timeout=PATIENCE) == [0, 1, 2, 3]
    assert len(ledger.lines("step a 0")) == 1


async def _losses(tables: Tables, run_id: str, count: int) -> bool:
    return (await tables.run(run_id, "losses, worker")) == (count, None)


async def _ready(tables: Tables, run_id: str) -> bool:
    return (await tables.run(run_id, "place IS NOT NULL"))[0] in (True, 1)


async def test_a_frozen_cluster_does_not_bury_itself(
    program: Callable[..., Stepfast], make_process: MakeProcess, ledger: Ledger, tables: Tables
) -> None:
    """Rule 3: all workers of a machine stand still for longer than their leases. When they go on, none may take the
    others for dead before these had time to speak."""
    app = program(SHORT)
    runs = [await app.start(app.workflows["hold"], f"gate {n}") for n in range(2)]
    async with make_process(PROCESS, concurrency=1) as one, make_process(PROCESS, concurrency=1) as two:
        await ledger.seen("hold", times=2)
        await eventually(lambda: _both_may_reap(tables))
        for process in (one, two):
            process.freeze()
        await eventually(lambda: _all_silent(tables))
        for process in (one, two):
            process.thaw()
        for number in range(2):
            ledger.open(f"gate {number}")
        for run in runs:
            await run.result(timeout=PATIENCE)
    for run in runs:
        # Frozen in the middle of a beat, a worker finds that its lease is over, and gives the run back itself.
        assert await tables.run(run.id, "losses") == (0,)


async def _both_may_reap(tables: Tables) -> bool:
    """Each has beaten for a whole lease."""
    heard = f"SELECT count(*) FROM [workers] WHERE beat_at - started_at >= {LEASE * 1000:.0f}"
    return bool(await tables.one(heard) == 2)


async def _all_silent(tables: Tables) -> bool:
    now = "(julianday('now') - 2440587.5) * 86400000"
    if tables._url.kind != "sqlite":
        now = "extract(epoch FROM clock_timestamp()) * 1000"
    return bool(await tables.one(f"SELECT count(*) FROM [workers] WHERE expires_at < {now}") == 2)


# -- silence counts only if it was seen: by the watcher's own clock, for about a lease


def test_a_worker_is_silent_when_no_beat_was_seen_for_its_lease_less_a_sweep() -> None:
    vigil = SilenceTracker(sweep=5)
    for now in range(0, 30, 5):
        vigil.saw([Beat("dead", 1000, 30_000), Beat("slow", 1000 + now * 100, 30_000)], now)
        assert vigil.silent(now) == (["dead"] if now >= 25 else [])


def test_what_the_rows_say_of_the_past_does_not_count() -> None:
    """However old its last beat is by the database's clock: that may have stepped."""
    vigil = SilenceTracker(sweep=5)
    vigil.saw([Beat("stepped over", -3_600_000, 30_000)], 100)
    assert vigil.silent(100) == vigil.silent(120) == []
    vigil.saw([Beat("stepped over", 50, 30_000)], 120)
    assert vigil.silent(144) == []
    assert vigil.silent(145) == ["stepped over"]


def test_each_worker_has_its_own_lease_and_rare_sweeps_leave_time_for_two_beats() -> None:
    vigil = SilenceTracker(sweep=20)
    vigil.saw([Beat("short", 1, 3_000), Beat("long", 1, 60_000)], 0)
    assert vigil.silent(1.9) == []
    assert vigil.silent(2) == ["short"]
    assert vigil.silent(40) == ["short", "long"]


def test_whoever_has_left_is_forgotten() -> None:
    vigil = SilenceTracker(sweep=1)
    vigil.saw([Beat("one", 1, 3_000)], 0)
    vigil.saw([], 10)
    vigil.saw([Beat("one", 1, 3_000)], 20)
    assert vigil.silent(20) == []
