"""The handle of a run: reads it, waits for its end, signals and changes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from . import questions, results, streams
from .engine.concurrency import winners_of
from .engine.history import PATCH
from .engine.invocation import refuse_in_workflow
from .engine.observers import UNTOLD, signalling
from .engine.options import Seconds
from .engine.outcomes import decode_error
from .errors import ConfigurationError, InvalidInput, InvalidState, RunCancelled, RunFailed, RunNotFound
from .info import (
    TELLING,
    Activity,
    Executors,
    RunInfo,
    StepInfo,
    activity_info,
    all_steps,
    dag_step_info,
    may_be_remote,
    progress_info,
    run_info,
    step_info,
    told_once,
    waiting_steps,
    with_last_words,
    with_queue_waits,
    with_remote,
    with_remote_inside,
)
from .model import status
from .model.attributes import Attribute
from .model.backoff import check_priority, seconds, to_milliseconds
from .model.events import SignalSent
from .model.forks import Point
from .model.graph import Graph, StoredGraph, read_graph
from .model.ids import new_id
from .model.names import OWN_KEYS, check_name, check_question, check_signal
from .model.payload import Payloads, check_type
from .model.records import Answer, Lane, Mail, NewRun, RunShape, StepRecord
from .model.retention import needed_by
from .model.rows import NO_CALL, ActivityRow, DagStepRow, Outcome, RunRow
from .model.status import WORKFLOW
from .model.transitions.operator import NewTime, why_not
from .replay import export_run
from .starts import SIGNAL_TO_DAG, Plan, check_value
from .streams import LogLine, StreamItem

if TYPE_CHECKING:
    from .runtime import Connected
    from .store import Store

O = TypeVar("O", covariant=True)  # noqa: E741


_SENDERS = 8
"""Signals of one call that are under way at once."""


_STEP_STATUSES = (
    status.RUNNING, status.WAITING, status.COMPLETED, status.FAILED, status.SKIPPED, status.CANCELLED,
    status.COMPENSATING, status.COMPENSATED, status.COMPENSATION_FAILED,
)  # fmt: skip


class Run(Generic[O]):
    """A handle of a run, made without a query."""

    def __init__(
        self,
        run_id: str,
        connect: Callable[[], Awaitable[Connected]],
        payloads: Payloads,
        output_type: Any = Any,
        known: bool = False,
    ) -> None:
        self.id = run_id
        self._connect = connect
        self._payloads = payloads
        self._output_type = output_type
        self._known = known
        self._alone = False
        """Whether it stands for this run alone, and not for the last that it continues as."""
        self._last: Run[O] | None = None
        """The last run of the chain that is known."""
        self.existed = False
        """Whether the start that gave this handle found the run there: by its key, or by its name."""

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    @property
    def this(self) -> Run[O]:
        """A handle that reads this run alone. Other handles read the last run of its chain, if it has continued as
        another (``ctx.continue_as``)."""
        link = Run[O](self.id, self._connect, self._payloads, self._output_type, self._known)
        link._alone, link.existed = True, self.existed
        return link

    async def _latest(self) -> tuple[Run[O], RunRow]:
        """The last run of the chain, and its row; of a handle of one run alone that."""
        run = self._last or self
        row = await run._row()
        while row.reason == status.REASON_CONTINUED and not self._alone:
            which = await (await self._connect()).store.continuation(run.id)
            if which == run.id:
                break
            self._last = run = Run[O](which, self._connect, self._payloads, self._output_type, True).this
            row = await run._row()
        return run, row

    async def status(self) -> str:
        """The status of the run: ``queued``, ``running``, ``completed`` …"""
        return (await self._latest())[1].status

    async def info(self) -> RunInfo:
        """Everything about the run but its steps; of one that has continued as another, about the last of them."""
        return run_info((await self._latest())[1], self._payloads)

    async def result(self, timeout: float | timedelta | None = None) -> O:
        """Wait for its end: the result, or RunFailed, RunCancelled, or TimeoutError after ``timeout`` seconds."""
        limit = None if timeout is None else seconds(timeout, "the timeout of result()")
        if not self._known:
            await (await self._connect()).ask(self._row, patience=limit)
        outcome = await self._outcome(limit)
        return self._value(outcome)

    async def _outcome(self, limit: float | None) -> Outcome:
        """Wait for the end of the run, or of its continuation."""
        connected, run_id = await self._connect(), self.id
        until = None if limit is None else time.monotonic() + limit
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            outcome = await self._wait(connected, run_id, left)
            if outcome is None:  # the timeout may be shorter than a question takes: ask once all the same
                outcome = next(iter(await connected.store.outcomes([run_id])), None)
            if outcome is None:
                if await connected.store.missing([run_id]):
                    raise RunNotFound(run_id)
                stands = await connected.no_worker.missing(run_id) or "it continues, and result() may be called again"
                raise TimeoutError(f"run {run_id} has not ended within {limit:g} s; {stands}")
            if outcome.reason != status.REASON_CONTINUED:
                return outcome
            left = None if until is None else max(0.0, until - time.monotonic())
            continuation = await connected.ask(lambda: connected.store.continuation(run_id), patience=left)  # noqa: B023
            if continuation == run_id:
                raise RunNotFound(msgspec.json.decode(outcome.output or "null"))
            run_id = continuation

    async def _wait(self, connected: Connected, run_id: str, left: float | None) -> Outcome | None:
        """Wait for the end; after a while warn if no worker serves the run."""
        if left is not None and left <= results.SOON:
            return await connected.watcher.wait(run_id, left)
        outcome = await connected.watcher.wait(run_id, results.SOON)
        if outcome is None:
            await connected.no_worker.warn(run_id)
            outcome = await connected.watcher.wait(run_id, None if left is None else left - results.SOON)
        return outcome

    async def steps(self, *, after: StepInfo | int | None = None, status: str | None = None) -> list[StepInfo]:
        """The steps of the run: recorded ones in the order they were recorded, then those under way. ``after`` a step,
        or its ``number``: only what was recorded later, and what is under way; ``status``: only those that have it."""
        store = (await self._connect()).store
        run, row = await self._latest()
        if run is not self:
            return await run.steps(after=after, status=status)
        if status is not None and status not in _STEP_STATUSES:
            raise ConfigurationError(f"no step has the status {status!r}; there are {', '.join(_STEP_STATUSES)}")
        last = after.number if isinstance(after, StepInfo) else after
        records = await all_steps(store, self.id) if last is None else await _later_steps(store, self.id, last)
        found = await self._told(row, records)
        return [
            step
            for step in found
            if status in (None, step.status) and (last is None or step.number is None or step.number > last)
        ]

    async def _told(self, row: RunRow, records: list[StepRecord], *, first: bool = True) -> list[StepInfo]:
        """Steps from their records, in the order they were recorded. With the ``first`` of them comes what has no
        record: the steps of a dag, and what is under way."""
        store = (await self._connect()).store
        records.sort(key=lambda record: record.seq)
        is_dag = first and row.graph is not None and row.dag_id is None
        graph = (
            ((await self._stored_graph(row)).graph or Graph([])) if is_dag else None
        )  # without it no row is known for a step
        dag_steps = [] if graph is None else await store.dag_steps(self.id)
        begun = [dag_step.id for dag_step in dag_steps if dag_step.started_at is not None]
        executed = {run_id: Executors(rows) for run_id, rows in (await store.executors([self.id, *begun])).items()}
        found = [] if graph is None else self._dag_steps(dag_steps, graph, executed)
        if begun:
            found = with_remote_inside(found, await store.remote_steps(begun))
        winners, executors = winners_of(records), executed[self.id]
        found += [
            step_info(record, row, self._payloads, winners, executors) for record in records if record.kind != PATCH
        ]
        if may_be_remote(records):
            found = with_remote(found, await store.remote_steps([self.id]))
        if any(record.kind in TELLING for record in records):
            places = [(record.branch, record.position) for record in records]
            words = await store.last_words(self.id, min(places), max(places))
            found = with_last_words(found, words, self._payloads) if words else found
        if row.status in status.TERMINAL or not first:
            return found
        holder = executors.last if row.worker is not None else None
        under_way = [
            progress_info(progress, self._payloads, holder, row.unrecorded_losses)
            for progress in await store.progress(self.id)
        ]
        if under_way:
            failures = await store.failed_calls(self.id, row.attempt)
            under_way = [
                step
                if step.kind == WORKFLOW
                else replace(step, attempts=1 + failures.get((step.branch, step.position), 0))
                for step in under_way
            ]
        found = told_once(found, under_way, executed=row.worker is not None)
        if status.WAITING_RETRY in (row.waiting_for or "").split(", "):
            tries = [call for call in await _calls(store, self.id) if call.attempt == row.attempt]
            found += waiting_steps(tries, found, self._payloads, executors)
        return found

    def _dag_steps(self, rows: list[DagStepRow], graph: Graph, executed: dict[str, Executors]) -> list[StepInfo]:
        """The steps of a dag run."""
        nothing = Executors(())
        return [
            dag_step_info(row, number, graph, self._payloads, executed.get(row.id, nothing).last)
            for number, row in enumerate(rows)
        ]

    async def _stored_graph(self, row: RunRow) -> StoredGraph:
        if row.graph is None or row.dag_id is not None:
            return StoredGraph(None)
        return read_graph(await (await self._connect()).store.graph(row.workflow, row.graph, row.id))

    async def activity(self) -> list[Activity]:
        """The append-only log of every call, failed tries included, in start order."""
        run, _ = await self._latest()
        if run is not self:
            return await run.activity()
        store = (await self._connect()).store
        begun = [dag_step for dag_step in await store.dag_steps(self.id) if dag_step.started_at is not None]
        rows = await store.executors([self.id, *(dag_step.id for dag_step in begun)])
        executors = {run_id: Executors(its) for run_id, its in rows.items()}
        log = [activity_info(self.id, row, self._payloads, executors[self.id]) for row in await _calls(store, self.id)]
        for dag_step in begun:
            calls, its = await _calls(store, dag_step.id), executors[dag_step.id]
            log += [activity_info(dag_step.id, row, self._payloads, its, dag_step.name) for row in calls]
        log = with_queue_waits(log, await store.remote_steps([self.id, *(dag_step.id for dag_step in begun)]))
        return sorted(log, key=lambda call: call.started_at)

    async def export(self) -> dict[str, Any]:
        """The run with all its records, as plain values for a file of JSON; ``app.replay`` takes it, without this
        database. A step of a dag run is exported with that run."""
        run, _ = await self._latest()
        return await export_run((await self._connect()).store, run.id)

    async def get(self, key: str, default: Any = None) -> Any:
        """A value that the run has set by ``ctx.set``; the default if it has not."""
        run, store = self._last or self, (await self._connect()).store
        (found,) = await store.awaited_values([(run.id, key)])
        if found.continuation is not None and not self._alone:
            run, _ = await self._latest()
            (found,) = await store.awaited_values([(run.id, key)])
        if found.status is None:
            raise RunNotFound(run.id)
        if found.value is None:
            return default
        return self._payloads.plain(found.value, found.format or 0, f"the value of {key!r}")

    async def wait_value(self, key: str, *, timeout: Seconds | None = None) -> Any:
        """The value that the run sets by ``ctx.set``, waited for if it has set none yet; also one that a later run of
        its chain sets. InvalidState if it ends without, TimeoutError after ``timeout`` seconds."""
        refuse_in_workflow("run.wait_value", "a signal")
        limit = None if timeout is None else seconds(timeout, "the timeout of run.wait_value")
        check_name(key, "the key of a value", self._payloads.settings.max_name)
        connected, run_id = await self._connect(), self.id
        until = None if limit is None else time.monotonic() + limit
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            try:
                found = await connected.values.wait((run_id, key), left)
            except TimeoutError:
                raise TimeoutError(f"run {run_id} has not set {key!r} within {limit:g} s") from None
            if found.value is not None:
                return self._payloads.plain(found.value, found.format or 0, f"the value of {key!r}")
            if found.status is None:
                raise RunNotFound(run_id)
            if found.continuation is None or self._alone:
                raise InvalidState(f"run {run_id} is {found.status}, and has not set {key!r}")
            run_id = found.continuation

    async def stream(
        self, name: str, *, after: str | None = None, type: Any = Any, timeout: Seconds | None = None
    ) -> AsyncGenerator[StreamItem[Any], None]:
        """The items of a stream, while the run works and after: ``async for item in run.stream("tokens")``. It begins
        ``after`` an offset, or at the first item, follows a run that goes on as another (but ``run.this.stream``), and
        ends with the stream or the run. ``timeout``: seconds without an item after which TimeoutError is raised."""
        check_name(name, "the name of a stream", self._payloads.settings.max_name)
        check_type(type, f"an item of stream {name!r}")
        limit = None if timeout is None else seconds(timeout, "the timeout of a stream")
        connected, follow = await self._connect(), not self._alone
        async for item in streams.read(connected, self._payloads, self.id, name, after, type, limit, follow=follow):
            yield item

    async def streams(self) -> list[str]:
        """The names of the run's streams, and of those that it has continued as."""
        return await streams.names((await self._connect()).store, self.id, follow=not self._alone)

    async def logs(self) -> list[LogLine]:
        """What the code of the run has logged, if its application keeps that: ``Stepfast(run_logs="INFO")``."""
        return await streams.log_lines(await self._connect(), self._payloads, self.id, follow=not self._alone)

    async def follow_logs(self, *, timeout: Seconds | None = None) -> AsyncGenerator[LogLine, None]:
        """The same while the run works, until it ends: ``async for line in run.follow_logs()``. ``timeout``: seconds
        without a line after which TimeoutError is raised."""
        limit = None if timeout is None else seconds(timeout, "the timeout of follow_logs")
        connected, follow = await self._connect(), not self._alone
        async for line in streams.follow_lines(connected, self._payloads, self.id, limit, follow=follow):
            yield line

    async def values(self) -> dict[str, Any]:
        """Everything that the run has set by ``ctx.set``."""
        run, _ = await self._latest()
        found = await (await self._connect()).store.values(run.id)
        return {
            key: self._payloads.shown(text, format_, f"the value of {key!r}")
            for key, text, format_ in found
            if not key.startswith(OWN_KEYS)
        }

    # -- signals and requests --------------------------------------------------------------------------------------

    async def signal(self, name: str, value: Any = None, *, id: str | None = None, connection: Any = None) -> None:
        """Send it a signal, kept until it takes it. Of several with the same ``id`` it takes one. With a
        ``connection`` of your own, as part of its transaction."""
        refuse_in_workflow("run.signal", "ctx.signal")
        if id is not None:
            check_name(id, "the id of a signal", self._payloads.settings.max_name)
        check_signal(name, self._payloads.settings.max_name)
        text = self._payloads.encode(value, f"the value of signal {name!r}")
        mail = Mail(self.id, new_id(), status.MAIL_SIGNAL, name, text, format=self._payloads.format, given=id)
        await self._signal(mail, connection)

    async def _signal(self, mail: Mail, connection: Any = None) -> None:
        connected = await self._connect()
        with UNTOLD if connected.observers is None else signalling(connected.observers, mail):
            await self._send(mail, connection)

    async def ask(self, name: str, value: Any = None, *, id: str | None = None, timeout: Seconds | None = None) -> Any:
        """Ask the run something, and wait for the answer that it gives by ``ctx.wait_question``. Asked again with the
        same ``id``, it is the same question, and has the same answer. QuestionRefused, RunEnded, or TimeoutError after
        ``timeout`` seconds; a question that is not waited for any more is answered all the same."""
        refuse_in_workflow("run.ask", "a child, whose result is the answer")
        check_question(name, self._payloads.settings.max_name)
        limit = None if timeout is None else seconds(timeout, "the timeout of run.ask")
        if id is not None:
            check_name(id, "the id of a question", self._payloads.settings.max_name)
        text = self._payloads.encode(value, f"the value of question {name!r}")
        connected = await self._connect()
        which = connected.new_id() if id is None else questions.question_id(self.id, id)
        mail = Mail(self.id, which, status.MAIL_SIGNAL, name, text, format=self._payloads.format)
        return await questions.ask(connected, self._payloads, mail, limit, self._ask)

    async def _send(self, mail: Mail, connection: Any) -> None:
        """Send it to this run, or to the one that continues it, with the same id: the mail of a run whose reply was
        lost may have gone on to its continuation."""
        connected, check, tries = await self._connect(), True, 0

        async def send() -> Answer:
            nonlocal tries
            tries += 1
            return await connected.store.send(mail, tries > 1, check)

        while True:
            if connection is not None:
                answer = await connected.store.send_within(connection, mail)
            else:
                answer = await self._ask(send)
                if answer.awaited:
                    check_value(self._payloads, mail, answer.awaited)
                    check, tries = False, tries - 1
                    continue
            continuation = await self._latest_run(mail.run_id, answer)
            if continuation is None:
                break
            mail = msgspec.structs.replace(mail, run_id=continuation)
        if answer.status is None:
            raise RunNotFound(self.id)
        if answer.done:
            if connected.observers is not None:
                connected.observers.tell(
                    connected.observers.signalled,
                    SignalSent(answer.whose or mail.run_id, mail.name, connection is not None),
                )
            return
        if answer.reason == status.NO_SUCH_STEP:
            raise InvalidState(f"run {self.id} has no unfinished step {mail.name!r}; {SIGNAL_TO_DAG}")
        whose = answer.whose or mail.run_id
        raise InvalidState(f"run {whose} is {answer.status}; a signal can only be sent to a run that has not ended")

    async def cancel(self, *, children: bool = True) -> None:
        """End it: at once, or after the step that a worker is executing. Its children are cancelled too, unless told
        otherwise, and its completed steps undone where they have an undo. Cancelling a cancelled run has no effect."""
        store = (await self._connect()).store
        answer, run_id = await self._request("cancelled", lambda run_id: store.cancel(run_id, children))
        if not answer.done and answer.status != status.CANCELLED and answer.reason != status.REASON_CANCELLED:
            raise InvalidState(f"run {run_id} is {answer.status}; it cannot be cancelled any more")

    async def pause(self) -> None:
        """Pause it, from the next step on, until ``resume``. Signals are kept; sleeps do not change."""
        answer, run_id = await self._request("paused", (await self._connect()).store.pause)
        if not answer.done:
            raise InvalidState(
                f"run {run_id} is {answer.status}; only a run that has neither ended nor is being undone can be paused"
            )

    async def resume(self) -> None:
        """Resume a paused run; make the check of a run in ``ctx.wait_until`` due."""
        answer, run_id = await self._request("resumed", (await self._connect()).store.resume)
        if not answer.done:
            raise InvalidState(f"run {run_id} is {answer.status}; only a paused run can be resumed")

    async def reschedule(
        self, *, delay: Seconds | None = None, at: datetime | None = None, priority: int | None = None
    ) -> None:
        """Move the time at which it is due, or its priority: of a run that is queued, be it for a later time or for its
        next attempt, or that waits for the next try of a step. ``delay=0`` makes it due now."""
        if delay is None and at is None and priority is None:
            raise ConfigurationError("run.reschedule takes delay=, at= or priority=; delay=0 makes the run due now")
        if delay is not None and at is not None:
            raise ConfigurationError("run.reschedule takes delay or at, not both")
        wanted = NewTime(
            None if delay is None else int(seconds(delay, "delay") * 1000),
            None if at is None else to_milliseconds(at, "at"),
            None if priority is None else check_priority(priority),
        )
        store = (await self._connect()).store
        answer, run_id = await self._request("rescheduled", lambda run_id: store.reschedule(run_id, wanted))
        if not answer.done:
            row = await store.run(run_id)
            raise InvalidState(f"run {run_id} {why_not(answer.status, None if row is None else row.waiting_for)}")

    async def _request(self, what: str, request: Callable[[str], Awaitable[Answer]]) -> tuple[Answer, str]:
        """Send a request to this run, or to its continuation. Return the answer, and the id of the run that gave it."""
        run_id = self.id
        while True:
            answer = await self._ask(lambda: request(run_id))  # noqa: B023
            continuation = await self._latest_run(run_id, answer)
            if continuation is None:
                break
            run_id = continuation
        if not answer.done and run_id == self.id:
            self._refuse_step(await self._row(), what)
        return answer, run_id

    async def _latest_run(self, run_id: str, answer: Answer) -> str | None:
        """Return the last continuation of a run that refused a request because it had continued as another run; else
        None."""
        if answer.done or answer.reason != status.REASON_CONTINUED:
            return None
        connected = await self._connect()
        continuation = await connected.ask(lambda: connected.store.continuation(run_id))
        return None if continuation == run_id else continuation

    async def _ask(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Send a request, again after a short outage (every request can be repeated), and wake workers and waits."""
        connected = await self._connect()
        answer = await connected.ask(call)
        if answer.status is None:
            raise RunNotFound(self.id)
        lanes = answer.lanes | ({answer.lane} if answer.lane is not None else set())
        if lanes:
            connected.switchboard.ready(lanes)
        if answer.ended:
            connected.switchboard.ended()
        if answer.done:
            connected.switchboard.tick_everywhere()
        return answer

    async def retry(self, *, from_start: bool = False) -> Run[O]:
        """Queue a failed or cancelled run again: recorded steps are kept, the failed one is called again.

        ``from_start=True`` leaves it as it is and starts a new run with the same input and options, linked to it: for
        runs whose steps were undone. A deadline counts from its start; a key, a delay and an expiry are not repeated.
        """
        connected = await self._connect()
        if from_start:
            return await self._start_again()
        lanes = await connected.store.retry(self.id)
        if lanes is None:
            row = await self._row()
            self._refuse_step(row, "retried")
            if (
                row.reason == status.REASON_CONTINUED
                and (continuation := await connected.store.continuation(self.id)) != self.id
            ):
                return await Run(continuation, self._connect, self._payloads, self._output_type, known=True).retry()
            ended = row.status in (status.FAILED, status.CANCELLED)
            if row.undoing or (ended and row.graph is not None):
                who = f"run {self.id}" if row.undoing else f"a step of run {self.id}"
                raise InvalidState(
                    f"{who} was undone and cannot continue from its records; "
                    "retry(from_start=True) starts a new run with the same input"
                )
            raise InvalidState(f"run {self.id} is {row.status}; only failed or cancelled runs can be retried")
        connected.switchboard.ready(lanes)
        return self

    async def fork(self, *, before: str | int | StepInfo, input: Any = None) -> Run[O]:
        """Start a new run with the records of this one up to a step, which it executes first: ``before`` names it (the
        first of its name), or is its place in ``run.steps()`` from 0, or its StepInfo. Other steps are not executed
        again. With an ``input``, that instead of the input of this run. Refused for a step that is not recorded.

        This run stays as it is, and may be under way. Undos of the records belong to it alone; children that it had
        started are read. Keys, unique names, signals that were not taken, and streams are not copied. What
        ``ctx.transaction`` has written is there already. If the code does not fit the records, with this input, the new
        run fails by NonDeterminismError; ``app.check(run=…, before=…)`` tells before."""
        run, row, point = await self._at(before, "forked")
        if run is not self:
            return await run.fork(before=before, input=input)
        connected = await self._connect()
        text = row.input or "null"
        if input is not None:
            text = await connected.planner.input_text(connected, row.workflow, input)
            row.format = self._payloads.format
        shape = self._shape_again(row)
        new = NewRun(connected.new_id(), shape, text, origin=self.id)
        new.attributes = tuple(Attribute(*each) for each in row.attributes.items())
        if not await connected.ask(lambda: connected.store.fork(self.id, point, new), "fork"):
            raise RunNotFound(self.id)
        connected.switchboard.ready([Lane(shape.queue, shape.workflow, shape.priority)])
        return Run(new.id, self._connect, self._payloads, self._output_type, known=True)

    async def rewind(self, *, before: str | int | StepInfo) -> Run[O]:
        """Execute this run again from a step on, which is named as for ``fork``: records from there on are removed, and
        signals that they took can be taken again. For a run that has ended, and was not undone. Children that are
        started after that are new ones; ``ctx.step_key`` of a step stays what it was."""
        run, _, point = await self._at(before, "rewound")
        if run is not self:
            return await run.rewind(before=before)
        connected = await self._connect()
        lane = await connected.store.rewind(self.id, point)
        if lane is None:
            raise RunNotFound(self.id)
        connected.switchboard.ready([lane])
        return self

    async def _at(self, before: str | int | StepInfo, done: str) -> tuple[Run[O], RunRow, Point]:
        """The run, its row, and the step that is meant."""
        refuse_in_workflow(f"run.{'fork' if done == 'forked' else 'rewind'}", "a step that does so")
        if isinstance(before, bool) or not isinstance(before, str | int | StepInfo):
            raise ConfigurationError(f"before must be the name of a step, its number or a StepInfo, not {before!r}")
        run, row = await self._latest()
        if row.dag_id is not None or row.graph is not None:
            raise InvalidState(
                f"run {run.id} is {'a step of ' if row.dag_id else ''}a dag run, which cannot be {done}: run.retry() "
                "executes what failed again, retry(from_start=True) all of it"
            )
        if isinstance(before, StepInfo):
            return run, row, Point(before.branch, before.position, before.name)
        steps = await run.steps()
        if isinstance(before, int):
            step = steps[before] if 0 <= before < len(steps) else None
        else:
            step = next((each for each in steps if each.name == before), None)
        if step is None or step.number is None:
            raise InvalidState(
                f"step {before!r} is not recorded in run {run.id}; `run.steps()` lists the {len(steps)} that it has"
            )
        return run, row, Point(step.branch, step.position, step.name)

    async def delete(self) -> None:
        """Remove it, with all that belongs to it, before its retention is over. Its key is free again. Refused while it
        is unfinished, and while another run needs it."""
        found = await (await self._connect()).store.delete(self.id)
        if found is None:
            row = await self._row()
            self._refuse_step(row, "deleted")
            raise InvalidState(f"run {self.id} is {row.status}; only a run that has ended can be deleted")
        if (why := needed_by(found)) is not None:
            raise InvalidState(f"run {self.id} cannot be deleted yet: {why}")

    def _refuse_step(self, row: RunRow, what: str) -> None:
        """A step of a dag run goes with that."""
        if row.dag_id is not None:
            raise InvalidState(f"run {self.id} is a step of dag run {row.dag_id}; it can only be {what} with that run")

    @staticmethod
    def _shape_again(row: RunRow) -> RunShape:
        """What a run that is like this one is started with."""
        return RunShape(
            row.workflow, row.graph or row.version, row.queue, row.priority, deadline_ms=row.deadline_ms,
            max_attempts=row.max_attempts, timeout_ms=row.timeout_ms, tags=tuple(row.tags),
            concurrency_key=row.concurrency_key, format=row.format,
        )  # fmt: skip

    async def _start_again(self) -> Run[O]:
        row = await self._row()
        self._refuse_step(row, "retried")
        if row.status not in status.TERMINAL:
            raise InvalidState(
                f"run {self.id} is {row.status}; only a run that has ended can be retried from its start"
            )
        shape = self._shape_again(row)
        graph, why = await self._stored_graph(row)
        if why is not None:
            raise InvalidState(f"the graph of run {self.id} {why}, so that it cannot be started again")
        plan = Plan(shape, lambda text: text, self._output_type, graph)
        connected = await self._connect()
        runs = plan.runs(connected.new_id(), row.input or "null")
        runs[0].origin = self.id
        runs[0].attributes = tuple(Attribute(*each) for each in row.attributes.items())
        run_id = (await connected.starter.start_many(runs))[0]
        return Run(run_id, self._connect, self._payloads, self._output_type, known=True)

    async def _row(self) -> RunRow:
        row = await (await self._connect()).store.run(self.id)
        if row is None:
            raise RunNotFound(self.id)
        self._known = True
        return row

    def _value(self, outcome: Outcome) -> O:
        if outcome.status == status.COMPLETED:
            what = f"the result of run {self.id}"
            value: O = self._payloads.decode(outcome.output or "null", self._output_type, outcome.format, what)
            return value
        if outcome.status == status.CANCELLED or outcome.reason == status.REASON_CANCELLED:
            raise RunCancelled(self.id)
        error = decode_error(outcome.error, outcome.format, self._payloads)
        raise RunFailed(
            self.id,
            error["message"],
            reason=outcome.reason,
            error_type=error["type"],
            traceback=error["traceback"],
        )


async def _later_steps(store: Store, run_id: str, number: int) -> list[StepRecord]:
    """What was recorded after a step of this number."""
    found: list[StepRecord] = []
    while page := await store.steps_since(run_id, number):
        found += page
        number = page[-1].seq
    return found


async def _calls(store: Store, run_id: str) -> list[ActivityRow]:
    """Every call of a run, in start order; quick ones that share a millisecond in the order of the code."""
    found: list[ActivityRow] = []
    while page := await store.activity(run_id, found[-1].key if found else NO_CALL):
        found += page
    return sorted(found, key=lambda call: (call.started_at, call.completed_at, call.position, call.number, call.branch))


async def send_signals(
    get: Callable[[str], Run[Any]], signals: Sequence[tuple[str, str, Any]], ids: Sequence[str] | None, connection: Any
) -> None:
    """Send signals to many runs, a few at once, and to each run one after the other."""
    if ids is not None and len(ids) != len(signals):
        raise ConfigurationError(f"signal_many was given {len(signals)} signals and {len(ids)} ids")
    by_run: dict[str, list[tuple[str, Any, str | None]]] = {}
    for number, (run_id, name, value) in enumerate(signals):
        by_run.setdefault(run_id, []).append((name, value, None if ids is None else ids[number]))
    refused: list[Exception] = []
    left = iter(by_run.items())

    async def send() -> None:
        for run_id, mine in left:
            for name, value, given in mine:
                try:
                    await get(run_id).signal(name, value, id=given, connection=connection)
                except (InvalidState, InvalidInput, RunNotFound) as error:
                    refused.append(error)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(1 if connection is not None else _SENDERS):
                group.create_task(send())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    if refused:
        raise ExceptionGroup(f"{len(refused)} of {len(signals)} signals were refused", refused)
