"""What every store does alike: it names a statement or a flow, and makes values of what comes back.

A database adds how a question is asked (``_fetch``), and how a flow is driven: for whoever calls (``_drive``), or over
the connection of the sweeper (``_sweep``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec

from ..model.bulk_actions import Granted
from ..model.names import read_tags
from ..model.queue_config import Decision, Gate
from ..model.rate_limiter import Usage
from ..model.records import Answer, Lane, Mail, StepRecord, StepRunning, WorkerInfo
from ..model.remote_steps import RemoteStep, Result, Task
from ..model.rows import (
    NO_CALL,
    ActivityRow,
    CallKey,
    DagStepRow,
    Definition,
    ExecutorRow,
    Outcome,
    ProgressRow,
    QueueDepth,
    RunRow,
)
from ..model.stored import read_json
from ..model.transitions.operator import NewTime
from ..settings import Settings
from .dag_status import Shown, page, show
from .flows import limits, operating, remote_steps, signals, sweep
from .flows.base import Flow, Rows, T, ask, put
from .sql import OLDEST
from .store import (
    BaseAudit,
    BaseCensus,
    BaseDebounces,
    BaseSchedules,
    BaseStatistics,
    Delivery,
    Due,
    Judgement,
    KeepsRuns,
    Key,
    Promotion,
    Reaping,
    TransportConnection,
)


class Filters(NamedTuple):
    """What a list of runs is narrowed by; None: not by that."""

    workflow: str | None
    status: str | None
    queue: str | None
    before: str | None
    reason: str | None
    key: str | None
    limit: int
    since: int | None
    older: int | None
    tag: str | None


class BaseStore(KeepsRuns, BaseSchedules, BaseDebounces, BaseCensus, BaseStatistics, BaseAudit):
    """The part of the store's protocol that is the same on every database."""

    _settings: Settings

    # -- what a database adds --------------------------------------------------------------------------------

    async def _fetch(self, name: str, *arguments: Any) -> Sequence[Any]:
        """The rows that a question brings; a list among the arguments is a column of many values."""
        raise NotImplementedError

    async def _fetch_of_dags(self, name: str, *arguments: Any) -> Sequence[Any]:
        """The rows that a question about dag runs brings. Workers ask them: a database may keep a connection for it."""
        return await self._fetch(name, *arguments)

    async def _drive(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        """Drive a flow, which is made when it begins, because it may have to begin again."""
        raise NotImplementedError

    async def _sweep(self, flow: Callable[..., Flow[T]], *arguments: Any) -> T:
        """Drive a flow that is a duty of a sweeper."""
        raise NotImplementedError

    async def _page(self, filters: Filters, oldest_first: bool) -> Sequence[Any]:
        """A page of a list of runs."""
        raise NotImplementedError

    # -- definitions -----------------------------------------------------------------------------------------

    async def put_definitions(self, definitions: Sequence[Definition]) -> None:
        """In the order of their names, so that two processes never wait for each other in a circle."""
        ordered = sorted(definitions, key=lambda d: d.name)
        rows = [(d.name, d.version, d.kind, d.queue, d.options, d.input_schema, d.graph) for d in ordered]
        await self._drive(put, "put_definitions", rows)

    async def definitions(self) -> list[Definition]:
        """The current definition of each workflow."""
        return sorted((Definition(*row) for row in await self._fetch("definitions")), key=_name)

    # -- reading ---------------------------------------------------------------------------------------------

    async def outcomes(self, ids: Sequence[str]) -> list[Outcome]:
        """How the runs ended that have; of the others nothing."""
        return [Outcome(*row) for row in await self._fetch("outcomes", list(ids))]

    async def continuation(self, run_id: str) -> str:
        """The last of the runs that one went on as; itself, if it did not."""
        rows = await self._fetch("continuation", run_id)
        return str(rows[0][0]) if rows else run_id

    async def run(self, run_id: str) -> RunRow | None:
        """One run, as it is shown."""
        found = [_run_row(row) for row in await self._fetch("run", run_id)]
        await show(_Lists(self), found)
        return found[0] if found else None

    async def runs(
        self,
        *,
        workflow: str | None = None,
        status: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        reason: str | None = None,
        key: str | None = None,
        before: str | None = None,
        limit: int = 50,
        since_ms: int | None = None,
        older_ms: int | None = None,
        oldest_first: bool = False,
    ) -> list[RunRow]:
        """A page of the list of runs."""
        filters = Filters(workflow, status, queue, before, reason, key, limit, since_ms, older_ms, tag)
        return await page(_Lists(self), filters, oldest_first)

    async def ids_between(self, first: str, last: str, limit: int) -> list[str]:
        """Ids of runs from the one to the other."""
        return [row[0] for row in await self._fetch("ids_between", first, last, limit)]

    async def unread(self, run_id: str, limit: int = 20) -> list[tuple[str, int]]:
        """Signals that a run has not taken."""
        return [(row[0], row[1]) for row in await self._fetch("unread", run_id, limit)]

    async def awaited(self, run_id: str, signal: str) -> list[str | None]:
        """The plans of open waits for a signal."""
        return [row[0] for row in await self._fetch("awaited", run_id, signal)]

    async def steps(self, run_id: str, after: tuple[str, int] = ("", -1), limit: int = 1000) -> list[StepRecord]:
        """A page of recorded outcomes."""
        return [StepRecord(*row) for row in await self._fetch("steps", run_id, *after, limit)]

    async def executors(self, run_ids: Sequence[str]) -> dict[str, list[ExecutorRow]]:
        """Who executed some runs, in the order of their claims."""
        found: dict[str, list[ExecutorRow]] = {run_id: [] for run_id in run_ids}
        for row in await self._fetch("executors", list(run_ids)):
            found[row[0]].append(ExecutorRow(*row))
        return found

    async def progress(self, run_id: str) -> list[ProgressRow]:
        """What is under way in a run."""
        found = [ProgressRow(*row) for row in await self._fetch("progress", run_id)]
        return sorted(found, key=lambda row: (row.branch, row.position))

    async def last_words(self, run_id: str, first: tuple[str, int], last: tuple[str, int]) -> list[ProgressRow]:
        """What steps have told of their progress, by (branch, position)."""
        return [ProgressRow(*row) for row in await self._fetch("last_words", run_id, *first, *last)]

    async def failed_calls(self, run_id: str, attempt: int) -> dict[tuple[str, int], int]:
        """How often steps have failed in an attempt of their run."""
        return {(row[0], row[1]): row[2] for row in await self._fetch("failed_calls", run_id, attempt)}

    async def activity(self, run_id: str, after: CallKey = NO_CALL, limit: int = 10_000) -> list[ActivityRow]:
        """A page of the calls of a run."""
        return [ActivityRow(*row) for row in await self._fetch("activity", run_id, *after, limit)]

    async def workers(self) -> list[WorkerInfo]:
        """Every worker that is known."""
        return [_worker_info(row) for row in await self._fetch("workers")]

    async def run_with_key(self, workflow: str, key: str) -> str | None:
        """The id of the run that has a key."""
        rows = await self._fetch("with_key", workflow, key)
        return rows[0][0] if rows else None

    async def suspects(self) -> list[tuple[str, str, int]]:
        """How many runs that workers have died with are ready."""
        return sorted(tuple(row) for row in await self._fetch("count_suspects"))

    async def dag_steps(self, dag_id: str) -> list[DagStepRow]:
        """The steps of a dag run."""
        return [DagStepRow(*row) for row in await self._fetch_of_dags("dag_steps", dag_id)]

    async def graph(self, name: str, version: str, dag_id: str) -> str | None:
        """The stored graph of a dag in a version, or the copy that this run of it brought along."""
        [(text,)] = await self._fetch_of_dags("graph", name, version, dag_id)
        return None if text is None else str(text)

    async def value(self, run_id: str, key: str) -> tuple[str, int] | None:
        """A value that the run lets others read."""
        rows = await self._fetch("value", run_id, key)
        return tuple(rows[0]) if rows else None

    async def values(self, run_id: str) -> list[tuple[str, str, int]]:
        """All values that the run lets others read, by key."""
        return sorted(tuple(row) for row in await self._fetch("values", run_id))

    async def seed(self, run_id: str) -> str | None:
        """The secret of a run."""
        rows = await self._fetch("seed", run_id)
        return rows[0][0] if rows else None

    # -- queues ----------------------------------------------------------------------------------------------

    async def queues(self) -> list[Gate]:
        """What is said about queues."""
        return sorted((limits.read_gate(row) for row in await self._fetch("queues")), key=_name)

    async def queue_depths(self) -> list[QueueDepth]:
        """How much there is in each queue."""
        found = [QueueDepth(*row) for row in await self._fetch("queue_depths")]
        for depth in found:
            depth.oldest = None if depth.oldest is None else max(0.0, depth.oldest)
        return found

    async def measure(self, queue: str, key: str | None) -> tuple[Gate, Usage]:
        """What is said about a queue, and what counts against its limits."""
        return await self._drive(limits.measure, queue, key)

    async def change_queue(self, name: str, decide: Decision) -> tuple[Gate, Gate]:
        """Decide something about a queue."""
        return await self._drive(limits.change_queue, name, decide)

    async def queue_bounds(self) -> dict[str, int]:
        """The queues that take no more than so many ready runs."""
        return {row[0]: row[1] for row in await self._fetch("queue_bounds")}

    async def count_ready(self, queue: str, most: int) -> int:
        """How many runs of a queue are ready, counted no further than so many."""
        return int((await self._fetch("count_ready", queue, most))[0][0])

    async def declare_queues(self, wanted: Mapping[str, Decision]) -> list[tuple[Gate, Gate]]:
        """Store what the code declares of queues."""
        return await self._drive(limits.declare_queues, wanted)

    # -- operators and senders -------------------------------------------------------------------------------

    async def retry(self, run_id: str) -> set[Lane] | None:
        """Queue a failed or cancelled run again."""
        return await self._drive(operating.retry_run, run_id)

    async def send(self, mail: Mail, again: bool = False) -> Answer:
        """Put a signal into a run's mailbox and wake the run."""
        return await self._drive(signals.send, mail, again, self._settings.max_signals)

    async def cancel(self, run_id: str) -> Answer:
        """End a run, begin its undoing, or mark it."""
        return await self._drive(operating.cancel_run, run_id)

    async def pause(self, run_id: str) -> Answer:
        """Hold a run, or mark it."""
        return await self._drive(operating.pause_run, run_id)

    async def resume(self, run_id: str) -> Answer:
        """Let a paused run go on, or take the mark back."""
        return await self._drive(operating.resume_run, run_id)

    async def reschedule(self, run_id: str, wanted: NewTime) -> Answer:
        """Move the time at which a run is due, or its priority."""
        return await self._drive(operating.reschedule_run, run_id, wanted)

    async def grant(self, wish: str, ids: Sequence[str]) -> Granted:
        """Do what an operator wishes of many runs."""
        return await self._drive(operating.grant, wish, ids)

    # -- workers ---------------------------------------------------------------------------------------------

    async def register(self, worker: WorkerInfo) -> None:
        """A worker comes to life."""
        row = (
            worker.id, worker.host, worker.pid, None if worker.queues is None else _json(worker.queues),
            _json(worker.workflows), worker.concurrency, worker.lease_ms, _json(worker.modules), worker.process,
            _json(worker.schedules), _json(worker.limits),
        )  # fmt: skip
        await self._drive(put, "register", [row])

    async def tell_progress(self, entries: Sequence[StepRunning]) -> None:
        """What steps are doing, unless a newer claim may have said more; no row of a run is locked for it."""
        rows = [
            (e.run_id, e.claim, e.branch, e.position, e.name, e.detail, e.data, e.format, e.since_ms) for e in entries
        ]
        await self._drive(put, "tell_progress", rows)

    async def worker_state(self, worker: str, state: str) -> None:
        """A worker says it is stopping."""
        await self._drive(put, "worker_state", [(worker, state)])

    async def unregister(self, worker: str) -> None:
        """A worker leaves in good order; what still names it goes back into the queue."""
        await self._drive(sweep.unregister, worker)

    async def expire(self, workers: Sequence[str]) -> None:
        """The leases of these workers are over."""
        await self._drive(put, "expire", [(worker,) for worker in workers])

    async def deliver(self, limit: int) -> Delivery:
        """Take mail that was only inserted to its runs."""
        return await self._sweep(signals.deliver, limit)

    async def give_back(self, worker: str, held: Sequence[tuple[str, int]]) -> None:
        """Put runs back into the queue at once."""
        await self._sweep(sweep.give_back_held, worker, held)

    async def promote(self, limit: int) -> Promotion:
        """Make due sleepers ready; end what is late."""
        return await self._sweep(sweep.promote, limit)

    async def reap(self, worker: str, limit: int, max_losses: int, silent: Sequence[str] | None = None) -> Reaping:
        """Bury dead workers, and give back what they held."""
        return await self._sweep(sweep.reap, worker, limit, max_losses, silent)

    # -- remote steps ----------------------------------------------------------------------------------------

    def carry(self, carrier: TransportConnection) -> None:
        """Only where a transport can be in the same database."""
        raise NotImplementedError

    async def remote_steps(self, run_ids: Sequence[str]) -> list[RemoteStep]:
        """The remote steps of some runs."""
        return [RemoteStep(*row[1:]) for row in await self._fetch("remote_of_runs", list(run_ids))]

    async def alive_remote(self, run_id: str) -> dict[str, int | None]:
        """The remote steps of a run that still come to something."""
        return {row[0]: row[1] for row in await self._fetch("alive_remote", run_id)}

    async def open_remote(self, carrier: str, after: Key, limit: int) -> list[Key]:
        """A page of the remote steps that wait for a result."""
        return [(row[0], row[1]) for row in await self._fetch("open_remote", carrier, *after, limit)]

    async def over_remote(self, carrier: str, after: Key, limit: int) -> list[Key]:
        """A page of the remote steps that nobody seems to wait for."""
        return [(row[0], row[1]) for row in await self._fetch("over_remote", carrier, *after, limit)]

    async def closed_remote(self, keys: Sequence[Key]) -> list[Key]:
        """The remote steps, of those named, that nothing is left to do about."""
        return [(row[0], row[1]) for row in await self._drive(ask, "closed_among", Rows(keys))] if keys else []

    async def due_remote(self, carrier: str, joined: bool, sweep_ms: int, way_ms: int, limit: int) -> Due:
        """The remote steps that somebody has to see to now."""
        return await self._drive(remote_steps.send_due, carrier, joined, sweep_ms, way_ms, limit)

    async def judge_remote(self, results: Sequence[Result], joined: bool, sweep_ms: int, random: Random) -> Judgement:
        """Decide what results mean."""
        return await self._drive(remote_steps.judge_results, results, joined, sweep_ms, random)

    async def resend_remote(self, tasks: Sequence[Task], why: str) -> int:
        """Tasks that vanished are to be sent once more."""
        return await self._drive(remote_steps.send_again, tasks, why)

    async def refuse_remote(self, tasks: Sequence[Task], why: str) -> int:
        """Tasks that the transport does not take."""
        return await self._drive(remote_steps.refuse, tasks, why)

    async def withdraw_remote(self, keys: Sequence[Key]) -> int:
        """Mark remote steps to be taken back, if nobody waits for them."""
        return await self._drive(remote_steps.withdraw, keys)

    async def clear_remote(self, step_ids: Sequence[str]) -> None:
        """Note that remote steps are over, and have left nothing behind."""
        await self._drive(remote_steps.clear, step_ids)


class _Lists:
    """What is read for lists of runs, of which some are shown otherwise than their rows say."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    async def rows(self, filters: Filters, oldest_first: bool) -> list[RunRow]:
        """A page of runs by what their rows say."""
        return [_run_row(row) for row in await self._store._page(filters, oldest_first)]

    async def named(self, ids: Sequence[str]) -> list[RunRow]:
        """The runs with these ids, as lists have them."""
        return [_run_row(row) for row in await self._store._fetch("runs_named", list(ids))]

    async def shown(self, ids: Sequence[str]) -> list[Shown]:
        """How those of these runs are shown that are dag runs under way."""
        return [Shown(*row) for row in await self._store._fetch("dags_shown", list(ids))]

    async def shown_as(self, status: str, before: str | None, limit: int, oldest_first: bool) -> list[Shown]:
        """The first dag runs beyond one that are shown with a status."""
        name = OLDEST * oldest_first + "dags_shown_as"
        return [Shown(*row) for row in await self._store._fetch(name, status, before, limit)]


def _run_row(row: Sequence[Any]) -> RunRow:
    """The columns come in the order of the fields."""
    run = RunRow(*row)
    run.tags = read_tags(None if run.tags is None else str(run.tags))
    run.ready, run.undoing, run.large_output = bool(run.ready), bool(run.undoing), bool(run.large_output)
    return run


def _worker_info(row: Sequence[Any]) -> WorkerInfo:
    """The columns come in the order of the fields."""
    worker = WorkerInfo(*row)
    worker.queues = None if row[3] is None else read_json(row[3], list[str], [])
    worker.workflows = read_json(row[4], dict[str, str], {})
    worker.modules = read_json(worker.modules, dict[str, str], {})
    worker.schedules = read_json(worker.schedules, list[str], [])
    worker.limits = read_json(worker.limits, dict[str, str], {})
    return worker


def _name(row: Definition | Gate) -> str:
    """What short lists are sorted by, here and not in SQL: a database may sort by the rules of a language, and an index
    of it serves no other order."""
    return row.name


def _json(value: Mapping[str, str] | Sequence[str]) -> str:
    return msgspec.json.encode(value).decode()
