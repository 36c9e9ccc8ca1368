"""Every error Stepfast raises, with the sentence a user needs to act on it.

Two families. ``StepfastError`` and its children are ordinary exceptions, meant to be caught. ``Released`` and
its children are ``BaseException``: they unwind a handler whose run is no longer its own, so that an
``except Exception`` in user code cannot swallow them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine.maps import Results

LONGEST = 100 * 366 * 86_400.0
"""Seconds. A longer span is a typing error, and would leave the calendar of some database."""


class StepfastError(Exception):
    """The root of everything Stepfast raises on purpose."""


# --- set-up ---------------------------------------------------------------------------------------------------


class ConfigurationError(StepfastError):
    """Something about the way Stepfast was set up cannot work: a URL, a name, an option."""


class UnknownOption(ConfigurationError, TypeError):
    """A decorator or call was given an option that it does not have. It is a TypeError too, as for any function."""


class GraphError(ConfigurationError):
    """A declared graph cannot work. Lists everything that is wrong with it."""

    def __init__(self, name: str, problems: list[str]) -> None:
        super().__init__(f"the graph of dag {name!r} cannot work: " + "; ".join(problems))
        self.problems = problems


class DatabaseUnavailable(StepfastError):
    """The database cannot be reached."""


class AppClosed(DatabaseUnavailable):
    """The application was closed before it had an answer. Its runs continue; used again, it connects again."""

    def __init__(self, message: str = "the application was closed") -> None:
        super().__init__(message)


class DatabaseRefused(StepfastError):
    """The database answered, but would not take what it was given."""


class SchemaError(StepfastError):
    """The tables are missing, or were made by a version this code cannot work with."""


class NamespaceMoved(ConfigurationError):
    """The namespace was moved to another database, or is being filled by such a move: nothing can write into it here.
    The message names the other place."""


class WorkerBroken(StepfastError):
    """A worker ended by itself, because one of its services did: a bug in Stepfast. Its runs, or the tasks of a remote
    worker, are ready again.

    ``async with app.worker()`` ends its body and raises it, in place of what the body raised; ``app.work()`` and
    ``app.drain()`` raise it too. A supervisor should start the worker again.
    """

    def __init__(self, worker: str, duty: str, said: str, held: str = "runs") -> None:
        how = f"with {said}" if said else "without an error"
        super().__init__(
            f"worker {worker} broke and gave its {held} back, because {duty} ended {how}. That is a bug in Stepfast; "
            "the log has its traceback. Start the worker again"
        )
        self.worker = worker
        self.duty = duty


# --- starting and reading runs --------------------------------------------------------------------------------


class UnknownWorkflow(StepfastError):
    """No workflow of that name, neither in this code nor among the stored definitions."""

    def __init__(self, name: str, known: list[str]) -> None:
        names = ", ".join(sorted(known)) or "none yet"
        super().__init__(f"there is no workflow named {name!r}; known workflows: {names}")
        self.name = name


class InvalidInput(StepfastError):
    """A value does not fit the type it was declared with."""

    of_run = False
    """Whether it is the input of the run that is being executed, and not something that its code has passed on."""


class PayloadError(StepfastError):
    """A value cannot be stored as JSON, or is beyond a limit."""


class RunNotFound(StepfastError):
    """No run has that id: it may have been removed by retention, or the text is not an id at all."""

    def __init__(self, run_id: str, why: str = " (it may have been pruned)") -> None:
        super().__init__(f"there is no run {run_id}{why}")
        self.run_id = run_id


class ScheduleNotFound(StepfastError):
    """No schedule has that name."""

    def __init__(self, name: str, hint: str = "") -> None:
        super().__init__(f"there is no schedule {name!r}{hint}")
        self.name = name


class InvalidState(StepfastError):
    """The requested change does not fit the state of the run."""


class AlreadyRunning(StepfastError):
    """A live run has the name of the start (``unique=``, with ``on_conflict="raise"``). Nothing was started."""

    def __init__(self, name: str, run_id: str) -> None:
        super().__init__(
            f'run {run_id} has the name {name!r} and has not ended; without on_conflict="raise" a start by this name '
            "gives that run"
        )
        self.name, self.run_id = name, run_id


class QueueFull(StepfastError):
    """So many runs are ready in the queue that it takes no more (``max_ready``). Nothing was started."""

    def __init__(self, queue: str, ready: int, most: int, wanted: int = 1) -> None:
        more = "one more" if wanted == 1 else f"{wanted} more"
        super().__init__(
            f"queue {queue!r} has {ready} ready runs and takes at most {most} (max_ready): {more} would be too many. "
            "Start again when there is room; `stepfast queues` shows which workers serve the queue"
        )
        self.queue, self.ready, self.most = queue, ready, most


class RunFailed(StepfastError):
    """The run ended without a result. Carries what is known of the error that ended it."""

    def __init__(
        self,
        run_id: str,
        message: str,
        *,
        reason: str | None = None,
        error_type: str | None = None,
        traceback: str | None = None,
    ) -> None:
        what = f"{error_type}: {message}" if error_type else message
        super().__init__(f"run {run_id} failed ({reason}): {what}" if reason else f"run {run_id} failed: {what}")
        self.run_id = run_id
        self.message = message
        self.reason = reason
        self.error_type = error_type
        self.traceback = traceback


class RunCancelled(StepfastError):
    """The run was cancelled before it had a result."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} was cancelled")
        self.run_id = run_id


# --- inside a handler -----------------------------------------------------------------------------------------


class NonRetryableError(StepfastError):
    """Raise it (or a subclass) to end a step or a run at once: no further try can help."""


class RetryLater(StepfastError):
    """Raise it to be tried again after ``delay`` (seconds or a timedelta). It uses up a try like any other error."""

    def __init__(self, delay: float | timedelta, message: str = "") -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not 0 <= seconds <= LONGEST:
            raise ValueError(
                f"RetryLater: the delay must be zero or more seconds, up to a hundred years, not {delay!r}"
            )
        super().__init__(message or f"try again in {seconds:g} s")
        self.delay = seconds


class RecordedError(StepfastError):
    """The root of what is raised in a workflow because of a record: a step, a wait or a child that failed.

    Decided when it is recorded, and raised alike live and replayed.
    """

    retryable = False
    """Whether another attempt of the run could help."""
    delay: float | None = None
    """Seconds until the next try, where the original was a ``RetryLater``."""
    address: tuple[str, int] = ("", 0)
    """(branch, position) of the failed record."""
    error_bases: tuple[str, ...] = ()
    """The names of the classes that the original error's class was made of."""
    seen: dict[str, int]
    """How far each branch that this was raised in had come then; what came later is forgotten on a new attempt."""
    races: tuple[tuple[str, int], ...] = ()
    """(branch, position) of the races that it won by failing: a new attempt runs them again."""


class StepFailed(RecordedError):
    """A step failed for good. Built from its record, so that it is the same live and replayed.

    ``error_type``, ``message`` and ``traceback`` are those of the original error, as text; the original class is not
    rebuilt, because a class is never imported by a name found in a row.
    """

    only_traceback: str | None = None
    """What is kept in place of where it was raised, if that says nothing."""

    def __init__(
        self,
        step: str,
        *,
        error_type: str,
        message: str,
        traceback: str | None = None,
        retryable: bool = True,
        delay: float | None = None,
        address: tuple[str, int] = ("", 0),
    ) -> None:
        super().__init__(
            f"step {step!r} failed: {error_type}: {message}" if message else f"step {step!r} failed: {error_type}"
        )
        self.step = step
        self.error_type = error_type
        self.message = message
        self.traceback = traceback
        self.retryable = retryable
        self.delay = delay
        self.address = address


class StepTimeout(StepfastError, TimeoutError):
    """A try of a step took longer than its timeout."""


class StepInterrupted(StepfastError):
    """A worker ended in the middle of a step that is called at most once: whether it has acted is not known."""


class AttemptTimeout(StepfastError, TimeoutError):
    """An attempt of a run took longer than its timeout."""


class DeadlineExceeded(StepfastError):
    """The run did not end before its deadline."""


class NonDeterminismError(StepfastError):
    """The code makes other calls than are recorded of the run: a step was renamed, moved, inserted or removed."""


class SignalTimeout(RecordedError, TimeoutError):
    """The awaited signal did not come in time."""


class QuestionTimeout(RecordedError, TimeoutError):
    """No question of that name came in time."""


class EventTimeout(RecordedError, TimeoutError):
    """No event of that name and key came in time."""


class QuestionRefused(StepfastError):
    """The run refused to answer the question; the message says why."""


class RunEnded(StepfastError):
    """The run ended before it answered the question."""

    def __init__(self, run_id: str, question: str, how: str) -> None:
        super().__init__(f"run {run_id} {how} before it answered question {question!r}")
        self.run_id = run_id


class CallbackTimeout(RecordedError, TimeoutError):
    """The callback was not completed in time, or a heartbeat of it did not come in time."""


class CallbackFailed(RecordedError):
    """Who had the token of a callback has failed it: ``message`` is what they said."""

    def __init__(self, callback: str, message: str) -> None:
        super().__init__(f"callback {callback!r} failed: {message}")
        self.callback = callback
        self.message = message


class CallbackNotFound(StepfastError):
    """No callback has that token: it may have been removed with its run."""

    def __init__(self) -> None:
        super().__init__("no callback has this token (its run may have been removed)")


class CallbackDone(StepfastError):
    """The callback has another outcome already, or its time is up, or its run has ended: ``state`` is ``completed``,
    ``failed``, ``timed_out`` or ``ended``."""

    def __init__(self, callback: str, run_id: str, state: str) -> None:
        how = {
            "completed": "has been completed already",
            "failed": "has failed already",
            "timed_out": "has timed out",
            "ended": "is open no more, because its run has ended",
        }
        super().__init__(f"callback {callback!r} of run {run_id} {how.get(state, state)}")
        self.callback = callback
        self.run_id = run_id
        self.state = state


class WaitTimeout(RecordedError, TimeoutError):
    """The check of ``ctx.wait_until`` did not become true in time, or within so many checks."""


class MapFailed(RecordedError):
    """Too many items of a map or gather failed, or too few can succeed: ``max_failures``, ``min_successful``."""

    def __init__(self, message: str, results: Results[Any]) -> None:
        super().__init__(message)
        self.results = results
        """What the items came to."""


class ChildFailed(RecordedError):
    """A child run ended without a result. Names it, and carries what is known of its error."""

    def __init__(
        self,
        workflow: str,
        run_id: str,
        *,
        error_type: str,
        message: str,
        traceback: str | None = None,
    ) -> None:
        super().__init__(f"child {workflow!r} (run {run_id}) failed: {error_type}: {message}")
        self.workflow = workflow
        self.run_id = run_id
        self.error_type = error_type
        self.message = message
        self.traceback = traceback


class RemoteStepError(RecordedError):
    """A remote step failed for good: ``message`` and ``code`` are what the worker that served it said."""

    def __init__(
        self,
        step: str,
        *,
        message: str,
        code: str | None = None,
        traceback: str | None = None,
        retryable: bool = True,
        address: tuple[str, int] = ("", 0),
    ) -> None:
        super().__init__(f"remote step {step!r} failed: {message}" + (f" ({code})" if code else ""))
        self.step = step
        self.message = message
        self.code = code
        self.traceback = traceback
        self.retryable = retryable
        self.address = address


class RemoteTimeout(RemoteStepError, TimeoutError):
    """No result of a remote step came in time. What no worker had begun was taken back."""


class CompensationFailed(StepfastError):
    """The undo of a completed step failed for good. The message names each, and what had ended the run."""


class StreamFull(NonRetryableError):
    """A stream has no room for an item, or the item is too large. The message names the setting."""


class ContextMisuse(StepfastError):
    """A context was used in a way that could not be replayed: the message says how to write it instead."""


# --- unwinding a handler whose run is gone --------------------------------------------------------------------


class Released(BaseException):
    """The run is no longer this handler's. Do not catch it; ``finally`` blocks run as usual."""


class LeaseLost(Released):
    """Another worker may own the run by now: nothing this handler does is recorded any more."""


class RecordsVanished(LeaseLost):
    """The database has lost records of the run that were committed (a failover to a server that lagged behind): the run
    continues from what is left, on the worker that claims it next."""


class RunSuspended(Released):
    """The run waits for something longer than a moment and has given its slot back."""


class AttemptEnded(Released):
    """The attempt is over: it timed out, its deadline passed, the run is cancelled, or the worker stops."""


class HistoryEnded(Released):
    """A replay that does nothing new has come to the end of what is recorded."""


MOST_OF_A_TEXT = 64 * 1024
"""Characters kept of a message or traceback: enough to read, not enough to fill a disk."""
_MOST_OF_A_LINE = 1000
"""Characters of a message in one line of a log or report."""


def sentence(error: BaseException, name: str | None = None) -> str:
    """Return one bounded line for logs and reports: the class or another name, and the first line of the message."""
    name, text = name or type(error).__name__, message_of(error).strip().splitlines()
    return f"{name}: {text[0][:_MOST_OF_A_LINE]}" if text else name


def message_of(error: BaseException) -> str:
    """What an error says, as any database and any log can keep it; also if its own code cannot say it."""
    try:
        text = str(error)
    except Exception as trouble:
        text = f"(no message: __str__ raised {type(trouble).__name__})"
    return text[:MOST_OF_A_TEXT].encode("utf-8", "backslashreplace").decode()
