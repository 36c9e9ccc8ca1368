"""The context of a plain ``def`` workflow, which runs in a thread: the same calls, without ``await``."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    TypeVar,
    Unpack,
    cast,
    overload,
)  # fmt: skip

from ..errors import ContextMisuse, SignalTimeout
from ..model.backoff import Again, Backoff, Done
from .call import call_line
from .callbacks import Callback
from .children import ChildRun
from .context_base import ContextBase
from .events import Event
from .execution import Execution
from .options import CheckKeywords, OwnChildKeywords, RemoteKeywords, RemoteOptions, shows_options
from .questions import ANSWERED, REFUSED, Question
from .step import EXITS, exited
from .workflow import Workflow

P = ParamSpec("P")
T = TypeVar("T")
I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741


@shows_options
class SyncContext(ContextBase):
    """The context of a plain ``def`` workflow, which runs in a thread: the same calls, without ``await``."""

    _written_with = "def"

    def __init__(self, execution: Execution, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(execution)
        self._loop = loop

    @overload
    def step(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, label: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, label: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Do a piece of work once; see ``Context.step``."""
        return self._wait(self._make_call(target, args, kwargs, call_line(2)))

    def sleep(self, duration: float | timedelta) -> None:
        """Sleep for so many seconds, or a timedelta; see ``Context.sleep``."""
        self._wait(self._make_sleep(duration, call_line(2)))

    def sleep_until(self, when: datetime) -> None:
        """Sleep until a point in time (with a time zone)."""
        self._wait(self._make_sleep_until(when, call_line(2)))

    @overload
    def wait_signal(self, name: str, *, type: type[T], timeout: float | timedelta | None = None) -> T: ...
    @overload
    def wait_signal(self, name: str, *, type: Any = Any, timeout: float | timedelta | None = None) -> Any: ...
    def wait_signal(self, name: str, *, type: Any = Any, timeout: float | timedelta | None = None) -> Any:
        """Wait for a signal; see ``Context.wait_signal``."""
        return self._wait(self._make_signal(name, type, timeout, call_line(2)))

    def take_signals(self, name: str, *, type: Any = Any) -> list[Any]:
        """Take all signals of a name without waiting; see ``Context.take_signals``."""
        where, taken = call_line(2), list[Any]()
        counted = self._make_count(name, type, where)
        try:
            for _ in range(self._wait(counted)):
                with contextlib.suppress(SignalTimeout):
                    taken.append(self._wait(self._make_taking(counted, where)))
        finally:
            if counted.found:
                self._loop.call_soon_threadsafe(counted.give_back)
        return taken

    def signal(self, run_id: str, name: str, value: Any = None) -> None:
        """Send a signal to another run, once; see ``Context.signal``."""
        self._wait(self._make_send(run_id, name, value, call_line(2)))

    def set_attributes(self, **attributes: Any) -> None:
        """Set attributes by which the run is found; see ``Context.set_attributes``."""
        self._wait(self._make_attributes(attributes, call_line(2)))

    @overload
    def wait_question(
        self, name: str, *, type: type[T], timeout: float | timedelta | None = None
    ) -> SyncQuestion[T]: ...
    @overload
    def wait_question(
        self, name: str, *, type: Any = Any, timeout: float | timedelta | None = None
    ) -> SyncQuestion[Any]: ...
    def wait_question(
        self, name: str, *, type: Any = Any, timeout: float | timedelta | None = None
    ) -> SyncQuestion[Any]:
        """Wait for a question; see ``Context.wait_question``."""
        return SyncQuestion(self._wait(self._make_question(name, type, timeout, call_line(2))), self)

    @overload
    def callback(
        self,
        name: str,
        *,
        type: type[T],
        timeout: float | timedelta | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> SyncCallback[T]: ...
    @overload
    def callback(
        self,
        name: str,
        *,
        type: Any = Any,
        timeout: float | timedelta | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> SyncCallback[Any]: ...
    def callback(
        self,
        name: str,
        *,
        type: Any = Any,
        timeout: float | timedelta | None = None,
        heartbeat: float | timedelta | None = None,
    ) -> SyncCallback[Any]:
        """A token for someone outside; see ``Context.callback``."""
        return SyncCallback(self._wait(self._make_callback(name, type, timeout, heartbeat, call_line(2))), self)

    @overload
    def wait_event(
        self, name: str, *, key: str | None = None, since: Literal["start", "now"] = "start", type: type[T],
        timeout: float | timedelta | None = None,
    ) -> Event[T]: ...  # fmt: skip
    @overload
    def wait_event(
        self, name: str, *, key: str | None = None, since: Literal["start", "now"] = "start", type: Any = Any,
        timeout: float | timedelta | None = None,
    ) -> Event[Any]: ...  # fmt: skip
    def wait_event(
        self, name: str, *, key: str | None = None, since: Literal["start", "now"] = "start", type: Any = Any,
        timeout: float | timedelta | None = None,
    ) -> Event[Any]:  # fmt: skip
        """Wait for an event; see ``Context.wait_event``."""
        found: Event[Any] = self._wait(self._make_event(name, key, since, type, timeout, call_line(2)))
        return found

    @overload
    def wait_until(
        self, check: Callable[..., Awaitable[Done[T] | Again | None]], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> T: ...
    @overload
    def wait_until(
        self, check: Callable[..., Done[T] | Again | None], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> T: ...
    @overload
    def wait_until(
        self, check: Callable[..., Awaitable[T | Again | None]], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> T: ...
    @overload
    def wait_until(self, check: Callable[..., T | Again | None], /, *args: Any, **pace: Unpack[CheckKeywords]) -> T: ...
    @overload
    def wait_until(
        self,
        label: str,
        check: Callable[..., Awaitable[Done[T] | Again | None]],
        /,
        *args: Any,
        **pace: Unpack[CheckKeywords],
    ) -> T: ...
    @overload
    def wait_until(
        self, label: str, check: Callable[..., Done[T] | Again | None], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> T: ...
    @overload
    def wait_until(
        self,
        label: str,
        check: Callable[..., Awaitable[T | Again | None]],
        /,
        *args: Any,
        **pace: Unpack[CheckKeywords],
    ) -> T: ...
    @overload
    def wait_until(
        self, label: str, check: Callable[..., T | Again | None], /, *args: Any, **pace: Unpack[CheckKeywords]
    ) -> T: ...
    def wait_until(
        self,
        target: Any,
        /,
        *args: Any,
        every: float | timedelta | Backoff = timedelta(minutes=1),
        timeout: float | timedelta | None = None,
        max_checks: int | None = None,
    ) -> Any:
        """Wait until a check answers with something true; see ``Context.wait_until``."""
        return self._wait(self._make_until(target, args, every, timeout, max_checks, call_line(2)))

    @overload
    def start(
        self, workflow: Workflow[I, O], input: I = ..., **options: Unpack[OwnChildKeywords]
    ) -> SyncChildRun[O]: ...
    @overload
    def start(self, workflow: str, input: Any = None, **options: Unpack[OwnChildKeywords]) -> SyncChildRun[Any]: ...
    def start(self, workflow: Any, input: Any = None, **options: Any) -> SyncChildRun[Any]:
        """Start a child run; see ``Context.start``."""
        return SyncChildRun(self._wait(self._make_start(workflow, input, options, call_line(2))), self)

    @overload
    def start_many(
        self, workflow: Workflow[I, O], inputs: Iterable[I], **options: Unpack[OwnChildKeywords]
    ) -> list[SyncChildRun[O]]: ...
    @overload
    def start_many(
        self, workflow: str, inputs: Iterable[Any], **options: Unpack[OwnChildKeywords]
    ) -> list[SyncChildRun[Any]]: ...
    def start_many(self, workflow: Any, inputs: Iterable[Any], **options: Any) -> list[SyncChildRun[Any]]:
        """Start a child for each input; see ``Context.start_many``."""
        children = self._wait(self._make_start_many(workflow, inputs, options, call_line(2)))
        return [SyncChildRun(child, self) for child in children]

    @overload
    def call(self, workflow: Workflow[I, O], input: I = ..., **options: Unpack[OwnChildKeywords]) -> O: ...
    @overload
    def call(self, workflow: str, input: Any = None, **options: Unpack[OwnChildKeywords]) -> Any: ...
    def call(self, workflow: Any, input: Any = None, **options: Any) -> Any:
        """Start a child run and wait for its result; see ``Context.call``."""
        return self._wait(self._make_child_call(workflow, input, options, call_line(2)))

    @overload
    def remote(self, name: str, input: Any = None, *, type: type[T], **options: Unpack[RemoteOptions]) -> T: ...
    @overload
    def remote(self, name: str, input: Any = None, **options: Unpack[RemoteKeywords]) -> Any: ...
    def remote(self, name: str, input: Any = None, **options: Any) -> Any:
        """A step that a worker elsewhere serves; see ``Context.remote``."""
        return self._wait(self._make_remote(name, input, cast(RemoteKeywords, options), call_line(2)))

    @overload
    def transaction(
        self, function: Callable[Concatenate[Any, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    def transaction(self, function: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def transaction(
        self, label: str, function: Callable[Concatenate[Any, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    def transaction(
        self, label: str, function: Callable[Concatenate[Any, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    def transaction(self, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Rows and record in one commit; see ``Context.transaction``."""
        return self._wait(self._make_transaction(target, args, kwargs, call_line(2)))

    def set(self, key: str, value: Any) -> None:
        """Let others read a value; see ``Context.set``."""
        self._wait(self._make_set(key, value))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in _OF_ASYNC:
                return functools.partial(_refuse, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _wait(self, call: Awaitable[Any]) -> Any:
        execution = self._execution

        async def perform() -> Any:
            execution.tasks.performing = asyncio.current_task()
            try:
                return await call
            except EXITS as error:
                raise exited(error) from None
            finally:
                execution.tasks.performing = None

        return execution.clock.task_from_thread(self._loop, perform)


_OF_ASYNC = ("map", "branch", "branches", "gather", "first")
"""Calls of several branches at once, which one thread cannot make."""


def _refuse(call: str, *_: Any, **__: Any) -> NoReturn:
    raise ContextMisuse(
        f"ctx.{call} is not for a plain def workflow: it makes several branches at once, and a plain def has one "
        "thread. Write the workflow as an async def with a Context; its steps may be plain functions"
    )


class SyncQuestion(Generic[O]):
    """A question in a plain ``def`` workflow; see ``Question``."""

    def __init__(self, question: Question[O], context: SyncContext) -> None:
        self._question = question
        self._context = context
        self.id, self.name, self.value = question.id, question.name, question.value

    def __repr__(self) -> str:
        return f"SyncQuestion({self.name!r}, {self.id!r})"

    def answer(self, value: Any = None) -> None:
        """Answer it, once."""
        self._context._wait(self._question.end_by("question.answer", ANSWERED, value, call_line(2)))

    def refuse(self, why: str) -> None:
        """Refuse to answer."""
        self._context._wait(self._question.end_by("question.refuse", REFUSED, why, call_line(2)))


class SyncCallback(Generic[O]):
    """A callback in a plain ``def`` workflow; see ``Callback``."""

    def __init__(self, callback: Callback[O], context: SyncContext) -> None:
        self._callback = callback
        self._context = context
        self.name, self.token = callback.name, callback.token

    def __repr__(self) -> str:
        return f"SyncCallback({self.name!r})"

    def result(self) -> O:
        """Wait for the value that the holder of the token gives. CallbackFailed, CallbackTimeout."""
        result: O = self._context._wait(self._callback.wait(call_line(2)))
        return result


class SyncChildRun(Generic[O]):
    """The handle of a child in a plain ``def`` workflow."""

    def __init__(self, child: ChildRun[O], context: SyncContext) -> None:
        self._child = child
        self._context = context
        self.id = child.id

    def __repr__(self) -> str:
        return f"SyncChildRun({self.id!r})"

    def result(self) -> O:
        """The result of the child; ChildFailed if the child has none."""
        result: O = self._context._wait(self._child.result())
        return result
