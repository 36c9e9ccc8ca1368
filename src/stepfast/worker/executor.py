"""The executor: runs handlers in slots, bounds them in time, and turns what becomes of them into journal entries.

    claimed → decode the input → call the handler → outcome → journal → slot free

Each handler is one task (a plain ``def`` one thread more). A slot is free again when its handler is done or given up;
what it left to the journal is committed while the next claim is under way, up to as many runs again as there are slots.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

from ..engine.dag import SKIP, Dag, NodeWorkflow
from ..engine.dag_run import (
    failed_within,
    failure_of,
    first_failure,
    result_of,
    target_of,
    to_undo,
    undo_dag,
    undos_gone,
)
from ..engine.execution import Execution
from ..engine.failure import decode_error, encode_error, ending_record, explain
from ..engine.handler import call_handler
from ..engine.replay_only import replay
from ..engine.scope import current_execution
from ..engine.step_call import being_cancelled, default_backoff, exited
from ..engine.suspect import Suspect
from ..engine.telling import OfRun, ids_of, tell_attempt, tell_end, tell_undos
from ..engine.undo import undo_all
from ..engine.workflow import DAG, DAG_STEP, WORKFLOW
from ..errors import (
    AttemptEnded,
    AttemptTimeout,
    CompensationFailed,
    ContextMisuse,
    DatabaseRefused,
    DeadlineExceeded,
    InvalidInput,
    LeaseLost,
    NonDeterminismError,
    PayloadError,
    Released,
    RunSuspended,
    StepfastError,
    sentence,
)
from ..model import status
from ..model.backoff import retry_delay
from ..model.graph import Settled
from ..model.records import RUN_ITSELF, Claimed, Entry, NewRun, NodeRow, Transition, TryFailed
from ..model.suspects import room_for_suspects
from ..settings import FORMAT, SUSPECT_LOSSES
from .cache import HistoryCache
from .divergence import GIVEN_BACK, given_back_again, given_back_at_most, times_given_back
from .errands import Errands
from .graphs import Graphs
from .journal import Journal
from .kit import Kit
from .mailman import Mailman
from .threads import Threads

_OVER = AttemptEnded("the attempt is over")


class Executor:
    """The slots of one worker, and what goes on in them."""

    def __init__(
        self,
        kit: Kit,
        journal: Journal,
        mailman: Mailman,
        errands: Errands,
        graphs: Graphs,
        slots_freed: Callable[[], None],
    ) -> None:
        self.settings = kit.settings
        self.concurrency = kit.settings.concurrency
        self.payloads = kit.payloads
        self.logger = kit.logger
        self._workflows = kit.me.workflows
        self._journal = journal
        self.record: Callable[[Entry], asyncio.Future[int]] = journal.record
        self._slots_freed = slots_freed
        self._mailman = mailman
        self._errands = errands
        self._graphs = graphs
        self.new_child = errands.new_child
        self.outcome = errands.outcome
        self.value = errands.value
        self.retry = errands.retry
        self.transact = errands.transact
        self._lingering: set[Execution] = set()
        """Runs that wait in memory because slots are free."""
        self._handlers = Threads("handler")
        self._steps = Threads("step")
        self.loop = asyncio.get_running_loop()
        self.loop_thread = threading.get_ident()
        self.cache = HistoryCache(kit.settings.history_cache)
        self.running: dict[str, Execution] = {}
        """All runs that are this worker's, those whose end is being committed among them."""
        self._leaving = 0
        self._stuck: set[Execution] = set()
        """Runs that have left this worker while their plain def was still at work in its thread."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.idle = asyncio.Event()
        self.idle.set()

    # -- the worker, as an execution sees it (engine.Recorder) ----------------------------------------------------

    def note(self, entry: Entry) -> None:
        """Journal an entry nobody waits for, from any thread."""
        if threading.get_ident() == self.loop_thread:
            self._journal.note(entry)
        else:
            self.loop.call_soon_threadsafe(self._journal.note, entry)

    def run_in_thread(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """A blocking step."""
        return self._steps.submit(function)

    def has_free_slots(self) -> bool:
        """Whether a moment's wait may stay in memory."""
        return len(self.running) - self._leaving < self.concurrency

    async def look_into_mailbox(self, execution: Execution) -> None:
        """Ask for the mail of a run."""
        await self._mailman.look(execution)

    def watch_mail(self, execution: Execution) -> None:
        """Look into its mailbox again whenever there may be something new."""
        self._mailman.watch(execution)

    def lingers(self, execution: Execution) -> None:
        """A run waits in memory, for as long as its slot is not wanted."""
        self._lingering.add(execution)

    def _release_lingering(self) -> None:
        lingering, self._lingering = self._lingering, set()
        for execution in lingering:
            if execution.closed is None:
                execution.waits.release()

    # -- slots ---------------------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        """Slots to be claimed for."""
        most = 2 * self.concurrency - len(self.running)
        return min(self.concurrency - len(self.running) + self._leaving, most, most - len(self._stuck))

    def holding(self) -> dict[str, int]:
        """Run id → claim number of all that is in the slots. Called from the heartbeat's thread."""
        while True:
            try:
                return {run_id: execution.claim for run_id, execution in self.running.items()}
            except RuntimeError:  # changed while we looked
                continue

    def works_on(self, run_id: str, claim: int) -> bool:
        """Whether this claim of the run is at hand, and nothing that ends it is in the journal yet."""
        execution = self.running.get(run_id)
        return execution is not None and execution.claim == claim and not execution.leaving

    def suspect_room(self) -> list[int]:
        """How many more runs that workers have died with may come in. Those that have made a new record have cleared
        themselves, and those whose handler is done can do no harm any more."""
        unproved = [
            execution.claimed.losses
            for execution in self.running.values()
            if execution.claimed.losses >= SUSPECT_LOSSES and not (execution.recorded or execution.handler_done)
        ]
        return room_for_suspects(unproved, self.settings.max_losses, self.concurrency)

    def accept(self, runs: list[Claimed]) -> None:
        """Fill slots with claimed runs."""
        for claimed in runs:
            known = self.running.get(claimed.id)
            if known is not None:
                known.lose()  # claimed anew: whatever we held of it is not ours any more
                self._free(known)
            if claimed.claim > 1:
                self._remember(claimed)
            execution = self._execution(claimed)
            self.running[claimed.id] = execution
            self._begin(execution)
        self.idle.clear()
        if self._lingering and not self.has_free_slots():
            self._release_lingering()

    def _execution(self, claimed: Claimed) -> Execution:
        workflow = self._workflows[claimed.workflow]
        if claimed.losses < SUSPECT_LOSSES:
            return Execution(claimed, workflow, self)
        return Suspect(claimed, workflow, self, self._slots_freed)

    def _remember(self, claimed: Claimed) -> None:
        """A run that was here before may have its records here still."""
        records = self.cache.take(claimed.id, claimed.claim)
        if records is not None and not claimed.records:
            claimed.records, claimed.complete = records, True

    def _begin(self, execution: Execution) -> None:
        execution.main.owner = execution.task = self.loop.create_task(self._drive(execution))
        limit = self._time_limit(execution)
        if limit is not None:
            self._timers[execution.run_id] = self.loop.call_later(limit[0], self._time_is_up, execution, limit[1])

    def _free(self, execution: Execution) -> None:
        """The run is no longer this worker's: forget it, once."""
        if self.running.get(execution.run_id) is execution:
            del self.running[execution.run_id]
            self._leaving -= execution.handler_done
            self._count_thread(execution)
            # They know each other through the task's context; let go, or only the garbage collector could free them.
            execution.main.owner = execution.task = None
            self._lingering.discard(execution)
            timer = self._timers.pop(execution.run_id, None)
            if timer is not None:
                timer.cancel()
            if not self.running:
                self.idle.set()
            self._slots_freed()

    # -- one attempt ---------------------------------------------------------------------------------------------

    async def _drive(self, execution: Execution) -> None:
        current_execution.set(execution)
        try:
            try:
                result = await self._work(execution)
            except asyncio.CancelledError:  # ends here: the last thing that this task does
                if execution.closed is None and not being_cancelled():
                    await self._failed(execution, RuntimeError("the handler was cancelled by something it awaited"))
                    return
                if execution.closed is None:
                    execution.lose()  # the event loop is shutting down under us: nothing can be recorded any more
                await self._closed(execution)
            except Released as error:
                if execution.closed is None:
                    await self._failed(execution, exited(error))
                    return
                await self._closed(execution)
            except Exception as error:
                await self._failed(execution, error)
            except BaseException as error:  # ends here: a cancellation was caught above
                # SystemExit and the like from user code must not end the worker, nor hang the run.
                await self._failed(execution, exited(error))
            else:
                await self._returned(execution, result)
        except Exception as bug:
            await self._end_by_bug(execution, bug)

    async def _end_by_bug(self, execution: Execution, bug: Exception) -> None:
        """The engine itself could not end the attempt. Nobody waits for ever because of that: the run ends and says
        so."""
        self.logger.error(
            "run %s: an error of the engine's own", execution.run_id, exc_info=bug, extra=ids_of(execution)
        )
        if execution.leaving:
            self._free(execution)
            return
        move = Transition(execution.run_id, execution.claim, status.FAILED, reason=status.REASON_CODE)
        error = StepfastError(f"an error of the engine's own ended the run: {sentence(bug)}")
        with contextlib.suppress(Exception):  # it may be the application's codec that is broken
            move.error, move.format = encode_error(error, self.payloads), self.payloads.format
        await self._leave(execution, move)

    async def _work(self, execution: Execution) -> Any:
        """Heed what was asked while nobody held the run; then its code, or its undos."""
        claimed = execution.claimed
        if not claimed.complete:
            claimed.records = await self._errands.history(claimed)
            execution.load(claimed.records)
            claimed.complete = True
        if claimed.graph is not None and not await self._sees_dag(execution):
            self._wait_for_graph(execution)
            raise execution.closed or _OVER
        if claimed.asked is not None:
            execution.asked = execution.asked or claimed.asked
        if claimed.undoing:
            return await self._undo(execution)
        if execution.workflow.kind == DAG:
            return await self._finish_dag(execution)
        if execution.asked is not None and not execution.settles_loss:
            execution.obey()
            raise execution.closed or _OVER
        return await call_handler(execution, partial(self._call_in_thread, execution))

    def _call_in_thread(self, execution: Execution, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """A plain def cannot be stopped: if its run leaves before it returns, its thread is counted until it does."""

        def call() -> Any:
            try:
                return function()
            finally:
                execution.thread_over = True
                if execution in self._stuck:
                    self.loop.call_soon_threadsafe(self._returned_late, execution)

        execution.thread_over = False
        return self._handlers.submit(call)

    def _returned_late(self, execution: Execution) -> None:
        self._stuck.discard(execution)
        self._slots_freed()

    def _count_thread(self, execution: Execution) -> None:
        """The run has left this worker. Too many threads that do not return take slots: else they would only grow."""
        if not execution.is_in_thread():
            return
        self._stuck.add(execution)
        if not execution.is_in_thread():  # it has just returned, and did not find itself among them
            self._stuck.discard(execution)
        elif len(self._stuck) >= self.concurrency:
            self.logger.error(
                "%d threads are at work on runs that have left this worker, on account of a timeout or a lost lease "
                "(%s was the last): a plain def cannot be stopped. From now on each takes a slot until it returns",
                len(self._stuck), execution.workflow.name,
            )  # fmt: skip

    async def _sees_dag(self, execution: Execution) -> bool:
        """A step of a dag run, or the run itself: bring what it sees, if it is not there yet. False: its graph is not
        stored."""
        workflow = execution.workflow
        if execution.view is None:
            name = workflow.dag if isinstance(workflow, NodeWorkflow) else workflow.name
            execution.view = await self._graphs.view(name, execution.claimed)
        return execution.view is not None

    def _wait_for_graph(self, execution: Execution) -> None:
        """The slot is given back meanwhile; and who waits like that can be cancelled."""
        pause = int(self.settings.sweep * 1000)
        execution.suspend(execution.database_now() + pause, status.WAITING_GRAPH)

    async def _finish_dag(self, execution: Execution) -> dict[str, Any]:
        """All steps of a dag run are settled: its result, or the error that ended it. A wish is heeded here and no
        sooner: before its steps are known nobody knows what there is to undo."""
        assert execution.view is not None
        nodes = await self._errands.nodes(execution.run_id)
        claimed = execution.claimed
        if claimed.failing and claimed.reason == status.REASON_CANCELLED:
            execution.asked = status.ASK_CANCEL
        if not claimed.failing and execution.asked != status.ASK_CANCEL:
            return result_of(execution, nodes)  # whatever becomes of it: what has come to its end is not undone
        execution.undo_recorded = bool(to_undo(execution.view.graph, nodes) or failed_within(execution, nodes))
        if execution.asked == status.ASK_CANCEL:
            execution.obey()
        elif claimed.reason == status.REASON_DEADLINE:
            late = DeadlineExceeded(f"dag run {execution.run_id} did not end before its deadline")
            await self._end_failed(execution, late, status.REASON_DEADLINE)
        else:
            first = first_failure(nodes)
            await self._end_failed(execution, failure_of(execution, first), first.reason or status.REASON_CODE)
        raise execution.closed or _OVER

    async def _undo(self, execution: Execution) -> list[str]:
        """Undo what the code did, in reverse; what failed, in words."""
        if isinstance(execution.workflow, Dag):
            assert execution.view is not None
            nodes = await self._errands.nodes(execution.run_id)
            await self._leave_to_others(execution, execution.workflow, nodes)
            failed = await undo_dag(execution, execution.workflow, execution.view, nodes)
            return failed_within(execution, nodes) + failed
        submit = self._handlers.submit
        ghost, end = await replay(execution.claimed, execution.workflow, self, submit, view=execution.view)
        if ghost.diverged is not None:
            told = "run %s: its code was changed; some undos may be out of reach: %s"
            self.logger.error(told, ghost.run_id, end, extra=ids_of(execution))
        return await undo_all(execution, ghost.undoable)

    async def _leave_to_others(self, execution: Execution, dag: Dag, nodes: list[NodeRow]) -> None:
        """An undo that is not in our code any more, while workers with the code of its time live: it is theirs."""
        assert execution.view is not None
        version, gone = execution.claimed.graph or "", undos_gone(dag, execution.view.graph, nodes)
        if not gone or version == dag.version:
            return
        if any(peer.workflows[dag.name] == version for peer in await self._errands.peers(dag.name)):
            told = "run %s: other code that still runs has the undo of %r"
            self.logger.warning(told, execution.run_id, gone[0], extra=ids_of(execution, gone[0]))
            pause = int(self.settings.poll * 1000)
            execution.suspend(execution.database_now() + pause, status.WAITING_RETRY)
            raise execution.closed or _OVER

    # -- outcomes ------------------------------------------------------------------------------------------------

    async def _returned(self, execution: Execution, result: Any) -> None:
        """The handler came to its end: check that it left nothing behind, then record the result."""
        if execution.closed is not None:
            await self._closed(execution)
            return
        if execution.claimed.undoing:
            await self._undone(execution, result)
            return
        if result is SKIP and execution.claimed.node is not None:
            await self._leave(execution, Transition(execution.run_id, execution.claim, status.SKIPPED))
            return
        try:
            self._check_nothing_left(execution)
            workflow = execution.workflow
            if workflow.kind == DAG:  # its parts are within the limits
                output = self.payloads.encode_own(result)
            else:
                output, _ = self.payloads.round_trip(
                    result, workflow.output_type, OfRun(execution, "the result of", workflow.name)
                )
        except NonDeterminismError as error:
            execution.diverge(error)
            await self._closed(execution)
            return
        except StepfastError as error:
            await self._end_failed(execution, error, status.REASON_CODE)
            return
        except Exception as error:  # the application's codec; it may do better next time
            await self._attempt_failed(execution, error, status.REASON_CODE)
            return
        move = Transition(
            execution.run_id,
            execution.claim,
            status.COMPLETED,
            output=output,
            format=self.payloads.format,
        )
        await self._leave(execution, move)

    async def _undone(self, execution: Execution, failed: list[str]) -> None:
        """Every undo was called. The run keeps the error that it had ended with, unless one of them failed."""
        move = Transition(
            execution.run_id,
            execution.claim,
            status.COMPENSATED,
            recorded=execution.recorded,
            format=self.payloads.format,
        )
        if failed:
            move.status, move.reason = status.FAILED, status.REASON_UNDO
            cause = await self._errands.error_of(execution.run_id)
            error = decode_error(cause, self.payloads.format, self.payloads)
            said = f"; the run had ended with {error['type']}: {error['message']}" if cause is not None else ""
            move.error = encode_error(CompensationFailed("; ".join(failed) + said), self.payloads)
            tell_undos(execution, failed)
        else:
            self._settle_caught(execution, execution.claimed.reason, move)
        await self._leave(execution, move)

    async def _continued(self, execution: Execution, successor: NewRun) -> None:
        """The run ends, and goes on as another."""
        move = Transition(
            execution.run_id,
            execution.claim,
            status.COMPLETED,
            reason=status.REASON_CONTINUED,
            output=msgspec.json.encode(successor.id).decode(),
            format=FORMAT,
            successor=successor,
        )
        await self._leave(execution, move)

    def _check_nothing_left(self, execution: Execution) -> None:
        if forgotten := execution.never_awaited():
            names = ", ".join(forgotten)
            raise ContextMisuse(
                f"the workflow returned without awaiting {names}: it never began. Await every call of the context"
            )
        execution.history.check_all_taken()

    async def _failed(self, execution: Execution, error: Exception) -> None:
        """The handler raised: another attempt, later, or the end."""
        if execution.closed is not None:
            await self._closed(execution)
            return
        await self._attempt_failed(execution, error, status.REASON_CODE)

    async def _attempt_failed(self, execution: Execution, error: Exception, reason: str) -> None:
        explain(error)
        claimed, workflow = execution.claimed, execution.workflow
        if execution.asked == status.ASK_CANCEL and not claimed.undoing:
            self._note_attempt(execution, encode_error(error, self.payloads))
            await self._leave(execution, execution.cancelled())
            return
        allowed = claimed.max_attempts or workflow.options.max_attempts or self.settings.max_attempts
        failures = claimed.attempt - claimed.first_attempt + 1
        backoff = workflow.options.backoff or default_backoff(self.settings)
        if isinstance(error, DeadlineExceeded):
            reason = status.REASON_DEADLINE
        hopeless = isinstance(error, (ContextMisuse, InvalidInput, DeadlineExceeded))
        delay = None if hopeless else retry_delay(error, failures, allowed, backoff)
        if delay is None:
            await self._end_failed(execution, error, reason)
            return
        text = encode_error(error, self.payloads)
        self._note_attempt(execution, text)
        tell_attempt(execution, error, delay)
        move = Transition(
            execution.run_id,
            execution.claim,
            status.QUEUED,
            error=text,
            delay_ms=max(1, int(delay * 1000)),
            next_attempt=True,
            recorded=execution.recorded,
            forget=execution.to_forget(ending_record(error)),
            format=self.payloads.format,
        )
        await self._leave(execution, move)

    async def _end_failed(self, execution: Execution, error: Exception, reason: str) -> None:
        text = encode_error(error, self.payloads)
        self._note_attempt(execution, text)
        tell_end(execution, error, reason)
        undo = reason not in status.UNDONE_BY_CANCEL and not execution.claimed.undoing and execution.has_undos()
        move = Transition(
            execution.run_id,
            execution.claim,
            status.COMPENSATING if undo else status.FAILED,
            reason=reason,
            error=text,
            recorded=execution.recorded,
            forget=[] if undo else execution.to_forget(ending_record(error)),
            format=self.payloads.format,
        )
        if execution.diverged is not None:
            move.drop = list(execution.fresh)
        if reason != status.REASON_NON_DETERMINISM and execution.claimed.node is not None:
            await self._catch(execution, error, move)
        await self._leave(execution, move)

    async def _catch(self, execution: Execution, error: Exception, move: Transition) -> None:
        """A step of a dag run may say where to go on an error instead of failing the run."""
        if not await self._sees_dag(execution):
            return
        assert execution.view is not None
        target = target_of(execution.view.graph.nodes[execution.claimed.node or ""], error)
        if target is not None:
            move.reason = f"{status.REASON_CAUGHT}:{target}"
            self._settle_caught(execution, move.reason, move)

    def _settle_caught(self, execution: Execution, outcome: str | None, move: Transition) -> None:
        """Where a caught error leads, once the step has undone what it did itself."""
        claimed = execution.claimed
        caught = outcome is not None and outcome.startswith(f"{status.REASON_CAUGHT}:")
        if caught and claimed.node is not None and move.status in status.TERMINAL:
            assert execution.view is not None
            move.settled = Settled(claimed.dag_id or "", claimed.node, outcome or "", execution.view.graph)

    def _note_attempt(self, execution: Execution, error: str) -> None:
        """The failed attempt goes into the activity log, in the same flush as what becomes of the run."""
        claimed = execution.claimed
        self._journal.note(
            TryFailed(
                execution.run_id,
                execution.claim,
                "",
                RUN_ITSELF,
                claimed.attempt,
                1,
                execution.workflow.name,
                error,
                None,
                int((time.monotonic() - execution.began) * 1000),
                self.payloads.format,
            )
        )

    async def _leave(self, execution: Execution, move: Transition) -> None:
        """Journal the entry that ends this claim, wait for its commit, free the slot."""
        if execution.closed is None:
            execution.closed = _OVER
            execution.close_waits()
        if not execution.handler_done and self.running.get(execution.run_id) is execution:
            execution.handler_done = True
            self._leaving += 1
            self._slots_freed()
        try:
            await execution.leave(await self._settled(execution, move))
        except DatabaseRefused as refusal:
            await self._end_refused(execution, refusal)
        except (LeaseLost, asyncio.CancelledError):  # ends here: the last thing that this task does
            pass
        finally:
            self._free(execution)

    async def _settled(self, execution: Execution, move: Transition) -> Transition:
        """What follows from the end of a step is in the graph; one whose graph is not stored cannot end, and waits."""
        if execution.claimed.node is None or move.status not in status.TERMINAL or await self._sees_dag(execution):
            return move
        due = execution.database_now() + int(self.settings.sweep * 1000)
        return Transition(move.run_id, move.claim, status.WAITING, due_at=due, waiting_for=status.WAITING_GRAPH)

    async def _end_refused(self, execution: Execution, refusal: DatabaseRefused) -> None:
        """The database would not take the result: end the run with a plain sentence instead."""
        text = encode_error(PayloadError(f"the database refused the outcome of the run: {refusal}"), self.payloads)
        move = Transition(
            execution.run_id,
            execution.claim,
            status.FAILED,
            reason=status.REASON_CODE,
            error=text,
            format=self.payloads.format,
        )
        try:
            await execution.leave(move)
        except (LeaseLost, DatabaseRefused):
            told = "run %s: its outcome could not be recorded"
            self.logger.exception(told, execution.run_id, extra=ids_of(execution))

    async def _closed(self, execution: Execution) -> None:
        """Whatever a handler says after its context was closed is discarded; a divergence is acted upon here."""
        if execution.out_of_time:
            return  # the run is held until its end is in the journal, which for a step of a dag may take a question
        error = execution.diverged
        if execution.successor is not None and not execution.leaving and error is None:
            await self._continued(execution, execution.successor)
            return
        if error is None or execution.leaving:
            self._released(execution)
            return
        if await self._others_may_fit(execution):
            claimed, poll = execution.claimed, int(self.settings.poll * 1000)
            back = Transition(claimed.id, claimed.claim, status.QUEUED, delay_ms=poll, version=claimed.last_version)
            back.drop = list(execution.fresh)
            await self._leave(execution, back)
            return
        await self._end_failed(execution, error, status.REASON_NON_DETERMINISM)

    async def _given_back(self, execution: Execution) -> int:
        """How often it was given back like this since its newest record."""
        kept = await self._errands.value(execution.run_id, GIVEN_BACK)
        return times_given_back(kept, execution.history.last_seq)

    async def _others_may_fit(self, execution: Execution) -> bool:
        """Whether a run that our code does not fit is left to other workers: as long as one lives with the code that
        recorded last; else for some tries, if there are any that would take it, for they may have other code."""
        claimed, workflow = execution.claimed, execution.workflow
        last, peers = claimed.last_version, await self._errands.peers(workflow.name)
        if last not in (None, workflow.version) and any(p.workflows[workflow.name] == last for p in peers):
            self.logger.warning(
                "run %s (%s): recorded by other code that still runs; given back to it", claimed.id, workflow.name,
                extra=ids_of(execution),
            )  # fmt: skip
            return True
        serving = [peer for peer in peers if peer.queues is None or claimed.queue in peer.queues]
        before = await self._given_back(execution) if serving else 0
        if before >= given_back_at_most(len(serving)):
            return False
        self._journal.note(given_back_again(claimed.id, claimed.claim, execution.history.last_seq, before))
        self.logger.warning(
            "run %s (%s): it does not fit the code here, but others know the workflow; given back to them (%d times)",
            claimed.id, workflow.name, before + 1, extra=ids_of(execution),
        )  # fmt: skip
        return True

    def _released(self, execution: Execution) -> None:
        """The run has left already; keep its records if it may come back here."""
        if isinstance(execution.closed, RunSuspended):
            records = execution.cacheable()
            if records is not None:
                self.cache.put(execution.run_id, execution.claim, records)
        if execution.parting is not None and not execution.parting.done():
            self._journal.left[execution.run_id] = execution
        self._free(execution)

    # -- time ----------------------------------------------------------------------------------------------------

    def _time_limit(self, execution: Execution) -> tuple[float, str] | None:
        """Whichever comes first: the timeout of this stretch, or the deadline of the whole run. Undos have neither; nor
        has a dag run whose steps are all settled."""
        claimed = execution.claimed
        if claimed.undoing or execution.workflow.kind == DAG:
            return None
        timeout = claimed.timeout_ms / 1000 if claimed.timeout_ms is not None else execution.workflow.options.timeout
        return self._earlier(execution, timeout)

    def _earlier(self, execution: Execution, timeout: float | None) -> tuple[float, str] | None:
        left, now = execution.claimed.deadline_in_ms, time.monotonic()
        deadline = None if left is None else max(0.0, execution.began + left / 1000 - now)
        if deadline is not None and (timeout is None or deadline <= timeout):
            return deadline, status.REASON_DEADLINE
        return None if timeout is None else (timeout, status.REASON_TIMEOUT)

    def _time_is_up(self, execution: Execution, reason: str) -> None:
        """End the attempt, even if the handler ignores being cancelled."""
        if execution.closed is not None:
            return
        waited = execution.waits.take_waited()
        if reason == status.REASON_TIMEOUT and waited > 0:
            limit = self._earlier(execution, waited)
            assert limit is not None
            self._timers[execution.run_id] = self.loop.call_later(limit[0], self._time_is_up, execution, limit[1])
            return
        if reason == status.REASON_DEADLINE:
            error: Exception = DeadlineExceeded(f"run {execution.run_id} did not end before its deadline")
        else:
            error = AttemptTimeout(f"the attempt took longer than its timeout ({execution.workflow.name})")
        execution.out_of_time = True
        execution.close(AttemptEnded(str(error)))
        if execution.task is not None:
            self._keep(execution.task)  # it may go on for as long as it likes, and is nobody's any more
        ending = (
            self._end_failed(execution, error, reason)
            if reason == status.REASON_DEADLINE
            else self._attempt_failed(execution, error, reason)
        )
        self._keep(self.loop.create_task(self._ended_late(execution, ending)))

    async def _ended_late(self, execution: Execution, ending: Coroutine[Any, Any, None]) -> None:
        try:
            await ending
        except Exception as bug:
            await self._end_by_bug(execution, bug)

    def list_running_steps(self) -> None:
        """Called about once a second: steps that take long are listed as running."""
        now = time.monotonic()
        for execution in list(self.running.values()):
            if execution.active and execution.closed is None:
                execution.list_running(now, self.settings.running_after)

    # -- what operators ask ----------------------------------------------------------------------------------------

    def ask(self, run_id: str, what: str, claim: int | None = None) -> None:
        """An operator wants a run cancelled or paused: at once if no step is being executed, else after it. A task is
        one piece of work: it is told, and may finish; so is the step of a dag, unless it only waits for something."""
        execution = self.running.get(run_id)
        if execution is None or (claim is not None and execution.claim != claim) or execution.claimed.undoing:
            return
        execution.asked = what
        known = execution.claimed.complete  # without its whole history nobody knows what there is to undo
        kind = execution.workflow.kind
        between = execution.at_work == 0 and (kind == WORKFLOW or (kind == DAG_STEP and execution.busy == 0))
        if execution.closed is None and between and known and not execution.settles_loss:
            execution.obey()

    # -- losing and giving back ----------------------------------------------------------------------------------

    def lose(self, run_id: str, claim: int | None = None) -> None:
        """The run is not ours any more."""
        execution = self.running.get(run_id)
        if execution is not None and (claim is None or execution.claim == claim):
            told = "run %s: lost its lease (claim %d)"
            self.logger.warning(told, run_id, execution.claim, extra=ids_of(execution))
            execution.lose()
            if self._journal.has(run_id, execution.claim):
                self._journal.left[run_id] = execution  # what it has done may still be written, if nobody else has it
            self._free(execution)

    def lose_all(self) -> None:
        """The worker's own lease is over."""
        for run_id in list(self.running):
            self.lose(run_id)

    async def give_back(self) -> None:
        """Stop every handler and put its run back in line at once: no attempt used, nothing failed."""
        receipts = []
        for execution in list(self.running.values()):
            if execution.closed is None:
                execution.close(AttemptEnded("the worker stops"))
                move = Transition(
                    execution.run_id, execution.claim, status.QUEUED, delay_ms=0, recorded=execution.recorded
                )
                receipts.append((execution, execution.leave(move)))
        for execution, receipt in receipts:
            try:
                await receipt
            except (LeaseLost, DatabaseRefused):
                pass
            self._free(execution)

    async def close(self) -> None:
        """Let go of threads and of handlers that ignored being cancelled."""
        self._handlers.close()
        self._steps.close()
        self._tasks |= {e.task for e in self.running.values() if e.task is not None}
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
