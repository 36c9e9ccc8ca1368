"""The stage on which store tests play: a store, direct access to its rows, and short words for the usual moves.

Times are set, never waited for: ``rows.shift(run, "visible_at", -60_000)`` makes a minute pass.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg

from stepfast.model.ids import new_id
from stepfast.model.records import (
    Batch,
    BeatAnswer,
    Claimed,
    Entry,
    FailedTry,
    FlushAnswer,
    Lane,
    Look,
    Mail,
    Mailbox,
    NewRun,
    Parent,
    RunShape,
    StepDone,
    StepRunning,
    StepWith,
    Transition,
    ValueSet,
    WorkerInfo,
)
from stepfast.model.rows import RunRow
from stepfast.model.urls import parse_url
from stepfast.settings import Settings
from stepfast.store import Store
from stepfast.store.answers import NOTHING, Delivery
from stepfast.store.mysql.connections import Connector
from stepfast.store.mysql.store import MysqlStore
from stepfast.store.mysql.transactions import run
from stepfast.store.sqlite import SqliteStore

WORKFLOWS = ("order", "mail", "report")
"""The workflows that the workers of these tests know."""
VERSIONS = dict.fromkeys(WORKFLOWS, "v1")
MINUTE = 60_000
DAY = 24 * 60 * MINUTE


class Rows:
    """The tables themselves. ``[runs]`` stands for the table's full name, ``?`` for a value, in every dialect."""

    def __init__(self, store: Store, namespace: str = "stepfast", url: str = "") -> None:
        self._store = store
        self._namespace = namespace
        self._url = url
        self._connection: Any = None

    async def fetch(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        if isinstance(self._store, SqliteStore):
            text = re.sub(r"\[(\w+)\]", rf"{self._namespace}_\1", sql)
            assert self._store._writer is not None
            return await self._store._writer.do(lambda database: database.execute(text, values).fetchall())
        if isinstance(self._store, MysqlStore):
            return await self._fetch_mysql(sql, values)
        if self._connection is None:
            self._connection = await asyncpg.connect(self._url)
        numbers = itertools.count(1)
        text = re.sub(r"\?", lambda _: f"${next(numbers)}", re.sub(r"\[(\w+)\]", rf'"{self._namespace}".\1', sql))
        return [tuple(row) for row in await self._connection.fetch(text, *values)]

    async def _fetch_mysql(self, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        if self._connection is None:
            self._connection = await Connector(parse_url(self._url), Settings()).connect()
        text = re.sub(r"\b(key|row)\b(?!`)", r"`\1`", re.sub(r"\[(\w+)\]", rf"{self._namespace}_\1", sql))
        return await run(self._connection, text.replace("?", "%s"), values or None)

    async def set(self, run_id: str, column: str, value: Any) -> None:
        await self.fetch(f"UPDATE [runs] SET {column} = ? WHERE id = ?", value, run_id)

    async def get(self, run_id: str, column: str) -> Any:
        [(value,)] = await self.fetch(f"SELECT {column} FROM [runs] WHERE id = ?", run_id)
        return value

    async def shift(self, run_id: str, column: str, by_ms: int) -> None:
        """Move a time of a run; by a negative span, into the past."""
        await self.fetch(f"UPDATE [runs] SET {column} = {column} + ? WHERE id = ?", by_ms, run_id)

    async def make_due(self, run_id: str) -> None:
        """Let the time a run sleeps until have come a minute ago; its deadline, if that is its timer, too. By the row
        itself: a dag run is shown with the timers of its steps."""
        row, timer = await self._store.run(run_id), await self.get(run_id, "visible_at")
        assert row is not None and timer is not None, "nothing it could be due by"
        columns = ["visible_at", "deadline_at"] if row.deadline_at == timer else ["visible_at"]
        changes = ", ".join(f"{column} = ?" for column in columns)  # at once: a worker may look at any moment
        await self.fetch(f"UPDATE [runs] SET {changes} WHERE id = ?", *[row.now_ms - MINUTE] * len(columns), run_id)

    async def silence(self, worker: str) -> None:
        """Let a worker's lease have run out a minute ago."""
        await self.fetch("UPDATE [workers] SET expires_at = beat_at - ? WHERE id = ?", MINUTE, worker)

    async def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Everything that a journal entry can change, for seeing that nothing was."""
        tables = ("runs", "steps", "tries", "progress", "run_tags", "mailbox", "run_values", "questions", "callbacks",
                  "streams", "stream_sources", "stream_items")  # fmt: skip
        return {table: sorted(await self.fetch(f"SELECT * FROM [{table}]"), key=repr) for table in tables}

    async def close(self) -> None:
        if self._connection is not None:
            closed = self._connection.close()
            await (closed or asyncio.sleep(0))


class Scene:
    """One worker on one store; others can be added."""

    def __init__(self, store: Store, rows: Rows) -> None:
        self.store = store
        self.rows = rows
        self.worker = ""
        self._tokens = itertools.count(1)
        self._moments = itertools.count(1)

    async def add_worker(self, **changes: Any) -> str:
        worker = WorkerInfo(new_id(), "here", 1, None, VERSIONS, concurrency=10, lease_ms=30_000)
        for name, value in changes.items():
            setattr(worker, name, value)
        await self.store.register(worker)
        return worker.id

    async def start(self, workflow: str = "order", *, key: str | None = None, input: str = "{}", **shape: Any) -> str:
        [run_id] = await self.store.start([new_run(workflow, key=key, input=input, **shape)])
        return run_id

    async def start_many(self, count: int, workflow: str = "order", **shape: Any) -> list[str]:
        return await self.store.start([new_run(workflow, **shape) for _ in range(count)])

    async def lanes(self, workflows: Sequence[str] = WORKFLOWS) -> list[Lane]:
        return (await self.store.tick(self.worker, workflows, True)).lanes

    async def claim(
        self,
        limit: int = 10,
        *,
        worker: str | None = None,
        token: int | None = None,
        lanes: Sequence[Lane] | None = None,
        version: str = "v1",
        remembered: Mapping[str, int] = NOTHING,
    ) -> list[Claimed]:
        """What is ready, over all lanes there are."""
        lanes = await self.lanes() if lanes is None else lanes
        marked = [(lane, 0) for lane in lanes]
        versions = dict.fromkeys(WORKFLOWS, version)
        token = next(self._tokens) if token is None else token
        if not marked:
            return []
        return await self.store.claim(worker or self.worker, token, marked, versions, limit, remembered)

    async def suspect(
        self,
        *,
        worker: str | None = None,
        token: int | None = None,
        workflows: Sequence[str] = WORKFLOWS,
        queues: Sequence[str] | None = None,
        room: Sequence[int] = (1,),
    ) -> list[Claimed]:
        token = next(self._tokens) if token is None else token
        versions = dict.fromkeys(workflows, "v1")
        return await self.store.claim_suspects(worker or self.worker, token, versions, queues, room)

    async def running(self, *, worker: str | None = None, **start: Any) -> Claimed:
        """A run just started and claimed."""
        run_id = await self.start(**start)
        [claimed] = await self.claim(worker=worker)
        assert claimed.id == run_id, "another run was ready too"
        return claimed

    async def again(self, run: Claimed) -> Claimed:
        """Given back and claimed once more: the next claim number, on the same worker."""
        await self.store.give_back(self.worker, [(run.id, run.claim)])
        [claimed] = await self.claim()
        return claimed

    async def flush(self, *entries: Entry, worker: str | None = None) -> FlushAnswer:
        batch = Batch()
        for entry in entries:
            batch.add(entry)
        return await self.store.flush(worker or self.worker, batch)

    async def flush_through(self, *entries: Entry) -> FlushAnswer:
        """As the journal does it: what a locked row kept out rides in the next flush."""
        for _ in range(1000):
            answer = await self.flush(*entries)
            if not answer.busy:
                return answer
        raise AssertionError("the rows stay locked")

    async def family(self, count: int = 1, **shape: Any) -> tuple[Claimed, list[Claimed]]:
        """A parent just claimed, and children it has started, claimed too."""
        parent = await self.running()
        await self.flush(joint(parent, 0, starts=[child_of(parent, n, **shape) for n in range(count)]))
        children = await self.claim(count)
        assert len(children) == count
        return parent, children

    async def undoing(self, **start: Any) -> Claimed:
        """A run that failed after a step which can be undone: in line to be undone."""
        run = await self.running(**start)
        await self.flush(step(run, 0, undo="refund"), undo(run))
        return run

    async def mailbox(self, run_id: str) -> Mailbox:
        return (await self.store.mail([Look(run_id)]))[run_id]

    async def post(self, mail: Mail) -> None:
        """Mail that was only inserted, as from within a caller's transaction; each later than the one before."""
        await self.rows.fetch(
            "INSERT INTO [mailbox] (run_id, id, kind, name, value, format, sent_at, delivered) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, false)",
            mail.run_id, mail.id, mail.kind, mail.name, mail.value, mail.format, next(self._moments),
        )  # fmt: skip

    async def deliver(self, limit: int = 100) -> Delivery:
        """Until there is nothing left to deliver, as cancellations go down from parents to children."""
        lanes: set[Lane] = set()
        ended = running = False
        moved = 0
        for _ in range(1000):
            delivery = await self.store.deliver(limit)
            lanes |= delivery.lanes
            ended, running, moved = ended or delivery.ended, running or delivery.running, moved + delivery.moved
            if not delivery.moved:
                return Delivery(lanes, ended, running, moved)
        raise AssertionError("delivering has no end")

    async def lose(self, run_id: str, max_losses: int = 5) -> None:
        """A worker claims the run and dies with it."""
        victim = await self.add_worker()
        lanes = await self.lanes()
        held = await self.claim(worker=victim, lanes=lanes)
        if not held:
            held = await self.suspect(worker=victim)
        assert [run.id for run in held] == [run_id], "the run to be lost was not the only one"
        await self.bury(victim, max_losses)

    async def bury(self, worker: str, max_losses: int = 5) -> None:
        await self.rows.silence(worker)
        await self.store.reap(self.worker, 100, max_losses)

    async def info(self, run_id: str) -> RunRow:
        row = await self.store.run(run_id)
        assert row is not None
        return row

    def beat(self, worker: str | None = None, running: int = 0) -> BeatAnswer:
        """Called in a thread (``asyncio.to_thread``): heartbeats are synchronous."""
        pulse = self.store.pulse()
        try:
            return pulse.beat(worker or self.worker, running)
        finally:
            pulse.close()


def new_run(workflow: str = "order", *, key: str | None = None, input: str = "{}", **shape: Any) -> NewRun:
    values = {"workflow": workflow, "version": "v1", "queue": workflow} | shape
    return NewRun(new_id(), RunShape(**values), input, key)


def child_of(parent: Claimed, position: int = 0, workflow: str = "mail", *, branch: str = "", **shape: Any) -> NewRun:
    """A child to be started, which tells its parent of its end under an id of that."""
    child = new_run(workflow, **shape)
    child.parent = Parent(parent.id, branch, position, new_id())
    return child


def signal(run_id: str, name: str = "approved", value: str | None = "true", **changes: Any) -> Mail:
    return Mail(run_id, **({"id": new_id(), "kind": "signal", "name": name, "value": value} | changes))


def step(run: Claimed, position: int = 0, output: str | None = "1", *, branch: str = "", **changes: Any) -> StepDone:
    """The outcome of a step of a run, under the claim it is held by."""
    values: dict[str, Any] = {
        "run_id": run.id, "claim": run.claim, "branch": branch, "position": position, "seq": position,
        "name": f"step {position}", "kind": "step", "status": "completed", "output": output, "error": None,
        "arguments": None, "attempts": 1, "duration_ms": 0, "line": None,
    }  # fmt: skip
    return StepDone(**(values | changes))


def opened(run: Claimed, position: int = 0, output: str | None = "1", **changes: Any) -> StepDone:
    """What was decided when a step began, its outcome still to come."""
    return step(run, position, output, **({"status": "waiting", "kind": "sleep"} | changes))


def joint(
    run: Claimed,
    position: int = 0,
    output: str | None = "1",
    *,
    takes: Sequence[str] = (),
    starts: Sequence[NewRun] = (),
    **changes: Any,
) -> StepWith:
    """A record together with the mail it takes and the children it starts."""
    return StepWith(step(run, position, output, **changes), list(takes), list(starts))


def value(run: Claimed, key: str, text: str, **changes: Any) -> ValueSet:
    return ValueSet(run.id, run.claim, key, text, **changes)


def failed_try(run: Claimed, position: int = 0, number: int = 1, **changes: Any) -> FailedTry:
    values: dict[str, Any] = {
        "run_id": run.id, "claim": run.claim, "branch": "", "position": position, "attempt": run.attempt,
        "number": number, "name": f"step {position}", "error": '{"type":"ValueError","message":"no"}',
        "arguments": None, "duration_ms": 0,
    }  # fmt: skip
    return FailedTry(**(values | changes))


def under_way(run: Claimed, position: int = 0, detail: str | None = None, **changes: Any) -> StepRunning:
    values: dict[str, Any] = {
        "run_id": run.id, "claim": run.claim, "branch": "", "position": position, "name": f"step {position}",
        "detail": detail, "data": None, "since_ms": 0,
    }  # fmt: skip
    return StepRunning(**(values | changes))


def move(run: Claimed, status: str, **changes: Any) -> Transition:
    return Transition(run.id, run.claim, status, **changes)


def completed(run: Claimed, output: str | None = '"done"') -> Transition:
    return move(run, "completed", output=output)


def failed(run: Claimed, **changes: Any) -> Transition:
    return move(run, "failed", **({"reason": "code", "error": '{"type":"ValueError"}'} | changes))


def retried(run: Claimed, delay_ms: int = 0, **changes: Any) -> Transition:
    """A failed attempt, to be followed by another."""
    return move(run, "queued", delay_ms=delay_ms, next_attempt=True, error='{"type":"ValueError"}', **changes)


def waiting(run: Claimed, delay_ms: int | None = MINUTE, **changes: Any) -> Transition:
    return move(run, "waiting", delay_ms=delay_ms, **({"waiting_for": "time", "wakes": run.wakes} | changes))


def undo(run: Claimed, **changes: Any) -> Transition:
    """What is completed is to be undone, because the run failed."""
    return move(run, "compensating", **({"reason": "code", "error": '{"type":"ValueError"}'} | changes))
