"""Observers and logs: what is reported of runs, with values that travel from caller to worker."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from ..errors import ConfigurationError, StepFailed, sentence
from ..model import status
from ..model.events import (
    ABANDONED,
    SENT_CHILD,
    SENT_NEXT,
    SENT_REMOTE,
    SENT_SIGNAL,
    SENT_START,
    AttemptFailed,
    BranchBegan,
    BranchEnded,
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
    WaitBegan,
    WaitEnded,
)
from ..model.ids import made_at, without_tokens
from ..model.records import Claimed, Mail, NewRun, StepDone, Transition, Unique
from ..model.tracebacks import own_code_only, own_frames
from .history import STEP, UNDO
from .host import Clock, Promise
from .outcomes import decode_error, ending_record, type_name

if TYPE_CHECKING:
    from .call import DurableCall
    from .execution import Execution
    from .step import StepCall


MOST: Final = 2_000
"""Characters: what observers send along is small. More of it is not sent."""

UNTOLD: Final = nullcontext[Any]()
"""Around what is sent where there are no observers."""


def encoded(trace: Mapping[str, str]) -> str | None:
    """As it is stored; None, if there is nothing or too much of it."""
    if not trace:
        return None
    text = msgspec.json.encode(trace).decode()
    return text if len(text) <= MOST else None


def decoded(text: str | None) -> dict[str, str]:
    """What was sent along; nothing, if it is not what an observer could have sent."""
    if text is None or len(text) > MOST:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        return {}


class TellOfSending:
    """Around a start or a signal: observers are called before and after, and what they add is sent with it."""

    __slots__ = ("_event", "_observers")

    def __init__(self, observers: Observers, event: Sending) -> None:
        self._observers = observers
        self._event = event

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._observers.sending_ended:
            failure = None if error is None else type_name(error)
            self._observers.tell(self._observers.sending_ended, SendingEnded(self._event, failure))


def _was_sent(unique: Unique) -> bool:
    """Whether the signal of a start was put into a mailbox."""
    return unique.holder is None or (unique.answer is not None and unique.answer.done)


def starting(observers: Observers, runs: list[NewRun]) -> Any:
    """Runs are about to be started by one call. The observers' word goes with all of them."""
    if not observers.sending:
        return UNTOLD
    first = runs[0]
    own = [run for run in runs if run.dag_step is None]
    run_id = first.id if len(own) == 1 else None
    event = Sending(SENT_START, first.shape.workflow, first.shape.queue, run_id, len(own))
    _send_along(observers, event, runs)
    return TellOfSending(observers, event)


def signalling(observers: Observers, mail: Mail) -> Any:
    """A signal is about to be sent."""
    if not observers.sending:
        return UNTOLD
    event = Sending(SENT_SIGNAL, mail.name, None, mail.run_id)
    observers.tell(observers.sending, event)
    mail.trace = encoded(event.trace)
    return TellOfSending(observers, event)


def child_starts(observers: Observers, execution: Execution, runs: list[NewRun]) -> None:
    """A run is about to start another as its child."""
    if observers.sending:
        first = runs[0]
        event = Sending(
            SENT_CHILD, first.shape.workflow, first.shape.queue, first.id, 1, execution.run_id, execution.claim
        )
        _send_along(observers, event, runs)


def goes_on_as(observers: Observers, execution: Execution, successor: NewRun) -> None:
    """A run is about to continue as another."""
    if observers.sending:
        shape = successor.shape
        event = Sending(SENT_NEXT, shape.workflow, shape.queue, successor.id, 1, execution.run_id, execution.claim)
        _send_along(observers, event, [successor])


def remote_trace(observers: Observers, execution: Execution, name: str, group: str) -> str | None:
    """What goes with a remote step that is about to be sent."""
    if not observers.sending:
        return None
    event = Sending(SENT_REMOTE, name, group, None, 1, execution.run_id, execution.claim)
    observers.tell(observers.sending, event)
    return encoded(event.trace)


def _send_along(observers: Observers, event: Sending, runs: Iterable[NewRun]) -> None:
    observers.tell(observers.sending, event)
    text = encoded(event.trace)
    if text is not None:
        for run in runs:
            run.trace = text


_MOST_FRAMES = 8
"""Of a traceback in the log."""
_MOST_LINES = 24
"""Of the stored traceback of a step or a child, in that of the run."""
_NAMED = 5
"""Of how many runs or steps that share a fate each has a record of its own."""
_IDS = ("run_id", "workflow", "attempt", "step")


def ids_of(execution: Execution, step: str | None = None) -> dict[str, Any]:
    """The ids that every record of the log about a run carries, as ``extra``."""
    ids = {"run_id": execution.run_id, "workflow": execution.workflow.name, "attempt": execution.claimed.attempt}
    if execution.claimed.worker:
        ids["worker"] = execution.claimed.worker
    return ids if step is None else {**ids, "step": step}


def ids_of_event(event: object) -> dict[str, Any]:
    """The ids of the run that an event is about, as far as the event has them."""
    return {name: value for name in _IDS if (value := getattr(event, name, None)) is not None}


def tell_each(logger: logging.Logger, told: str, each: Sequence[Mapping[str, str]]) -> None:
    """Warn of what became of runs, or of remote steps, which are given by their ids: the first few by a record each, so
    that they are found by their ids, and of the others only how many there are."""
    kind = "step" if each and "step_id" in each[0] else "run"
    one, more = f"{kind} %s: {told}", f"%d more {kind}s: {told}"
    for ids in each[:_NAMED]:
        logger.warning(one, ids[f"{kind}_id"], extra=ids)
    if len(each) > _NAMED:
        logger.warning(more, len(each) - _NAMED)


class OfRun:
    """A value of a run, as the messages about it name it. If it is large, that is logged with the ids of the run."""

    __slots__ = ("_execution", "_name", "_what")

    def __init__(self, execution: Execution, what: str, name: str) -> None:
        self._execution = execution
        self._what = what
        self._name = name

    def __str__(self) -> str:
        return f"{self._what} {self._name!r}"

    @property
    def ids(self) -> dict[str, Any]:
        """The ids of its run."""
        return ids_of(self._execution)


def tell_try(call: DurableCall[Any], error: BaseException, number: int, delay: float | None) -> None:
    """Log that a try of a step failed: it is tried again after so many seconds, or has failed for good."""
    execution = call._execution
    execution.recorder.logger.info(
        "run %s (%s): %s %r, try %d failed with %s; %s%s",
        execution.run_id, execution.workflow.name, "undo" if call.kind == UNDO else "step", call.name, number,
        _why(execution, error), "no further try" if delay is None else f"next try in {delay:.1f} s",
        _where(execution, error), extra=ids_of(execution, call.name),
    )  # fmt: skip


def tell_attempt(execution: Execution, error: BaseException, delay: float) -> None:
    """Log that an attempt of a run failed, and when the next one is."""
    execution.recorder.logger.info(
        "run %s (%s): attempt %d failed with %s; next attempt in %.1f s%s",
        execution.run_id, execution.workflow.name, execution.claimed.attempt, _why(execution, error), delay,
        _where(execution, error), extra=ids_of(execution, step_of(error)),
    )  # fmt: skip


def tell_end(execution: Execution, error: BaseException, reason: str) -> None:
    """Log that a run failed for good."""
    execution.recorder.logger.warning(
        "run %s (%s) failed for good (%s): %s",
        execution.run_id, execution.workflow.name, reason, _why(execution, error),
        exc_info=_shown(execution, error), extra=ids_of(execution, step_of(error)),
    )  # fmt: skip


def tell_undos(execution: Execution, failed: list[str]) -> None:
    """Undos failed for good; each said in words."""
    told = f": {'; '.join(failed)}" if execution.recorder.settings.log_errors else ""
    execution.recorder.logger.error(
        "run %s (%s): %d undos failed%s", execution.run_id, execution.workflow.name, len(failed), told,
        extra=ids_of(execution),
    )  # fmt: skip


def step_of(error: BaseException) -> str | None:
    """The step whose failure is behind an error, if there is one."""
    record = ending_record(error)
    return record.step if isinstance(record, StepFailed) else None


def _why(execution: Execution, error: BaseException) -> str:
    """The class and the first line of the message. Without messages, the class, and which step it came from."""
    if execution.recorder.settings.log_errors:
        return without_tokens(sentence(error, type_name(error)), execution.tokens)
    record, name = ending_record(error), type_name(error)
    return f"{name} (step {record.step!r}: {record.error_type})" if isinstance(record, StepFailed) else name


def _where(execution: Execution, error: BaseException) -> str:
    """The line of the user's code that raised, behind the rest of a message."""
    frame = own_frames(error.__traceback__, 1)
    if not execution.recorder.settings.log_errors or frame is None:
        return ""
    return f" (at {os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno})"


ExcInfo = tuple[type[BaseException], BaseException, Any]


def _shown(execution: Execution, error: BaseException) -> ExcInfo | None:
    """The error for ``exc_info``, with the innermost frames of the user's code. One that was made from a record says
    where the step was called; where the step itself went wrong is only in the record, and is added as a note. The end
    of a dag run adds nothing to that of its step, which is logged by itself."""
    if not execution.recorder.settings.log_errors or getattr(error, "only_traceback", None):
        return None
    origin = getattr(ending_record(error), "traceback", None)
    if origin:
        lines = own_code_only(origin).splitlines()
        cut = [*lines[:1], "  …", *lines[1 - _MOST_LINES :]] if len(lines) > _MOST_LINES else lines
        note = "\n".join(["It came from:", *cut])
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    return type(error), error, own_frames(error.__traceback__, _MOST_FRAMES)


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

    def wait_began(self, event: WaitBegan) -> None:
        """The code of a run begins to wait."""

    def wait_ended(self, event: WaitEnded) -> None:
        """A wait has come to its end, or the run has left the worker."""

    def branch_began(self, event: BranchBegan) -> None:
        """The code of a branch begins."""

    def branch_ended(self, event: BranchEnded) -> None:
        """The code of a branch has come to its end, or the run has left the worker."""

    def try_failed(self, event: TryFailed) -> None:
        """A try of a step has failed. The event has the error itself."""

    def attempt_failed(self, event: AttemptFailed) -> None:
        """An attempt of a run has failed. The event has the error itself."""

    def remote_sent(self, event: RemoteSent) -> None:
        """A remote step was sent."""

    def remote_ended(self, event: RemoteEnded) -> None:
        """The outcome of a remote step came, or none in time."""

    def releasing(self, event: RunReleasing) -> None:
        """A run is about to leave, and may come again. What is put into ``event.trace`` is given to its next claim."""

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
    """Refuse what has no method of an observer."""
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
    """The observers to notify; None if there are none, so that callers have one thing to check."""
    return Observers(given, logger, clock) if given else None


K = TypeVar("K")
_MOST_KEYS = 1_000
"""Keys of a series of values; a label of a step may be any text."""


class Series(dict[K, list[Any]]):
    """Values by a key, put in by one thread: ``series[key].append(value)``. Any thread may take them out."""

    def __init__(self) -> None:
        super().__init__()
        self._full: deque[dict[K, list[Any]]] = deque()

    def __missing__(self, key: K) -> list[Any]:
        if len(self) >= _MOST_KEYS:
            self._full.append(dict(self))
            self.clear()
        values = self[key] = []
        return values

    def take(self) -> Iterator[tuple[K, list[Any]]]:
        """Take out what has gathered. A list stays where it is: the other thread may be about to append to it."""
        full = [self._full.popleft() for _ in range(len(self._full))]
        for found in (*full, self._as_it_is()):
            for key, values in found.items():
                if count := len(values):
                    taken = values[:count]
                    del values[:count]
                    yield key, taken

    def _as_it_is(self) -> dict[K, list[Any]]:
        while True:
            try:
                return dict(self)
            except RuntimeError:  # changed while it was copied
                continue


class Gathered:
    """What goes as usual at one worker, in numbers. An observer that only counts takes them from here now and then, and
    is notified of everything else: an event for each of them costs three times as much."""

    __slots__ = ("claims", "ends", "steps")

    def __init__(self) -> None:
        self.claims: Series[str] = Series()
        """By queue: for how many seconds runs were ready when they were claimed."""
        self.steps: Series[tuple[str, str]] = Series()
        """By workflow and name: how many seconds the calls took of steps that completed."""
        self.ends: Series[str] = Series()
        """By workflow: of runs that completed, how many seconds the worker had them, how many they lasted, and how many
        calls were replayed."""


class Observers:
    """All observers of an application. Each attribute named after a hook holds those who want to hear of it."""

    def __init__(self, given: Sequence[Observer], logger: logging.Logger, clock: Clock) -> None:
        self._logger, self._clock = logger, clock
        counting = [observer for observer in given if getattr(observer, "takes_gathered", False)]
        self._counting: Any = counting[0] if len(counting) == 1 else None  # two would take each other's share
        others = [observer for observer in given if observer is not self._counting]
        self._claimed_usually: Listeners[RunClaimed] = _listeners(others, "claimed")
        self._step_completed: Listeners[StepEnded] = _listeners(others, "step_ended")
        self._completed: Listeners[RunEnded] = _listeners(others, "ended")
        """Those that are notified one by one also where a worker gathers."""
        self._failed: dict[str, tuple[float, int]] = {}
        """Of observers that raised: until when nothing is logged of them, and how often they raised in between."""
        self.started: Listeners[RunStarted] = _listeners(given, "started")
        self.sending: Listeners[Sending] = _listeners(given, "sending")
        self.sending_ended: Listeners[SendingEnded] = _listeners(given, "sending_ended")
        self.claimed: Listeners[RunClaimed] = _listeners(given, "claimed")
        self.step_called: Listeners[StepCalled] = _listeners(given, "step_called")
        self.step_ended: Listeners[StepEnded] = _listeners(given, "step_ended")
        self.step_refused: Listeners[StepRefused] = _listeners(given, "step_refused")
        self.wait_began: Listeners[WaitBegan] = _listeners(given, "wait_began")
        self.wait_ended: Listeners[WaitEnded] = _listeners(given, "wait_ended")
        self.branch_began: Listeners[BranchBegan] = _listeners(given, "branch_began")
        self.branch_ended: Listeners[BranchEnded] = _listeners(given, "branch_ended")
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
            except BaseException as error:  # ends here: nothing is awaited, so no task is cancelled in there
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

    def gather(self) -> Gathered | None:
        """What a worker is to put numbers into, if an observer takes them from there."""
        return None if self._counting is None else self._counting.gather()

    def gather_no_more(self, gathered: Gathered) -> None:
        """The worker has ended."""
        self._counting.gather_no_more(gathered)

    @property
    def of_steps(self) -> Observers | None:
        """Itself, if an observer listens to the calls of steps."""
        return self if self.step_called or self.step_ended else None

    # -- steps -----------------------------------------------------------------------------------------------------

    async def call(self, step: StepCall[Any]) -> Any:
        """Call the function of a step once more, and tell of it before and after."""
        if self.step_called:
            self.step_begins(step)
        began = step.execution.clock.now()
        try:
            result = await step.call()
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
        execution, listeners = step._execution, self.step_ended
        gathered = execution.recorder.gathered
        if gathered is not None and outcome == status.COMPLETED and step.kind == STEP:
            gathered.steps[execution.workflow.dag, step.name].append(execution.clock.now() - began)
            listeners = self._step_completed
        if listeners:
            event = StepEnded(
                execution.run_id, execution.claim, execution.workflow.dag, step.name, step.kind, step.branch,
                step.position, step._calls, execution.claimed.attempt, execution.clock.now() - began, outcome, failure,
            )  # fmt: skip
            self.tell(listeners, event)

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
        if not (self.started or self.signalled):
            return
        for run, run_id in zip(runs, ids, strict=True) if ids is not None else ((run, run.id) for run in runs):
            if run.unique is not None and run.unique.signal is not None and _was_sent(run.unique):
                self.tell(self.signalled, SignalSent(run_id, run.unique.signal.name, joined))
            if run.id == run_id and run.dag_step is None:
                parent = None if run.parent is None else run.parent.run_id
                shape = run.shape
                event = RunStarted(run.id, shape.workflow, shape.queue, parent, run.origin, joined)
                self.tell(self.started, event)

    def takes(self, execution: Execution) -> None:
        """A run was claimed, and is about to be executed."""
        listeners, gathered = self.claimed, execution.recorder.gathered
        if gathered is not None:
            gathered.claims[execution.claimed.queue].append(_ready_for(execution.claimed))
            listeners = self._claimed_usually
        if listeners:
            claimed = execution.claimed
            workflow = execution.workflow
            event = RunClaimed(
                execution.run_id, execution.claim, workflow.dag, claimed.queue, workflow.kind, claimed.attempt,
                _ready_for(claimed), claimed.parent_id, claimed.dag_id, claimed.dag_step,
                claimed.undoing, decoded(claimed.trace), claimed.worker,
            )  # fmt: skip
            self.tell(listeners, event)

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

    def waits(self, execution: Execution, what: str, branch: str) -> Callable[[str], None] | None:
        """The code of a run begins to wait. Return what is called with the outcome; None: no observer wants it."""
        if not (self.wait_began or self.wait_ended):
            return None
        about = (execution.run_id, execution.claim, execution.workflow.dag, what, branch, execution.claimed.attempt)
        began = self._clock.now()
        self.tell(self.wait_began, WaitBegan(*about))
        return lambda outcome: self.tell(self.wait_ended, WaitEnded(*about, self._clock.now() - began, outcome))

    def enters_branch(self, execution: Execution, branch: str) -> Callable[[str, str | None], None] | None:
        """The code of a branch begins. Return what is called with the outcome; None: no observer wants it."""
        if not (self.branch_began or self.branch_ended):
            return None
        about = (execution.run_id, execution.claim, execution.workflow.dag, branch, execution.claimed.attempt)
        began = self._clock.now()
        self.tell(self.branch_began, BranchBegan(*about))
        return lambda outcome, error: self.tell(
            self.branch_ended, BranchEnded(*about, self._clock.now() - began, outcome, error)
        )

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
        claimed, workflow, history = execution.claimed, execution.workflow, execution.history
        listeners, gathered = self.ended, execution.recorder.gathered
        since = made_at(execution.run_id) or claimed.started_at
        lasted = (now - since) / 1000 if now > since else 0.0
        if gathered is not None and move.status == status.COMPLETED and claimed.dag_step is None:
            gathered.ends[workflow.dag].append((_busy(execution), lasted, history.replayed))
            listeners = self._completed
        if listeners:
            event = RunEnded(
                execution.run_id, execution.claim, workflow.dag, claimed.queue, workflow.kind, claimed.attempt,
                _busy(execution), history.replayed, lasted, move.status, move.reason, execution.error_type,
                claimed.dag_step,
            )  # fmt: skip
            self.tell(listeners, event)

    def loses(self, execution: Execution) -> None:
        """A run is not this worker's any more."""
        if not execution.left_told:
            execution.left_told = True
            if self.lost:
                event = RunLost(*_of_run(execution), _busy(execution), execution.claimed.dag_step)
                self.tell(self.lost, event)


def _listeners(given: Sequence[Observer], hook: str) -> Listeners[Any]:
    """The observers that want to hear of an event: who leaves the method of the base alone costs nothing."""
    methods = [getattr(observer, hook) for observer in given]
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
