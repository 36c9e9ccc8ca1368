"""The registry of workflows: ``@app.task``, ``@app.workflow``, and the names in use."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, Unpack, overload

from .engine.context import Context
from .engine.dag import Dag
from .engine.options import WorkflowKeywords, shows_options
from .engine.sync_context import SyncContext
from .engine.workflow import Workflow, workflow_options
from .errors import ConfigurationError
from .model.names import check_name, check_queue
from .settings import Settings

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741


class Registry:
    """The workflows of one application, by name."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.workflows: dict[str, Workflow[Any, Any]] = {}

    def add(self, workflow: Workflow[Any, Any]) -> None:
        """Register a workflow. The same code may come again, as when a module is loaded twice."""
        known = self.workflows.get(workflow.name)
        if known is not None and known.version != workflow.version:
            raise ConfigurationError(f"there is already a {known.kind} named {workflow.name!r}; names must differ")
        self._check_names(workflow)
        self.workflows[workflow.name] = workflow

    def add_dag(self, dag: Dag) -> Dag:
        """Register a dag. It has no steps yet, so it cannot be compared with another one of its name."""
        known = self.workflows.get(dag.name)
        if known is not None:
            raise ConfigurationError(f"there is already a {known.kind} named {dag.name!r}; names must differ")
        self._check_names(dag)
        self.workflows[dag.name] = dag
        return dag

    def _check_names(self, workflow: Workflow[Any, Any]) -> None:
        """Check names by the limit of this application."""
        limit = self._settings.max_name
        check_name(workflow.name, f"the name of a {workflow.kind}", limit)
        if workflow.options.queue is not None:
            check_queue(workflow.options.queue, limit)

    def with_steps(self) -> dict[str, Workflow[Any, Any]]:
        """Return all that a worker can execute: workflows, and the steps of dags, which are rows of their own."""
        found = dict(self.workflows)
        for dag in self.workflows.values():
            for step in dag.steps.values() if isinstance(dag, Dag) else ():
                if step.name in found:
                    kind = found[step.name].kind
                    raise ConfigurationError(
                        f"{kind} {step.name!r} has the name of a step of dag {dag.name!r}; rename one"
                    )
                found[step.name] = step
        return found


class _Decorator:
    """What ``@app.task`` and ``@app.workflow`` do, with or without options."""

    def __init__(self, registry: Registry, kind: str, options: WorkflowKeywords | None = None) -> None:
        self._registry = registry
        self._kind = kind
        self._given: WorkflowKeywords = options or {}
        self._options = workflow_options(f"@app.{kind}", **self._given)

    def _decorate(self, function: Any, given: WorkflowKeywords, scope: dict[str, Any]) -> Any:
        if given or function is None:
            chosen = type(self)(self._registry, self._kind, {**self._given, **given})
            return chosen if function is None else chosen._decorate(function, {}, scope)
        workflow: Workflow[Any, Any] = Workflow(function, self._kind, self._given.get("name"), self._options, scope)
        self._registry.add(workflow)
        return workflow


@shows_options
class TaskDecorator(_Decorator):
    """What ``@app.task`` is, with options or without."""

    @overload
    def __call__(self, function: Callable[[I], Awaitable[O]], /) -> Workflow[I, O]: ...
    @overload
    def __call__(self, function: Callable[[], Awaitable[O]], /) -> Workflow[None, O]: ...
    @overload
    def __call__(self, function: Callable[[I], O], /) -> Workflow[I, O]: ...
    @overload
    def __call__(self, function: Callable[[], O], /) -> Workflow[None, O]: ...
    @overload
    def __call__(self, function: None = None, /, **options: Unpack[WorkflowKeywords]) -> TaskDecorator: ...
    def __call__(self, function: Any = None, /, **options: Any) -> Any:
        """Declare a task; with options and without a function, return a decorator."""
        return self._decorate(function, options, sys._getframe(1).f_locals)  # type: ignore[arg-type]


@shows_options
class WorkflowDecorator(_Decorator):
    """What ``@app.workflow`` is, with options or without."""

    @overload
    def __call__(self, function: Callable[[Context, I], Awaitable[O]], /) -> Workflow[I, O]: ...
    @overload
    def __call__(self, function: Callable[[Context], Awaitable[O]], /) -> Workflow[None, O]: ...
    @overload
    def __call__(self, function: Callable[[SyncContext, I], O], /) -> Workflow[I, O]: ...
    @overload
    def __call__(self, function: Callable[[SyncContext], O], /) -> Workflow[None, O]: ...
    @overload
    def __call__(self, function: None = None, /, **options: Unpack[WorkflowKeywords]) -> WorkflowDecorator: ...
    def __call__(self, function: Any = None, /, **options: Any) -> Any:
        """Declare a workflow; with options and without a function, return a decorator."""
        return self._decorate(function, options, sys._getframe(1).f_locals)  # type: ignore[arg-type]
