"""A step being called: replayed from its record, or tried until it has an outcome, which is then recorded.

The position is taken when the call is made; the work begins when the call is awaited.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import ContextMisuse, DatabaseRefused, PayloadError, StepTimeout
from ..model import status
from ..model.backoff import Backoff, retry_delay
from ..model.records import StepDone, StepRecord, StepRunning, TryFailed
from .failure import decode_error, encode_error, step_failed
from .scope import abandoned_try, current_call
from .signature import Shape
from .step import StepOptions

if TYPE_CHECKING:
    from .execution import Execution

T = TypeVar("T")

STEP = "step"
_lines: dict[tuple[int, int], tuple[str, Any]] = {}
"""(id of a code object, line) → "file:line", and the code object itself, so that its id stays its own."""


class StepCall(Generic[T]):
    """An awaitable step. Await it once; where and in which order is up to you."""

    __slots__ = (
        "_args", "_arguments", "_awaited", "_began", "_calls", "_execution", "_function", "_kwargs", "_options",
        "_record", "_shape", "branch", "draws", "kind", "line", "name", "position",
    )  # fmt: skip

    def __init__(
        self,
        execution: Execution,
        branch: str,
        position: int,
        name: str,
        function: Callable[..., Any],
        shape: Shape,
        options: StepOptions,
        line: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._execution = execution
        self.branch = branch
        self.position = position
        self.kind = STEP
        self.name = name
        self.line = line
        self._function = function
        self._shape = shape
        self._options = options
        self._args = args
        self._kwargs = kwargs
        self._awaited = False
        self._calls = 0
        self._began = 0.0
        self.draws = 0
        """What the function has drawn of ``ctx.random()`` and ``ctx.uuid()`` in this try."""
        self._arguments: str | None = None
        self._record: StepRecord | None = execution.take(self)

    @property
    def step_key(self) -> str:
        """Stable over every try of this step: use it as an idempotency key."""
        return step_key(self._execution.run_id, self.branch, self.position)

    def __await__(self) -> Generator[Any, None, T]:
        execution = self._execution
        if self._awaited:
            raise ContextMisuse(f"step {self.name!r} was awaited twice; keep its result in a variable instead")
        self._awaited = True
        execution.unawaited.discard(self)
        if execution.closed is not None:
            raise execution.closed
        return (self._perform() if self._record is None else self._replay(self._record)).__await__()

    def __str__(self) -> str:
        return f"the result of step {self.name!r}"

    def __repr__(self) -> str:
        return f"<step {self.name!r} at position {self.position} of run {self._execution.run_id}>"

    # -- replay or perform -----------------------------------------------------------------------------------

    async def _perform(self) -> T:
        execution = self._execution
        execution.active[self] = 0.0
        try:
            return await self._try_until_done()
        except asyncio.CancelledError:
            if execution.closed is not None:
                raise execution.closed from None
            await self._record_cancelled()
            raise
        finally:
            del execution.active[self]
            if execution.active and execution.closed is None:
                execution.waits.look_soon()

    async def _replay(self, record: StepRecord) -> T:
        execution = self._execution
        execution.saw(self.branch, record.completed_at)
        if record.status == status.COMPLETED:
            what = f"the recorded result of step {self.name!r}"
            value: T = execution.recorder.payloads.decode(
                record.output or "null", self._shape.returns, record.format, what
            )
            return value
        if record.status == status.CANCELLED:
            # The code's own timeout ended this wait before, and does so again; it only must not call the step.
            await asyncio.get_running_loop().create_future()
        error = decode_error(record.error, record.format, execution.recorder.payloads)
        raise execution.raised(step_failed(self.name, error, (self.branch, self.position)))

    async def _try_until_done(self) -> T:
        execution, options = self._execution, self._options
        settings = execution.recorder.settings
        claimed = execution.claimed
        failures = claimed.tries.get((self.branch, self.position), 0) if claimed.tries else 0
        allowed = 1 + (settings.retries if options.retries is None else options.retries)
        while True:
            if execution.closed is not None:
                raise execution.closed  # the attempt ended while this step waited: no further try
            began = self._began = execution.active[self] = time.monotonic()
            self._calls = failures + 1
            self.draws = 0
            token = current_call.set(self)
            try:
                try:
                    result = await self._call()
                except SystemExit as error:
                    raise exited(error) from None
                finally:
                    execution.active[self] = 0.0
                    current_call.reset(token)
                entry, value = self._completed(result, failures + 1, began)
                await execution.record(entry)
                return value  # type: ignore[no-any-return]
            except (Exception, asyncio.CancelledError) as error:
                if execution.closed is not None:
                    raise execution.closed from None
                if isinstance(error, asyncio.CancelledError) and _being_cancelled():
                    raise
                if isinstance(error, DatabaseRefused):
                    error = PayloadError(f"the database refused {self}: {error}")
                failures += 1
                delay = retry_delay(error, failures, allowed, options.backoff or default_backoff(settings))
                if delay is None:
                    return await self._record_failed(error, failures, began)
                await self._record_try(error, failures, began)
            await execution.waits.wait(delay, status.WAITING_RETRY)

    # -- calling the function --------------------------------------------------------------------------------

    def _call(self) -> Awaitable[Any]:
        if not self._shape.is_async:
            return self._call_in_thread()
        call: Awaitable[Any] = self._function(*self._args, **self._kwargs)
        return call if self._options.timeout is None else self._bounded(asyncio.ensure_future(_no_exit(call)))

    async def _call_in_thread(self) -> Any:
        context, abandoned = contextvars.copy_context(), threading.Event()
        context.run(abandoned_try.set, abandoned)
        call = functools.partial(context.run, self._function, *self._args, **self._kwargs)
        try:
            result = await self._bounded(self._execution.recorder.run_in_thread(call))
        except BaseException:
            abandoned.set()
            raise
        return await result if inspect.isawaitable(result) else result

    async def _bounded(self, future: asyncio.Future[Any]) -> Any:
        """Wait for a try no longer than its timeout, even if it ignores being cancelled."""
        try:
            done, _ = await asyncio.wait((future,), timeout=self._options.timeout)
        except BaseException:
            future.cancel()
            raise
        if done:
            return future.result()
        future.cancel()
        future.add_done_callback(_discard)
        raise StepTimeout(f"step {self.name!r} took longer than its timeout of {self._options.timeout:g} s")

    def note_progress(self, detail: str | None, data: str | None, since_ms: int) -> None:
        """Say what the step is doing; nobody waits for it."""
        execution = self._execution
        execution.recorder.note(
            StepRunning(
                execution.run_id, execution.claim, self.branch, self.position, self.name, detail, data, since_ms,
                execution.recorder.payloads.format,
            )
        )  # fmt: skip

    # -- recording -------------------------------------------------------------------------------------------

    def _completed(self, result: Any, calls: int, began: float) -> tuple[StepDone, Any]:
        """The entry of a result, and the result as a replay will see it."""
        payloads = self._execution.recorder.payloads
        output, value = payloads.round_trip(result, self._shape.returns, self)
        return self._entry(status.COMPLETED, output, None, calls, began), value

    async def _record_failed(self, error: BaseException, calls: int, began: float) -> T:
        execution = self._execution
        text = encode_error(error, execution.recorder.payloads)
        execution.journal_note(self._failed_try(text, calls, began))  # the log keeps it when the record is forgotten
        await execution.record(self._entry(status.FAILED, None, text, calls, began))
        found = decode_error(text, execution.recorder.payloads.format, execution.recorder.payloads)
        raise execution.raised(step_failed(self.name, found, (self.branch, self.position))) from None

    async def _record_cancelled(self) -> None:
        """The workflow's own timeout gave this step up; it must do so again on replay."""
        entry = self._entry(status.CANCELLED, None, None, self._calls, self._began)
        await asyncio.shield(asyncio.ensure_future(self._execution.record(entry)))

    def _entry(self, outcome: str, output: str | None, error: str | None, calls: int, began: float) -> StepDone:
        execution = self._execution
        execution.seq = seq = execution.seq + 1  # outcomes are numbered in the order they are recorded
        return StepDone(
            execution.run_id,
            execution.claim,
            self.branch,
            self.position,
            seq,
            self.name,
            self.kind,
            outcome,
            output,
            error,
            self._encoded_arguments(),
            calls,
            int((time.monotonic() - began) * 1000),
            self.line,
            execution.recorder.payloads.format,
        )

    async def _record_try(self, error: BaseException, failures: int, began: float) -> None:
        execution = self._execution
        await execution.journal(self._failed_try(encode_error(error, execution.recorder.payloads), failures, began))

    def _failed_try(self, error: str, number: int, began: float) -> TryFailed:
        execution = self._execution
        return TryFailed(
            execution.run_id,
            execution.claim,
            self.branch,
            self.position,
            execution.claimed.attempt,
            number,
            self.name,
            error,
            self._encoded_arguments(),
            int((time.monotonic() - began) * 1000),
            execution.recorder.payloads.format,
        )

    def _encoded_arguments(self) -> str | None:
        """The arguments for the activity log, where they are JSON; a log is no reason to fail a step."""
        recorder = self._execution.recorder
        wanted = self._options.record_arguments
        if wanted is False or (wanted is None and not recorder.settings.record_arguments):
            return None
        if self._arguments is None and (self._args or self._kwargs):
            try:
                what = {"args": self._args, "kwargs": self._kwargs} if self._kwargs else self._args
                self._arguments = recorder.payloads.encode(what, "arguments")
            except PayloadError:
                return None
        return self._arguments


def step_key(run_id: str, branch: str, position: int) -> str:
    """The key of the step at a position: the same on every try and every replay."""
    return f"{run_id}:{branch}:{position}" if branch else f"{run_id}:{position}"


def call_line(depth: int) -> str:
    """File and line of the call being made, for the message of a divergence."""
    frame = sys._getframe(depth)
    key = (id(frame.f_code), frame.f_lineno)
    try:
        return _lines[key][0]
    except KeyError:
        if len(_lines) > 10_000:  # code made at run time; keep it bounded
            _lines.clear()
        name = frame.f_code.co_filename.replace("\\", "/").rsplit("/", 1)[-1]
        line = f"{name}:{frame.f_lineno}"[:200]
        _lines[key] = (line, frame.f_code)
        return line


@functools.lru_cache(maxsize=16)
def default_backoff(settings: Any) -> Backoff:
    """The backoff of steps and runs that name none."""
    return Backoff(settings.backoff_base, settings.backoff_factor, settings.backoff_max, settings.backoff_jitter)


def exited(error: SystemExit) -> RuntimeError:
    """What a handler's attempt to end the process becomes: the process is the worker's, not the handler's."""
    return RuntimeError(f"sys.exit({error.code!r}) was called; a handler cannot end its worker")


async def _no_exit(work: Awaitable[Any]) -> Any:
    """SystemExit in a task of its own would end the event loop."""
    try:
        return await work
    except SystemExit as error:
        raise exited(error) from None


def _being_cancelled() -> bool:
    """Whether a cancellation comes from outside (a timeout of the code), rather than from what was awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _discard(future: asyncio.Future[Any]) -> None:
    """A try that was given up ends at last; nobody wants its result, and its error has been replaced."""
    if not future.cancelled():
        future.exception()
