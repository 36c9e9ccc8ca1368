"""The same verbs for code without an event loop: a thread runs one, and each call waits for its answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from .run import Activity, Run, RunInfo, StepInfo

if TYPE_CHECKING:
    from .app import Stepfast
    from .engine.workflow import Workflow

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741
T = TypeVar("T")
C = TypeVar("C", covariant=True)


class SyncApp:
    """``app.sync``."""

    def __init__(self, app: Stepfast) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stepfast-sync", daemon=True)
        self._thread.start()

    @overload
    def start(self, workflow: Workflow[I, O], input: I = ..., **options: Any) -> SyncRun[O]: ...
    @overload
    def start(self, workflow: str, input: Any = None, **options: Any) -> SyncRun[Any]: ...
    def start(self, workflow: Any, input: Any = None, **options: Any) -> SyncRun[Any]:
        """Start a run; the options are those of ``app.start``."""
        return SyncRun(self.call(self._app.start(workflow, input, **options)), self)

    @overload
    def start_many(self, workflow: Workflow[I, O], inputs: Sequence[I], **options: Any) -> list[SyncRun[O]]: ...
    @overload
    def start_many(self, workflow: str, inputs: Sequence[Any], **options: Any) -> list[SyncRun[Any]]: ...
    def start_many(self, workflow: Any, inputs: Sequence[Any], **options: Any) -> list[SyncRun[Any]]:
        """Start many, all or none."""
        return [SyncRun(run, self) for run in self.call(self._app.start_many(workflow, inputs, **options))]

    def get(self, run_id: str) -> SyncRun[Any]:
        """A handle for a run, without a query."""
        return SyncRun(self._app.get(run_id), self)

    def signal(self, run_id: str, name: str, value: Any = None) -> None:
        """Send a signal to a run."""
        self.call(self._app.signal(run_id, name, value))

    def runs(self, **filters: Any) -> list[RunInfo]:
        """A page of runs; the filters are those of ``app.runs``."""
        return self.call(self._app.runs(**filters))

    def migrate(self) -> list[str]:
        """Make or update the tables."""
        return self.call(self._app.migrate())

    def drain(self, queues: Sequence[str] | None = None, concurrency: int | None = None) -> None:
        """Work until nothing is runnable."""
        self.call(self._app.drain(queues, concurrency))

    def close(self) -> None:
        """Disconnect, and end the thread."""
        self._app._sync = None
        self.stop()

    def stop(self) -> None:
        """Disconnect this thread's connections and end it."""
        if self._thread.is_alive():
            self.call(self._app._disconnect())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine that runs in the thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class SyncRun(Generic[C]):
    """A run's handle without ``await``."""

    def __init__(self, run: Run[C], app: SyncApp) -> None:
        self._run = run
        self._app = app

    def __repr__(self) -> str:
        return repr(self._run)

    @property
    def id(self) -> str:
        """Its id."""
        return self._run.id

    def status(self) -> str:
        """Where it stands."""
        return self._app.call(self._run.status())

    def info(self) -> RunInfo:
        """Everything about it."""
        return self._app.call(self._run.info())

    def result(self, timeout: float | timedelta | None = None) -> C:
        """Wait for its end."""
        return self._app.call(self._run.result(timeout))

    def steps(self) -> list[StepInfo]:
        """Its steps."""
        return self._app.call(self._run.steps())

    def activity(self) -> list[Activity]:
        """The log of every call."""
        return self._app.call(self._run.activity())

    def get(self, key: str, default: Any = None) -> Any:
        """A value that the run has set."""
        return self._app.call(self._run.get(key, default))

    def signal(self, name: str, value: Any = None) -> None:
        """Send it a signal."""
        self._app.call(self._run.signal(name, value))

    def cancel(self) -> None:
        """End it."""
        self._app.call(self._run.cancel())

    def pause(self) -> None:
        """Hold it."""
        self._app.call(self._run.pause())

    def resume(self) -> None:
        """Let it go on."""
        self._app.call(self._run.resume())

    def retry(self, *, from_start: bool = False) -> SyncRun[C]:
        """Queue it again."""
        return SyncRun(self._app.call(self._run.retry(from_start=from_start)), self._app)
