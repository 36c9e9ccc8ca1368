"""One attempt of a run, from its claim to the commit that ends the claim."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..engine import outcomes
from ..engine.dag import SKIP, DagStepWorkflow, DagView
from ..engine.dag_run import DagFailed, target_of
from ..engine.execution import Execution, Stage
from ..engine.host import Promise, current_execution
from ..engine.invocation import kind_of
from ..engine.middleware import AttemptMiddleware
from ..engine.observers import ids_of, tell_attempt, tell_end, tell_undos
from ..engine.outcomes import as_misuse, decode_error, encode_error, explain, type_name
from ..engine.step import being_cancelled, cancelled_by_code, exited
from ..errors import (
    AttemptEnded,
    CompensationFailed,
    ContextMisuse,
    DatabaseRefused,
    InvalidInput,
    LeaseLost,
    NonDeterminismError,
    PayloadError,
    RunSuspended,
    StepfastError,
    sentence,
)
from ..model import status
from ..model.attributes import decode as decode_attribute
from ..model.backoff import default_backoff
from ..model.names import CHECKS
from ..model.records import RUN_ITSELF, FailedTry, StepRecord, Transition, ValueSet
from ..model.status import DAG, DAG_STEP, TASK, WORKFLOW
from ..settings import FORMAT
from .context import WorkerContext
from .dag_cache import DagCache
from .journal import Journal, Undecidable
from .queries import StoreQueries

if TYPE_CHECKING:
    from .executor import HandlerThreads, Slots

_EACH = 20
"""Times for each worker that would take it: who takes it is chance, and one of them may have the code."""
_AT_MOST = 100

GIVEN_BACK = f"{CHECKS}given back"
"""Where the count is kept: among the values of the run, under a key that people do not see."""


class GivenBack(msgspec.Struct):
    """How often a run was given back, and at which record."""

    seq: int
    """The number of the newest record by then."""
    times: int


def given_back_at_most(workers: int) -> int:
    """How often a run is given back to so many others before its divergence is final."""
    return min(_EACH * workers, _AT_MOST)


def times_given_back(kept: str | None, seq: int) -> int:
    """How often a run was given back since its newest record."""
    if kept is None:
        return 0
    last = msgspec.json.decode(kept, type=GivenBack)
    return last.times if last.seq == seq else 0


def given_back_again(run_id: str, claim: int, seq: int, before: int) -> ValueSet:
    """The journal entry that counts once more."""
    return ValueSet(run_id, claim, GIVEN_BACK, msgspec.json.encode(GivenBack(seq, before + 1)).decode())


class Divergence:
    """Decides which worker continues a run that our code does not fit."""

    def __init__(self, context: WorkerContext, queries: StoreQueries, journal: Journal) -> None:
        self._logger = context.logger
        self._queries = queries
        self._journal = journal

    async def is_left_to_others(self, execution: Execution) -> bool:
        """Whether it is left to other workers: as long as one lives with the code that recorded last; else for some
        tries, if there are any that would take it, for they may have other code."""
        claimed, workflow = execution.claimed, execution.workflow
        last, peers = claimed.last_version, await self._queries.peers(workflow.name)
        if last not in (None, workflow.version) and any(p.workflows[workflow.name] == last for p in peers):
            told = "run %s (%s): recorded by other code that still runs; given back to it"
            self._logger.warning(told, claimed.id, workflow.name, extra=ids_of(execution))
            return True
        serving = [peer for peer in peers if peer.queues is None or claimed.queue in peer.queues]
        before = await self._given_back(execution) if serving else 0
        if before >= given_back_at_most(len(serving)):
            return False
        self._journal.note(given_back_again(claimed.id, claimed.claim, execution.history.last_seq, before))
        self._logger.warning(
            "run %s (%s): it does not fit the code here, but others know the workflow; given back to them (%d times)",
            claimed.id, workflow.name, before + 1, extra=ids_of(execution),
        )  # fmt: skip
        return True

    async def _given_back(self, execution: Execution) -> int:
        """How often it was given back like this since its newest record."""
        kept = await self._queries.value(execution.run_id, GIVEN_BACK)
        return times_given_back(kept, execution.history.last_seq)


class _Remembered(NamedTuple):
    claim: int
    size: int
    records: list[StepRecord]
    parting: Promise[int]
    """The receipt of the entry by which the run left."""


class HistoryCache(Mapping[str, int]):
    """Records of runs that were released; of too many, those of the run that was released first go first. As a mapping,
    run id → the claim number whose end is remembered."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._entries: OrderedDict[str, _Remembered] = OrderedDict()

    def __getitem__(self, run_id: str) -> int:
        return self._entries[run_id].claim

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, run_id: str, claim: int, records: list[StepRecord], parting: Promise[int]) -> None:
        """Remember what a run had recorded when it left, or will have when its leaving is committed."""
        self.drop(run_id)
        size = sum(200 + len(record.output or "") + len(record.arguments or "") for record in records)
        if size > self._limit // 8:
            return
        self._entries[run_id] = _Remembered(claim, size, records, parting)
        self._size += size
        while self._size > self._limit:
            self.drop(next(iter(self._entries)))

    def take(self, run_id: str, claim: int) -> list[StepRecord] | None:
        """What is remembered, if the run was not claimed by another worker since. If it was taken away before its
        leaving was committed, what was to go out with that is not stored."""
        entry = self.drop(run_id)
        if entry is None or entry.claim + 1 != claim or not entry.parting.done():
            return None
        return entry.records if entry.parting.exception() is None else None

    def clear(self) -> None:
        """Forget all: what is remembered may not be stored any more."""
        self._entries.clear()
        self._size = 0

    def drop(self, run_id: str) -> _Remembered | None:
        """Forget the records of a run."""
        entry = self._entries.pop(run_id, None)
        if entry is not None:
            self._size -= entry.size
        return entry


OVER = AttemptEnded("the attempt is over")


class Leaving:
    """Ends a run: for its handler, or apart from it."""

    def __init__(self, context: WorkerContext, journal: Journal, dag_cache: DagCache, slots: Slots) -> None:
        self._context = context
        self._payloads = context.payloads
        self._journal = journal
        self._dag_cache = dag_cache
        self._slots = slots
        self.is_ending = slots.is_ending
        self.cache = HistoryCache(context.settings.history_cache)
        """Records of runs that may come back here."""

    def leave(self, execution: Execution, move: Transition) -> Coroutine[Any, Any, None]:
        """Journal the entry that ends this claim, wait for its commit, forget the run."""
        if execution.closed is None:
            execution.closed = OVER
            execution.close_waits()
        self._slots.give_back(execution)
        return self._commit(execution, move)

    async def _commit(self, execution: Execution, move: Transition) -> None:
        """Journal the entry, unless that is done, and wait for its commit. Code that the handler left behind may cancel
        the task of the handler in between; then another task waits."""
        try:
            if execution.parting is None:
                if execution.claimed.dag_step is not None:
                    move = await self._with_graph(execution, move)
                execution.leave(move)
            assert execution.parting is not None
            await execution.parting
        except DatabaseRefused as refusal:
            await self._end_refused(execution, refusal)
        except LeaseLost:
            pass
        except asyncio.CancelledError:  # ends here: the last thing that this task does
            if self.can_record:
                self.apart(execution, self._commit(execution, move))
                return
        self._slots.leave(execution)

    @property
    def can_record(self) -> bool:
        """Whether the journal is still written. If not, the worker or the program ends, and runs are given up."""
        return not self._journal.ends

    def apart(self, execution: Execution, ending: Coroutine[Any, Any, None]) -> None:
        """End a run by a task of its own: nothing that its code left behind knows that task."""
        execution.main.owner = execution.task = self._context.clock.task(ending)

    async def _with_graph(self, execution: Execution, move: Transition) -> Transition:
        """What follows from the end of a step is in the graph; one whose graph is not stored cannot end, and waits."""
        if move.status not in status.TERMINAL or await self._dag_cache.sees(execution):
            return move
        due = execution.database_now() + int(self._context.settings.sweep_interval * 1000)
        return outcomes.waits_for_graph(execution, due)

    async def _end_refused(self, execution: Execution, refusal: DatabaseRefused) -> None:
        """The database would not take the result: end the run with a plain sentence instead. If that is refused too,
        the row of its dag run or its own is damaged: then it ends without anything that follows from it."""
        text = encode_error(PayloadError(f"the database refused the outcome of the run: {refusal}"), self._payloads)
        try:
            await execution.leave(outcomes.broken(execution, text, self._payloads.format))
        except DatabaseRefused:
            await self._end_alone(execution, text)
        except LeaseLost:
            pass

    async def _end_alone(self, execution: Execution, text: str) -> None:
        try:
            await self._journal.record(outcomes.broken(execution, text, self._payloads.format))
        except LeaseLost:
            pass
        except DatabaseRefused as refusal:
            if isinstance(refusal, Undecidable):
                self._journal.break_by(refusal.__cause__ or refusal)
            told = "run %s: its outcome could not be recorded"
            self._context.logger.exception(told, execution.run_id, extra=ids_of(execution))

    def has_left(self, execution: Execution) -> None:
        """The run has left by itself already; keep its records if it may come back here."""
        parting = execution.parting
        if isinstance(execution.closed, RunSuspended) and parting is not None and self._is_sure(execution):
            records = execution.ledger.whole_history()
            if records is not None:
                self.cache.put(execution.run_id, execution.claim, records, parting)
        if parting is not None and not parting.done():
            self._journal.left[execution.run_id] = execution
        self._slots.leave(execution)

    def _is_sure(self, execution: Execution) -> bool:
        """Whether its records are stored as it knows them. A call that was cancelled twice does not wait for the commit
        of its record, which is not known here before. The handler may have taken long to end. If a connection broke
        in that time and nothing was compared since, commits may be gone; and a run that was lost, or claimed again, is
        not known any more."""
        held = self._slots.find(execution.run_id) is execution and not execution.at_work
        return held and not self._journal.is_doubted(execution.run_id, execution)

    def lost(self, execution: Execution) -> None:
        """The run was lost. What it has done may still be written if no other worker has claimed it."""
        execution.lose()
        if self._journal.has(execution.run_id, execution.claim):
            self._journal.left[execution.run_id] = execution
        self._slots.leave(execution)

    def note_attempt(self, execution: Execution, error: str) -> None:
        """The failed attempt goes into the activity log, in the same flush as what becomes of the run."""
        self._journal.note(
            FailedTry(
                execution.run_id,
                execution.claim,
                "",
                RUN_ITSELF,
                execution.claimed.attempt,
                1,
                execution.workflow.name,
                error,
                None,
                int((self._context.clock.now() - execution.began) * 1000),
                self._payloads.format,
            )
        )


class Attempts:
    """Makes the attempts of the runs of one worker."""

    def __init__(
        self,
        context: WorkerContext,
        leaving: Leaving,
        queries: StoreQueries,
        dag_cache: DagCache,
        threads: HandlerThreads,
        divergence: Divergence,
    ) -> None:
        self._settings, self._payloads, self._logger = context.settings, context.payloads, context.logger
        self._observers = context.observers
        self._middleware = context.middleware
        self._leaving = leaving
        self._queries = queries
        self._dag_cache = dag_cache
        self._threads = threads
        self._divergence = divergence

    async def drive(self, execution: Execution) -> None:
        """The whole of an attempt; what a task does that is made for it."""
        current_execution.set(execution)
        if self._observers is not None:
            self._observers.takes(execution)
        try:
            result = await self._perform(execution)
        except asyncio.CancelledError as error:  # ends here: a failed attempt, unless the worker itself cancelled it
            await self._conclude(execution, partial(self._raised, execution, _cancelled(execution, error)))
        except DagFailed as end:
            await self._conclude(execution, partial(self._dag_failed, execution, end))
        except Exception as error:
            await self._conclude(execution, partial(self._raised, execution, error))
        except BaseException as error:  # ends here: a cancellation was caught above
            # SystemExit and the like from user code must not end the worker, nor hang the run.
            await self._conclude(execution, partial(self._raised, execution, exited(error)))
        else:
            await self._conclude(execution, partial(self._returned, execution, result))

    async def _conclude(self, execution: Execution, judge: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Judge what came of the handler. If its code has cancelled its own task, or does so only now, another task
        judges: what the code left behind could cancel this one at every wait."""
        if execution.closed is None and being_cancelled():
            if self._leaving.can_record:
                self._leaving.apart(execution, self._conclude(execution, judge))
                return
            execution.lose()  # the event loop is shutting down under us
        try:
            await judge()
        except asyncio.CancelledError:  # ends here: the last thing that this task does
            if self._leaving.can_record:
                self._leaving.apart(execution, self._conclude(execution, judge))
            else:
                execution.lose()
                self._leaving.has_left(execution)
        except Exception as bug:
            await self.end_by_bug(execution, bug)

    # -- load, apply requests, perform -------------------------------------------------------------------------

    async def _perform(self, execution: Execution) -> Any:
        """What the code returns; or, for a run that is being undone, which undos failed."""
        claimed, kind = execution.claimed, kind_of(execution.workflow)
        _check_row(execution)
        if not claimed.complete or claimed.graph is not None:
            await self._load(execution)
        if claimed.asked is not None:
            execution.asked = execution.asked or claimed.asked
        if claimed.undoing:
            undo = partial(kind.undo, execution, self._threads.submit)
            return await (undo() if not self._middleware else self._around(execution, undo))
        if execution.asked is not None and kind.applies_request_first and not execution.must_record_first():
            execution.leave_as_requested()
            raise execution.closed or OVER
        try:
            perform = partial(kind.perform, execution, partial(self._threads.call, execution))
            around = self._middleware and execution.workflow.kind != DAG  # a dag run itself has no code
            return await (self._around(execution, perform) if around else perform())
        finally:
            if execution.own_streams is not None:
                execution.own_streams.journal()

    async def _around(self, execution: Execution, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Do the work within the middleware of the application."""
        stored = await self._queries.attributes(execution.claimed.dag_id or execution.run_id)
        attributes = MappingProxyType({name: decode_attribute(value) for name, value in stored})
        if execution.closed is not None:
            raise execution.closed
        execution.middleware = AttemptMiddleware(self._middleware, execution, attributes)
        return await execution.middleware.around_attempt(work)

    async def _load(self, execution: Execution) -> None:
        """Load the rest of a long history, and what a step sees of its dag run. Without its graph it gives its slot
        back, so that it can be cancelled while it waits."""
        claimed = execution.claimed
        if not claimed.complete:
            claimed.records = await self._queries.history(claimed)
            execution.load(claimed.records)
            claimed.complete = True
        if claimed.graph is not None and not await self._dag_cache.sees(execution):
            pause = int(self._settings.sweep_interval * 1000)
            execution.suspend(execution.database_now() + pause, status.WAITING_GRAPH)
            raise execution.closed or OVER
        if execution.view is not None and not claimed.undoing:
            _check_view(execution, execution.view)

    # -- judge ---------------------------------------------------------------------------------------------------

    # What only chooses between coroutines is none itself: each that a run is in is passed through when it goes on.

    def _returned(self, execution: Execution, result: Any) -> Coroutine[Any, Any, None]:
        """The handler came to its end: check that it left nothing behind, then record the result."""
        if execution.closed is not None:
            return self._closed(execution)
        if execution.claimed.undoing:
            return self._undone(execution, result)
        if result is SKIP and execution.claimed.dag_step is not None:
            return self._leaving.leave(execution, outcomes.skipped(execution))
        return self._completed(execution, result)

    def _completed(self, execution: Execution, result: Any) -> Coroutine[Any, Any, None]:
        try:
            _check_nothing_left(execution)
            output = kind_of(execution.workflow).encode_result(execution, result)
        except NonDeterminismError as error:
            execution.diverge(error)
            return self._closed(execution)
        except StepfastError as error:
            return self.fail(execution, error, status.REASON_CODE)
        except Exception as error:  # the application's codec; it may do better next time
            return self.retry(execution, error, status.REASON_CODE)
        return self._leaving.leave(execution, outcomes.completed(execution, output, self._payloads.format))

    async def _undone(self, execution: Execution, failed: list[str]) -> None:
        """Every undo was called. The run keeps the error that it had ended with, unless one of them failed."""
        format_ = self._payloads.format
        if failed:
            cause = await self._queries.error_of(execution.run_id)
            error = decode_error(cause, format_, self._payloads)
            said = f"; the run had ended with {error['type']}: {error['message']}" if cause is not None else ""
            text = encode_error(CompensationFailed("; ".join(failed) + said), self._payloads)
            tell_undos(execution, failed)
            move = outcomes.undo_failed(execution, text, format_)
        else:
            move = outcomes.undone(execution, format_)
            outcomes.settle_caught(execution, execution.claimed.reason, move, execution.graph)
        await self._leaving.leave(execution, move)

    async def _raised(self, execution: Execution, error: Exception) -> None:
        """The handler raised: another attempt, later, or the end."""
        if execution.closed is not None:
            await self._closed(execution)
        else:
            await self.retry(execution, as_misuse(error), status.REASON_CODE)

    async def _dag_failed(self, execution: Execution, end: DagFailed) -> None:
        """Steps of a dag run have failed, and with them the run."""
        if execution.closed is not None:
            await self._closed(execution)
        else:
            await self.fail(execution, end.error, end.reason)

    async def retry(self, execution: Execution, error: Exception, reason: str) -> None:
        """An attempt has failed: another one, if that can help; unless the run is to be cancelled anyhow."""
        explain(error)
        execution.error_type = type_name(error)
        claimed, options = execution.claimed, execution.workflow.options
        if execution.asked == status.ASK_CANCEL and not claimed.undoing:
            self._leaving.note_attempt(execution, encode_error(error, self._payloads, execution.tokens))
            await self._leaving.leave(execution, outcomes.cancelled(execution))
            return
        allowed = claimed.max_attempts or options.max_attempts or self._settings.max_attempts
        backoff = options.backoff or default_backoff(self._settings)
        verdict = outcomes.judge(error, reason, claimed, allowed, backoff, execution.clock.random)
        if verdict.delay is None:
            await self.fail(execution, error, verdict.reason)
            return
        text = encode_error(error, self._payloads, execution.tokens)
        self._leaving.note_attempt(execution, text)
        tell_attempt(execution, error, verdict.delay)
        if self._observers is not None:
            self._observers.attempt_fails(execution, error, verdict.delay)
        move = outcomes.next_attempt(execution, text, verdict.delay, error, self._payloads.format)
        await self._leaving.leave(execution, move)

    async def fail(self, execution: Execution, error: Exception, reason: str) -> None:
        """There is no further attempt."""
        execution.error_type = type_name(error)
        text = encode_error(error, self._payloads, execution.tokens)
        move = outcomes.failed(execution, text, reason, error, self._payloads.format)
        if reason != status.REASON_NON_DETERMINISM and execution.claimed.dag_step is not None:
            await self._catch(execution, error, move)
        self._leaving.note_attempt(execution, text)
        tell_end(execution, error, reason)
        if self._observers is not None:
            self._observers.attempt_fails(execution, error, None, move.reason)
        await self._leaving.leave(execution, move)

    async def _catch(self, execution: Execution, error: Exception, move: Transition) -> None:
        """A step of a dag run may say where to go on an error instead of failing the run."""
        if not await self._dag_cache.sees(execution):
            return
        assert execution.graph is not None
        dag_step = execution.graph.dag_steps.get(execution.claimed.dag_step or "")
        target = None if dag_step is None else target_of(dag_step, error)
        if target is not None:
            move.reason = outcomes.caught_by(target)
            outcomes.settle_caught(execution, move.reason, move, execution.graph)

    async def _closed(self, execution: Execution) -> None:
        """Discard what a handler returns or raises after its context was closed; act upon a divergence."""
        if self._leaving.is_ending(execution):
            return  # its time was up, and it is ended apart from its handler
        error = execution.diverged
        if execution.stage is Stage.LEAVING or (error is None and execution.successor is None):
            self._leaving.has_left(execution)
        elif error is None:
            assert execution.successor is not None
            await self._leaving.leave(execution, outcomes.continued(execution, execution.successor))
        elif await self._divergence.is_left_to_others(execution):
            await self._leaving.leave(execution, outcomes.left_to_others(execution, self._settings.poll_interval))
        else:
            await self.fail(execution, error, status.REASON_NON_DETERMINISM)

    async def end_by_bug(self, execution: Execution, bug: Exception) -> None:
        """The engine itself could not end the attempt. So that the run does not stay open for ever, it ends with an
        error that says so."""
        told = "run %s: an internal error of Stepfast; please report it"
        self._logger.error(told, execution.run_id, exc_info=bug, extra=ids_of(execution))
        if execution.stage is Stage.LEAVING:
            self._leaving.has_left(execution)
            return
        error = StepfastError(f"an internal error of Stepfast ended the run (please report it): {sentence(bug)}")
        move = outcomes.broken(execution, None, FORMAT)
        with contextlib.suppress(Exception):  # it may be the application's codec that is broken
            move = outcomes.broken(
                execution, encode_error(error, self._payloads, execution.tokens), self._payloads.format
            )
        await self._leaving.leave(execution, move)


def _cancelled(execution: Execution, error: asyncio.CancelledError) -> Exception:
    """What it means that a handler ended as cancelled; of no account if its run was closed."""
    if execution.closed is None and not being_cancelled():
        return RuntimeError("the handler was cancelled by something it awaited").with_traceback(error.__traceback__)
    call = getattr(asyncio.current_task(), "canceller", None)
    what = f"{execution.workflow.kind} {execution.workflow.name!r}"
    return cancelled_by_code(error, what, None if call is None else call.name)


def _check_row(execution: Execution) -> None:
    """Refuse a row that is no run of its workflow: a hand wrote it, or a role that may insert rows. It fails by itself,
    and counts nowhere: what a step means to others is known by its dag run alone."""
    claimed, kind = execution.claimed, execution.workflow.kind
    if claimed.dag_id is claimed.dag_step is claimed.graph is None and kind in (TASK, WORKFLOW):
        return
    is_step = claimed.dag_id is not None and claimed.dag_step is not None
    own = execution.workflow.dag_step.name if isinstance(execution.workflow, DagStepWorkflow) else None
    fits = (claimed.dag_step, claimed.graph is not None) == (own, kind in (DAG, DAG_STEP))
    if not fits or is_step != (kind == DAG_STEP) or (claimed.dag_id is None) != (claimed.dag_step is None):
        _stand_alone(execution)
        raise _odd(f"its row is not one of a run of {execution.workflow.name!r}: dag_id, dag_step and graph do not fit")


def _check_view(execution: Execution, view: DagView) -> None:
    """Refuse a step that the graph of its dag run does not have, and an input that cannot be decoded."""
    step, dag_id = execution.claimed.dag_step, execution.claimed.dag_id
    if view.graph.dag_steps and step is not None and step not in view.graph.dag_steps:
        _stand_alone(execution)
        raise _odd(f"the graph of dag run {dag_id} has no step {step!r}")
    if isinstance(view.unreadable, PayloadError):
        raise _odd(str(view.unreadable))
    if view.unreadable is not None:
        raise view.unreadable


def _stand_alone(execution: Execution) -> None:
    """Take the run for one that belongs to no dag run, so that its end means nothing to others."""
    claimed = execution.claimed
    claimed.dag_id = claimed.dag_step = claimed.graph = execution.view = None


def _odd(said: str) -> InvalidInput:
    """No further attempt helps."""
    error = InvalidInput(said)
    error.of_run = True
    return error


def _check_nothing_left(execution: Execution) -> None:
    """A call that was made and never awaited never began; a record that was not asked for is a divergence."""
    if forgotten := execution.never_awaited():
        names = ", ".join(forgotten)
        raise ContextMisuse(
            f"the workflow returned without awaiting {names}: it never began. Await every call of the context"
        )
    execution.history.check_all_taken()
