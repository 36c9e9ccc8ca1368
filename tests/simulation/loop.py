"""An event loop for a whole world of processes: time is made up, and a seed decides which process goes next.

Every callback belongs to a process, which is found in its context. Within one process callbacks run in the order in
which they were made, as asyncio promises; between processes, as between those of an operating system, there is no
order. When nobody has anything to do, time jumps to the next timer. A process that is frozen is passed over, and one
that was killed never runs again.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any

from stepfast.engine.host import RunTask

EPOCH = 1_800_000_000.0
"""When the world begins, in seconds since 1970."""


class Process:
    """One process of the world: what it has to do, and whether it can."""

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self.ready: deque[asyncio.Handle] = deque()
        self.left: deque[asyncio.Handle] = deque()
        """What it had to do when it was killed."""
        self.dead = False
        self.frozen = False
        self.tasks: list[asyncio.Task[Any]] = []
        self.blank = Context()
        """A context in which nothing is known but the process."""
        self.blank.run(current_process.set, self)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function as this process."""
        context = Context()
        context.run(current_process.set, self)
        return context.run(function, *args)


current_process: ContextVar[Process] = ContextVar("current_process")


class SimTask(RunTask):
    """A task that lies in a set where it lay the last time, wherever it is in memory."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class SimFuture(asyncio.Future[Any]):
    """A future of which the same is true."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class Stuck(Exception):
    """Nothing will ever happen again, or too much has happened."""


class SimLoop(asyncio.BaseEventLoop):
    """Runs one callback at a time, of a process that the seed chooses."""

    def __init__(self, seed: str, most_turns: int, most_time: float, trace: list[str] | None = None) -> None:
        super().__init__()
        self._random = Random(f"{seed} order")
        self._now = 0.0
        self._most_turns, self._most_time = most_turns, most_time
        self.turns = 0
        self.trace = trace
        self._waiting: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._names = itertools.count()
        self.outside = Process("outside", 0)
        """Whoever looks at the world from outside."""
        self._processes: list[Process] = [self.outside]
        self._pids = itertools.count(1)
        self.threads: list[Any] = []
        """Every thread that was started."""
        self.troubles: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.troubles.append(context))

    # -- processes ---------------------------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        """A new process, which does nothing yet."""
        made = Process(name, next(self._pids))
        self._processes.append(made)
        return made

    def spawn(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Let a process do something."""
        task: asyncio.Task[Any] = process.run(self.create_task, work)
        return task

    def kill(self, process: Process) -> None:
        """Let a process never do anything again."""
        process.dead = True
        process.left, process.ready = process.ready, process.left

    def note(self, what: str) -> None:
        """Write a line into the trace, if somebody wants one."""
        if self.trace is not None:
            self.trace.append(f"{self._now:.6f} {what}")

    # -- what asyncio asks of a loop ---------------------------------------------------------------------------------

    def time(self) -> float:
        """Seconds since the world began."""
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Put a callback at the end of what its process has to do."""
        context = copy_context() if context is None else context
        handle = asyncio.Handle(callback, args, self, context)
        process = context.get(current_process, self.outside)
        if not process.dead:
            process.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """The same after so many seconds."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """The same at a time."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._waiting, (when, next(self._numbers), handle))
        return handle

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        """A task with a name that is the same each time, remembered by its process."""
        number = next(self._names)
        made = SimTask(coro, loop=self, name=str(name or f"t{number}"), context=context)
        made.number = number
        process = (context or copy_context()).get(current_process, self.outside)
        process.tasks.append(made)
        return made

    def create_future(self) -> asyncio.Future[Any]:
        """A future with a number."""
        made = SimFuture(loop=self)
        made.number = next(self._names)
        return made

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays in the heap until its time has come."""

    def _write_to_self(self) -> None:
        """There is nobody to be woken."""

    def _process_events(self, event_list: object) -> None:
        """There are no sockets here."""

    # -- one turn ----------------------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        self._let_time_come()
        able = [process for process in self._processes if process.ready and not process.frozen]
        while not able:
            self._jump()
            able = [process for process in self._processes if process.ready and not process.frozen]
        process = able[0] if len(able) == 1 else able[int(self._random.random() * len(able))]
        handle = process.ready.popleft()
        if handle._cancelled:
            return
        self.turns += 1
        if self.turns > self._most_turns:
            raise Stuck(f"{self.turns} turns, and no end in sight")
        if self.trace is not None:
            self.note(f"{process.name}: {_named(handle)}")
        handle._run()

    def _run_once_more(self) -> None:
        """A turn after the end of the world: time stands still."""
        process = next(process for process in self._processes if process.ready)
        handle = process.ready.popleft()
        if not handle._cancelled:
            asyncio._set_running_loop(self)
            try:
                handle._run()
            finally:
                asyncio._set_running_loop(None)

    def _let_time_come(self) -> None:
        """Move timers whose time has come to their processes."""
        while self._waiting and self._waiting[0][0] <= self._now:
            handle = heapq.heappop(self._waiting)[2]
            if not handle._cancelled:
                process = handle._context.get(current_process, self.outside)  # type: ignore[attr-defined]
                if not process.dead:
                    process.ready.append(handle)

    def _jump(self) -> None:
        """Nobody has anything to do before the next timer."""
        if not self._waiting:
            raise Stuck("nothing will ever happen again")
        self._now = max(self._now, self._waiting[0][0])
        if self._now > self._most_time:
            raise Stuck(f"the world has gone on for {self._now:.0f} s")
        self._let_time_come()


def _named(handle: asyncio.Handle) -> str:
    """What a callback is, in words that are the same each time."""
    callback: Any = handle._callback  # type: ignore[attr-defined]
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"{owner.get_name()} {getattr(owner.get_coro(), '__qualname__', '?')}"
    return str(getattr(callback, "__qualname__", type(callback).__name__))
