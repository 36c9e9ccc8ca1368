"""Starting runs: the rows to insert, checked against the code or its definition, and batches of concurrent starts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import msgspec
from msgspec.structs import replace

from .engine.dag import Dag
from .engine.host import Clock
from .engine.observers import Observers
from .engine.options import ChildKeywords, Seconds
from .engine.signals import misfit
from .engine.workflow import Workflow, check_attempts
from .errors import (
    AlreadyRunning,
    AppClosed,
    ConfigurationError,
    DatabaseRefused,
    InvalidInput,
    InvalidState,
    StepfastError,
    UnknownOption,
    UnknownWorkflow,
)
from .model.attributes import Attribute, encode_attributes
from .model.backoff import check_priority, seconds, to_milliseconds
from .model.graph import Graph, read_graph
from .model.ids import child_id
from .model.names import check_name, check_queue, check_signal
from .model.payload import Payloads
from .model.payload_check import first_problem
from .model.queue_config import Bound
from .model.records import (
    CANCEL,
    ON_CONFLICT,
    QUEUE,
    RAISE,
    RETURN,
    Answer,
    Mail,
    NewDagStep,
    NewRun,
    Parent,
    RunShape,
    Unique,
)
from .model.rows import Definition
from .model.status import MAIL_SIGNAL
from .model.transitions.start import Debounce
from .settings import Settings
from .store import Store
from .store.answers import KeysHeld
from .worker.db_retry import patiently
from .worker.notifier import Switchboard, started_lanes

if TYPE_CHECKING:
    from .runtime import Connected


T = TypeVar("T")


class Plan(NamedTuple):
    """What the starts of one call have in common."""

    shape: RunShape
    encode: Callable[[Any], str]
    output_type: Any
    graph: Graph | None = None
    attributes: tuple[Attribute, ...] = ()
    brings_graph: bool = False
    """Whether each run brings a copy of its graph along: the definition may not be stored yet."""

    def runs(self, run_id: str, input: Any, key: str | None = None, parent: Parent | None = None) -> list[NewRun]:
        """The rows of one start: a run, and for a dag its steps."""
        return self.rows(run_id, self.encode(input), key, parent)

    def rows(self, run_id: str, text: str, key: str | None = None, parent: Parent | None = None) -> list[NewRun]:
        """The rows of one start whose input was checked and encoded before."""
        if self.graph is None:
            run = NewRun(run_id, self.shape, text, key, parent)
            if self.attributes:
                run.attributes = self.attributes
            return [run]
        graph = self.graph
        run = NewRun(run_id, self.shape, text, key, parent, graph=graph.version, steps=len(graph.dag_steps))
        run.attributes = self.attributes
        if self.brings_graph:
            run.graph_text = graph.text
        return [run, *(self._step(run_id, name, graph) for name in graph.dag_steps)]

    def _step(self, dag_id: str, name: str, graph: Graph) -> NewRun:
        dag_step = graph.dag_steps[name]
        shape = self.shape._replace(
            workflow=f"{self.shape.workflow}/{name}",
            deadline_ms=None,
            max_attempts=(dag_step.retries or 0) + 1,
            timeout_ms=None if dag_step.timeout is None or dag_step.kind != "step" else int(dag_step.timeout * 1000),
            tags=(),
        )
        new = NewDagStep(dag_id, name, len(graph.dependencies(name)))
        return NewRun(child_id(dag_id, name, 0), shape, "null", graph=graph.version, dag_step=new)


class Planner:
    """Makes plans of starts: checks arguments and options."""

    def __init__(self, workflows: dict[str, Workflow[Any, Any]], payloads: Payloads, settings: Settings) -> None:
        self._workflows = workflows
        self._payloads = payloads
        self._settings = settings
        self._usual: dict[Workflow[Any, Any], Plan] = {}
        """The plans of starts without options, which are the same each time. A dag may still grow."""

    async def plan(
        self, connected: Connected, workflow: Workflow[Any, Any] | str, options: ChildKeywords, joins: bool = False
    ) -> Plan:
        """Return what the starts of one call have in common. ``joins``: they join a transaction of the caller, which
        may hold the only connection, so that no query may be waited for."""
        if (given := options.get("attributes")) is not None:
            attributes = encode_attributes(given, self._settings.max_attributes)
            rest = cast(ChildKeywords, {name: value for name, value in options.items() if name != "attributes"})
            plan = await self.plan(connected, workflow, rest, joins)
            if not joins:  # else the store does so, where it may
                await connected.ask(lambda: connected.store.name_attributes(attributes), "start")
            return plan._replace(attributes=attributes)
        code = self.code(workflow)
        if code is None:
            return self._plan_by_name(await connected.definition(str(workflow), list(self._workflows)), options)
        if not options and code in self._usual and connected.has_stored(code):
            return self._usual[code]
        graph = code.graph if isinstance(code, Dag) else None
        if joins:
            connected.soon(connected.store_definitions([code]))
        else:
            await connected.store_definitions([code])
        plan = self.plan_code(code, options)
        if graph is not None:
            return plan._replace(graph=graph, brings_graph=not connected.has_stored(code))
        if not options:
            self._usual[code] = plan
        return plan

    async def input_text(self, connected: Connected, workflow: str, value: Any) -> str:
        """An input as it is stored, checked as that of a start."""
        return (await self.plan(connected, workflow, {})).encode(value)

    def plan_code(self, code: Workflow[Any, Any], options: ChildKeywords) -> Plan:
        """For code that is here; of a dag without its graph, which may not be complete yet."""
        if isinstance(code, Dag):
            _refuse_for_dag(code.name, options)
        shape = self._shape(Declared(code.name, code.version, code.queue, code.options.deadline), options)

        def encode(value: Any) -> str:
            if not code.takes_input:
                _refuse_input(value, code.name)
            return self._payloads.check_input(value, code.input_type, code.name)

        return Plan(shape, encode, code.output_type)

    def code(self, workflow: Workflow[Any, Any] | str) -> Workflow[Any, Any] | None:
        """Return the code of a workflow; None if only its name is known."""
        if isinstance(workflow, str):
            return self._workflows.get(workflow)
        if not isinstance(workflow, Workflow):
            raise ConfigurationError(f"start takes a workflow or its name, not {workflow!r}")
        if self._workflows.get(workflow.name) is not workflow:
            raise UnknownWorkflow(workflow.name, list(self._workflows))
        return workflow

    def _plan_by_name(self, definition: Definition, options: ChildKeywords) -> Plan:
        """Plan a start without the code, checked against the stored definition."""
        name = definition.name
        if definition.graph is not None:
            _refuse_for_dag(name, options)
        declared = msgspec.json.decode(definition.options)
        schema = None if definition.input_schema is None else msgspec.json.decode(definition.input_schema)
        shape = self._shape(Declared(name, definition.version, definition.queue, declared.get("deadline")), options)

        def encode(value: Any) -> str:
            if not declared.get("takes_input", True):
                _refuse_input(value, name)
            text = self._payloads.check_input(value, Any, name)
            if schema is not None:
                plain = self._payloads.plain(text, self._payloads.format, "the input")
                problem = first_problem(plain, schema)
                if problem is not None:
                    raise InvalidInput(f"the input of {name!r} does not fit: {problem}")
            return text

        if definition.graph is None:
            return Plan(shape, encode, Any, None)
        graph, why = read_graph(definition.graph)
        if graph is None:
            raise ConfigurationError(f"the graph of dag {definition.name!r} {why}; a worker with its code stores it")
        return Plan(shape, encode, Any, graph)

    def _shape(self, declared: Declared, given: ChildKeywords) -> RunShape:
        """What the rows of a start have in common: what was given, and else what is declared."""
        _check_start(given)
        queue, deadline, at = given.get("queue"), given.get("deadline"), given.get("at")
        limit, longest = (
            declared.deadline if deadline is None else seconds(deadline, "deadline"),
            self._settings.max_name,
        )
        return RunShape(
            declared.name,
            declared.version,
            declared.queue if queue is None else check_queue(queue, longest),
            given.get("priority", 0),
            _milliseconds(given.get("delay"), "delay") or 0,
            None if at is None else to_milliseconds(at, "at"),
            _milliseconds(given.get("expires_in"), "expires_in"),
            None if limit is None else int(limit * 1000),
            given.get("max_attempts"),
            _milliseconds(given.get("timeout"), "timeout"),
            tuple(dict.fromkeys(check_name(tag, "a tag", longest) for tag in given.get("tags", ()))),
            None if (key := given.get("concurrency_key")) is None else check_name(key, "concurrency_key", longest),
            format=self._payloads.format,
        )


class Declared(NamedTuple):
    """What the code, or its definition, says of every run."""

    name: str
    version: str
    queue: str
    deadline: float | None


def _check_start(given: ChildKeywords) -> None:
    """What cannot work is refused, whichever workflow is started."""
    check_priority(given.get("priority", 0))
    tags = given.get("tags", ())
    if given.get("delay") is not None and given.get("at") is not None:
        raise ConfigurationError("a start takes delay or at, not both")
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise ConfigurationError(f"tags must be a list of strings, not {tags!r}")
    check_attempts(given.get("max_attempts"))


ONE_INPUT = "; the input is one value, before the options: a dict, a dataclass"
"""A hint for an unknown option, which may be meant as a part of the input."""


def refuse_more(called: str, taken: str, more: tuple[Any, ...]) -> None:
    """Refuse further inputs: a run has one."""
    if more:
        raise UnknownOption(
            f"{called} takes one {taken}, but was given {1 + len(more)} of them. Pass what a run needs as one value: a "
            "dict, a tuple, a dataclass. Options go by name"
        )


def conflicting_keys(runs: Sequence[NewRun], payloads: Payloads) -> list[str]:
    """Return the keys that were used before for a run with another input."""
    return [run.key for run in runs if run.earlier is not None and run.key is not None and _differs(run, payloads)]


def _differs(run: NewRun, payloads: Payloads) -> bool:
    assert run.earlier is not None
    earlier, format_ = run.earlier
    if earlier == run.input:
        return False
    try:  # the same may be written in another order, or encoded again
        return bool(payloads.plain(earlier, format_, "") != payloads.plain(run.input, run.shape.format, ""))
    except Exception:  # an error of the application's codec
        return False


def _milliseconds(value: Seconds | None, what: str) -> int | None:
    return None if value is None else int(seconds(value, what) * 1000)


def _refuse_for_dag(name: str, options: ChildKeywords) -> None:
    """Options that belong to each step of a dag, and would have no effect on its run."""
    for option in ("max_attempts", "timeout"):
        if options.get(option) is not None:
            raise ConfigurationError(
                f"{name!r} is a dag, whose start takes no {option}: say it at each step, "
                f"@dag.step({'timeout' if option == 'timeout' else 'retries'}=…). A deadline holds for the whole run"
            )


def _refuse_input(value: Any, name: str) -> None:
    if value is not None:
        raise InvalidInput(f"{name!r} takes no input, but was given a {type(value).__name__}")


_PATIENCE = 5.0
"""Seconds for which a start is repeated in an outage; the id is made here, so repeating is safe."""

Item = tuple[NewRun, "asyncio.Future[str]"]


class Starter:
    """Collects starts and inserts them together."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        logger: logging.Logger,
        switchboard: Switchboard,
        clock: Clock,
        observers: Observers | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._observers = observers
        self._settings = settings
        self._logger = logger
        self._switchboard = switchboard
        # Starts with a key or a name may have to wait for another transaction; those without must not wait with them.
        self._queues: dict[bool, list[Item]] = {False: [], True: []}
        self._senders: dict[bool, asyncio.Task[None] | None] = {False: None, True: None}
        self._waiting: dict[asyncio.Task[None], tuple[str, str]] = {}
        """Starts that wait for another transaction, each by itself, and the workflow and key of each."""
        self._over = False

    async def start(self, run: NewRun) -> str:
        """The id of the run once it is committed: its own, or that of the run that has its key or its name."""
        if self._over:
            raise AppClosed
        keyed = run.key is not None or run.unique is not None
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if keyed and self._waiting and _keyed(run) in self._waiting.values():
            self._wait_apart((run, future))  # together with others it would only hold them up
            return await future
        self._queues[keyed].append((run, future))
        sender = self._senders[keyed]
        if sender is None or sender.done():
            self._senders[keyed] = asyncio.create_task(self._send(keyed), name="stepfast-start")
        return await future

    async def start_many(self, runs: Sequence[NewRun], bound: Bound | None = None, connection: Any = None) -> list[str]:
        """Start all of these runs, or none of them, as where too many would be ready in their queue (``bound``).

        With a ``connection`` they are part of the caller's transaction. There nothing may be locked, so the number of
        ready runs is read beforehand.
        """
        if connection is not None:
            if bound is not None:
                await self._check(bound, runs)
            ids = await self._store.start_within(connection, runs)
            if self._observers is not None:
                self._observers.starts(runs, ids, joined=True)
            return ids
        if bound is not None:
            ids = await self._ask(lambda: self._store.start_bounded(runs, bound))
        else:
            try:
                ids = await self._insert(runs, at_once=True)
            except KeysHeld:
                ids = await self._insert(runs, at_once=False)
        self._started(runs, ids)
        return ids

    async def _check(self, bound: Bound, runs: Sequence[NewRun]) -> None:
        ready = await self._store.count_ready(bound.queue, bound.beyond(len(runs)))
        new = [run for run in runs if begins_ready(run)]
        if ready + len(new) > bound.most:
            bound.check(ready, ready + sum([not await self._has_run(run) for run in new]))

    async def _has_run(self, run: NewRun) -> bool:
        """Whether another run has its key or its name already."""
        if run.unique is not None:
            return await self._store.run_with_name(run.shape.workflow, run.unique.name) is not None
        found = run.key and await self._store.runs(workflow=run.shape.workflow, key=run.key, limit=1)
        return bool(found)

    async def start_debounced(self, run: NewRun, debounce: Debounce) -> str:
        """Return the id of the run that waits for more starts of the key: this one, or an earlier one, put off."""
        if self._over:
            raise AppClosed
        done = await self._ask(lambda: self._store.start_debounced(run, debounce))
        if done.lane is not None:
            self._switchboard.ready([done.lane])
        self._started([run], [done.run_id])
        return done.run_id

    def drop(self) -> list[asyncio.Task[None]]:
        """Fail all pending starts. Return the tasks, to be cancelled."""
        self._over = True
        for items in self._queues.values():  # a sender that is cancelled before its first step cannot tell them
            _fail(items, AppClosed())
            items.clear()
        return [*(task for task in self._senders.values() if task is not None), *self._waiting]

    async def _send(self, keyed: bool) -> None:
        try:
            while self._queues[keyed]:
                items, self._queues[keyed] = self._queues[keyed], []
                self._queues[keyed] = items[self._settings.start_batch :]
                await self._send_batch(items[: self._settings.start_batch])
        except asyncio.CancelledError:
            _fail(self._queues[keyed], AppClosed())
            raise

    def _wait_apart(self, item: Item) -> None:
        """Start it by itself, waiting for the transaction that holds its key, unless its caller is cancelled."""
        if self._over:
            _fail([item], AppClosed())
            return
        run, future = item
        task = asyncio.create_task(self._send_batch([item], at_once=False), name="stepfast-start")
        self._waiting[task] = _keyed(run)

        def over(_: object) -> None:
            del self._waiting[task]
            _fail([item], AppClosed())  # if it was cancelled before it had begun

        task.add_done_callback(over)
        future.add_done_callback(lambda future: task.cancel() if future.cancelled() else None)

    async def _send_batch(self, items: list[Item], at_once: bool = True) -> None:
        runs = [run for run, _ in items]
        try:
            ids = await self._insert(runs, at_once)
        except KeysHeld:
            for item in sorted(items, key=lambda item: _keyed(item[0])):
                if not item[1].done():
                    self._wait_apart(item)
        except DatabaseRefused as error:
            if len(items) > 1:
                await self._send_one_by_one(items)
            else:
                _fail(items, error)
        except StepfastError as error:
            _fail(items, error)
        except asyncio.CancelledError:
            _fail(items, AppClosed("the application was closed; the run may have been started or not: look for it"))
            raise
        except Exception as error:
            self._logger.exception("start: unexpected error")
            _fail(items, error)
        else:
            for (_, future), run_id in zip(items, ids, strict=True):
                if not future.done():
                    future.set_result(run_id)
            self._started(runs, ids)

    async def _send_one_by_one(self, items: list[Item]) -> None:
        """Start each by itself, so that one bad start does not fail the others."""
        try:
            for item in items:
                await self._send_batch([item])
        except asyncio.CancelledError:
            _fail(items, AppClosed())  # those whose turn had not come
            raise

    async def _insert(self, runs: Sequence[NewRun], at_once: bool) -> list[str]:
        return await self._ask(lambda: self._store.start(runs, at_once))

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T:
        return await patiently(call, "start", self._logger, self._clock, _PATIENCE)

    def _started(self, runs: Sequence[NewRun], ids: Sequence[str]) -> None:
        """Wake workers and notify observers of committed runs."""
        self._wake(runs)
        for run in runs:
            if run.unique is not None and run.unique.answer is not None:
                self._wake_holder(run.unique.answer)
        if self._observers is not None:
            self._observers.starts(runs, ids)

    def _wake_holder(self, answer: Answer) -> None:
        """Wake workers for a run that was sent the signal of a start."""
        if answer.lane is not None:
            self._switchboard.ready([answer.lane])
        if answer.done:
            self._switchboard.tick_everywhere()

    def _wake(self, runs: Sequence[NewRun]) -> None:
        ready, later = started_lanes(runs)
        if ready:
            self._switchboard.ready(ready)
        if later and any(0 < run.shape.delay_ms < self._settings.poll_interval * 1000 for run in runs):
            self._switchboard.tick_soon()


def _keyed(run: NewRun) -> tuple[str, str]:
    """The workflow, and the key or the name of a start, which together stand for one run."""
    return run.shape.workflow, (run.key if run.unique is None else run.unique.name) or ""


def _fail(items: list[Item], error: BaseException) -> None:
    for _, future in items:
        if not future.done():
            future.set_exception(error)


def check_debounce(
    debounce: Seconds | None, longest: Seconds | None, key: str | None, connection: Any, options: ChildKeywords
) -> Debounce | None:
    """Check the debouncing of a start; None without any."""
    if debounce is None:
        if longest is not None:
            raise ConfigurationError("debounce_max goes with debounce: start(…, key=…, debounce=5, debounce_max=60)")
        return None
    if key is None:
        raise ConfigurationError("debounce goes with a key: start(…, key=…, debounce=5). Starts of one key are one run")
    if connection is not None:
        raise ConfigurationError(
            "a start with debounce cannot join a transaction: it changes the run that waits, and would keep it locked "
            "for as long as yours is open. Start it after your commit"
        )
    for name in ("delay", "at"):
        if options.get(name) is not None:
            raise ConfigurationError(f"a start takes debounce or {name}, not both: debounce says when it is due")
    wait, most = seconds(debounce, "debounce"), None if longest is None else seconds(longest, "debounce_max")
    if wait == 0:
        raise ConfigurationError("debounce must be more than 0 seconds")
    if most is not None and most < wait:
        raise ConfigurationError(f"debounce_max ({most:g} s) must not be shorter than debounce ({wait:g} s)")
    return Debounce(max(1, int(wait * 1000)), None if most is None else int(most * 1000))


Signal = tuple[str, Any]
"""The name and the value of a signal."""


class UniqueNames:
    """Checks the starts by name of one call, and makes what the store is to know of them."""

    def __init__(self, payloads: Payloads, on_conflict: str | None, signal: Signal | None, named: bool) -> None:
        if not named and (on_conflict is not None or signal is not None):
            given = "signal" if on_conflict is None else "on_conflict"
            raise ConfigurationError(f'{given} goes with unique: start(…, unique="c-17", {given}=…)')
        if on_conflict is not None and on_conflict not in ON_CONFLICT:
            words = ", ".join(map(repr, ON_CONFLICT))
            raise ConfigurationError(f"on_conflict must be one of {words}, not {on_conflict!r}")
        self._payloads = payloads
        self._on_conflict = on_conflict or RETURN
        self._signal = signal
        self._text: str | None = None
        if signal is not None:
            if not isinstance(signal, tuple) or len(signal) != 2:
                raise ConfigurationError('signal must be a tuple of a name and a value, as in signal=("message", text)')
            check_signal(signal[0], payloads.settings.max_name)
            self._text = payloads.encode(signal[1], f"the value of signal {signal[0]!r}")

    def unique(self, name: object, plan: Plan, next_id: Callable[[], str], together: bool = False) -> Unique:
        """What a start by this name asks for."""
        checked, mail = check_name(name, "the unique name", self._payloads.settings.max_name), None
        if self._signal is not None:
            if plan.graph is not None and self._signal[0] not in plan.graph.dag_steps:
                raise InvalidInput(f"dag {plan.shape.workflow!r} has no step {self._signal[0]!r}; {SIGNAL_TO_DAG}")
            mail = Mail("", next_id(), MAIL_SIGNAL, self._signal[0], self._text, format=self._payloads.format)
        if self._on_conflict in (CANCEL, QUEUE) and (plan.shape.delay_ms or plan.shape.at_ms is not None):
            raise ConfigurationError(
                f"a start with on_conflict={self._on_conflict!r} takes neither delay nor at: it begins when the run "
                "that has its name has ended"
            )
        return Unique(checked, self._on_conflict, mail, together, check=not together)


async def start_unique(connected: Connected, runs: list[NewRun], payloads: Payloads, connection: Any) -> str:
    """Start a run by its name; its id, or that of the run that has the name. AlreadyRunning where that is refused."""
    run, unique = runs[0], runs[0].unique
    assert unique is not None
    if unique.signal is not None:
        unique.signal.trace = run.trace
    while True:
        bound = connected.bounds.of(runs)
        if bound is None and connection is None and len(runs) == 1:
            run_id = await connected.starter.start(run)
        else:
            run_id = (await connected.starter.start_many(runs, bound, connection))[0]
        if unique.holder is not None and unique.on_conflict == RAISE:
            raise AlreadyRunning(unique.name, unique.holder)
        if unique.answer is None or unique.answer.done or unique.signal is None:
            return run_id
        if not unique.answer.awaited:
            raise InvalidState(f"run {run_id} has no unfinished step {unique.signal.name!r}; {SIGNAL_TO_DAG}")
        check_value(payloads, replace(unique.signal, run_id=run_id), unique.answer.awaited)
        unique.check = False


SIGNAL_TO_DAG = "a signal to a dag run names its step"


def check_value(payloads: Payloads, mail: Mail, plans: list[str]) -> None:
    """Refuse a value that is not of the type which the run waits for: here the sender can correct it."""
    problem = misfit(payloads.plain(mail.value, mail.format, "the value"), plans)
    if problem is not None:
        what = f"the value of signal {mail.name!r}"
        raise InvalidInput(f"{what} does not fit what run {mail.run_id} waits for, and was not sent: {problem}")


def debounced(plan: Plan, debounce: Debounce) -> Plan:
    """Return the plan of a debounced start. Dags are refused: their runs begin when they are started."""
    if plan.graph is not None:
        raise ConfigurationError(
            f"{plan.shape.workflow!r} is a dag, whose start takes no debounce: debounce a task that starts it"
        )
    return plan._replace(shape=plan.shape._replace(delay_ms=debounce.wait_ms))


_FRESH = 0.5
"""Seconds for which an answer is used, so that a change applies within a second."""


class Bounds:
    """The bounds of queues (``max_ready``), cached."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._bounds: dict[str, int] = {}
        self._asked_at = float("-inf")
        self._asks = self._answered = self._outdated = 0
        """The number of queries; the last one answered; the last one before a change was made here."""
        self._asking: asyncio.Task[None] | None = None
        self.known = False
        """Whether there is an answer since the last change here."""

    async def learn(self) -> None:
        """Query the bounds. An answer is dropped if a later query was answered before, and does not count as known if a
        change was made here since its query."""
        self._asks += 1
        this, asked_at = self._asks, self._clock.now()
        bounds = await self._store.queue_bounds()
        if this > self._answered:
            self._bounds, self._answered, self._asked_at = bounds, this, asked_at
        if this > self._outdated:
            self.known = True

    def forget(self) -> None:
        """Note a change of a queue made here: the next start queries first."""
        self._outdated, self.known = self._asks, False

    def of(self, runs: Sequence[NewRun]) -> Bound | None:
        """Return the bound of the queue of these runs; None if it has none, or none of them begins ready.

        The answer may be a second old.
        """
        if self._clock.now() - self._asked_at > _FRESH and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask_again(), name="stepfast-bounds")
        queue = runs[0].shape.queue
        most = self._bounds.get(queue)
        return None if most is None or not any(map(begins_ready, runs)) else Bound(queue, most)

    async def _ask_again(self) -> None:
        try:
            await self.learn()
        except StepfastError:
            self._asked_at = self._clock.now()  # what was known holds until the database is back

    def drop(self) -> list[asyncio.Task[None]]:
        """Return the task of a query, to be cancelled."""
        return [] if self._asking is None else [self._asking]


def begins_ready(run: NewRun) -> bool:
    """Whether a start makes a run ready at once: not one that was put off, nor a dag run, whose first steps do."""
    later = run.shape.delay_ms or run.shape.at_ms is not None
    return not (later or run.steps or (run.dag_step is not None and run.dag_step.pending))
