"""What stands in for the functions of steps in a lab: other functions, failures; and how often each was called."""

from __future__ import annotations

import copy
import inspect
from collections import Counter, deque
from collections.abc import Callable, Hashable
from types import MethodType
from typing import Any

from ..engine.dag import DagStepWorkflow
from ..engine.function_spec import is_async, name_of
from ..engine.host import Clock
from ..engine.observers import Observers
from ..engine.remote_step import is_served_elsewhere
from ..engine.step import StepCall, StepFunction, Work
from ..engine.workflow import Workflow
from ..errors import ConfigurationError
from ..model.status import DAG, DAG_STEP, TASK, WORKFLOW

Other = Callable[[Callable[..., Any]], Callable[..., Any] | None]
"""What is to be called instead of a function, if anything is."""


class InjectedFailure(Exception):
    """What a step raises because ``lab.fail`` said so."""


class Doubles:
    """What stands in for the functions of steps in one lab; the functions themselves are left as they are."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._others: dict[Hashable, tuple[Any, Callable[..., Any]]] = {}
        """What is replaced, and by what; by the function, or by the name of the step. The last said stands last."""
        self._failures: dict[str, deque[BaseException]] = {}

    # -- for tests ---------------------------------------------------------------------------------------------------

    def replace(self, what: Any, function: Callable[..., Any]) -> None:
        """From now on the function is called instead of a step's own."""
        if isinstance(function, StepFunction):
            function = function.function
        if not callable(function):
            raise ConfigurationError(f"lab.replace takes the function to be called instead, not {function!r}")
        if isinstance(what, Workflow):
            _check_other(what, function)
        key = _key(what)
        self._others.pop(key, None)
        self._others[key] = (what, function)

    def fail(self, what: Any, times: int, error: BaseException | type[BaseException] | None) -> None:
        """The next calls fail."""
        name = name_in_lab(what, "lab.fail")
        if not (error is None or isinstance(error, BaseException) or _is_error(error)):
            raise ConfigurationError(f"lab.fail: error must be an exception, or a class of exceptions, not {error!r}")
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise ConfigurationError(f"lab.fail: times must be a whole number of at least 1, not {times!r}")
        made = InjectedFailure(f"the lab lets {name!r} fail") if error is None else error
        line = self._failures.setdefault(name, deque())
        line.extend(made() if isinstance(made, type) else made for _ in range(times))

    # -- for those who call ------------------------------------------------------------------------------------------

    def other(self, names: tuple[str, ...], function: Any) -> Callable[..., Any] | None:
        """What is to be called instead, if anything is. The call counts; and it fails here if it is to fail."""
        for name in dict.fromkeys(names):
            self.calls[name] += 1
        for name in names:
            if line := self._failures.get(name):
                raise line.popleft()
        return self._instead(None if function is None else _key(function), *names)

    def _instead(self, *keys: Hashable) -> Callable[..., Any] | None:
        """What was said last of any of these."""
        said = set(keys)
        return next((self._others[key][1] for key in reversed(self._others) if key in said), None)

    def serves(self, name: str) -> bool:
        """Whether somebody stands in for the remote workers of a name, or it is to fail."""
        return name in self._others or bool(self._failures.get(name))

    def of_step(self, step: StepCall[Any]) -> None:
        """The function of a step is about to be called."""
        work = step._work
        other = self.other((step.name, work.shape.name), work.function)
        if other is not None and other is not work.function:
            shape = work.shape._replace(is_async=is_async(other))
            step._work = Work(work.name, other, shape, work.options)

    def of_workflow(self, workflow: Workflow[Any, Any]) -> Workflow[Any, Any]:
        """As a worker of the lab has it. The function of a task, or of a step of a dag, is a piece of work itself, and
        its calls count; that of a workflow is called at every replay."""
        if workflow.kind == WORKFLOW:
            return self._with(workflow, lambda function: self._instead(_key(function)))
        if workflow.kind not in (TASK, DAG_STEP) or is_served_elsewhere(workflow.function):
            return workflow
        names: tuple[str, ...] = (workflow.name,)
        if isinstance(workflow, DagStepWorkflow):
            names = (workflow.dag_step.name, workflow.name)
        return self._with(workflow, lambda function: self.other(names, function))

    def _with(self, workflow: Workflow[Any, Any], other: Other) -> Workflow[Any, Any]:
        """A copy that asks, each time it is called, what is to be called instead."""
        made, function = copy.copy(workflow), workflow.function

        def call(*args: Any) -> Any:
            return (other(function) or function)(*args)

        async def call_async(*args: Any) -> Any:
            result = call(*args)
            return await result if inspect.isawaitable(result) else result

        made.function = call_async if workflow.is_async else call
        return made


class LabObservers(Observers):
    """Sees every call of a step before it is made."""

    def __init__(self, doubles: Doubles, logger: Any, clock: Clock) -> None:
        super().__init__((), logger, clock)
        self._doubles = doubles
        self.step_called = (_heard,)  # steps tell of their beginning only where somebody listens

    def step_begins(self, step: StepCall[Any]) -> None:
        """The function of a step is about to be called, or what stands in for it. What this raises, the call raises."""
        self._doubles.of_step(step)


def _heard(_: Any) -> None:
    """Listen, and do nothing: the lab looks at the step itself."""


def name_in_lab(what: Any, asked: str) -> str:
    """The name by which calls are counted."""
    if isinstance(what, str):
        return what
    if isinstance(what, StepFunction):
        return what.shape.name
    if isinstance(what, Workflow):
        if what.kind in (WORKFLOW, DAG):
            raise ConfigurationError(
                f"{asked}: {what.name!r} is a {what.kind}, which is made of steps and is replayed: name one of its "
                "steps. How often it was started is said by `await lab.app.runs(workflow=…)`"
            )
        return what.name
    if callable(what):
        return name_of(what)
    raise ConfigurationError(f"a step is named by its function or by its name, not by {what!r}")


def _check_other(workflow: Workflow[Any, Any], function: Callable[..., Any]) -> None:
    if workflow.kind == DAG:
        raise ConfigurationError(f"lab.replace: replace the steps of dag {workflow.name!r}, not the dag itself")
    if workflow.is_async != is_async(function):
        kind = "an async def" if workflow.is_async else "a plain def"
        raise ConfigurationError(f"lab.replace: {workflow!r} is {kind}, and so must be what stands in for it")


def _is_error(given: object) -> bool:
    return isinstance(given, type) and issubclass(given, BaseException)


def _key(what: Any) -> Hashable:
    """Methods of the same object are equal, though each is made anew when it is asked for."""
    if isinstance(what, (StepFunction, Workflow)):
        what = what.function
    if isinstance(what, str):
        return what
    if callable(what):
        return what if isinstance(what, MethodType) else id(what)
    raise ConfigurationError(
        f"lab.replace takes a step, a function given to ctx.transaction, or the name of a remote step, not {what!r}"
    )
