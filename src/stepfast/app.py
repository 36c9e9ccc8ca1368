"""Stepfast: registers workflows, starts runs, and wires the rest together."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from . import callbacks
from .bulk import BulkResult, BulkVerb, apply_action
from .compatibility import CheckedRun, Checker, check_fork
from .engine.dag import Dag, dag_from_spec, dag_options
from .engine.host import current_execution
from .engine.invocation import refuse_in_workflow
from .engine.middleware import Middleware, check_middleware
from .engine.observers import UNTOLD, Observer, Observers, check_observer, observers_of, starting
from .engine.options import (
    ChildKeywords,
    DagKeywords,
    OnConflict,
    OwnChildKeywords,
    Seconds,
    StartKeywords,
    StartManyKeywords,
    WorkerKeywords,
    shows_options,
)
from .engine.workflow import Workflow
from .errors import ConfigurationError, ContextMisuse, RunNotFound, UnknownWorkflow
from .events import EventVerbs, Subscriptions
from .filters import CountKeywords, ListKeywords, store_filters
from .info import RunInfo, StepInfo, listed_info
from .model.backoff import seconds
from .model.ids import run_id_of
from .model.names import check_name, check_namespace, check_queue, refuse_unknown
from .model.payload import Codec, Payloads
from .model.records import Mail, NewRun, Parent
from .model.status import TASK, WORKFLOW
from .model.urls import DatabaseUrl, parse_url
from .queues import QueueVerbs
from .registry import Registry, TaskDecorator, WorkflowDecorator
from .replay import ReplayVerbs
from .retention import Progress, SparingPrune, keep_for, prunable, prune
from .run import Run, send_signals
from .runtime import (
    Connected,
    Connections,
    announce_database,
    announce_namesakes,
    announce_queues,
    announce_retention,
    resolve_app,
)
from .schedules import DeclaredSchedules, Scheduling
from .settings import DEFAULT_NAMESPACE, DEFAULT_URL, Settings
from .starts import (
    ONE_INPUT,
    Plan,
    Planner,
    Signal,
    UniqueNames,
    check_debounce,
    conflicting_keys,
    debounced,
    refuse_more,
    start_unique,
)
from .stats import StatsVerbs
from .store import Store, open_store, pool_url
from .store.migrations import refuse_missing, refuse_too_new
from .transports import check_transport, transport_for
from .worker import Worker
from .worker.context import Identity, WorkerContext
from .worker.lifespan import Lifespan, MakeLifespan, check_lifespan, state_of
from .worker.remote_dispatcher import Transport
from .worker.shutdown import run_until_signal
from .worker.threads import REAL

if TYPE_CHECKING:
    from .sync import SyncApp

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741
M = TypeVar("M", bound=Middleware)


@shows_options
class Stepfast(EventVerbs, QueueVerbs, ReplayVerbs, Scheduling, StatsVerbs):
    """An application: workflows, and the database their runs live in.

    ``Stepfast()`` takes the URL from ``STEPFAST_URL``, else ``sqlite:///stepfast.db``, and the namespace from
    ``STEPFAST_NAMESPACE``, else ``stepfast``. Nothing is connected before the first use; the tables are made by
    themselves unless ``auto_migrate=False``.
    """

    def __init__(
        self,
        url: str | None = None,
        namespace: str | None = None,
        *,
        codec: Codec | None = None,
        logger: logging.Logger | None = None,
        run_logs: int | str | None = None,
        auto_migrate: bool = True,
        pool_size: int | None = None,
        pool: Any = None,
        transport: Transport | None = None,
        record_arguments: bool | None = None,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (),
        lifespan: MakeLifespan | None = None,
    ) -> None:
        named = os.environ.get("STEPFAST_URL") if url is None else url
        self.url: DatabaseUrl = parse_url(named or DEFAULT_URL if url is None else url)
        if pool is not None:
            self.url = pool_url(pool, self.url if named or url is not None else None)
        self.url_named = bool(named) or pool is not None
        """Whether the database was named, here or in the environment."""
        default = os.environ.get("STEPFAST_NAMESPACE") or DEFAULT_NAMESPACE
        self.namespace = check_namespace(default if namespace is None else namespace)
        if settings is not None and not isinstance(settings, Settings):
            raise ConfigurationError(
                f"settings= takes Settings, as in settings=Settings(lease=10), not {type(settings).__name__}"
            )
        base = settings or Settings.from_environment()
        self.settings = base.with_changes(pool_size=pool_size, record_arguments=record_arguments)
        self.logger = logger or _silent_logger()
        self.run_logs = _level(run_logs)
        """The least level of the lines that are kept of what the code of runs logs; None: none are."""
        self.observers: tuple[Observer, ...] = tuple(check_observer(observer) for observer in observers)
        """They are notified of what happens to runs; ``observe`` adds others."""
        self._middleware: tuple[Middleware, ...] = ()
        self._lifespan = check_lifespan(lifespan)
        self._lifespans: list[Lifespan] = []
        """Those that workers of this process have entered."""
        self._registry = Registry(self.settings)
        self.workflows = self._registry.workflows
        self._payloads = Payloads(self.settings, codec, self.logger)
        self._planner = Planner(self.workflows, self._payloads, self.settings)
        self._declared = DeclaredSchedules(self)
        self._subscriptions = Subscriptions(self)
        self._auto_migrate = auto_migrate
        self._pool = pool
        self._clock = REAL
        """Time, timers, threads and chance of all workers that are made here. A test may put another in its place."""
        check_transport(transport)
        self.transport = transport
        """Where remote steps go, if it was said."""
        self._connections = Connections(self)
        self._declared_queues: dict[str, dict[str, Any]] = {}
        self._sync: SyncApp | None = None
        self._sync_lock = threading.Lock()

    # -- registering -------------------------------------------------------------------------------------------------

    @property
    def task(self) -> TaskDecorator:
        """Register a plain job: input in, result out, no context. ``async def`` or ``def`` (which runs in a thread).
        ``@app.task``, or ``@app.task(max_attempts=5, timeout=60)``. Options: ``name``, ``queue``, ``max_attempts``,
        ``timeout`` (of each attempt), ``deadline`` (of the whole run), ``backoff``."""
        return TaskDecorator(self._registry, TASK)

    @property
    def workflow(self) -> WorkflowDecorator:
        """Register a durable function: its first parameter is a context (``SyncContext`` for a plain ``def``).
        ``@app.workflow``, or ``@app.workflow(deadline=timedelta(days=30))``. Options: ``name``, ``queue``,
        ``max_attempts``, ``timeout`` (of each attempt), ``deadline`` (of the whole run), ``backoff``."""
        return WorkflowDecorator(self._registry, WORKFLOW)

    def dag(self, name: str, **options: Unpack[DagKeywords]) -> Dag:
        """Declare a graph of steps: ``fulfil = app.dag("order-fulfillment")``, then ``@fulfil.step(after=[…])``."""
        return self._registry.add_dag(Dag(name, dag_options("app.dag", **options), self.settings))

    def dag_from_spec(
        self, name: str, spec: Mapping[str, Any], handlers: Mapping[str, Any], **options: Unpack[DagKeywords]
    ) -> Dag:
        """A graph that comes as data, ``{"steps": {name: {"retries": 3}}, "dag": {name: [dependencies]}}``, with its
        functions by name. Everything wrong with it is reported together, as a GraphError."""
        chosen = dag_options("app.dag_from_spec", **options)
        return self._registry.add_dag(dag_from_spec(name, spec, handlers, chosen, self.settings))

    # -- starting ----------------------------------------------------------------------------------------------------

    @overload
    async def start(self, workflow: Workflow[I, O], input: I = ..., **options: Unpack[StartKeywords]) -> Run[O]: ...
    @overload
    async def start(self, workflow: str, input: Any = None, **options: Unpack[StartKeywords]) -> Run[Any]: ...
    async def start(
        self,
        workflow: Workflow[Any, Any] | str,
        input: Any = None,
        *more: Any,
        key: str | None = None,
        unique: str | None = None,
        on_conflict: OnConflict | None = None,
        signal: Signal | None = None,
        connection: Any = None,
        debounce: Seconds | None = None,
        debounce_max: Seconds | None = None,
        **options: Unpack[ChildKeywords],
    ) -> Run[Any]:
        """Start a run; when this returns, it is committed and will not be lost.

        With a ``key``, a second start of the same workflow gives the same run, never a second one. With a
        ``connection`` of your own (asyncpg's, psycopg's, sqlite3's, or a session or connection of SQLAlchemy's) the
        start joins its transaction: it is committed, or rolled back, with yours. With ``debounce`` the run waits for
        more starts of its key, each of which gives it another input and puts it off, at most until ``debounce_max``.

        With ``unique``, a name, one run of the workflow and the name lives at a time: a second start gives the one that
        lives (``run.existed``), or raises AlreadyRunning with ``on_conflict="raise"``; with ``"queue"`` it makes one
        that begins when that has ended, and ``"cancel"`` cancels that for it. ``signal=(name, value)`` is sent
        to the run, whether it was there or not, in the transaction of the start.
        """
        refuse_in_workflow("app.start", "ctx.start")
        refuse_more("app.start", "input", more)
        refuse_unknown("app.start", options, StartKeywords.__annotations__, ONE_INPUT)
        waits = check_debounce(debounce, debounce_max, key, connection, options)
        if unique is not None and key is not None:
            raise ConfigurationError(
                "a start takes key or unique, not both: a key names one run for as long as it is kept, unique the one "
                "that lives"
            )
        names = UniqueNames(self._payloads, on_conflict, signal, unique is not None)
        connected, plan = await self._plan(workflow, options, joins=connection is not None)
        if key is not None:
            check_name(key, "the key", self.settings.max_name)
        if waits is not None:
            plan = debounced(plan, waits)
        runs = plan.runs(connected.new_id(), input, key)
        if unique is not None:
            runs[0].unique = names.unique(unique, plan, connected.new_id)
        with UNTOLD if connected.observers is None else starting(connected.observers, runs):
            if waits is not None:
                run_id = await connected.starter.start_debounced(runs[0], waits)
            elif unique is not None:
                run_id = await start_unique(connected, runs, self._payloads, connection)
            elif (bound := connected.bounds.of(runs)) is None and connection is None and len(runs) == 1:
                run_id = await connected.starter.start(runs[0])
            else:
                run_id = (await connected.starter.start_many(runs, bound, connection))[0]
        if runs[0].earlier is not None:
            self._warn_reused_keys(runs, plan, run_id)
        return self._started(run_id, runs[0], plan, known=connection is None)

    def _started(self, run_id: str, run: NewRun, plan: Plan, known: bool) -> Run[Any]:
        """The handle of a run that was started, or found."""
        handle = Run[Any](run_id, self._connect, self._payloads, plan.output_type, known=known)
        handle.existed = run_id != run.id
        return handle

    @overload
    async def start_many(
        self, workflow: Workflow[I, O], inputs: Sequence[I], **options: Unpack[StartManyKeywords]
    ) -> list[Run[O]]: ...
    @overload
    async def start_many(
        self, workflow: str, inputs: Sequence[Any], **options: Unpack[StartManyKeywords]
    ) -> list[Run[Any]]: ...
    async def start_many(
        self,
        workflow: Workflow[Any, Any] | str,
        inputs: Sequence[Any],
        *more: Any,
        keys: Sequence[str] | None = None,
        unique: Sequence[str] | None = None,
        on_conflict: OnConflict | None = None,
        signal: Signal | None = None,
        connection: Any = None,
        **options: Unpack[ChildKeywords],
    ) -> list[Run[Any]]:
        """Start a run for each input: one statement, all or none. ``keys`` gives each its key, ``unique`` its name."""
        refuse_in_workflow("app.start_many", "ctx.start")
        refuse_more("app.start_many", "list of inputs", more)
        refuse_unknown("app.start_many", options, StartManyKeywords.__annotations__, ONE_INPUT)
        values = list(inputs)
        if keys is not None and unique is not None:
            raise ConfigurationError("start_many takes keys or unique, not both")
        own_keys = _checked_keys(keys, values, self.settings)
        names = UniqueNames(self._payloads, on_conflict, signal, unique is not None)
        connected, plan = await self._plan(workflow, options, joins=connection is not None)
        new_id = connected.new_id
        runs = [run for value, key in zip(values, own_keys, strict=True) for run in plan.runs(new_id(), value, key)]
        heads = [run for run in runs if run.dag_step is None]
        for run, name in zip(heads, _as_many("unique names", unique, heads), strict=True) if unique is not None else ():
            run.unique = names.unique(name, plan, new_id, together=True)
        if not runs:
            return []
        with UNTOLD if connected.observers is None else starting(connected.observers, runs):
            ids = await connected.starter.start_many(runs, connected.bounds.of(runs), connection)
        if keys is not None:
            self._warn_reused_keys(runs, plan)
        owners = zip(ids, runs, strict=True)
        return [self._started(which, run, plan, connection is None) for which, run in owners if run.dag_step is None]

    async def _plan(
        self, workflow: Workflow[Any, Any] | str, options: ChildKeywords, joins: bool
    ) -> tuple[Connected, Plan]:
        """Check a start. The first one also stores the declared queues and reads their bounds. ``joins``: it is part of
        a transaction of the caller."""
        connected = await self._connect()
        # Declarations of a queue never change, so their number tells whether all were stored.
        if not connected.bounds.known or len(self._declared_queues) != len(connected.declared_queues):
            await self._declare_queues(connected, joins)
            if not connected.bounds.known:
                await connected.bounds.learn()
        return connected, await self._planner.plan(connected, workflow, options, joins)

    def _warn_reused_keys(self, runs: list[NewRun], plan: Plan, run_id: str | None = None) -> None:
        keys, ids = conflicting_keys(runs, self._payloads), {"workflow": plan.shape.workflow}
        if keys:
            self.logger.warning(
                "start of %r: %s used before for a run with another input; that run is given, and the new input is not "
                "used. A key should name one piece of work", plan.shape.workflow, _named_keys(keys),
                extra=ids if run_id is None else {**ids, "run_id": run_id},
            )  # fmt: skip

    async def signal(
        self, run_id: str, name: str, value: Any = None, *, id: str | None = None, connection: Any = None
    ) -> None:
        """Send a signal to a run; see ``Run.signal``."""
        await self.get(run_id).signal(name, value, id=id, connection=connection)

    async def signal_many(
        self, signals: Iterable[tuple[str, str, Any]], *, ids: Sequence[str] | None = None, connection: Any = None
    ) -> None:
        """Send a signal to each of many runs: ``(run_id, name, value)``. ``ids`` gives each signal its id. Those to one
        run keep their order. What is refused holds up no other: an ExceptionGroup says at the end which were."""
        refuse_in_workflow("app.signal_many", "ctx.signal")
        await send_signals(self.get, list(signals), ids, connection)

    async def complete(self, token: str, value: Any = None) -> None:
        """Complete a callback, by its token: ``callback.result()`` returns the value. Again with the same value, it has
        no effect. InvalidInput if the value does not fit, CallbackDone, CallbackNotFound."""
        await callbacks.complete(await self._connect(), self._payloads, token, value)

    async def fail(self, token: str, error: str) -> None:
        """Fail a callback, by its token: ``callback.result()`` raises CallbackFailed with this text. CallbackDone,
        CallbackNotFound."""
        await callbacks.fail(await self._connect(), self._payloads, token, error)

    async def beat(self, token: str) -> None:
        """Say that a callback with a ``heartbeat`` is being worked on. CallbackDone, CallbackNotFound."""
        await callbacks.beat(await self._connect(), token)

    async def _new_child(
        self, workflow: Workflow[Any, Any] | str, input: Any, options: dict[str, Any], parent: Parent
    ) -> tuple[list[NewRun], Any]:
        """Check the start of a child, and make its rows."""
        refuse_unknown("ctx.start", options, OwnChildKeywords.__annotations__, ONE_INPUT)
        given = {name: value for name, value in options.items() if name != "detached"}
        plan = await self._planner.plan(await self._connect(), workflow, cast(ChildKeywords, given))
        runs = plan.runs(parent.reply_to, input, parent=parent)
        runs[0].detached = bool(options.get("detached"))
        return runs, plan.output_type

    async def _send_signal(self, mail: Mail) -> None:
        """Send a signal of a run."""
        await self.get(mail.run_id)._signal(mail)

    # -- reading -----------------------------------------------------------------------------------------------------

    def get(self, run_id: str) -> Run[Any]:
        """A handle for a run, without a query; RunNotFound for a text that is not the id of any."""
        return Run(run_id_of(run_id), self._connect, self._payloads)

    @overload
    async def find(self, workflow: Workflow[I, O], *, key: str) -> Run[O]: ...
    @overload
    async def find(self, workflow: str, *, key: str) -> Run[Any]: ...
    async def find(self, workflow: Workflow[Any, Any] | str, *, key: str) -> Run[Any]:
        """The run of a workflow that was started with a key. RunNotFound if there is none: it was never started, or its
        retention is over, or its key was given up by ``debounce``."""
        code = workflow if isinstance(workflow, Workflow) else self.workflows.get(workflow)
        name = workflow.name if isinstance(workflow, Workflow) else workflow
        if not isinstance(name, str):
            raise ConfigurationError(f"app.find takes a workflow or its name, not {workflow!r}")
        check_name(key, "the key", self.settings.max_name)
        run_id = await (await self.store()).run_with_key(name, key)
        if run_id is None:
            raise RunNotFound(f"of workflow {name!r} with the key {key!r}")
        return Run(run_id, self._connect, self._payloads, Any if code is None else code.output_type, known=True)

    async def runs(self, **filters: Unpack[ListKeywords]) -> list[RunInfo]:
        """A page of runs, newest first by default: ``app.runs(workflow=checkout, status="failed")``. ``after`` is the
        last run (or its id) of the page before. Large inputs and outputs are ``left_out`` of a list; ``run.info()``
        brings them."""
        rows = await (await self._connect()).store.runs(**store_filters(filters))
        return [listed_info(row, self._payloads) for row in rows]

    async def count(self, **filters: Unpack[CountKeywords]) -> int:
        """How many runs there are: ``await app.count(workflow=checkout, status="failed")``. The filters are those of
        ``app.runs``."""
        refuse_unknown("app.count", filters, CountKeywords.__annotations__)
        return await (await self._connect()).store.count_runs(**store_filters(cast(ListKeywords, filters)))

    async def bulk(
        self,
        action: BulkVerb,
        *,
        dry_run: bool = False,
        limit: int | None = None,
        progress: Callable[[BulkResult], object] | None = None,
        **filters: Unpack[CountKeywords],
    ) -> BulkResult:
        """Cancel, retry, pause, resume or delete all runs that filters select, in batches, the oldest first:
        ``await app.bulk("cancel", workflow=checkout, status="queued", older_than=3600)``. The filters are those of
        ``app.runs``; without a status, runs are selected to which the action applies. ``dry_run`` only counts. Called
        again after an interruption it does the rest. ``progress`` is called after each batch."""
        return await apply_action(self, action, filters, dry_run=dry_run, limit=limit, progress=progress)

    async def check(
        self,
        *,
        workflow: str | Workflow[Any, Any] | None = None,
        limit: int | None = None,
        timeout: Seconds = 10.0,
        partial: bool = False,
        progress: Callable[[CheckedRun], None] | None = None,
        run: Run[Any] | str | None = None,
        before: str | int | StepInfo | None = None,
        input: Any = None,
    ) -> list[CheckedRun]:
        """Replay what is recorded of unfinished runs against this code, and return which of them it does not fit.
        Nothing is written, claimed or executed but the code between the steps, each run for at most ``timeout``
        seconds. Runs of workflows that this application does not have are ``unknown``; ``partial=True`` leaves them
        out, for one that serves only a part. ``progress`` is called with each run as it is found.

        With ``run`` and ``before``: whether a fork or a rewind of that run would fit this code, with another ``input``
        if it is given."""
        if run is not None or before is not None:
            if run is None or before is None:
                raise ConfigurationError("app.check takes run and before together: the run, and the step to go back to")
            return [await check_fork(self, self.get(run) if isinstance(run, str) else run, before, input, timeout)]
        name = workflow.name if isinstance(workflow, Workflow) else workflow
        if name is not None and name not in self.workflows:
            raise UnknownWorkflow(name, list(self.workflows))
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ConfigurationError(f"limit must be at least 1, not {limit!r}")
        store = await self.store()
        longest = seconds(timeout, "the timeout of check()")
        checker = Checker(self, store, longest, partial)
        found = []
        async with contextlib.aclosing(checker.each(name, limit)) as each:
            async for checked in each:
                found.append(checked)
                if progress is not None:
                    progress(checked)
        return found

    # -- working -----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def worker(
        self, queues: Sequence[str] | None = None, **options: Unpack[WorkerKeywords]
    ) -> AsyncIterator[Worker]:
        """A worker within this process, for as long as the ``async with`` lasts. If it breaks, the block is ended, and
        WorkerBroken comes out of it."""
        refuse_unknown("app.worker", options, WorkerKeywords.__annotations__)
        async with await self._make_worker(queues, **options) as worker:
            yield worker

    async def work(self, queues: Sequence[str] | None = None, **options: Unpack[WorkerKeywords]) -> None:
        """Work until SIGTERM or Ctrl+C: then stop claiming, wait for handlers, give the rest back. A second signal does
        not wait."""
        refuse_unknown("app.work", options, WorkerKeywords.__annotations__)
        await run_until_signal(await self._make_worker(queues, **options))

    async def drain(self, queues: Sequence[str] | None = None, concurrency: int | None = None) -> None:
        """Work until nothing is runnable: for tests, cron jobs, serverless."""
        worker = await self._make_worker(queues, concurrency=concurrency)
        async with worker:
            await worker.until_drained()

    async def _make_worker(self, queues: Sequence[str] | None = None, **changes: Any) -> Worker:
        if isinstance(queues, str):
            raise ConfigurationError(f"queues must be a list of names, not the string {queues!r}")
        for queue in queues or ():
            check_queue(queue, self.settings.max_name)
        settings = self.settings.with_changes(**changes)
        connected = await self._connect()
        await connected.store_definitions(list(self.workflows.values()))
        await self._declare_queues(connected)
        await self._subscriptions.store(connected, self._subscriptions.pairs)
        announce_database(self.url, self.namespace, self.url_named, self.logger)
        announce_namesakes(self.workflows, await connected.store.workers(), self.logger)
        announce_retention(settings, self.logger)
        declared = list(self._declared.specs), self._declared_texts()
        workflows = self._registry.with_steps()
        announce_queues(queues, workflows, declared[1], self.logger)
        me = Identity(workflows, queues, self._clock, *declared)
        store = self._workers_store(connected.store)
        context = WorkerContext(
            store,
            settings,
            self._payloads,
            self.logger,
            me,
            connected.observers,
            self._send_signal,
            self.run_logs,
            self._middleware,
            None if self._lifespan is None else Lifespan(self._lifespan, self, self.logger, self._lifespans),
        )
        if connected.transport is None:
            connected.transport = transport_for(
                connected.store, self.transport, self.url, self._pool, self.settings, self._auto_migrate
            )
        worker = Worker(
            context, connected.switchboard, self._new_child, self._declared, self._subscriptions, connected.transport
        )
        connected.workers.add(worker)
        return worker

    def _workers_store(self, store: Store) -> Store:
        """Return the store for the next worker; a lab gives each worker a store that dies with it."""
        return store

    # -- keeping the tables small ------------------------------------------------------------------------------------

    async def prune(
        self,
        older_than: Seconds | None = None,
        *,
        keep: int | None = None,
        archive: str | os.PathLike[str] | None = None,
        status: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Remove runs that ended longer ago than this, but for those that others still need; how many went. With an
        ``archive`` they are written to that file first, one JSON object per line. ``status``: only those that ended so.
        ``keep`` spares that many of each workflow, the newest that ended; it may be given alone. ``dry_run`` only
        counts. Workers do the same by themselves (settings ``retention``, ``retention_failed``)."""
        store = await self.store()
        if keep is not None:
            spared = SparingPrune(store, keep, older_than, status)
            return await (spared.count() if dry_run else spared.run(archive, progress))
        if older_than is None:
            raise ConfigurationError("app.prune takes older_than, keep, or both: prune(older_than=timedelta(days=30))")
        keep_until = keep_for(older_than, status)
        return await (prunable(store, keep_until) if dry_run else prune(store, keep_until, archive, progress))

    # -- the database ------------------------------------------------------------------------------------------------

    async def migrate(self) -> list[str]:
        """Make or update the tables; the names of what was applied. Idempotent, safe when many call at once."""
        return await (await self._connect(migrate=True)).store.migrate()

    async def store(self) -> Store:
        """The store behind this application, for tools."""
        return (await self._connect()).store

    def redirect(
        self, *, url: str | None = None, namespace: str | None = None, auto_migrate: bool | None = None
    ) -> None:
        """Use another database, or another namespace, than the code says. For tools, and only while not connected."""
        if self._connections.open:
            raise ConfigurationError(
                "the database of an application cannot be changed while it is connected; close it first"
            )
        if url is not None:
            self.url, self._pool, self.url_named = parse_url(url), None, True
        if namespace is not None:
            self.namespace = check_namespace(namespace)
        if auto_migrate is not None:
            self._auto_migrate = auto_migrate

    def observe(self, observer: Observer) -> None:
        """Add an observer, which is notified of what happens to runs. Only while not connected."""
        if self._connections.open:
            raise ConfigurationError(
                "an observer cannot be added to an application that is connected. Add it before the first use, or pass "
                "it as Stepfast(observers=[…])"
            )
        self.observers = (*self.observers, check_observer(observer))

    def middleware(self, function: M) -> M:
        """Register a function around every attempt of a run and every try of a step: ``async def with_tenant(call,
        proceed)``, which awaits ``proceed()`` and returns what that gives. The first one registered is the outermost.
        Only while not connected."""
        if self._connections.open:
            raise ConfigurationError(
                "a middleware cannot be added to an application that is connected. Add it before the first use"
            )
        self._middleware = (*self._middleware, check_middleware(function))
        return function

    @property
    def state(self) -> Any:
        """What ``Stepfast(lifespan=…)`` has yielded, for the worker that executes the caller, or else the last one of
        this event loop."""
        app, execution = resolve_app(self), current_execution.get()
        own = None if execution is None else execution.recorder.lifespan
        return state_of(app._lifespans, own if isinstance(own, Lifespan) else None)

    async def close(self) -> None:
        """Disconnect. A worker that is still at work in this event loop is stopped first, as by leaving its block. The
        application can be used again; it then connects again."""
        connected = self._connections.made()
        if connected is not None and any(worker.executes_caller() for worker in connected.workers):
            raise ContextMisuse(
                "app.close() was called in the code of a run that a worker of this application executes: it would wait "
                "for itself. Close the application where the worker was started"
            )
        with self._sync_lock:
            sync, self._sync = self._sync, None
        try:
            if sync is not None:
                await sync.stopped()
        except BaseException:
            self._connections.drop()
            raise
        await self._connections.close()

    async def __aenter__(self) -> Stepfast:
        await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def sync(self) -> SyncApp:
        """Every verb of the application, for code without an event loop."""
        from .sync import SyncApp

        app = resolve_app(self)
        with app._sync_lock:
            if app._sync is None or app._sync.forked:
                app._sync = SyncApp(app)
            return app._sync

    async def _connect(self, migrate: bool = False) -> Connected:
        """Return the resources of this event loop, made on first use."""
        app = resolve_app(self)
        return await app._connections.get(_as_it_is if migrate else app._prepare)

    def _make_store(self) -> Store:
        return open_store(self.url, self.namespace, self.settings, self._pool, self._clock.database_now)

    def _make_observers(self) -> Observers | None:
        return observers_of(self.observers, self.logger, self._clock)

    async def _prepare(self, store: Store) -> None:
        """Make the tables, or check that they exist."""
        if self._auto_migrate:
            await store.migrate()
        else:
            state = await store.schema_state()
            refuse_too_new(state)
            refuse_missing(state, self.namespace)


async def _as_it_is(_: Store) -> None:
    """Leave the tables as they are, for a migration."""


def _named_keys(keys: list[str]) -> str:
    return f"the key {keys[0]!r} was" if len(keys) == 1 else f"{len(keys)} keys were ({keys[0]!r} and others)"


def _checked_keys(keys: Sequence[str] | None, values: list[Any], settings: Settings) -> list[str | None]:
    if keys is None:
        return [None] * len(values)
    return [check_name(key, "the key", settings.max_name) for key in _as_many("keys", keys, values)]


def _as_many(what: str, given: Sequence[str], values: Sequence[Any]) -> Sequence[str]:
    if isinstance(given, str) or len(given) != len(values):
        raise ConfigurationError(f"start_many was given {len(values)} inputs and {len(given)} {what}")
    return given


def _level(level: int | str | None) -> int | None:
    known = logging.getLevelNamesMapping()
    if level is None or (isinstance(level, int) and not isinstance(level, bool)):
        return level
    if level not in known:
        raise ConfigurationError(f"run_logs is a level of logging, as in run_logs='INFO', not {level!r}")
    return known[level]


def _silent_logger() -> logging.Logger:
    logger = logging.getLogger("stepfast")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger
