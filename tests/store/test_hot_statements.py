"""The decisions that are also written in SQL, because they are hot or for callers from SQL, agree with the functions of
model/ (rule 55).

Runs are put into their rows as they stand after random lives; then a claim, the usual flush, or a signal, moves each of
them by its one statement, and each row is what the function makes of it. A third of the rows are dag runs, a third are
steps of dags: for them nothing is different here.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import asyncpg
import pytest
from msgspec.structs import asdict, replace

from stepfast.model.queue_config import choose
from stepfast.model.rate_limiter import WantedRuns
from stepfast.model.records import Claimed, Lane, Transition
from stepfast.model.run_state import READ_COLUMNS, RunState, place_at
from stepfast.model.status import RUN_STATUSES
from stepfast.model.transitions.claim import claim
from stepfast.model.transitions.finish import leave
from stepfast.model.transitions.operator import resume, way_to_cancel
from stepfast.model.transitions.recover import due
from stepfast.model.transitions.signals import wake, way_to_signal
from stepfast.settings import SUSPECT_LOSSES
from stepfast.store.postgres import PostgresStore
from tests.model.walks import live
from tests.store.conftest import SHARED, Stores, only_on
from tests.store.scene import Scene, child_of, new_run, signal, step
from tests.support.databases import in_transaction
from tests.worker.spying import Counted

LANE = Lane("order", "order", 0)
TIMES = (
    "visible_at", "deadline_at", "expires_at", "held_due", "paused_at", "ready_at", "started_at", "completed_at",
)  # fmt: skip
FIXED = {"id", "queue", "workflow", "priority", "child"}
GRAPH = '{"first":[]}'
AHEAD = 3_600_000
"""Of a life's last moment, so that no deadline passes while the test looks."""


def stood(wanted: Callable[[RunState, int], bool], count: int) -> list[tuple[RunState, int]]:
    """Standings out of random lives, always the same ones, no two alike."""
    found: dict[str, tuple[RunState, int]] = {}
    for seed in range(10_000):
        for run, now in live(seed).standings():
            if wanted(run, now):
                found.setdefault(repr({**asdict(run), "place": None}), (run, now))
        if len(found) >= count:
            return list(found.values())[:count]
    raise AssertionError("lives are too much alike")


def with_dags(run: RunState, number: int) -> RunState:
    """The same, of a run of its own, of a dag run, or of a step of one."""
    if number % 3 == 1:
        return replace(run, graph=GRAPH, pending=number % 4, failing=run.undoing)
    if number % 3 == 2:
        return replace(run, graph=GRAPH, dag_id=DAG, dag_step=f"step {number}", met=number % 4, ready_at=run.started_at)
    return run


DAG = "00000000-0000-7000-8000-0000000000da"


async def put_rows(
    scene: Scene, standings: Iterable[tuple[RunState, int]], dags: bool = True, parent: Claimed | None = None
) -> dict[str, RunState]:
    """Runs that stand like this, by their ids; times are counted from that of the database, an hour ahead."""
    put: dict[str, RunState] = {}
    for number, (run, then) in enumerate(standings):
        run = with_dags(run, number) if dags else run
        new = new_run() if parent is None else child_of(parent, number, "order")
        [run_id] = await scene.store.start([new])
        shift = (await scene.info(run_id)).now_ms + AHEAD - then
        moved = {name: None if (at := getattr(run, name)) is None else at + shift for name in TIMES}
        place = None if run.place is None else place_at(then + shift, number)
        there = replace(run, id=run_id, place=place, worker=scene.worker if run.held else None, **moved)
        columns = {name: value for name, value in asdict(there).items() if name in READ_COLUMNS and name not in FIXED}
        names = ", ".join(f"{name} = ?" for name in columns)
        await scene.rows.fetch(f"UPDATE [runs] SET {names} WHERE id = ?", *columns.values(), run_id)
        put[run_id] = there
    return put


async def rows(scene: Scene, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The rows as they are."""
    found = {}
    for run_id in ids:
        names = [name for name in READ_COLUMNS if name != "child"]
        [row] = await scene.rows.fetch(f"SELECT {', '.join(names)} FROM [runs] WHERE id = ?", run_id)
        found[run_id] = {name: _plain(value) for name, value in zip(names, row, strict=True)}
    return found


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | str) else str(value)


def compare(found: dict[str, dict[str, Any]], expected: dict[str, RunState]) -> None:
    for run_id, row in found.items():
        wanted = {name: getattr(expected[run_id], name) for name in row}
        assert row == wanted, {name for name in row if row[name] != wanted[name]}


def is_ready(run: RunState, now: int) -> bool:
    return run.ready and due(run, now) == "no"


@pytest.mark.parametrize("suspect", [False, True], ids=["lane", "suspects"])
async def test_a_claim_does_what_the_function_says(scene: Scene, suspect: bool) -> None:
    wanted = stood(lambda run, now: is_ready(run, now) and (run.losses >= SUSPECT_LOSSES) == suspect, 40)
    put = await put_rows(scene, wanted)
    taken = await scene.suspect(room=(100,)) if suspect else await scene.claim(100, lanes=[LANE])
    assert {run.id for run in taken} == put.keys()
    found = await rows(scene, put)
    compare(found, {i: claim(run, scene.worker, "v1", found[i]["started_at"]) for i, run in put.items()})


async def test_a_claim_from_a_limited_queue_does_what_the_function_says(scene: Scene) -> None:
    put = await put_rows(scene, stood(lambda run, now: is_ready(run, now) and run.losses < SUSPECT_LOSSES, 40))
    await scene.store.change_queue("order", lambda said, now: choose(said, {"concurrency": 100}, now))
    want = WantedRuns("order", [(LANE, 0)], {"order": "v1"}, 100)
    taken = (await scene.store.claim_limited(scene.worker, 1, want)).runs
    assert {run.id for run in taken} == put.keys()
    found = await rows(scene, put)
    compare(found, {i: claim(run, scene.worker, "v1", found[i]["started_at"]) for i, run in put.items()})


async def test_a_claim_over_many_lanes_does_what_the_function_says(scene: Scene) -> None:
    put = await put_rows(scene, stood(lambda run, now: is_ready(run, now) and run.losses < SUSPECT_LOSSES, 40))
    taken = await scene.claim(100, lanes=[LANE, Lane("nobody", "mail", 0)])
    assert {run.id for run in taken} == put.keys()
    found = await rows(scene, put)
    compare(found, {i: claim(run, scene.worker, "v1", found[i]["started_at"]) for i, run in put.items()})


@pytest.mark.parametrize("child", [False, True], ids=["alone", "children"])
@pytest.mark.parametrize("usual", [True, False], ids=["usual", "with a step to undo"])
async def test_the_usual_end_of_a_run_does_what_the_function_says(scene: Scene, usual: bool, child: bool) -> None:
    """The same by the one statement of the usual freight and by the flow of all others."""
    parent = await scene.running(workflow="report") if child else None
    put = await put_rows(scene, stood(lambda run, now: run.held and not run.undoing, 40), parent=parent)
    moves = {i: Transition(i, run.claim, "completed", output='"done"', child=child) for i, run in put.items()}
    entries: list[Any] = list(moves.values())
    if not usual:
        other = await scene.running(workflow="mail")
        entries.append(step(other, undo="refund"))
    answer = await scene.flush(*entries)
    assert not answer.lost
    assert answer.undelivered == child
    found = await rows(scene, put)
    compare(found, {i: leave(run, moves[i], found[i]["completed_at"]) for i, run in put.items()})
    columns = "r.id, m.kind, m.name, m.value, m.error, m.delivered"
    told = await scene.rows.fetch(f"SELECT {columns} FROM [mailbox] m JOIN [runs] r ON r.reply_to = m.id")
    letter = ("child", "completed", '"done"', None, False)
    assert {str(run_id): tuple(rest) for run_id, *rest in told} == (dict.fromkeys(put, letter) if child else {})


def takes_signals(run: RunState, now: int) -> bool:
    return not run.ended and due(run, now) == "no"


@pytest.mark.parametrize("again", [False, True], ids=["usual", "again"])
async def test_a_signal_does_what_the_function_says(scene: Scene, again: bool) -> None:
    """The same by the one statement of the usual case and by the flow, which whoever sends again takes."""
    put = await put_rows(scene, stood(takes_signals, 60), dags=False)
    for run_id, run in put.items():
        answer = await scene.store.send(signal(run_id), again)
        assert (answer.done, answer.status, answer.reason, answer.running) == (True, run.status, run.reason, run.held)
        assert answer.lane == (LANE if run.status == "waiting" else None)
    found = await rows(scene, put)
    places = {i: (row["place"] or 0) for i, row in found.items()}
    compare(found, {i: wake(run, 1, 0, places[i] // 1000, places[i] % 1000) for i, run in put.items()})
    assert await scene.rows.fetch("SELECT count(*) FROM [mailbox]") == [(len(put),)]


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)  # whose round trips are the subject
async def test_a_signal_is_one_statement_unless_its_run_is_paused(scene: Scene) -> None:
    assert isinstance(scene.store, PostgresStore)
    flows = Counted(scene.store._driver, "run")
    for run_id, run in (await put_rows(scene, stood(takes_signals, 30), dags=False)).items():
        flows.calls.clear()
        await scene.store.send(signal(run_id))
        assert len(flows) == (run.status == "paused")


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)  # whose round trips are the subject
async def test_the_ends_of_children_are_one_statement(scene: Scene) -> None:
    assert isinstance(scene.store, PostgresStore)
    _, children = await scene.family(3)
    others = Counted(scene.store._flusher, "_flush_mixed")
    ends = [Transition(run.id, run.claim, "completed", output="1", child=True) for run in children]
    assert (await scene.flush(*ends)).undelivered
    assert len(others) == 0


# -- what SQL callers are refused, by functions of the database ------------------------------------------------------


async def refused(scene: Scene, call: str, run_id: str, *more: str) -> bool:
    """Whether a function of the database refuses this run; if not, it leaves mail, and delivery decides."""
    try:
        await scene.rows.fetch(f"SELECT stepfast.{call}(?::uuid{', ?' * len(more)})", run_id, *more)
    except asyncpg.ObjectNotInPrerequisiteStateError:
        return True
    return False


def stand_alone(run: RunState, now: int) -> bool:
    return run.dag_id is None


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)  # which alone has such functions
async def test_a_cancel_by_sql_is_refused_where_the_function_refuses_it(scene: Scene) -> None:
    """One that was cancelled already stays so, and nobody is told otherwise."""
    refusals = list[bool]()
    for run_id, run in (await put_rows(scene, stood(stand_alone, 150), dags=False)).items():
        over = way_to_cancel(run) == "refused" and "cancelled" not in (run.status, run.reason)
        assert await refused(scene, "cancel", run_id) == over, run
        refusals.append(over)
    assert {True, False} == set(refusals)


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
async def test_a_cancel_by_sql_of_a_dag_run_that_fails_is_refused_as_an_operator_s(scene: Scene) -> None:
    """It goes on to fail. One that a worker holds is marked; one that is being cancelled stays so."""
    refusals = list[bool]()
    found = stood(lambda run, now: stand_alone(run, now) and not (run.ended or run.undoing), 60)
    dags = [(replace(run, graph=GRAPH, pending=1, failing=True), now) for run, now in found]
    for run_id, run in (await put_rows(scene, dags, dags=False)).items():
        over = not run.held and run.reason != "cancelled"
        assert await refused(scene, "cancel", run_id) == over, run
        assert (await scene.store.cancel(run_id)).done != over, run
        refusals.append(over)
    assert {True, False} == set(refusals)


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
async def test_a_resume_by_sql_is_refused_where_the_function_changes_nothing(scene: Scene) -> None:
    refusals = list[bool]()
    for run_id, run in (await put_rows(scene, stood(stand_alone, 150), dags=False)).items():
        idle = resume(run, (await scene.info(run_id)).now_ms) is None
        assert await refused(scene, "resume", run_id) == idle, run
        refusals.append(idle)
    assert {True, False} == set(refusals)


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
async def test_a_signal_by_sql_is_refused_where_the_function_refuses_it(scene: Scene) -> None:
    """What is for a run that went on as another is left with it, to be taken there."""
    for run_id, run in (await ended_or_not(scene)).items():
        way = way_to_signal(run.status, run.reason)
        assert await refused(scene, "signal", run_id, "approved") == (way == "refused"), run
        assert await letters(scene, run_id) == (way != "refused")


@pytest.mark.parametrize("store_url", ["postgres"], indirect=True)
async def test_a_signal_by_sql_to_a_dag_run_is_refused_where_the_function_refuses_its_step(scene: Scene) -> None:
    for dag_id, dag, step_id, of_it in await dags_and_steps(scene):
        takes = way_to_signal(dag.status) == way_to_signal(of_it.status) == "take"
        assert await refused(scene, "signal", dag_id, "first") != takes, (dag, of_it)
        assert (await letters(scene, dag_id), await letters(scene, step_id)) == (0, takes)


# -- signals within a caller's transaction ---------------------------------------------------------------------------


async def ended_or_not(scene: Scene) -> dict[str, RunState]:
    """Runs in every status, and some that went on as others, of which nothing else is known."""
    found = stood(lambda run, now: True, 150)
    over = [(run, now) for run, now in found if run.status == "completed"][:5]
    put = await put_rows(scene, [*found, *((replace(run, reason="continued"), now) for run, now in over)], dags=False)
    for run_id, run in put.items():
        if run.reason == "continued":
            await scene.rows.set(run_id, "output", None)
    ways = {(run.status, way_to_signal(run.status, run.reason)) for run in put.values()}
    assert {way for _, way in ways} == {"take", "forward", "refused"}
    assert {run_status for run_status, _ in ways} == set(RUN_STATUSES)
    return put


async def dags_and_steps(scene: Scene) -> list[tuple[str, RunState, str, RunState]]:
    """Dag runs in every status, each with a step in every status; not all of these come to be."""
    sorts = {run.status: (run, now) for run, now in stood(lambda run, now: not run.held, 150)}
    sorts["skipped"] = (replace(sorts["completed"][0], status="skipped"), sorts["completed"][1])
    found = []
    for dag, now in [each for name, each in sorts.items() if name != "skipped"]:
        for of_it in sorts.values():
            [(dag_id, one)] = (await put_rows(scene, [(replace(dag, graph=GRAPH), now)], False)).items()
            within = replace(of_it[0], graph=GRAPH, dag_id=dag_id, dag_step="first")
            [(step_id, other)] = (await put_rows(scene, [(within, of_it[1])], False)).items()
            found.append((dag_id, one, step_id, other))
    return found


async def letters(scene: Scene, run_id: str) -> int:
    """How many signals lie with a run, to be delivered."""
    [(count,)] = await scene.rows.fetch("SELECT count(*) FROM [mailbox] WHERE run_id = ? AND NOT delivered", run_id)
    return int(count)


@contextlib.asynccontextmanager
async def callers_own(stores: Stores) -> AsyncIterator[Any]:
    """A connection of a caller's."""
    if stores.url.kind == "sqlite":
        assert stores.url.path is not None
        with contextlib.closing(sqlite3.connect(stores.url.path, timeout=30, isolation_level=None)) as connection:
            yield connection
    elif stores.url.kind == "mysql":
        async with in_transaction(stores.url.text) as of_mariadb:
            await of_mariadb.autocommit(True)
            yield of_mariadb
    else:
        theirs = await asyncpg.connect(stores.url.text)
        yield theirs
        await theirs.close()


@only_on(*SHARED)
async def test_a_signal_within_a_transaction_is_taken_where_the_function_says(scene: Scene, stores: Stores) -> None:
    async with callers_own(stores) as connection:
        for run_id, run in (await ended_or_not(scene)).items():
            answer = await scene.store.send_within(connection, signal(run_id))
            takes = way_to_signal(run.status, run.reason) == "take"
            assert (answer.done, answer.status, answer.reason) == (takes, run.status, run.reason), run
            assert await letters(scene, run_id) == takes


@only_on(*SHARED)
async def test_a_signal_within_a_transaction_to_a_dag_run_is_taken_where_the_function_says_so_of_its_step(
    scene: Scene, stores: Stores
) -> None:
    async with callers_own(stores) as connection:
        for dag_id, dag, step_id, of_it in await dags_and_steps(scene):
            answer = await scene.store.send_within(connection, signal(dag_id, "first"))
            goes_on, takes = way_to_signal(dag.status) == "take", way_to_signal(of_it.status) == "take"
            reason = "no_such_step" if goes_on and not takes else dag.reason
            assert (answer.done, answer.status, answer.reason) == (goes_on and takes, dag.status, reason), (dag, of_it)
            assert (await letters(scene, dag_id), await letters(scene, step_id)) == (0, goes_on and takes)


async def test_a_signal_that_is_sent_twice_is_there_once_and_counts_once(scene: Scene, run_id: str) -> None:
    mail = signal(run_id)
    answers = await asyncio.gather(*(scene.store.send(mail) for _ in range(8)))
    assert all(answer.done for answer in answers)
    assert await scene.rows.get(run_id, "wakes") == 1
    assert await scene.rows.fetch("SELECT count(*) FROM [mailbox]") == [(1,)]


async def test_what_is_decided_is_what_is_written(scene: Scene) -> None:
    """A row read, decided on and written back by a wish that changes nothing but one column is the same otherwise."""
    put = await put_rows(scene, stood(lambda run, now: run.held and run.asked is None and not run.undoing, 20), False)
    for run_id in put:
        assert (await scene.store.pause(run_id)).done
    compare(await rows(scene, put), {i: replace(run, asked="pause") for i, run in put.items()})


async def test_a_completed_run_has_no_losses(scene: Scene) -> None:
    """Whoever writes the end: the usual statement, or the flow, as for a child."""
    for child in (False, True):
        run_id = await scene.start()
        await scene.lose(run_id)
        [run] = await scene.claim()
        assert run.losses == 1
        await scene.flush(Transition(run.id, run.claim, "completed", output="1", child=child))
        assert (await scene.info(run_id)).losses == 0
