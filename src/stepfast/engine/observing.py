"""Observers: whoever wants to know what happens to runs is told here, and cannot hurt them.

The engine and the worker hold one ``Observers``, or None if nobody wants to know: then nothing is made and nothing
called. Metrics and traces hang on this seam.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import ConfigurationError
from ..model import status
from ..model.events import (
    ABANDONED,
    AttemptFailed,
    ClaimAnswered,
    JournalFlushed,
    RemoteEnded,
    RemoteSent,
    RunClaimed,
    RunEnded,
    RunLost,
    RunReleased,
    RunReleasing,
    RunsSwept,
    RunStarted,
    Sending,
    SendingEnded,
    SignalSent,
    SignalTaken,
    StepCalled,
    StepEnded,
    StepRefused,
    TryFailed,
)
from ..model.ids import made_at
from ..model.records import Claimed, Mail, NewRun, StepDone, Transition
from .clock import Clock
from .failure import decode_error, type_name
from .promise import Promise
from .run_logging import ids_of_event, step_of
from .sending import decoded, encoded, goes_on_as

if TYPE_CHECKING:
    from .execution import Execution
    from .step_call import StepCall

E = TypeVar("E")
Listeners = tuple[Callable[[E], None], ...]

_SAY_AGAIN = 60.0
"""Seconds between two words in the log about the errors of one observer."""


class Observer:
    """The base of all observers: it wants to know nothing. Override what you want to hear of.

    All methods are called in an event loop of the application, in the midst of its work: be quick, wait for nothing.
    An application that is used in several threads calls from each of them. An error is logged, and changes nothing.
    """

    def started(self, event: RunStarted) -> None:
        """A run was started in this process: by ``app.start``, or as a child."""

    def sending(self, event: Sending) -> None:
        """A run, a signal or a remote step is about to be sent. What is put into ``event.trace`` goes with it."""

    def sending_ended(self, event: SendingEnded) -> None:
        """A start or a signal was sent, or could not be."""

    def claimed(self, event: RunClaimed) -> None:
        """A worker of this process took a run. ``suspended``, ``ended`` or ``lost`` follows, once."""

    def step_called(self, event: StepCalled) -> None:
        """The function of a step is about to be called."""

    def step_ended(self, event: StepEnded) -> None:
        """The function of a step was called, and that call has come to its end."""

    def step_refused(self, event: StepRefused) -> None:
        """A result could not be recorded: the try has failed after all."""

    def try_failed(self, event: TryFailed) -> None:
        """A try of a step has failed. The event has the error itself."""

    def attempt_failed(self, event: AttemptFailed) -> None:
        """An attempt of a run has failed. The event has the error itself."""

    def remote_sent(self, event: RemoteSent) -> None:
        """A remote step was sent."""

    def remote_ended(self, event: RemoteEnded) -> None:
        """The outcome of a remote step came, or none in time."""

    def releasing(self, event: RunReleasing) -> None:
        """A run is about to leave, and may come again. What is put into ``event.trace`` is told at its next claim."""

    def suspended(self, event: RunReleased) -> None:
        """A run gave its slot back, and will come again."""

    def ended(self, event: RunEnded) -> None:
        """A run has come to its end."""

    def lost(self, event: RunLost) -> None:
        """A run that was claimed here is not this worker's any more."""

    def signalled(self, event: SignalSent) -> None:
        """A signal was sent."""

    def signal_taken(self, event: SignalTaken) -> None:
        """A run has taken a signal."""

    def claim_answered(self, event: ClaimAnswered) -> None:
        """A worker asked for runs, and was answered."""

    def flushed(self, event: JournalFlushed) -> None:
        """A worker's journal was written."""

    def swept(self, event: RunsSwept) -> None:
        """A worker cleared up behind others."""


HOOKS = tuple(name for name, value in vars(Observer).items() if inspect.isfunction(value))


def check_observer(observer: object) -> Observer:
    """Refuse what could not be told anything."""
    if not isinstance(observer, Observer):
        what = f"the class {observer.__name__}" if isinstance(observer, type) else type(observer).__name__
        raise ConfigurationError(
            f"observers= takes objects of classes derived from stepfast.telemetry.Observer, not {what}"
        )
    for hook in HOOKS:
        if inspect.iscoroutinefunction(getattr(observer, hook)):
            raise ConfigurationError(
                f"{type(observer).__name__}.{hook} is an async def, and observers are not awaited. Make it a plain def "
                "that hands what takes time to a task or a thread"
            )
    return observer


def observers_of(given: Sequence[Observer], logger: logging.Logger, clock: Clock) -> Observers | None:
    """The observers that are to be told; None if there are none, so that whoever tells has one thing to look at."""
    return Observers(given, logger, clock) if given else None


class Observers:
    """All observers of an application. Each attribute named after a hook holds those who want to hear of it."""

    def __init__(self, given: Sequence[Observer], logger: logging.Logger, clock: Clock) -> None:
        self._logger, self._clock = logger, clock
        self._failed: dict[str, tuple[float, int]] = {}
        """Of observers that raised: until when nothing is said of them, and how often they did meanwhile."""
        self.started: Listeners[RunStarted] = _listeners(given, "started")
        self.sending: Listeners[Sending] = _listeners(given, "sending")
        self.sending_ended: Listeners[SendingEnded] = _listeners(given, "sending_ended")
        self.claimed: Listeners[RunClaimed] = _listeners(given, "claimed")
        self.step_called: Listeners[StepCalled] = _listeners(given, "step_called")
        self.step_ended: Listeners[StepEnded] = _listeners(given, "step_ended")
        self.step_refused: Listeners[StepRefused] = _listeners(given, "step_refused")
        self.try_failed: Listeners[TryFailed] = _listeners(given, "try_failed")
        self.attempt_failed: Listeners[AttemptFailed] = _listeners(given, "attempt_failed")
        self.remote_sent: Listeners[RemoteSent] = _listeners(given, "remote_sent")
        self.remote_ended: Listeners[RemoteEnded] = _listeners(given, "remote_ended")
        self.releasing: Listeners[RunReleasing] = _listeners(given, "releasing")
        self.suspended: Listeners[RunReleased] = _listeners(given, "suspended")
        self.ended: Listeners[RunEnded] = _listeners(given, "ended")
        self.lost: Listeners[RunLost] = _listeners(given, "lost")
        self.signalled: Listeners[SignalSent] = _listeners(given, "signalled")
        self.signal_taken: Listeners[SignalTaken] = _listeners(given, "signal_taken")
        self.claim_answered: Listeners[ClaimAnswered] = _listeners(given, "claim_answered")
        self.flushed: Listeners[JournalFlushed] = _listeners(given, "flushed")
        self.swept: Listeners[RunsSwept] = _listeners(given, "swept")

    def tell(self, listeners: Listeners[E], event: E) -> None:
        """Tell each of them. What one raises is its own affair."""
        for listener in listeners:
            try:
                listener(event)
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # ends here: nothing is awaited, so nobody is cancelled in there
                self._complain(listener, event, error)

    def _complain(self, listener: Callable[[Any], None], event: object, error: BaseException) -> None:
        """Say it once, and then at most once a minute: an observer that is broken raises at every step."""
        name = getattr(listener, "__qualname__", repr(listener))
        now = self._clock.now()
        silent_until, times = self._failed.get(name, (0.0, 0))
        if now < silent_until:
            self._failed[name] = (silent_until, times + 1)
            return
        self._failed[name] = (now + _SAY_AGAIN, 0)
        more = f" ({times} more times in the last minute)" if times else ""
        self._logger.error(
            "observer %s raised %s%s; the run goes on", name, type_name(error), more,
            exc_info=error, extra=ids_of_event(event),
        )  # fmt: skip

    @property
    def of_steps(self) -> Observers | None:
        """Itself, if somebody wants to hear of the calls of steps."""
        return self if self.step_called or self.step_ended else None

    # -- steps -----------------------------------------------------------------------------------------------------

    async def call(self, step: StepCall[Any]) -> Any:
        """Call the function of a step once more, and tell of it before and after."""
        if self.step_called:
            self.step_begins(step)
        began = step.execution.clock.now()
        try:
            result = await step._call()
        except BaseException as error:
            self.step_raised(step, began, error)
            raise
        self.step_ends(step, began)
        return result

    def step_begins(self, step: StepCall[Any]) -> None:
        """The function of a step is about to be called."""
        execution = step._execution
        event = StepCalled(
            execution.run_id, execution.claim, execution.workflow.dag, step.name, step.kind, step.branch,
            step.position, step._calls, execution.claimed.attempt,
        )  # fmt: skip
        self.tell(self.step_called, event)

    def step_raised(self, step: StepCall[Any], began: float, error: BaseException) -> None:
        """The function of a step raised something, or was interrupted."""
        outcome = _outcome(step.execution, error)
        self.step_ends(step, began, outcome, type_name(error) if outcome == status.FAILED else None)

    def step_ends(
        self, step: StepCall[Any], began: float, outcome: str = status.COMPLETED, failure: str | None = None
    ) -> None:
        """The call of a step's function has come to its end."""
        if self.step_ended:
            execution = step._execution
            event = StepEnded(
                execution.run_id, execution.claim, execution.workflow.dag, step.name, step.kind, step.branch,
                step.position, step._calls, execution.claimed.attempt, execution.clock.now() - began, outcome, failure,
            )  # fmt: skip
            self.tell(self.step_ended, event)

    def refused(self, step: StepCall[Any], number: int, error: BaseException) -> None:
        """What a function returned could not be recorded."""
        if self.step_refused:
            execution = step.execution
            workflow = execution.workflow.dag
            event = StepRefused(execution.run_id, execution.claim, workflow, step.name, number, type_name(error))
            self.tell(self.step_refused, event)

    def try_fails(self, step: StepCall[Any], number: int, error: BaseException, delay: float | None) -> None:
        """A try of a step has failed; the next one comes after so many seconds, if there is one."""
        if self.try_failed:
            execution = step.execution
            event = TryFailed(
                execution.run_id, execution.claim, execution.workflow.dag, step.name, step.kind, number,
                execution.claimed.attempt, error, delay,
            )  # fmt: skip
            self.tell(self.try_failed, event)

    def remote_goes(self, execution: Execution, group: str, name: str) -> None:
        """A remote step was sent, and that is committed."""
        if self.remote_sent:
            claimed, workflow = execution.claimed, execution.workflow.dag
            event = RemoteSent(
                execution.run_id, execution.claim, workflow, name, group, claimed.attempt, claimed.dag_step
            )
            self.tell(self.remote_sent, event)

    def remote_ends(self, execution: Execution, group: str, entry: StepDone) -> None:
        """The outcome of a remote step is recorded."""
        if not self.remote_ended:
            return
        claimed, failure = execution.claimed, None
        if entry.status == status.FAILED:
            failure = str(decode_error(entry.error, entry.format, execution.recorder.payloads)["type"])
        event = RemoteEnded(
            execution.run_id, execution.claim, execution.workflow.dag, entry.name, group, claimed.attempt,
            entry.duration_ms / 1000, entry.status, entry.attempts, failure, claimed.dag_step,
        )  # fmt: skip
        self.tell(self.remote_ended, event)

    # -- runs ------------------------------------------------------------------------------------------------------

    def starts(self, runs: Iterable[NewRun], ids: Iterable[str] | None = None, joined: bool = False) -> None:
        """Runs were started, under these ids; those with the id of another found their key taken. Steps of dags go
        with their run."""
        if not self.started:
            return
        for run, run_id in zip(runs, ids, strict=True) if ids is not None else ((run, run.id) for run in runs):
            if run.id == run_id and run.dag_step is None:
                parent = None if run.parent is None else run.parent.run_id
                shape = run.shape
                event = RunStarted(run.id, shape.workflow, shape.queue, parent, run.origin, joined)
                self.tell(self.started, event)

    def takes(self, execution: Execution) -> None:
        """A run was claimed, and is about to be executed."""
        if self.claimed:
            claimed = execution.claimed
            workflow = execution.workflow
            event = RunClaimed(
                execution.run_id, execution.claim, workflow.dag, claimed.queue, workflow.kind, claimed.attempt,
                _ready_for(claimed), claimed.parent_id, claimed.dag_id, claimed.dag_step,
                claimed.undoing, decoded(claimed.trace), claimed.worker,
            )  # fmt: skip
            self.tell(self.claimed, event)

    def attempt_fails(
        self, execution: Execution, error: BaseException, delay: float | None, reason: str | None = None
    ) -> None:
        """An attempt of a run has failed; the next one comes after so many seconds, if there is one."""
        if self.attempt_failed:
            run_id, claim, workflow, queue, kind, attempt = _of_run(execution)
            event = AttemptFailed(
                run_id, claim, workflow, queue, kind, attempt, error, delay, reason, step_of(error),
                execution.claimed.dag_step,
            )  # fmt: skip
            self.tell(self.attempt_failed, event)

    def parts(self, execution: Execution, move: Transition) -> None:
        """A run is about to leave its worker, and the entry that says so about to be written."""
        execution.departure = move
        if move.successor is not None:
            goes_on_as(self, execution, move.successor)
        if self.releasing and move.status not in (status.COMPLETED, status.SKIPPED):
            before = execution.claimed.trace
            event = RunReleasing(execution.run_id, execution.claim, decoded(before))
            self.tell(self.releasing, event)
            after = encoded(event.trace)
            move.trace = None if after == before else after

    def takes_signal(self, execution: Execution, mail: Mail) -> None:
        """A run has taken a signal, and that is committed."""
        if self.signal_taken:
            event = SignalTaken(
                execution.run_id, execution.claim, execution.workflow.dag, mail.name, decoded(mail.trace)
            )
            self.tell(self.signal_taken, event)

    def forgets(self, execution: Execution) -> None:
        """A run has left the slots: tell how. If that is not committed yet, tell it when it is; and if nothing in the
        journal says how, the run was lost."""
        parting = execution.parting
        if parting is None:
            self.loses(execution)
        elif parting.done():
            self._left(execution, parting)
        else:
            parting.add_done_callback(lambda receipt: self._left(execution, receipt))

    def _left(self, execution: Execution, receipt: Promise[int]) -> None:
        move = execution.departure
        if receipt.exception() is not None or move is None:
            self.loses(execution)
            return
        if execution.left_told:
            return
        execution.left_told = True
        if move.successor is not None:
            self.starts([move.successor])
        if move.status in status.TERMINAL:
            self._ended(execution, move, receipt.result())
        elif self.suspended:
            event = RunReleased(
                *_of_run(execution), _busy(execution), _replayed(execution), move.status, move.waiting_for,
                execution.error_type, execution.claimed.dag_step,
            )  # fmt: skip
            self.tell(self.suspended, event)

    def _ended(self, execution: Execution, move: Transition, now: int) -> None:
        if self.ended:
            claimed, workflow, history = execution.claimed, execution.workflow, execution.history
            since = made_at(execution.run_id) or claimed.started_at
            lasted = (now - since) / 1000 if now > since else 0.0
            event = RunEnded(
                execution.run_id, execution.claim, workflow.dag, claimed.queue, workflow.kind, claimed.attempt,
                execution.clock.now() - execution.began, history.replayed, lasted,
                move.status, move.reason, execution.error_type, claimed.dag_step,
            )  # fmt: skip
            self.tell(self.ended, event)

    def loses(self, execution: Execution) -> None:
        """A run is not this worker's any more."""
        if not execution.left_told:
            execution.left_told = True
            if self.lost:
                event = RunLost(*_of_run(execution), _busy(execution), execution.claimed.dag_step)
                self.tell(self.lost, event)


def _listeners(given: Sequence[Observer], hook: str) -> Listeners[Any]:
    """The observers that want to hear of an event: who leaves the method of the base alone costs nothing."""
    methods = [getattr(observer, "collectors", {}).get(hook) or getattr(observer, hook) for observer in given]
    nothing = getattr(Observer, hook)
    return tuple(method for method in methods if getattr(method, "__func__", method) is not nothing)


def _outcome(execution: Execution, error: BaseException) -> str:
    """What the end of a call by an error means."""
    if execution.closed is not None or not isinstance(error, (Exception, asyncio.CancelledError)):
        return ABANDONED
    return status.FAILED if isinstance(error, Exception) else status.CANCELLED


def _of_run(execution: Execution) -> tuple[str, int, str, str, str, int]:
    claimed, kind = execution.claimed, execution.workflow.kind
    return execution.run_id, execution.claim, execution.workflow.dag, claimed.queue, kind, claimed.attempt


def _ready_for(claimed: Claimed) -> float:
    """For how many seconds it was ready. A claim whose reply was lost does not say any more."""
    return max(0.0, claimed.now_ms - claimed.place / 1000) / 1000 if claimed.place > 0 else 0.0


def _busy(execution: Execution) -> float:
    return execution.clock.now() - execution.began


def _replayed(execution: Execution) -> int:
    return execution.history.replayed
