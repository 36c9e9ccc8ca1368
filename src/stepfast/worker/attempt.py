"""One attempt of a run, from its claim to its end.

    load → heed → perform → judge

What is missing of the run is loaded; what operators asked meanwhile is heeded; its code is performed, or its undos; and
what came of that is judged: the run ends, is tried again, or is left to others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from ..engine import outcomes
from ..engine.control import must_go_on_first, obey
from ..engine.dag import SKIP, DagStepWorkflow, DagView
from ..engine.dag_run import DagFailed, target_of
from ..engine.execution import Execution, Stage
from ..engine.host import current_execution
from ..engine.invocation import kind_of
from ..engine.observers import ids_of, tell_attempt, tell_end, tell_undos
from ..engine.outcomes import as_misuse, decode_error, encode_error, explain, type_name
from ..engine.step import being_cancelled, cancelled_by_code, default_backoff, exited
from ..errors import (
    CompensationFailed,
    ContextMisuse,
    InvalidInput,
    NonDeterminismError,
    PayloadError,
    StepfastError,
    sentence,
)
from ..model import status
from ..model.records import Transition
from ..model.status import DAG, DAG_STEP
from ..settings import FORMAT
from .divergence import Divergence
from .errands import Errands
from .graphs import Graphs
from .handler_threads import HandlerThreads
from .kit import Kit
from .leaving import OVER, Leaving


class Attempts:
    """Makes the attempts of the runs of one worker."""

    def __init__(
        self,
        kit: Kit,
        leaving: Leaving,
        errands: Errands,
        graphs: Graphs,
        threads: HandlerThreads,
        divergence: Divergence,
    ) -> None:
        self._settings, self._payloads, self._logger = kit.settings, kit.payloads, kit.logger
        self._observers = kit.observers
        self._leaving = leaving
        self._errands = errands
        self._graphs = graphs
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

    # -- load, heed, perform -----------------------------------------------------------------------------------

    async def _perform(self, execution: Execution) -> Any:
        """What the code returns; or, for a run that is being undone, which undos failed."""
        claimed, kind = execution.claimed, kind_of(execution.workflow)
        _check_row(execution)
        if not claimed.complete or claimed.graph is not None:
            await self._load(execution)
        if claimed.asked is not None:
            execution.asked = execution.asked or claimed.asked
        if claimed.undoing:
            return await kind.undo(execution, self._threads.submit)
        if execution.asked is not None and kind.heeds_first and not must_go_on_first(execution):
            obey(execution)
            raise execution.closed or OVER
        return await kind.perform(execution, partial(self._threads.call, execution))

    async def _load(self, execution: Execution) -> None:
        """The rest of a long history, and what a step sees of its dag run. Without its graph it gives its slot back, so
        that it can be cancelled meanwhile."""
        claimed = execution.claimed
        if not claimed.complete:
            claimed.records = await self._errands.history(claimed)
            execution.load(claimed.records)
            claimed.complete = True
        if claimed.graph is not None and not await self._graphs.sees(execution):
            pause = int(self._settings.sweep * 1000)
            execution.suspend(execution.database_now() + pause, status.WAITING_GRAPH)
            raise execution.closed or OVER
        if execution.view is not None and not claimed.undoing:
            _check_view(execution, execution.view)

    # -- judge ---------------------------------------------------------------------------------------------------

    async def _returned(self, execution: Execution, result: Any) -> None:
        """The handler came to its end: check that it left nothing behind, then record the result."""
        if execution.closed is not None:
            await self._closed(execution)
        elif execution.claimed.undoing:
            await self._undone(execution, result)
        elif result is SKIP and execution.claimed.dag_step is not None:
            await self._leaving.leave(execution, outcomes.skipped(execution))
        else:
            await self._completed(execution, result)

    async def _completed(self, execution: Execution, result: Any) -> None:
        try:
            _check_nothing_left(execution)
            output = kind_of(execution.workflow).encode_result(execution, result)
        except NonDeterminismError as error:
            execution.diverge(error)
            await self._closed(execution)
        except StepfastError as error:
            await self.fail(execution, error, status.REASON_CODE)
        except Exception as error:  # the application's codec; it may do better next time
            await self.retry(execution, error, status.REASON_CODE)
        else:
            await self._leaving.leave(execution, outcomes.completed(execution, output, self._payloads.format))

    async def _undone(self, execution: Execution, failed: list[str]) -> None:
        """Every undo was called. The run keeps the error that it had ended with, unless one of them failed."""
        format_ = self._payloads.format
        if failed:
            cause = await self._errands.error_of(execution.run_id)
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
            self._leaving.note_attempt(execution, encode_error(error, self._payloads))
            await self._leaving.leave(execution, outcomes.cancelled(execution))
            return
        allowed = claimed.max_attempts or options.max_attempts or self._settings.max_attempts
        backoff = options.backoff or default_backoff(self._settings)
        verdict = outcomes.judge(error, reason, claimed, allowed, backoff, execution.clock.random)
        if verdict.delay is None:
            await self.fail(execution, error, verdict.reason)
            return
        text = encode_error(error, self._payloads)
        self._leaving.note_attempt(execution, text)
        tell_attempt(execution, error, verdict.delay)
        if self._observers is not None:
            self._observers.attempt_fails(execution, error, verdict.delay)
        move = outcomes.next_attempt(execution, text, verdict.delay, error, self._payloads.format)
        await self._leaving.leave(execution, move)

    async def fail(self, execution: Execution, error: Exception, reason: str) -> None:
        """There is no further attempt."""
        execution.error_type = type_name(error)
        text = encode_error(error, self._payloads)
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
        if not await self._graphs.sees(execution):
            return
        assert execution.graph is not None
        dag_step = execution.graph.dag_steps.get(execution.claimed.dag_step or "")
        target = None if dag_step is None else target_of(dag_step, error)
        if target is not None:
            move.reason = outcomes.caught_by(target)
            outcomes.settle_caught(execution, move.reason, move, execution.graph)

    async def _closed(self, execution: Execution) -> None:
        """Whatever a handler says after its context was closed is discarded; a divergence is acted upon here."""
        if self._leaving.is_ending(execution):
            return  # its time was up, and it is ended apart from its handler
        error = execution.diverged
        if execution.stage is Stage.LEAVING or (error is None and execution.successor is None):
            self._leaving.has_left(execution)
        elif error is None:
            assert execution.successor is not None
            await self._leaving.leave(execution, outcomes.continued(execution, execution.successor))
        elif await self._divergence.is_left_to_others(execution):
            await self._leaving.leave(execution, outcomes.left_to_others(execution, self._settings.poll))
        else:
            await self.fail(execution, error, status.REASON_NON_DETERMINISM)

    async def end_by_bug(self, execution: Execution, bug: Exception) -> None:
        """The engine itself could not end the attempt. Nobody waits for ever because of that: the run ends and says
        so."""
        told = "run %s: an internal error of Stepfast; please report it"
        self._logger.error(told, execution.run_id, exc_info=bug, extra=ids_of(execution))
        if execution.stage is Stage.LEAVING:
            self._leaving.has_left(execution)
            return
        error = StepfastError(f"an internal error of Stepfast ended the run (please report it): {sentence(bug)}")
        move = outcomes.broken(execution, None, FORMAT)
        with contextlib.suppress(Exception):  # it may be the application's codec that is broken
            move = outcomes.broken(execution, encode_error(error, self._payloads), self._payloads.format)
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
    is_step = claimed.dag_id is not None and claimed.dag_step is not None
    own = execution.workflow.dag_step.name if isinstance(execution.workflow, DagStepWorkflow) else None
    fits = (claimed.dag_step, claimed.graph is not None) == (own, kind in (DAG, DAG_STEP))
    if not fits or is_step != (kind == DAG_STEP) or (claimed.dag_id is None) != (claimed.dag_step is None):
        _stand_alone(execution)
        raise _odd(f"its row is not one of a run of {execution.workflow.name!r}: dag_id, dag_step and graph do not fit")


def _check_view(execution: Execution, view: DagView) -> None:
    """Refuse a step that the graph of its dag run does not have, and an input that nobody can read."""
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
