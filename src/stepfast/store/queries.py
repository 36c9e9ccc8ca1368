"""What every store does alike: it names a statement or a flow, and makes values of what comes back.

A database adds how a question is asked (``_fetch``), and how a flow is driven: for a caller (``_drive``), or over
the connection of the sweeper (``_sweep``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from ..errors import DatabaseRefused
from ..model.attributes import Attribute
from ..model.bulk_actions import DELETE, BatchOutcome
from ..model.forks import Point
from ..model.queue_config import Decision, Gate
from ..model.rate_limiter import Usage
from ..model.records import (
    Answer,
    Lane,
    Mail,
    NewRun,
    StepRecord,
    StepRunning,
    WorkerInfo,
)
from ..model.remote_steps import RemoteStep, Result, Task
from ..model.retention import Ended, EndedPage, Keep, Removal, Try, Weight
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
from ..model.schedules import ScheduleRow, ScheduleSpec
from ..model.stored import read_json
from ..model.transitions.operator import NewTime
from ..model.transitions.start import Debounce
from .answers import (
    AtWork,
    AuditEntry,
    AuditLine,
    AwaitedValue,
    Census,
    Delivery,
    Due,
    Failures,
    Judgement,
    Key,
    MailId,
    Promotion,
    Reaping,
    RunCount,
    Sample,
    Took,
)
from .attribute_queries import AttributeQueries
from .checkpoint_queries import CheckpointQueries
from .event_queries import EventQueries
from .flows import (
    forks,
    limits,
    operating,
    remote_steps,
    retention,
    schedules,
    signals,
    starts,
    sweep,
    unique,
)
from .flows.base import Flow, Rows, ask, put
from .flows.schedules import Declaration, DueSchedule, Fired, FoundSchedule
from .flows.starts import Debounced
from .run_lists import EVERY, Filters, RunLists, run_row


class Queries(AttributeQueries, EventQueries, CheckpointQueries):
    """The part of a store that is the same on every database: it names a statement or a flow, and makes values of what
    comes back."""

    # -- definitions -----------------------------------------------------------------------------------------

    async def put_definitions(self, definitions: Sequence[Definition]) -> None:
        """Store what the code declares."""
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
        """The last of the runs that one continued as (``ctx.continue_as``); itself, if it did not."""
        rows = await self._fetch("continuation", run_id)
        return str(rows[0][0]) if rows else run_id

    async def run(self, run_id: str) -> RunRow | None:
        """One run with its payloads; None if there is none of that id."""
        found = [run_row(row) for row in await self._fetch("run", run_id)]
        await RunLists(self).show(found)
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
        attributes: tuple[Attribute, ...] = (),
        parent: str | None = None,
        ids: tuple[str, str] | None = None,
    ) -> list[RunRow]:
        """A page of runs, newest first by default; ``before`` is the last id of the page before.
        ``since_ms`` and ``older_ms`` bound the age of runs by the database's clock. Large inputs and outputs are left
        out, and the row says so."""
        await self.check_attributes(attributes)
        usual = (workflow, status, queue, before, reason, key, limit, since_ms, older_ms, tag)
        filters = Filters(*usual, attributes, parent, *(ids or (None, None)))
        return await RunLists(self).page(filters, oldest_first)

    async def count_runs(self, **filters: Any) -> int:
        """How many runs a list would have, if its page were large enough; the filters are those of ``runs``."""
        given = {name: filters.get(name) for name in ("workflow", "status", "queue", "reason", "key", "tag")}
        since, older = filters.get("since_ms"), filters.get("older_ms")
        await self.check_attributes(filters.get("attributes") or ())
        first, last = filters.get("ids") or (None, None)
        wanted = Filters(
            **given, before=None, limit=EVERY, since=since, older=older, parent=filters.get("parent"),
            attributes=filters.get("attributes") or (), first=first, last=last,
        )  # fmt: skip
        return await RunLists(self).count_shown(wanted)

    async def ids_between(self, first: str, last: str, limit: int) -> list[str]:
        """Ids of runs from the one to the other. Left out: steps of dag runs, children of runs that are found."""
        return [row[0] for row in await self._fetch("ids_between", first, last, limit)]

    async def unread(self, run_id: str, limit: int = 20) -> list[tuple[str, int]]:
        """Names of signals that a run has not taken yet, the oldest first, and how many of each."""
        return [(row[0], row[1]) for row in await self._fetch("unread", run_id, limit)]

    async def dropped_lines(self, run_id: str) -> int:
        """How many lines the log of a run had no room for."""
        rows = await self._fetch("dropped_lines", run_id)
        return int(rows[0][0]) if rows else 0

    async def steps(self, run_id: str, after: tuple[str, int] = ("", -1), limit: int = 1000) -> list[StepRecord]:
        """A page of recorded outcomes, by (branch, position)."""
        return [StepRecord(*row) for row in await self._fetch("steps", run_id, *after, limit)]

    async def steps_since(self, run_id: str, seq: int, limit: int = 1000) -> list[StepRecord]:
        """The outcomes that were recorded after one, in their order."""
        return [StepRecord(*row) for row in await self._fetch("steps_since", run_id, seq, limit)]

    async def executors(self, run_ids: Sequence[str]) -> dict[str, list[ExecutorRow]]:
        """Who executed each of some runs: the workers of its claims, in their order."""
        found: dict[str, list[ExecutorRow]] = {run_id: [] for run_id in run_ids}
        for row in await self._fetch("executors", list(run_ids)):
            found[row[0]].append(ExecutorRow(*row))
        return found

    async def progress(self, run_id: str) -> list[ProgressRow]:
        """What is under way."""
        found = [ProgressRow(*row) for row in await self._fetch("progress", run_id)]
        return sorted(found, key=lambda row: (row.branch, row.position))

    async def last_words(self, run_id: str, first: tuple[str, int], last: tuple[str, int]) -> list[ProgressRow]:
        """The progress that steps have reported, by (branch, position); also of those that ended."""
        return [ProgressRow(*row) for row in await self._fetch("last_words", run_id, *first, *last)]

    async def failed_calls(self, run_id: str, attempt: int) -> dict[tuple[str, int], int]:
        """How often steps have failed in an attempt of their run."""
        return {(row[0], row[1]): row[2] for row in await self._fetch("failed_calls", run_id, attempt)}

    async def activity(self, run_id: str, after: CallKey = NO_CALL, limit: int = 10_000) -> list[ActivityRow]:
        """A page of the calls of one run, by address and try; ``after`` is the last of the page before."""
        return [ActivityRow(*row) for row in await self._fetch("activity", run_id, *after, limit)]

    async def workers(self) -> list[WorkerInfo]:
        """Every worker that is registered, dead ones included."""
        return [_worker_info(row) for row in await self._fetch("workers")]

    async def run_with_key(self, workflow: str, key: str) -> str | None:
        """The id of the run of a workflow that has a key, or that was debounced by it and has not begun; None: there is
        none."""
        rows = await self._fetch("with_key", workflow, key)
        return rows[0][0] if rows else None

    async def run_with_name(self, workflow: str, name: str) -> str | None:
        """The id of the live run of a workflow that has a name alone; None: there is none."""
        rows = await self._fetch("with_name", workflow, name)
        return rows[0][0] if rows else None

    async def suspects(self) -> list[tuple[str, str, int]]:
        """How many runs that workers have died with are ready: (queue, workflow, count)."""
        return sorted(tuple(row) for row in await self._fetch("count_suspects"))

    async def dag_steps(self, dag_id: str) -> list[DagStepRow]:
        """The steps of a dag run, in the order they were started in."""
        return [DagStepRow(*row) for row in await self._fetch_of_dags("dag_steps", dag_id)]

    async def graph(self, name: str, version: str, dag_id: str) -> str | None:
        """The stored graph of a dag in a version, or the copy that this run of it brought along."""
        [(text,)] = await self._fetch_of_dags("graph", name, version, dag_id)
        return None if text is None else str(text)

    async def value(self, run_id: str, key: str) -> tuple[str, int] | None:
        """A value that the run lets others read, and its format."""
        rows = await self._fetch("value", run_id, key)
        return tuple(rows[0]) if rows else None

    async def awaited_values(self, wanted: Sequence[tuple[str, str]]) -> list[AwaitedValue]:
        """The present values, each by a run and a key."""
        rows = await self._fetch("awaited_values", Rows(wanted))
        return [
            AwaitedValue(run_id, key, value, format_, bool(over), status, went_on and str(went_on))
            for run_id, key, value, format_, over, status, went_on in rows
        ]

    async def values(self, run_id: str) -> list[tuple[str, str, int]]:
        """All values that the run lets others read: (key, value, format)."""
        return sorted(tuple(row) for row in await self._fetch("values", run_id))

    async def seed(self, run_id: str) -> str | None:
        """The secret that a run's random values are made from, for a replay outside of a worker. It is never shown."""
        rows = await self._fetch("seed", run_id)
        return rows[0][0] if rows else None

    # -- queues ----------------------------------------------------------------------------------------------

    async def queues(self) -> list[Gate]:
        """What is said about queues, by name; nothing is about most."""
        return sorted((limits.read_gate(row) for row in await self._fetch("queues")), key=_name)

    async def queue_depths(self) -> list[QueueDepth]:
        """How much there is in each queue that has something."""
        found = [QueueDepth(*row) for row in await self._fetch("queue_depths")]
        for depth in found:
            depth.oldest = None if depth.oldest is None else max(0.0, depth.oldest)
        return found

    async def measure(self, queue: str, key: str | None) -> tuple[Gate, Usage]:
        """What is said about a queue, and what counts against its limits, those of a key among them."""
        return await self._drive(limits.measure, queue, key)

    async def change_queue(self, name: str, decide: Decision) -> tuple[Gate, Gate]:
        """Decide something about a queue, with its row locked: how it was, and how it is now. It holds for every claim
        that begins when this has returned."""
        return await self._drive(limits.change_queue, name, decide)

    async def queue_bounds(self) -> dict[str, int]:
        """The queues that take no more than so many ready runs (``max_ready``)."""
        return {row[0]: row[1] for row in await self._fetch("queue_bounds")}

    async def count_ready(self, queue: str, most: int) -> int:
        """How many runs of a queue are ready, counted no further than so many."""
        return int((await self._fetch("count_ready", queue, most))[0][0])

    async def declare_queues(self, wanted: Mapping[str, Decision]) -> list[tuple[Gate, Gate]]:
        """Store what the code declares of queues: of those that said something else so far, how they were, and how they
        are now."""
        return await self._drive(limits.declare_queues, wanted)

    # -- operators and senders -------------------------------------------------------------------------------

    async def retry(self, run_id: str) -> set[Lane] | None:
        """Queue a failed or cancelled run again, keeping its records but those its error belongs to; of a dag run, the
        steps that did not complete. Where it, or they, are ready now. Refused (None) once an undo has begun."""
        try:
            return await self._drive(operating.retry_run, run_id)
        except DatabaseRefused:  # another run took its name just then, and is seen now
            return await self._drive(operating.retry_run, run_id)

    async def send(self, mail: Mail, again: bool = False, check: bool = False) -> Answer:
        """Put a signal into a run's mailbox and wake the run; refused if the run has ended.

        Safe to repeat: a caller that does not know whether it came through passes ``again``, and it is not sent twice
        even if it was taken since. ``check``: if every open wait for it names a type, nothing is sent, and the answer
        has the plans of the waits.
        """
        return await self._drive(signals.send, mail, again, self._settings.max_signals, check)

    async def cancel(self, run_id: str, children: bool = True) -> Answer:
        """End a run that no worker holds (or begin its undo); mark one that is held, for its worker to see. Its
        ``children`` are cancelled too, or go on."""
        return await self._drive(operating.cancel_run, run_id, children)

    async def pause(self, run_id: str) -> Answer:
        """Hold a run; mark one that a worker holds. Its time to wake is kept."""
        return await self._drive(operating.pause_run, run_id)

    async def resume(self, run_id: str) -> Answer:
        """Resume a paused run: at once, or when it would have been due; take back a mark."""
        return await self._drive(operating.resume_run, run_id)

    async def reschedule(self, run_id: str, wanted: NewTime) -> Answer:
        """Move the time at which a run is due that waits in its queue or for a retry, or its priority; of a dag run
        those of its steps."""
        return await self._drive(operating.reschedule_run, run_id, wanted)

    async def fork(self, source: str, point: Point, new: NewRun) -> bool:
        """Start a run with the records of another up to a step. Safe to repeat. False: there is no such run."""
        return await self._drive(forks.fork, source, point, new)

    async def rewind(self, run_id: str, point: Point) -> Lane | None:
        """Queue a run that has ended again, without the records from a step on; where it is ready. None: there is
        none."""
        return await self._drive(forks.rewind, run_id, point)

    async def apply_bulk(self, verb: str, ids: Sequence[str]) -> BatchOutcome:
        """Cancel, pause, resume, retry or delete many runs by few statements. Dag runs (but those to be deleted), and
        rows that another transaction has locked, are left to be called one by one."""
        if verb == DELETE.verb:
            return await self._drive(retention.delete_many, ids)
        return await self._drive(operating.apply_bulk, verb, ids)

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
        """A worker leaves in good order; what still names it is ready again."""
        await self._drive(sweep.unregister, worker)

    async def expire(self, workers: Sequence[str]) -> None:
        """The processes of these workers are known to be gone: their leases are over."""
        await self._drive(put, "expire", [(worker,) for worker in workers])

    async def deliver(self, limit: int, only: Sequence[MailId] | None = None) -> Delivery:
        """Take mail that was only inserted to its runs: count it, wake who waits for it, carry out cancellations. All
        of it, in a bounded batch, or ``only`` this."""
        return await self._sweep(signals.deliver, limit, only)

    async def handing_on(self, limit: int) -> list[str]:
        """Runs that have ended, and have a name, or signals of starts, to hand on."""
        return await self._sweep(unique.handing_on, limit)

    async def hand_on(self, run_id: str) -> Delivery:
        """Hand on the name of a run that has ended, and the signals of starts that it has not taken. Where another run
        takes the name just then nothing is done."""
        try:
            return await self._sweep(unique.hand_on, run_id)
        except DatabaseRefused:
            return Delivery(set(), False, False, 0)

    async def undelivered(self, limit: int) -> list[MailId]:
        """The mail that the next batch would take, if its runs are not locked."""
        return await self._sweep(signals.undelivered, limit)

    async def leave_undelivered(self, mail: MailId) -> None:
        """Leave a piece of mail where it is, without counting it for its run."""
        await self._sweep(put, "delivered", [mail])

    async def give_back(self, worker: str, held: Sequence[tuple[str, int]]) -> None:
        """Make (run, claim) pairs ready again at once; no attempt, no loss."""
        await self._sweep(sweep.give_back_held, worker, held)

    async def promote(self, limit: int, only: Sequence[str] | None = None) -> Promotion:
        """Make due sleepers ready; end what expired. All of them, in a bounded batch, or ``only`` these."""
        return await self._sweep(sweep.promote, limit, only)

    async def due_runs(self, limit: int) -> list[str]:
        """The runs that the next batch of those would move, if they are not locked."""
        return await self._sweep(sweep.due_runs, limit)

    async def reap(
        self, worker: str, limit: int, max_losses: int, silent: Sequence[str] | None = None,
        only: Sequence[str] | None = None,
    ) -> Reaping:  # fmt: skip
        """Declare workers dead whose lease is over, but only those of the ``silent`` (None: all of them); give back
        what dead workers held, in a bounded batch, or ``only`` these runs."""
        return await self._sweep(sweep.reap, worker, limit, max_losses, silent, only)

    async def lost_runs(self, limit: int) -> list[str]:
        """The runs that the next batch of a reaping would give back, if they are not locked."""
        return await self._sweep(sweep.lost_runs, limit)

    async def set_aside(self, run_id: str) -> None:
        """Hold a run that a sweep cannot move: it is paused and held by no worker, so that no sweep finds it again.
        What it would become is not decided, and what has ended stays so."""
        await self._sweep(sweep.set_aside, run_id)

    # -- remote steps ----------------------------------------------------------------------------------------

    async def remote_steps(self, run_ids: Sequence[str]) -> list[RemoteStep]:
        """The remote steps of some runs, without their inputs."""
        return [RemoteStep(*row[1:]) for row in await self._fetch("remote_of_runs", list(run_ids))]

    async def alive_remote(self, run_id: str) -> dict[str, int | None]:
        """The ids of those of a run's remote steps that can still end; and of those that had to be sent again,
        because the run had ended before, when that was."""
        return {row[0]: row[1] for row in await self._fetch("alive_remote", run_id)}

    async def open_remote(self, carrier: str, after: Key, limit: int) -> list[Key]:
        """A page of the remote steps that wait for a result over a transport, beyond a run and a number."""
        return [(row[0], row[1]) for row in await self._fetch("open_remote", carrier, *after, limit)]

    async def over_remote(self, carrier: str, after: Key, limit: int) -> list[Key]:
        """A page of the remote steps over a transport that do not seem to be waited for any more, beyond a run and a
        number."""
        return [(row[0], row[1]) for row in await self._fetch("over_remote", carrier, *after, limit)]

    async def closed_remote(self, keys: Sequence[Key]) -> list[Key]:
        """The remote steps, of those named, that nothing is left to do about."""
        return [(row[0], row[1]) for row in await self._drive(ask, "closed_among", Rows(keys))] if keys else []

    async def due_remote(self, carrier: str, joined: bool, sweep_ms: int, way_ms: int, limit: int) -> Due:
        """What has to be done now, by the caller; ``joined``: what is sent was sent in the same transaction. Else a
        task does not count as missing while it may be on its way, which is ``way_ms``."""
        return await self._drive(remote_steps.send_due, carrier, joined, sweep_ms, way_ms, limit)

    async def judge_remote(self, results: Sequence[Result], joined: bool, sweep_ms: int, random: Random) -> Judgement:
        """Decide what results mean, and leave the outcomes in mailboxes; ``joined``: and delete them with that. Else
        the caller deletes them and says so by ``clear_remote``, or they are due after ``sweep_ms``."""
        return await self._drive(remote_steps.judge_results, results, joined, sweep_ms, random)

    async def resend_remote(self, tasks: Sequence[Task], why: str) -> int:
        """Tasks that vanished are to be sent once more; how many runs are notified that theirs will never come."""
        return await self._drive(remote_steps.send_again, tasks, why)

    async def hand_over_remote(self, tasks: Sequence[Task], keeps_ms: int) -> None:
        """The transport has taken these tasks, and keeps them for so many milliseconds."""
        await self._drive(remote_steps.handed_over, tasks, keeps_ms)

    async def refuse_remote(self, tasks: Sequence[Task], why: str) -> int:
        """The transport does not take these tasks, and never will; how many runs are notified of it."""
        return await self._drive(remote_steps.refuse, tasks, why)

    async def withdraw_remote(self, keys: Sequence[Key]) -> int:
        """Mark remote steps to be taken back, of those named, if they are not waited for; how many."""
        return await self._drive(remote_steps.withdraw, keys)

    async def clear_remote(self, step_ids: Sequence[str]) -> None:
        """Note that remote steps were withdrawn, or are over, and have left nothing behind."""
        await self._drive(remote_steps.clear, step_ids)

    # -- schedules -----------------------------------------------------------------------------------------------

    async def schedules(self, names: Sequence[str] | None = None) -> list[ScheduleRow]:
        """All schedules, or those of some names, in the order of their names."""
        wanted = None if names is None else list(names)
        found = [schedules.read_row(row) for row in await self._fetch("schedules", wanted)]
        return sorted(found, key=lambda row: row.name)  # a database may have an order of its own

    async def declare_schedules(self, worker: str | None, specs: Sequence[ScheduleSpec]) -> Declaration:
        """Store what the code of a worker declares; without a worker only what is not there yet."""
        return await self._drive(schedules.declare, worker, specs)

    async def put_schedule(self, spec: ScheduleSpec) -> FoundSchedule:
        """Make a schedule, or change it; refused if live workers declare it."""
        return await self._drive(schedules.put_schedule, spec)

    async def delete_schedule(self, name: str) -> FoundSchedule:
        """Delete a schedule; refused if live workers declare it."""
        return await self._drive(schedules.delete_schedule, name)

    async def hold_schedule(self, name: str, hold: bool) -> FoundSchedule:
        """Pause a schedule, or resume it."""
        return await self._drive(schedules.hold_schedule, name, hold)

    async def due_schedules(self, declared: Sequence[str], limit: int) -> list[ScheduleRow]:
        """The schedules that are due, for a worker whose code declares these."""
        return [schedules.read_row(row) for row in await self._fetch("due_schedules", list(declared), limit)]

    async def fire(self, shots: Sequence[DueSchedule], most: int, grace_ms: int) -> Fired:
        """Start the runs of ticks that have come, one for each, and move the schedules on. Of the missed ticks of a
        schedule at most ``most``; a tick within the grace is not missed yet."""
        return await self._drive(schedules.fire, shots, most, grace_ms)

    async def fail_schedule(self, row: ScheduleRow, error: str) -> bool:
        """A schedule cannot be started; whether it was still as it is said to be."""
        return await self._drive(schedules.fail_schedule, row, error)

    # -- ended runs ----------------------------------------------------------------------------------------------

    async def ended_page(self, after: str, window: int, keep: Keep, limit: int) -> EndedPage:
        """Look at the next ``window`` runs after one; the first ``limit`` of them that ended long enough ago."""
        rows = await self._fetch("ended_page", after, window, *keep, limit)
        now, busy, seen, oldest, newest, last, *_ = rows[0]
        runs = [Ended(*found) for found in (tuple(row)[6:] for row in rows) if found[0] is not None]
        return EndedPage(runs, last, seen, now - (oldest or now), now - (newest or now), now, bool(busy))

    async def ended_kin(self, gone: Removal, keep: Keep, limit: int) -> list[str]:
        """Runs that ended long enough ago, too, and were kept for the sake of those that are gone."""
        rows = await self._fetch("ended_kin", [*gone.runs, *gone.steps], gone.origins, *keep, limit)
        return [row[0] for row in rows]

    async def ended(self, ids: Sequence[str]) -> list[Ended]:
        """The runs, of those named, that have ended, in the order of their ids. Steps of dag runs are none."""
        return [Ended(*row) for row in await self._fetch("ended", list(ids))] if ids else []

    async def missing(self, ids: Sequence[str]) -> list[str]:
        """The ids, of those named, of runs that are not there, or not any more."""
        return [row[0] for row in await self._fetch("missing", list(ids))]

    async def weigh(self, ids: Sequence[str]) -> dict[str, Weight]:
        """How much is recorded of each."""
        return {row[0]: Weight(row[1], row[2]) for row in await self._fetch("weigh", list(ids))} if ids else {}

    async def tries(self, run_id: str) -> list[Try]:
        """The failed tries of a run."""
        return sorted(Try(*row) for row in await self._fetch("tries_of", run_id))

    async def remove(self, runs: Sequence[Ended], alone: bool = False) -> Removal | None:
        """Remove runs with all that belongs to them, in one transaction: those that are still as they were found and
        are neither needed nor locked. ``alone``: not while another process does the same; then there is None."""
        return await self._drive(retention.remove, runs, alone)

    async def delete(self, run_id: str) -> Ended | None:
        """Remove one run, unless it has not ended (None) or is needed; the answer says by what."""
        return await self._drive(retention.delete, run_id)

    # -- debounced starts ----------------------------------------------------------------------------------------

    async def start_debounced(self, run: NewRun, debounce: Debounce) -> Debounced:
        """Start a run that waits for more starts of its key; or put off the one that does, and give it this input."""
        return await self._drive(starts.start_debounced, run, debounce)

    # -- the audit -----------------------------------------------------------------------------------------------

    async def audit_begin(self, entry: AuditEntry, keep_ms: int | None) -> None:
        """Write what is about to be done; some of the lines that are older than this are deleted."""
        await self._drive(_begin, entry, keep_ms)

    async def audit_progress(self, entry_id: str, said: str) -> None:
        """Write how far it is. Actions that take longer than seconds do so every few seconds."""
        await self._drive(put, "audit_progress", [(entry_id, said)])

    async def audit_end(self, entry_id: str, outcome: str, said: str | None) -> None:
        """Write what came of it."""
        await self._drive(put, "audit_end", [(entry_id, outcome, said)])

    async def audit(self, which: str | None = None, before: str | None = None, limit: int = 50) -> list[AuditLine]:
        """A page of lines, the newest first; ``before`` is the id of the last line of the page before. One whose
        process has fallen silent is ``unknown``."""
        if which is None:
            rows = await self._fetch("audit_page", before, limit)
        else:
            rows = await self._fetch("audit_of", which, before, limit)
        return [AuditLine(*row[:-1]).as_read(row[-1]) for row in rows]

    # -- the census ----------------------------------------------------------------------------------------------

    async def census(self, most: int) -> Census:
        """Count runs, ready runs and late schedules, up to ``most`` of each."""
        [(now, running, waiting, paused, compensating, next_due, undelivered)] = await self._fetch("census", most)
        runs = {"running": running, "waiting": waiting, "paused": paused, "compensating": compensating}
        lag = 0.0 if next_due is None else max(0, now - next_due) / 1000
        queues = await self.ready(most)
        late = [(name, bool(declared), ms / 1000) for name, declared, ms in await self._fetch("census_schedules", most)]
        return Census(runs, lag, undelivered, queues, late)

    async def long_at_work(self, seconds: float, most: int) -> list[AtWork]:
        """What has been executing for so long, the longest first; looking at ``most`` runs that workers hold."""
        rows = await self._fetch("long_at_work", int(seconds * 1000), most)
        return [AtWork(run_id, workflow, step, lasted / 1000) for run_id, workflow, step, lasted in rows]

    async def ready(self, most: int) -> dict[str, tuple[int, float]]:
        """How much is ready in each queue that has something, and for how many seconds its first run has been."""
        queues: dict[str, tuple[int, float]] = {}
        for queue, ready, oldest in await self._fetch("census_queues", most):
            before = queues.get(queue, (0, 0.0))
            queues[queue] = min(most, before[0] + ready), max(before[1], oldest / 1_000_000)
        return queues

    # -- statistics ----------------------------------------------------------------------------------------------

    async def statistics(self, since_ms: int, runs: int, counts: int, steps: int) -> Sample:
        """What happened within a span of time, among the newest ``runs``; unfinished ones counted up to ``counts`` of a
        kind, and up to ``steps`` calls of steps."""
        (_, _, _, looked_at, reach), *ended = await self._fetch("stats_ended", runs, since_ms)
        return Sample(
            [RunCount(*row) for row in ended],
            [RunCount(*row) for row in await self._fetch("stats_open", counts)],
            await self.failures(since_ms, counts),
            [Took(*row) for row in await self._fetch("stats_steps", runs, since_ms, steps)],
            looked_at,
            reach,
        )

    async def failures(self, since_ms: int, counts: int) -> list[Failures]:
        """What failed within a span of time, among the newest ``counts`` failed runs, and as many that were undone."""
        return [Failures(*row) for row in await self._fetch("stats_failures", counts, since_ms)]


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


_TRIMMED = 20
"""Lines that are looked at for each that is written, the oldest first, whether their time is over."""


def _begin(entry: AuditEntry, keep_ms: int | None) -> Flow[None]:
    yield from put("audit_begin", [tuple(entry)])
    if keep_ms is not None:
        yield from ask("audit_trim", keep_ms, _TRIMMED)
