"""What the engine needs of its host.

A journal, threads, a clock, mailboxes; and the position of the code that executes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

from ..model.attributes import Attribute
from ..model.ids import new_id
from ..model.payload import Payloads
from ..model.records import Entry, Mail, NewRun, Parent, QuestionAnswer, StepDone, StepRecord, WorkerInfo
from ..model.remote_steps import DispatchRoute
from ..model.rows import CallbackRow, DagStepRow, NextEvents, Outcome
from ..model.status import ASK_CANCEL
from ..settings import Settings

if TYPE_CHECKING:
    from .execution import Execution
    from .history import Cursor
    from .observers import Gathered, Observers
    from .step import StepCall
    from .waits import MailAnswer, MailboxReader


current_execution: ContextVar[Execution | None] = ContextVar("stepfast_execution", default=None)
"""The run whose handler is executing here; set once per attempt, carried into its tasks and threads."""
current_call: ContextVar[StepCall[Any] | None] = ContextVar("stepfast_call", default=None)
"""The step whose function is executing here."""
current_cursor: ContextVar[Cursor | None] = ContextVar("stepfast_line", default=None)
"""The branch whose code is executing here; None: the main branch."""


class BlockingTry:
    """One try of a blocking step, as its thread knows it: what to call there, with the caller's context variables."""

    __slots__ = ("_args", "_context", "_function", "_kwargs", "abandoned")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.abandoned = False
        """Whether its outcome is not waited for any more."""
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._context: Context | None = copy_context()

    def __call__(self) -> Any:
        """Call it in its thread, unless its caller gave up before its turn came."""
        context, self._context = self._context, None  # which will know this try: only the collector could free both
        return None if self.abandoned or context is None else context.run(self._call)

    def _call(self) -> Any:
        current_try.set(self)
        return self._function(*self._args, **self._kwargs)


current_try: ContextVar[BlockingTry | None] = ContextVar("stepfast_try", default=None)
"""In the thread of a blocking step: the try that is executing here."""


def cancelled() -> bool:
    """Whether the handler around this call should stop: its run was lost, timed out or cancelled, or the worker stops.

    For plain ``def`` handlers, which cannot be interrupted: ask it in long loops and return when it says True.
    """
    blocking = current_try.get()
    if blocking is not None and blocking.abandoned:
        return True
    execution = current_execution.get()
    return execution is not None and (execution.closed is not None or execution.asked == ASK_CANCEL)


def wake(future: asyncio.Future[Any]) -> None:
    """For an alarm: end the wait for a future."""
    if not future.done():
        future.set_result(None)


Task = asyncio.Task[Any]


class RunTask(asyncio.Task[Any]):
    """A task that executes the code of a run, and notes which step's code cancelled it: a timeout or a task that a step
    made carries the step's context variables. It is made without the task factory of the event loop, because an eager
    one would begin it before the engine has taken note of it."""

    canceller: Any = None
    """The step whose code cancelled the task last; None if it was code outside of steps, or the worker."""
    _before = 0
    """How many requests to end were open before those of that step."""

    def cancel(self, msg: Any = None) -> bool:
        """Note whose code it is that asks."""
        call = current_call.get()
        if call is not self.canceller:
            self.canceller, self._before = call, self.cancelling()
        return super().cancel(msg)

    def withdraw(self, call: Any) -> bool:
        """Withdraw the requests to end of one step's code; whether there are no others."""
        if self.canceller is not call or self._before:
            return False
        while self.cancelling():
            self.uncancel()
        self.canceller = None
        return True


class Tasks:
    """The tasks of one run beside that of its handler. Made when first needed: most runs have none."""

    __slots__ = ("_branches", "_late", "performing")

    def __init__(self) -> None:
        self._branches: set[Task] = set()
        self._late: set[Task | None] = set()
        self.performing: Task | None = None
        """For a plain def: the task that performs the step its thread waits for."""

    def add(self, task: Task) -> None:
        """A branch begins; it ends with the run at the latest."""
        self._branches.add(task)
        task.add_done_callback(self._branches.discard)

    def knows(self, task: Task | None) -> bool:
        """Whether a task is one of those of the run."""
        return task in self._branches or (task is not None and task is self.performing)

    def cancel(self) -> None:
        """The run leaves, and all of them end."""
        for task in list(self._branches):
            task.cancel()
        if self.performing is not None:
            self.performing.cancel()

    def cancel_other_branches(self) -> None:
        """Stop all other branches, and what they wait for."""
        for task in self._branches - {asyncio.current_task()}:
            task.cancel()

    def was_cancelled_late(self) -> None:
        """The present task was cancelled when it was too late for the call that it is in."""
        self._late.add(asyncio.current_task())

    def stop_if_late(self) -> None:
        """Stop the task that was to be stopped while an outcome was being recorded, before it does more."""
        if self._late and (task := asyncio.current_task()) in self._late:
            self._late.discard(task)
            if task is not None and task.cancelling():
                raise asyncio.CancelledError


T = TypeVar("T")
F = TypeVar("F", bound="asyncio.Future[Any]")

CHANCE = 0.01
"""Seconds that code is given to continue before it counts as being at rest."""
TURNS = 5
"""Turns of the event loop that it is given at least: what a task needs at most to continue after another has ended."""


class Timer(Protocol):
    """Something that rings once, unless it is cancelled."""

    def cancel(self) -> object:
        """Keep the timer from ringing."""


class Clock:
    """Time and chance as they are in life."""

    now = staticmethod(time.monotonic)
    """Seconds of a monotonic clock."""
    new_id = staticmethod(new_id)
    """A unique id."""

    database_now: Callable[[], int] | None = None
    """What a database in memory takes for its time, in milliseconds since 1970; None: that of the machine."""

    def __init__(self) -> None:
        self.random = Random()

    def after(self, seconds: float, function: Callable[..., object], *args: Any) -> Timer:
        """Call a function of the event loop's thread after so many seconds."""
        return asyncio.get_running_loop().call_later(seconds, function, *args)

    def alarm(self, seconds: float, function: Callable[..., object], *args: Any) -> Timer:
        """Call a function after so many seconds, and keep nothing of the run alive until then. The event loop holds on
        to a cancelled timer, and to the context it was set in, until its time has come or many others are cancelled
        too."""
        return asyncio.get_running_loop().call_later(seconds, function, *args, context=Context())

    def task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task for the code of a run. It begins at a later turn of the event loop, with any task factory."""
        return RunTask(work, loop=asyncio.get_running_loop())

    def task_from_thread(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do work in such a task, for a thread that waits until it is done: its result, or the error that it raised."""
        waiting: Future[T] = Future()

        async def perform() -> None:
            try:
                waiting.set_result(await work())
            except BaseException as error:  # ends here: raised in the thread that waits
                waiting.set_exception(error)

        loop.call_soon_threadsafe(lambda: self.task(perform()))
        return waiting.result()

    async def sleep(self, seconds: float) -> None:
        """Go on after so many seconds."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        """What is done ``async with`` this ends by a TimeoutError after so many seconds."""
        return asyncio.timeout(seconds)

    async def wait(self, tasks: Collection[F], seconds: float, return_when: str = asyncio.ALL_COMPLETED) -> set[F]:
        """Wait for tasks, but no longer than so many seconds; those that are not done."""
        await asyncio.wait(tasks, timeout=seconds, return_when=return_when)
        return {task for task in tasks if not task.done()}


class Promise(Generic[T]):
    """Something that will come, or fail. Behaves to a task as a future does, as far as it asks."""

    __slots__ = ("_asyncio_future_blocking", "_context", "_done", "_error", "_loop", "_others", "_value", "_waiter")

    _value: T
    _context: Context
    """The context in which the first waiter is. A run and the context of its task know each other: once woken, this is
    let go, or only the garbage collector could free them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        """The event loop of those who wait. A task asks for it by this name, because there is no ``get_loop``."""
        self._asyncio_future_blocking = False
        """By this a task knows that it may wait for us, and that one does."""
        self._done = False
        self._error: BaseException | None = None
        self._waiter: Callable[[Any], object] | None = None
        """What the first who waits is woken by."""
        self._others: list[tuple[Callable[[Any], object], Context]] | None = None

    # -- for those who wait ------------------------------------------------------------------------------------

    def __await__(self) -> Generator[Any, None, T]:
        if not self._done:
            self._asyncio_future_blocking = True
            yield self  # if it fails, its task raises the error here
        return self._value if self._error is None and self._done else self.result()

    def done(self) -> bool:
        """Whether the result has come, or an error."""
        return self._done

    def cancelled(self) -> bool:
        """Whether the promise was given up."""
        return isinstance(self._error, asyncio.CancelledError)

    def result(self) -> T:
        """What has come; raises what it failed by."""
        if self._done and self._error is None:
            return self._value
        raise self._error or asyncio.InvalidStateError("nothing has come yet")

    def exception(self) -> BaseException | None:
        """What it failed by, if it did."""
        return self._error

    def cancel(self, msg: object = None) -> bool:
        """Give it up: cancel the task that waits for it."""
        if self._done:
            return False
        self.fail(asyncio.CancelledError() if msg is None else asyncio.CancelledError(msg))
        return True

    def add_done_callback(self, function: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Call a function in the event loop when it has come."""
        context = copy_context() if context is None else context
        if self._done:
            self._loop.call_soon(function, self, context=context)
        elif self._waiter is None:
            self._waiter, self._context = function, context
        else:
            self._others = [*(self._others or ()), (function, context)]

    def remove_done_callback(self, function: Callable[[Any], object]) -> int:
        """Take a function back; how often it was there."""
        others = self._others or []
        self._others = [other for other in others if other[0] != function]
        removed = len(others) - len(self._others)
        if self._waiter == function:
            self._waiter = None
            del self._context
            removed += 1
        return removed

    # -- for those who keep it ---------------------------------------------------------------------------------

    def keep(self, value: T) -> None:
        """Set the value and wake the tasks that wait. A promise that was given up stays so."""
        if not self._done:
            self._done, self._value = True, value

    def fail(self, error: BaseException) -> None:
        """Note why nothing will come. Those who wait are woken by a turn of their own: few promises fail."""
        if not self._done:
            self._done, self._error = True, error
            if self._waiter is not None or self._others:
                self._loop.call_soon(self.wake)

    def wake(self) -> None:
        """Wake who waits. Only a turn of the event loop may call this, never a task: tasks continue within it."""
        waiter, others = self._waiter, self._others
        self._waiter = self._others = None
        for function, theirs in others or ():
            self._loop.call_soon(function, self, context=theirs)
        if waiter is not None:
            context = self._context
            del self._context
            context.run(waiter, self)


def keep_all(promises: Iterable[Promise[T]], value: T) -> None:
    """Set the value of all of these, as ``keep`` does it."""
    for promise in promises:
        if not promise._done:
            promise._done, promise._value = True, value


def wake_all(loop: asyncio.AbstractEventLoop, kept: Iterator[Promise[Any]]) -> None:
    """Wake all who wait for these, in one turn of the event loop."""
    try:
        for promise in kept:
            if promise._others is not None:
                promise.wake()
            elif (waiter := promise._waiter) is not None:  # as it does, without a call for each
                context, promise._waiter = promise._context, None
                del promise._context
                context.run(waiter, promise)
    except BaseException:  # what asyncio lets out of the event loop, which may continue: the others are not forgotten
        loop.call_soon(wake_all, loop, kept)
        raise


class StoreQueries:
    """What a run asks of the database beside its journal."""

    def new_child(
        self, workflow: Any, input: Any, options: dict[str, Any], parent: Parent
    ) -> Coroutine[Any, Any, tuple[list[NewRun], Any]]:
        """A child to be started (and, for a dag, its steps), checked as any start; and the type of its result."""
        never()

    async def outcome(self, run_id: str) -> Outcome | None:
        """How a run ended, if it has."""
        never()

    async def exists(self, run_id: str) -> bool:
        """Whether a run is kept."""
        never()

    async def value(self, run_id: str, key: str) -> str | None:
        """A value that a run has set, as it is kept."""
        never()

    async def retry(self, run_id: str) -> bool:
        """Queue a failed run again, if it can be continued."""
        never()

    async def refuse_question(self, run_id: str, claim: int, refusal: QuestionAnswer) -> None:
        """Refuse a question in the mailbox of a run; LeaseLost if the run was lost."""
        never()

    async def callback(self, id_: str, claim: int, attempt: int) -> CallbackRow | None:
        """The state of a callback that the run waits for: its time may be up."""
        never()

    async def reject_callback(self, run_id: str, claim: int, id_: str, value: str | None) -> bool:
        """Open a callback again whose value does not fit; False if it was taken. LeaseLost if the run was lost."""
        never()

    async def send_signal(self, mail: Mail) -> None:
        """Send a signal to a run, also to one that continued as another."""

    async def name_attributes(self, run_id: str, attributes: Sequence[Attribute]) -> None:
        """Check attributes that a run is to have, and give new names their types. InvalidInput for what is refused."""
        never()

    async def next_events(
        self, run_id: str, name: str, key: str, low: int, since: int | None, limit: int
    ) -> NextEvents:
        """The next events that a run has not taken, beyond a number."""
        never()

    async def dag_steps(self, dag_id: str) -> list[DagStepRow]:
        """The steps of a dag run."""
        never()

    async def peers(self, workflow: str) -> list[WorkerInfo]:
        """The other living workers that know a workflow."""
        never()

    way: DispatchRoute | None = None
    """How remote steps go out, once that is known."""

    async def find_way(self) -> DispatchRoute:
        """Open the transport of remote steps; ConfigurationError if there is none."""
        never()

    async def alive_remote(self, run_id: str) -> dict[str, int | None]:
        """The ids of those of a run's remote steps that can still end, and when they were sent again."""
        never()

    async def transact(
        self,
        execution: Execution,
        address: tuple[str, int],
        call: Callable[[Any], Any],
        record: Callable[[Any], StepDone],
        timeout: float | None,
    ) -> StepRecord:
        """Call a function inside a transaction that also holds the record of its result."""
        never()

    async def outcome_at(self, execution: Execution, address: tuple[str, int]) -> StepRecord | None:
        """What is on record at an address of a run."""
        never()


class Recorder:
    """Where an execution runs. Made within the event loop that its code runs in."""

    queries = StoreQueries()
    observers: Observers | None
    """Who is notified of what happens to runs; None without observers."""
    run_logs: int | None = None
    """The least level of lines that are kept of what runs log; None: none are."""
    lifespan: object = None
    """What the worker has entered before it took work, if the application has a lifespan."""
    step_observers: Observers | None
    """The observers, if any of them wants to hear of each call of a step."""
    gathered: Gathered | None = None
    """What is counted here for an observer that takes it from time to time."""

    def __init__(self, settings: Settings, payloads: Payloads, logger: logging.Logger, clock: Clock) -> None:
        self.settings = settings
        self.payloads = payloads
        self.logger = logger
        self.clock = clock
        self.observers = self.step_observers = None
        self.loop: asyncio.AbstractEventLoop
        self.loop_thread: int
        """The event loop that the code runs in, and the thread of that loop."""

    def record(self, entry: Entry) -> Promise[int]:
        """Journal an entry. Resolves to the database's time once it is committed; raises LeaseLost if refused."""
        never()

    def note(self, entry: Entry) -> None:
        """Journal an entry that is not waited for; safe to call from any thread. A replay notes nothing."""

    def run_in_thread(self, function: Callable[[], Any]) -> Awaitable[Any]:
        """Run a blocking call in a thread for steps, with the caller's context variables."""
        never()

    def look(self, reader: MailboxReader) -> asyncio.Future[MailAnswer]:
        """What is in the mailbox of a run."""
        never()

    def watch(self, reader: MailboxReader) -> None:
        """From now on tell this reader whenever there may be something new in the mailbox of its run."""
        never()

    def may_linger(self, execution: Execution) -> bool:
        """Whether a run may wait in memory rather than be released; it is released when its slot is wanted."""
        never()


def never() -> NoReturn:
    """What a replay does not ask for."""
    raise RuntimeError("a replay was asked to do something, which is a bug in Stepfast")
