"""``Lab``: an application's own workflows on a database in memory, with one worker and a clock of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, Unpack, cast, overload

from ..app import Stepfast
from ..engine.host import CHANCE, TURNS
from ..engine.options import Seconds, StartKeywords, shows_options
from ..engine.run_log import HANDLER
from ..engine.workflow import Workflow
from ..errors import ConfigurationError, StepfastError
from ..model.backoff import seconds
from ..model.records import Tick
from ..model.rows import Outcome
from ..questions import question_id
from ..registry import Registry
from ..run import Run
from ..runtime import override_app, stands_in_everywhere
from ..settings import Settings
from ..store import Store
from ..store.sqlite.store import SqliteStore
from ..worker.worker import Worker, interpreter
from .clock import LabClock
from .doubles import Doubles, Hanging, LabObservers, LabTransport, name_in_lab

_LOOKS = frozenset({"tick", "beats", "listen", "notify", "workers"})
"""Calls that change nothing."""
COMMITS = frozenset({"flush", "transact"})
"""Calls that write records of runs."""


class Cut:
    """Where a worker is to die: at which commit of the lab, and before or after it."""

    def __init__(self, number: int | None = None, after: bool = False) -> None:
        self.number = number
        self.after = after
        self.commits = 0
        """How many commits have been begun."""

    def comes(self) -> bool:
        """Count a commit; whether it is the one."""
        self.commits += 1
        return self.commits == self.number


class MortalStore:
    """A store that passes calls on while its worker lives, and never answers afterwards."""

    def __init__(self, store: Store, cut: Cut, die: Callable[[], object]) -> None:
        self._store = store
        self._cut = cut
        self._die = die
        self.dead = False
        self._death = asyncio.Event()
        self.under_way = 0
        """Calls that are not answered yet."""
        self.asked = 0
        """Calls that may have changed something."""

    def end(self) -> None:
        """Stop answering."""
        self.dead = True
        self._death.set()

    async def unless_dead(self, work: Coroutine[Any, Any, bool]) -> bool:
        """Do work that uses this store; False if it died before the end, and would never have answered."""
        task, death = asyncio.ensure_future(work), asyncio.ensure_future(self._death.wait())
        try:
            await asyncio.wait((task, death), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else False
        finally:
            task.cancel()
            death.cancel()
            await asyncio.gather(task, death, return_exceptions=True)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not inspect.iscoroutinefunction(value):
            return value
        made = self._counted(name, value)
        setattr(self, name, made)
        return made

    def _counted(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        commits, listens = name in COMMITS, name == "listen"

        async def ask(*args: Any, **kwargs: Any) -> Any:
            if self.dead:
                await _never()
            self.asked += name not in _LOOKS
            self.under_way += not listens
            try:
                result = await (self._cut_at(call, args, kwargs) if commits else call(*args, **kwargs))
            finally:
                self.under_way -= not listens
            if self.dead:
                await _never()
            return result

        return ask

    async def _cut_at(self, call: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        here = self._cut.comes()
        if here and not self._cut.after:
            self._die()
            await _never()
        result = await call(*args, **kwargs)
        if here:
            self._die()
        return result


async def _never() -> None:
    await asyncio.get_running_loop().create_future()


def kill(worker: Worker) -> None:
    """Let a worker die: its store accepts no more writes. Its handlers are cut off where they await something; code in
    a thread comes to its end without effect."""
    duties = worker.duties
    duties.stopping = duties.claimer.stopped = duties.sweeper.stopped = duties.remote_dispatcher.stopped = True
    duties.unsubscribe()
    interpreter.restore(worker)
    HANDLER.end(worker)
    duties.executor.lose_all()
    for task in (*worker._tasks, *duties.chores):
        task.cancel()
    worker.left.set()


async def bury(worker: Worker, mortal: MortalStore) -> None:
    """End all tasks and threads of a dead worker."""
    mortal.end()
    if not worker.left.is_set():
        kill(worker)
    duties = worker.duties
    await asyncio.gather(*worker._tasks, *duties.chores, return_exceptions=True)
    if worker._context.lifespan is not None:
        await worker._context.lifespan.cut_off()
    for closing in (duties.mailbox_poller.close, duties.dag_cache.close, duties.executor.close):
        await closing()


class LabRegistry(Registry):
    """The application's own code; that of workers counts its calls."""

    def __init__(self, settings: Settings, doubles: Doubles) -> None:
        super().__init__(settings)
        self._doubles = doubles

    def with_steps(self) -> dict[str, Workflow[object, object]]:
        """All that a worker can be given to execute."""
        return {name: self._doubles.of_workflow(workflow) for name, workflow in super().with_steps().items()}


class LabApp(Stepfast):
    """Made from another application, of which nothing is changed or connected."""

    def __init__(self, app: Stepfast, clock: LabClock, doubles: Doubles, cut: Cut, seed: str | None) -> None:
        super().__init__(
            "sqlite://",
            app.namespace,
            codec=app._payloads._codec,
            logger=app.logger,
            run_logs=app.run_logs,
            settings=_settings(app.settings, seed),
            lifespan=app._lifespan,
        )
        self._middleware = app._middleware
        self._clock: LabClock = clock
        self._seed = seed
        self._doubles = doubles
        self._cut = cut
        self.die: Callable[[], object] = lambda: None
        """Called where a worker is to die at a commit."""
        self.mortal: MortalStore | None = None
        """The store of the last worker that was made."""
        registry = LabRegistry(self.settings, doubles)
        registry.workflows = self.workflows  # the planner has it already
        self.workflows.update(app.workflows)
        self._registry = registry
        if seed is None:  # where one run is looked at, no other is to begin by itself
            self._declared.specs.update(app._declared.specs)
            self._subscriptions.declared.update(app._subscriptions.declared)
        self._declared_queues.update(app._declared_queues)
        self.remote = LabTransport(doubles, lambda value: self._payloads.bare(value, "the result of a remote step"))
        self.transport = self.remote

    def _make_store(self) -> Store:
        store = SqliteStore(self.url, self.namespace, self.settings, self._clock.milliseconds)
        store.given_seed = self._seed
        return store

    def _make_observers(self) -> LabObservers:
        return LabObservers(self._doubles, self.logger, self._clock)

    def _workers_store(self, store: Store) -> Store:
        self.mortal = MortalStore(store, self._cut, lambda: self.die())
        return cast(Store, self.mortal)


def _settings(settings: Settings, seed: str | None) -> Settings:
    """Return settings with which waits give their slots back at once, runs are kept, and a blocked event loop is not
    reported, because a debugger blocks it. With a seed, retries have no jitter."""
    jitter = settings.backoff_jitter if seed is None else 0.0
    return dataclasses.replace(
        settings,
        inline_wait=0.0,
        retention=None,
        retention_failed=None,
        retention_events=None,
        blocked_after=0.0,
        gc_threshold=0,
        backoff_jitter=jitter,
    )


class RestCheck:
    """Checks one worker. A wait gives its slot back at once in a lab, so a run in a slot is at work."""

    def __init__(self, worker: Worker, mortal: MortalStore, remote: LabTransport, hanging: Hanging) -> None:
        self._worker = worker
        self._duties = worker.duties
        self._mortal = mortal
        self._remote = remote
        self._hanging = hanging

    async def once(self) -> bool:
        """Wait for what is under way, then check whether everything is at rest. A worker that has died is not."""
        duties = self._duties
        await self._hanging.wait(self._worker)
        await _turns()
        if self._worker.broken.is_set():
            raise self._worker.breakage()
        if self._mortal.dead or duties.journal.busy:
            return False
        before = self._mortal.asked
        tick = await self._look()
        served = await self._remote.serve() or (tick.remote and await duties.remote_dispatcher.drained())
        await _turns()
        # The query for remote steps is counted too, and changes nothing.
        unchanged = self._mortal.asked == before or tick.remote
        return not (self._moves(tick) or served) and self._is_idle() and unchanged

    def _moves(self, tick: Tick) -> bool:
        mine = any(self._worker._context.me.serves(lane) for lane in tick.lanes)
        fires = tick.schedule_ms is not None and tick.schedule_ms <= 0
        events = tick.events or self._duties.event_dispatcher.moved
        return mine or tick.due or fires or tick.suspects or tick.mail or tick.names or events

    def _is_idle(self) -> bool:
        duties = self._duties
        return (
            not self._mortal.dead
            and not self._worker.broken.is_set()
            and (duties.executor.idle.is_set() or self._hanging.all_of(self._worker))
            and duties.claimer.idle
            and duties.limited.idle
            and not self._mortal.under_way
            and not duties.chores
            and not duties.journal.busy
        )

    async def _look(self) -> Tick:
        """Do the sweeper's query, and claim from limited queues at once."""
        duties = self._duties
        duties.limited.hurry()
        return await duties.sweeper.tick(ask_for_lanes=True)

    # -- time --------------------------------------------------------------------------------------------------------

    async def next_due_ms(self, clock: LabClock) -> int | None:
        """Milliseconds until something is due: a timer, a deadline, a schedule, a rate, a remote step."""
        tick = await self._look()
        allowed = self._duties.limited.allowed_in()
        rate = None if allowed == math.inf else math.ceil(allowed * 1000)
        alarm = clock.next_alarm_ms() if self._hanging.calls else None
        start = None if tick.start_ms is None or tick.start_ms <= 0 else tick.start_ms  # by an event, once more
        soonest = (tick.next_due_ms, tick.schedule_ms, tick.remote_ms, start, rate, alarm)
        found = [ms for ms in soonest if ms is not None]
        return min(found, default=None)

    async def beat(self) -> None:
        """Renew the lease of the worker."""
        worker = self._worker
        store = self._mortal
        await asyncio.to_thread(lambda: store.pulse(10.0).beat(worker.id, worker.running))

    def complaint(self, patience: float) -> str:
        """Return the message about code that does not come to rest."""
        running = self._duties.executor.running.values()
        steps = [f"{call.kind} {call.name!r} (at {call.line})" for run in running for call in run.active]
        names = sorted({run.workflow.name for run in running})
        what = f"{', '.join(steps)} of {', '.join(names)}" if steps else ", ".join(names) or "the database"
        return (
            f"the lab does not come to rest: after {patience:g} s of real time {what} is still at work. A step in a "
            "lab must end by itself: replace one that talks to the world (lab.replace), or give the lab more patience "
            "(Lab(app, patience=…))"
        )


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


class LabError(StepfastError):
    """Something in a lab does not come to rest, or never will."""


async def be_patient(app: Stepfast, patience: float) -> None:
    """Bound waits for runs without a timeout by an error that says what the run waits for."""
    watcher = (await app._connect()).watcher
    wait = watcher.wait

    async def bounded(run_id: str, timeout: float | None) -> Outcome | None:
        outcome = await wait(run_id, patience if timeout is None else timeout)
        if outcome is not None or timeout is not None:
            return outcome
        info = await app.get(run_id).info()
        waits = "" if info.waiting_for is None else f" for {info.waiting_for}"
        raise LabError(
            f"run {run_id} has not ended within {patience:g} s of real time: it is {info.status}{waits}. The clock of "
            "a lab stands until it is moved (lab.advance), and only the test sends signals"
        )

    watcher.wait = bounded  # type: ignore[method-assign]


I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741


@shows_options
class Lab:
    """``async with Lab(app) as lab``: what is started here lives and ends in memory. The application itself is neither
    connected nor changed; any number of labs may exist side by side.

    ``now`` is the first time of the clock, by default the machine's. ``patience`` bounds, in real seconds, how long the
    code of steps may be at work before the lab says which of them does not come back.
    """

    def __init__(self, app: Stepfast, *, now: datetime | None = None, patience: float = 30.0) -> None:
        self._make(app, now, patience, Cut(), None)

    @classmethod
    def _for_crash(cls, app: Stepfast, now: datetime, patience: float, cut: Cut) -> Lab:
        """One in which a worker dies at a commit, and ids and random values are the same each time."""
        lab = cls.__new__(cls)
        lab._make(app, now, patience, cut, "the same each time")
        return lab

    def _make(self, app: Stepfast, now: datetime | None, patience: float, cut: Cut, seed: str | None) -> None:
        if not isinstance(app, Stepfast):
            raise ConfigurationError(f"Lab takes an application, as in Lab(app), not {app!r}")
        begin = datetime.now(UTC) if now is None else now
        if not isinstance(begin, datetime):
            raise ConfigurationError(f"Lab: now must be a datetime, not {begin!r}")
        if begin.tzinfo is None:
            raise ConfigurationError("Lab: now must say its time zone, as in datetime(2026, 1, 1, tzinfo=UTC)")
        self._patience = seconds(patience, "the patience of a lab")
        self._clock = LabClock(round(begin.timestamp() * 1000), seed)
        self._of = app
        self._doubles = Doubles()
        self._hanging = Hanging()
        self.app = LabApp(app, self._clock, self._doubles, cut, seed)
        """The lab's own application, for all other methods of an application: ``lab.app.pause_queue("mail")``."""
        self.app.die = self._die
        self._worker: Worker | None = None
        self._mortal: MortalStore
        self._dead: list[Worker] = []
        """Workers that have died, and whose runs no other worker has taken over yet."""
        self._loop: asyncio.AbstractEventLoop
        self._thread = 0

    # -- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Lab:
        if self._worker is not None:
            raise ConfigurationError("this lab is in use already; make another one: async with Lab(app) as lab")
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        try:
            await self._begin_worker()
            await be_patient(self.app, self._patience)
            await self.settle()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def _close(self) -> None:
        for worker in (*self._dead, *([] if self._worker is None else [self._worker])):
            await bury(worker, self._mortal)
        self._dead, self._worker = [], None
        await self.app.close()

    async def _begin_worker(self) -> None:
        self._worker = await self.app._make_worker()
        assert self.app.mortal is not None
        self._mortal = self.app.mortal
        await asyncio.create_task(self._worker.start(), context=override_app(self._of, self.app))

    def in_place(self) -> contextlib.AbstractContextManager[None]:
        """``with lab.in_place():`` lets every use of the application in this process reach the lab: by handlers of a
        web application, say, which use the application of their module."""
        self._check_entered()
        return stands_in_everywhere(self._of, self.app)

    # -- runs --------------------------------------------------------------------------------------------------------

    @overload
    async def start(self, workflow: Workflow[I, O], input: I = ..., **options: Unpack[StartKeywords]) -> Run[O]: ...
    @overload
    async def start(self, workflow: str, input: Any = None, **options: Unpack[StartKeywords]) -> Run[Any]: ...
    async def start(self, workflow: Any, input: Any = None, **options: Any) -> Run[Any]:
        """Start a run; returns when nothing can move any more without time or a signal."""
        run: Run[Any] = await self.app.start(workflow, input, **options)
        await self.settle()
        return run

    async def settle(self) -> None:
        """Until nothing can move any more without time or a signal."""
        self._check_entered()
        limit = asyncio.timeout(self._patience)
        try:
            async with limit:
                while True:
                    await self._take_over()
                    if await self._mortal.unless_dead(self._rest_check().once()):
                        return
        except TimeoutError:
            if not limit.expired():
                raise
            raise LabError(self._rest_check().complaint(self._patience)) from None

    async def publish(self, name: str, data: Any = None, *, key: str | None = None, id: str | None = None) -> str:
        """Publish an event; returns its id when nothing can move any more without time or a signal."""
        event_id = await self.app.publish(name, data, key=key, id=id)
        await self.settle()
        return event_id

    async def ask(self, run: Run[Any], name: str, value: Any = None, *, id: str | None = None) -> Any:
        """Ask a run, and return its answer. LabError if the run comes to rest without one; time does not pass."""
        connected = await self.app._connect()
        named = connected.new_id() if id is None else id
        which = question_id(run.id, named)
        asking = asyncio.create_task(run.ask(name, value, id=named))
        try:
            while not asking.done():
                await asyncio.wait((asking,), timeout=CHANCE)
                there = await connected.store.questions([which])
                await self.settle()
                stands = await connected.store.questions([which])
                connected.answers.look()
                if there and stands and stands[0].state == there[0].state == "open" and not stands[0].over:
                    info = await run.info()
                    raise LabError(
                        f"nothing answers question {name!r} of run {run.id}: it is {info.status}"
                        + (f", and waits for {info.waiting_for}" if info.waiting_for else "")
                    )
            return await asking
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def complete(self, token: str, value: Any = None) -> None:
        """Complete a callback, by its token; returns when nothing can move any more without time or a signal."""
        await self.app.complete(token, value)
        await self.settle()

    async def beat(self, token: str) -> None:
        """Note a heartbeat of a callback."""
        await self.app.beat(token)
        await self.settle()

    def _rest_check(self) -> RestCheck:
        assert self._worker is not None
        return RestCheck(self._worker, self._mortal, self.app.remote, self._hanging)

    # -- time --------------------------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """What the clock says."""
        return datetime.fromtimestamp(self._clock.milliseconds() / 1000, UTC)

    async def advance(self, by: Seconds | timedelta) -> None:
        """Let time pass: everything that is due by then happens in its order, each at its own time."""
        until = self._clock.passed_ms + round(seconds(by, "advance") * 1000)
        await self.settle()
        while (due := await self._due()) is not None and due <= until:
            await self._move_to(due)
        await self._move_to(until)

    async def advance_to_next(self) -> datetime | None:
        """Let time pass until something is due, a timer or a schedule, and let that happen; when it was. None, if
        nothing ever will be."""
        await self.settle()
        due = await self._due()
        if due is None:
            return None
        await self._move_to(due)
        return self.now()

    async def _move_to(self, passed_ms: int) -> None:
        self._clock.move_to(passed_ms)
        await self._rest_check().beat()
        await self.settle()

    async def _due(self) -> int | None:
        """Return when something is due next, in milliseconds of the clock. What is due and did not move is checked
        again a millisecond later."""
        due = await self._rest_check().next_due_ms(self._clock)
        return None if due is None else self._clock.passed_ms + max(1, due)

    # -- what steps do -----------------------------------------------------------------------------------------------

    def calls(self, what: Any) -> int:
        """How often a step's function, or its replacement, was really called: by its function, or by the name of the
        step. Calls that ``fail`` made fail count; what is answered from records is no call."""
        return self._doubles.calls[name_in_lab(what, "lab.calls")]

    def replace(self, what: Any, function: Callable[..., Any]) -> None:
        """Another function in the place of a step's, of a function that is given to ``ctx.transaction``, of a task, of
        a workflow (a child, say) or of a step of a dag; or one that serves the remote steps of a name, called with
        their input. Options, types and records stay as they are."""
        self._doubles.replace(what, function)

    @overload
    def fail(self, what: str, times: str, /) -> Awaitable[None]: ...
    @overload
    def fail(self, what: Any, times: int = 1, error: BaseException | type[BaseException] | None = None) -> None: ...
    def fail(
        self, what: Any, times: int | str = 1, error: BaseException | type[BaseException] | None = None
    ) -> Awaitable[None] | None:
        """Let the next calls of a step fail, by this error or by an ``InjectedFailure``. Or, with a text in the second
        place, fail a callback by its token: ``await lab.fail(token, "declined")``."""
        if isinstance(times, str):
            return self._fail_callback(what, times)
        self._doubles.fail(what, times, error)
        return None

    async def _fail_callback(self, token: str, error: str) -> None:
        await self.app.fail(token, error)
        await self.settle()

    async def hang(self, *_: Any, **__: Any) -> Any:
        """A function that never comes back, to try timeouts and deadlines: ``lab.replace(charge, lab.hang)``. The lab
        counts it as being at rest; it would wait for a function that only sleeps for long."""
        return await self._hanging.hang()

    # -- dying -------------------------------------------------------------------------------------------------------

    def crash(self) -> Crashed:
        """Let the worker die as by SIGKILL: nothing more of it is written. Another one takes its runs over at the next
        ``settle``, as it would after the lease; ``await lab.crash()`` waits for that. May be called in a step, too."""
        self._check_entered()
        if threading.get_ident() == self._thread:
            self._die()
        else:
            self._mortal.dead = True
            self._loop.call_soon_threadsafe(self._die)
        return Crashed(self)

    def _die(self) -> None:
        worker = self._worker
        self._mortal.end()
        if worker is not None and worker not in self._dead:
            self._dead.append(worker)
            kill(worker)

    async def _take_over(self) -> None:
        """Start the next worker, which takes the runs of the dead one over."""
        if not self._dead:
            return
        dead, self._dead = self._dead, []
        for worker in dead:
            await bury(worker, self._mortal)
        await self._begin_worker()
        assert self._worker is not None
        sweeper = self._worker.duties.sweeper
        if await sweeper.reaper.give_back_held_by([worker.id for worker in dead]):
            sweeper.tick_now()

    def _check_entered(self) -> None:
        if self._worker is None:
            raise ConfigurationError("a lab is used within its block: async with Lab(app) as lab")


class Crashed:
    """A worker has died. Awaited, another has taken over when it comes back."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def __await__(self) -> Generator[Any, None, None]:
        return self._taken_over().__await__()

    async def _taken_over(self) -> None:
        await asyncio.sleep(0)  # a step of the worker that has died ends here, and takes nothing over itself
        await self._lab.settle()
