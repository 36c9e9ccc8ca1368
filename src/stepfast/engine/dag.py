"""``app.dag``: a workflow declared as steps and edges, and what a step of one is given."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar, Unpack, overload

import msgspec

from ..errors import ConfigurationError, ContextMisuse, GraphError, NonRetryableError, SignalTimeout
from ..model.backoff import seconds
from ..model.graph import APPROVAL, STEP, DagStep, Graph, mermaid
from ..model.names import check_name, check_signal, refuse_unknown
from ..model.payload import Payloads
from ..model.rows import Definition
from ..model.status import DAG, DAG_STEP
from ..settings import Settings
from .context import Context
from .execution import Execution
from .function_spec import name_of
from .options import (
    After,
    Catch,
    DagKeywords,
    DagPlaceKeywords,
    DagRemoteKeywords,
    DagStepKeywords,
    RemoteKeywords,
    Seconds,
    ServedKeywords,
    shows_options,
)
from .outcomes import type_name
from .remote_step import is_served_elsewhere, served_elsewhere
from .step import NO_OPTIONS, StepFunction, StepOptions, recorded_name, step_options
from .sync_context import SyncContext
from .workflow import Workflow, WorkflowOptions, workflow_options

F = TypeVar("F", bound=Callable[..., Any])


_OF_STEPS = tuple(DagPlaceKeywords.__annotations__)
_OF_REMOTE = (*ServedKeywords.__annotations__, "type")
"""Which options of ``dag.remote`` are those of any step of a dag, and which go out with it."""


class Skip:
    """What a step returns that is to count as skipped."""


SKIP = Skip()


class DagStepCode(NamedTuple):
    """The functions of one step of a dag."""

    function: Callable[..., Any]
    when: Callable[[Any], Any] | None = None
    undo: Callable[[Any], Any] | None = None


class DagStepWorkflow(Workflow[Any, Any]):
    """The code of one step of a dag, as workers know it."""

    def __init__(
        self,
        dag: str,
        dag_step: DagStep,
        code: DagStepCode,
        options: WorkflowOptions,
        scope: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(code.function, DAG_STEP, f"{dag}/{dag_step.name}", options, scope)
        if self.takes_input:
            raise ConfigurationError(
                f"step {dag_step.name!r} of dag {dag!r} must take the context alone; the input is ctx.input"
            )
        self.dag = dag
        self.dag_step = dag_step
        self.when = code.when
        self.undo = code.undo

    def as_in(self, dag_step: DagStep) -> DagStepWorkflow | None:
        """The code for a run whose graph has this step so. What is an approval in the graph waits as the graph says,
        even if the code has something else of its name by now. None: the graph has a function, the code an approval."""
        if dag_step.kind == APPROVAL:
            return self if dag_step == self.dag_step else approval_step(self.dag, dag_step, self.options.queue)
        return self if self.dag_step.kind == dag_step.kind else None


@shows_options
class Dag(Workflow[Any, dict[str, Any]]):
    """A declared graph. The result of a run is a mapping of step name to output; a skipped step is absent."""

    def __init__(self, name: str, options: WorkflowOptions, settings: Settings) -> None:
        super().__init__(_finish, DAG, name, options)
        self.takes_input = True
        self.steps: dict[str, DagStepWorkflow] = {}
        self._settings = settings
        self._duplicates: list[str] = []
        self._named: dict[Callable[..., Any], str] = {}
        """Functions that were declared, by which others may name their step."""
        self._graph: Graph | None = None

    def __repr__(self) -> str:
        return f"<dag {self.name}>"

    # -- declaring -------------------------------------------------------------------------------------------------

    @overload
    def step(self, function: F, /) -> F: ...
    @overload
    def step(self, function: None = None, /, **options: Unpack[DagStepKeywords]) -> Callable[[F], F]: ...
    def step(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a step: ``@fulfil.step(after=["validate_stock"], retries=3, compensate=refund)``.

        ``after`` names the steps it comes after (or gives their functions). ``join="any"`` begins with the first of
        them that completes, ``at_least=k`` with k. ``when(ctx)`` decides whether it is done or skipped. ``catch``
        maps error types to the step to go to instead of failing. A function declared with ``@step`` brings its options.
        """
        scope = sys._getframe(1).f_locals
        refuse_unknown(f"a step of dag {self.name!r}", options, DagStepKeywords.__annotations__)

        def declare(wrapped: Callable[..., Any]) -> Callable[..., Any]:
            self.declare(wrapped, scope=scope, **options)
            return wrapped

        return declare if function is None else declare(function)

    def declare(
        self, function: Callable[..., Any], scope: dict[str, Any] | None = None, **given: Unpack[DagStepKeywords]
    ) -> None:
        """Add a step to the graph."""
        if not callable(function):
            raise ConfigurationError(f"a step of dag {self.name!r} must be a function, not {function!r}")
        plain, own = function, NO_OPTIONS
        if isinstance(function, StepFunction):
            plain, own = function.function, function.options
            if own.retry_on is not None or own.give_up_on is not None or own.at_most_once:
                raise ConfigurationError(
                    f"{name_of(plain)} has retry_on, give_up_on or at_most_once, which only ctx.step(…) applies: call "
                    f"it by ctx.step in a step of dag {self.name!r}"
                )
        name = given.get("name")
        called = (own.name or name_of(plain)) if name is None else name
        check_name(called, f"the name of a step of dag {self.name!r}", self._settings.max_name)
        self._add(self._step(called, plain, own, scope, given))
        self._named[function] = self._named[plain] = called

    def _step(
        self, name: str, function: Callable[..., Any], own: StepOptions, scope: dict[str, Any] | None,
        given: DagStepKeywords,
    ) -> DagStepWorkflow:  # fmt: skip
        """A step as workers know it, of checked options."""
        join, at_least, when, catch = (
            given.get("join", "all"),
            given.get("at_least"),
            given.get("when"),
            given.get("catch"),
        )
        with self._naming(name):
            check_join(join, at_least)
            said = step_options(
                "@dag.step",
                retries=given.get("retries"),
                backoff=given.get("backoff"),
                timeout=given.get("timeout"),
                compensate=given.get("compensate"),
            ).over(own)
            check_takes_context(when, "when")
            check_takes_context(said.compensate, "compensate")
            before, caught = self._names(given.get("after", ())), self._caught({} if catch is None else catch)
        retries = self._settings.dag_retries if said.retries is None else said.retries
        undo = None if said.compensate is None else recorded_name(said.compensate)
        needed = 1 if join == "any" else at_least
        in_graph = None if is_served_elsewhere(function) else retries  # the order of a remote step has its own
        dag_step = DagStep(name, before, needed, STEP, when is not None, undo, caught, in_graph, said.timeout)
        options = WorkflowOptions(self.queue, 1 + retries, said.timeout, None, said.backoff)
        return DagStepWorkflow(self.name, dag_step, DagStepCode(function, when, said.compensate), options, scope)

    def approval(
        self,
        name: str,
        *,
        after: After = (),
        timeout: Seconds | None = None,
        on_timeout: Literal["fail", "skip", "approve"] = "fail",
    ) -> None:
        """A person approves or refuses: the step waits for ``run.signal(name, value)``. The value is its output; False
        fails it."""
        check_name(name, f"the name of an approval of dag {self.name!r}", self._settings.max_name)
        with self._naming(name):
            check_signal(name, self._settings.max_name)
            if on_timeout not in ("fail", "skip", "approve"):
                raise ConfigurationError(f'on_timeout must be "fail", "skip" or "approve", not {on_timeout!r}')
            limit = None if timeout is None else seconds(timeout, "the timeout of an approval")
            before = self._names(after)
        dag_step = DagStep(name, before, kind=APPROVAL, retries=0, timeout=limit, on_timeout=on_timeout)
        self._add(approval_step(self.name, dag_step, self.queue))

    def remote(
        self, name: str, *, handler: str | None = None, input: Callable[[Any], Any] | None = None,
        **given: Unpack[DagRemoteKeywords],
    ) -> None:  # fmt: skip
        """A step that workers elsewhere serve, as by ``ctx.remote``: ``fulfil.remote("pages.read", after=["scan"])``.
        ``input(ctx)`` makes its input; by default that is the input of the run and the outputs of the steps before."""
        refuse_unknown(f"dag.remote of dag {self.name!r}", given, DagRemoteKeywords.__annotations__)
        longest = self._settings.max_name
        check_name(name, f"the name of a step of dag {self.name!r}", longest)
        own: DagStepKeywords = {key: given[key] for key in _OF_STEPS if key in given}  # type: ignore[literal-required,assignment]
        options: RemoteKeywords = {key: given[key] for key in _OF_REMOTE if key in given}  # type: ignore[literal-required,assignment]
        options.setdefault("retries", self._settings.dag_retries)
        with self._naming(name):
            check_takes_context(input, "input")
            before = self._names(given.get("after", ()))
            served = served_elsewhere(handler or name, input, before, given.get("compensate"), options, longest)
        served.function.__module__ = sys._getframe(1).f_globals.get("__name__", __name__)  # a graph is from there
        undo = NO_OPTIONS if served.undo is None else StepOptions(compensate=served.undo)
        self._add(self._step(name, served.function, undo, None, {**own, "retries": 0}))

    def _add(self, step: DagStepWorkflow) -> None:
        if step.dag_step.name in self.steps:
            self._duplicates.append(f"there are two steps named {step.dag_step.name!r}")
        self.steps[step.dag_step.name] = step
        if step.dag_step.kind == STEP:
            self.module = step.module  # a graph is from where its functions are
        self._graph, self.version = None, ""  # not known before the graph is asked for

    @contextmanager
    def _naming(self, step: str) -> Iterator[None]:
        """What is wrong with the options of a step is said with its name."""
        try:
            yield
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._prefix(step)}{error}") from None

    def _prefix(self, step: str) -> str:
        return f"step {step!r} of dag {self.name!r}: "

    def _names(self, after: After) -> tuple[str, ...]:
        if isinstance(after, str):
            raise ConfigurationError(f"after must be a list of steps, not the string {after!r}")
        if not isinstance(after, Iterable):
            raise ConfigurationError(f"after must be a list of steps, not {after!r}")
        return tuple(self._name(step, "after") for step in after)

    def _name(self, step: str | Callable[..., Any], where: str) -> str:
        if isinstance(step, str):
            return step
        if not callable(step):
            raise ConfigurationError(f"{where} takes names of steps, or their functions, not {step!r}")
        return self._named.get(step) or name_of(step)

    def _caught(self, catch: Catch) -> dict[str, str]:
        """The name of an exception class → the step to go to."""
        if not isinstance(catch, Mapping):
            raise ConfigurationError(f"catch must map exception classes to steps, and is {catch!r}")
        found: dict[str, str] = {}
        for key, target in catch.items():
            kinds = key if isinstance(key, tuple) else (key,)
            if not kinds or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
                raise ConfigurationError(f"catch takes classes of Exception, or tuples of them, not {key!r}")
            for kind in map(type_name, kinds):
                if kind in found:
                    raise ConfigurationError(f"catch has {kind} twice")
                found[kind] = self._name(target, f"catch of {kind}")
        return found

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def graph(self) -> Graph:
        """The graph of this dag, checked: GraphError lists everything that is wrong with it."""
        if self._graph is None:
            graph = Graph(step.dag_step for step in self.steps.values())
            problems = [*self._duplicates, *graph.problems()]
            if problems:
                raise GraphError(self.name, problems)
            self._graph = graph
            self.version = graph.version
        return self._graph

    def definition(self) -> Definition:
        """What is stored of it: the graph too, so that runs in flight keep theirs when the code changes."""
        options = {"deadline": self.options.deadline, "takes_input": True}
        text = msgspec.json.encode(options).decode()
        graph = self.graph
        return Definition(self.name, graph.version, DAG, self.queue, text, None, graph.text)

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart, for documents."""
        return mermaid(self.graph)


def check_join(join: object, at_least: object) -> None:
    """How many dependencies have to complete is said in one way, and as a number."""
    if join not in ("all", "any"):
        raise ConfigurationError(f'join must be "all" or "any" (or say at_least=k), not {join!r}')
    if at_least is None:
        return
    if isinstance(at_least, bool) or not isinstance(at_least, int) or at_least < 1:
        raise ConfigurationError(f"at_least must be a whole number of one or more, not {at_least!r}")
    if join == "any":
        raise ConfigurationError('a step takes join="any" or at_least, not both')


def check_takes_context(function: object, option: str) -> None:
    """Refuse what is given for an option unless it is None, or a function that can be called with a context and nothing
    else."""
    if function is None:
        return
    if not callable(function):
        raise ConfigurationError(f"{option} must be a function of the context, not {function!r}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some of those written in C do not say
        return
    try:
        signature.bind(None)
    except TypeError:
        raise ConfigurationError(
            f"{option} must be a function of the context alone; {name_of(function)} takes {signature}"
        ) from None


def approval_step(dag: str, dag_step: DagStep, queue: str | None) -> DagStepWorkflow:
    """An approval, as workers know it."""
    return DagStepWorkflow(dag, dag_step, DagStepCode(approval_handler(dag_step)), WorkflowOptions(queue, 1))


def approval_handler(dag_step: DagStep) -> Callable[[Any], Awaitable[Any]]:
    """The code of an approval: an ordinary wait for a signal."""

    async def approve(ctx: Any) -> Any:
        try:
            value = await ctx.wait_signal(dag_step.name, timeout=dag_step.timeout)
        except SignalTimeout:
            if dag_step.on_timeout == "approve":
                return True
            if dag_step.on_timeout == "skip":
                return SKIP
            raise
        if value is False:
            raise NonRetryableError(f"{dag_step.name!r} was not approved")
        return value

    return approve


def dag_from_spec(
    name: str, spec: Mapping[str, Any], handlers: Mapping[str, Any], options: WorkflowOptions, settings: Settings
) -> Dag:
    """A graph that comes as data: ``{"steps": {name: {"retries": 3, "timeout": 10}}, "dag": {name: [dependencies]}}``,
    and the functions by name (a function, or ``{"run": …, "compensate": …}``). Everything wrong with it is reported
    together."""
    if not isinstance(spec, Mapping):
        raise GraphError(name, [f'a specification is a mapping with "steps" and "dag", not {spec!r}'])
    steps, edges = spec.get("steps"), spec.get("dag", {})
    if not isinstance(steps, Mapping) or not isinstance(edges, Mapping):
        raise GraphError(name, ['a specification has "steps" and "dag", each a mapping of step names'])
    if not isinstance(handlers, Mapping):
        raise GraphError(name, [f"the handlers must be a mapping of step names to functions, not {handlers!r}"])
    problems = _spec_problems(steps, edges, handlers)
    dag = Dag(name, options, settings)
    for step, config in steps.items():
        try:
            _declare(dag, step, config, handlers.get(step), edges.get(step, ()))
        except ConfigurationError as error:
            problems.append(f"step {step!r}: {str(error).removeprefix(dag._prefix(step))}")
    if len(dag.steps) == len(steps):
        problems += Graph(step.dag_step for step in dag.steps.values()).problems()
    if problems:
        raise GraphError(name, problems)
    return dag


def _declare(dag: Dag, step: str, config: Any, handler: Any, after: Any) -> None:
    """A step as it is given; what is wrong with its parts has been said."""
    config = config if isinstance(config, Mapping) else {}
    parts = handler if isinstance(handler, Mapping) else {"run": handler}
    dag.declare(
        parts.get("run") or _missing,
        name=step,
        after=after if _is_list(after) else (),
        retries=config.get("retries", config.get("max_retries", config.get("maxRetries"))),
        timeout=config.get("timeout"),
        compensate=parts.get("compensate"),
        when=parts.get("when"),
    )


_KNOWN = {"retries", "max_retries", "maxRetries", "timeout", "compensate"}


def _spec_problems(steps: Mapping[str, Any], edges: Mapping[str, Any], handlers: Mapping[str, Any]) -> list[str]:
    """Where steps, edges and handlers do not fit together."""
    found = [f"step {step!r} has no handler" for step in steps if not _has_handler(handlers, step)]
    found += [
        f"there is a handler for {step!r}, which is not among the steps" for step in handlers if step not in steps
    ]
    found += [f"the dag names {step!r}, which is not among the steps" for step in edges if step not in steps]
    found += [
        f"the dependencies of step {step!r} must be a list, not {before!r}"
        for step, before in edges.items()
        if not _is_list(before)
    ]
    for step, config in steps.items():
        if not isinstance(config, Mapping):
            found.append(f"the options of step {step!r} must be a mapping")
            continue
        found += [f"step {step!r} has an unknown option {option!r}" for option in config if option not in _KNOWN]
    return found


async def _missing(ctx: Any) -> None:
    """In place of a handler that is not there, so that the rest can be checked."""
    raise NotImplementedError


def _has_handler(handlers: Mapping[str, Any], step: str) -> bool:
    handler = handlers.get(step)
    return (handler.get("run") if isinstance(handler, Mapping) else handler) is not None


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


def dag_options(said_by: str, **given: Unpack[DagKeywords]) -> WorkflowOptions:
    """The options of a dag, checked."""
    refuse_unknown(said_by, given, DagKeywords.__annotations__)
    return workflow_options(said_by, queue=given.get("queue"), deadline=given.get("deadline"))


async def _finish(ctx: Any, input: Any = None) -> dict[str, Any]:
    """The code of a dag run itself; what it does is in ``dag_run``."""
    raise NotImplementedError


Known = Mapping[str, tuple[str | None, int, int]]
"""Step → (output, its format, when it was completed)."""


class Outputs(Mapping[str, Any]):
    """The outputs of completed steps that come before one, as they were when it became ready."""

    def __init__(self, graph: Graph, dag_step: str | None, known: Known, until: int | None, payloads: Payloads) -> None:
        self._graph = graph
        self._dag_step = dag_step
        self._known = known
        self._until = until
        self._payloads = payloads
        self._before: set[str] | None = None

    def __getitem__(self, step: str) -> Any:
        if not self._has(step):
            raise KeyError(self._why_not(step))
        output, format_, _ = self._known[step]
        return self._payloads.plain(output, format_, f"the output of step {step!r}")

    def __iter__(self) -> Iterator[str]:
        return (step for step in self._graph.dag_steps if self._has(step))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def _has(self, step: object) -> bool:
        if step not in self._known or (self._dag_step is not None and step not in self._earlier()):
            return False
        return self._until is None or self._known[step][2] <= self._until  # type: ignore[index]

    def __contains__(self, step: object) -> bool:
        return self._has(step)

    def _earlier(self) -> set[str]:
        if self._before is None:
            assert self._dag_step is not None
            self._before = self._graph.ancestors(self._dag_step)
        return self._before

    def _why_not(self, step: str) -> str:
        if step not in self._graph.dag_steps:
            return f"there is no step {step!r} in this dag"
        if self._dag_step is not None and step not in self._earlier():
            return f"step {step!r} does not come before {self._dag_step!r}; name it in after="
        return f"step {step!r} has no output: it was skipped, failed, or is not done yet"


class DagView:
    """What a step of a dag sees of its run."""

    def __init__(self, graph: Graph, input: Any, known: Known, unreadable: Exception | None = None) -> None:
        self.graph = graph
        self.input = input
        self.known = known
        self.unreadable = unreadable
        """Why the input of the dag run cannot be read, if so. Its steps can come to their ends all the same."""


class _DagFacts:
    """What both contexts of a step have beside the usual calls."""

    _execution: Execution

    input: Any
    outputs: Outputs
    step_name: str
    output: Any = None
    """In a compensation: what the step had returned."""

    def _tell(self, execution: Execution, view: DagView, dag_step: str | None) -> None:
        claimed = execution.claimed
        self.input = view.input
        self.step_name = dag_step or ""
        self.outputs = Outputs(view.graph, dag_step, view.known, claimed.ready_at, execution.recorder.payloads)

    @property
    def run_id(self) -> str:
        """The id of the dag run."""
        return self._execution.claimed.dag_id or self._execution.run_id

    def continue_as(self, input: Any = None) -> NoReturn:
        """Not for a step: others wait for its output."""
        raise ContextMisuse("ctx.continue_as is for workflows; a step of a dag run cannot go on as another run")


class DagContext(_DagFacts, Context):
    """The context of an ``async def`` step of a dag."""

    def __init__(self, execution: Execution, view: DagView, dag_step: str | None) -> None:
        Context.__init__(self, execution)
        self._tell(execution, view, dag_step)


class DagSyncContext(_DagFacts, SyncContext):
    """The context of a plain ``def`` step, which runs in a thread."""

    def __init__(
        self, execution: Execution, loop: asyncio.AbstractEventLoop, view: DagView, dag_step: str | None
    ) -> None:
        SyncContext.__init__(self, execution, loop)
        self._tell(execution, view, dag_step)
