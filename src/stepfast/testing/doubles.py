"""What replaces the functions of steps in a lab, and remote workers in memory; and how often each was called."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from types import MethodType
from typing import Any

import msgspec

from ..engine.dag import DagStepWorkflow
from ..engine.function_spec import is_async, name_of
from ..engine.host import Clock
from ..engine.observers import Observers
from ..engine.remote_step import is_served_elsewhere
from ..engine.step import StepCall, StepFunction, Work
from ..engine.workflow import Workflow
from ..errors import ConfigurationError, NonRetryableError
from ..model.remote_steps import Result, Task, error_text
from ..model.status import COMPLETED, DAG, DAG_STEP, FAILED, TASK, WORKFLOW
from ..worker.worker import Worker

Other = Callable[[Callable[..., Any]], Callable[..., Any] | None]
"""Returns the replacement of a function, if it has one."""


class InjectedFailure(Exception):
    """What a step raises because ``lab.fail`` said so."""


class Doubles:
    """The replacements of the functions of steps in one lab; the functions themselves do not change."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._others: dict[Hashable, tuple[Any, Callable[..., Any]]] = {}
        """What is replaced, and by what; by the function, or by the name of the step. The latest comes last."""
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
        kind = error if isinstance(error, type) else type(error)
        if error is not None and not issubclass(kind, BaseException):
            raise ConfigurationError(f"lab.fail: error must be an exception, or a class of exceptions, not {error!r}")
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise ConfigurationError(f"lab.fail: times must be a whole number of at least 1, not {times!r}")
        made = InjectedFailure(f"the lab lets {name!r} fail") if error is None else error
        line = self._failures.setdefault(name, deque())
        line.extend(made() if isinstance(made, type) else made for _ in range(times))

    # -- for those who call ------------------------------------------------------------------------------------------

    def other(self, names: tuple[str, ...], function: Any) -> Callable[..., Any] | None:
        """Return the replacement of a function, if it has one. Counts the call, and raises if it is to fail."""
        for name in dict.fromkeys(names):
            self.calls[name] += 1
        for name in names:
            if line := self._failures.get(name):
                raise line.popleft()
        return self._instead(None if function is None else _key(function), *names)

    def _instead(self, *keys: Hashable) -> Callable[..., Any] | None:
        """Return the latest replacement of any of these."""
        said = set(keys)
        return next((self._others[key][1] for key in reversed(self._others) if key in said), None)

    def serves(self, name: str) -> bool:
        """Whether the remote steps of a name have a replacement, or are to fail."""
        return name in self._others or bool(self._failures.get(name))

    def of_step(self, step: StepCall[Any]) -> None:
        """The function of a step is about to be called."""
        work = step._work
        other = self.other((step.name, work.shape.name), work.function)
        if other is not None and other is not work.function:
            shape = msgspec.structs.replace(work.shape, is_async=is_async(other))
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
        """Return a copy that looks up the replacement at each call."""
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
        self.step_called = (_heard,)  # steps report their beginning only to listeners

    def step_begins(self, step: StepCall[Any]) -> None:
        """Replace the function of a step before it is called. The call raises what this raises."""
        self._doubles.of_step(step)


def _heard(_: Any) -> None:
    """Do nothing: the lab changes the step in ``step_begins``."""


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


def _key(what: Any) -> Hashable:
    """Return a key for a function: methods of the same object are equal, although each access makes a new one."""
    if isinstance(what, (StepFunction, Workflow)):
        what = what.function
    if isinstance(what, str):
        return what
    if callable(what):
        return what if isinstance(what, MethodType) else id(what)
    raise ConfigurationError(
        f"lab.replace takes a step, a function given to ctx.transaction, or the name of a remote step, not {what!r}"
    )


class Hanging:
    """Counts the steps of one lab that never come back."""

    def __init__(self) -> None:
        self.calls = 0
        self._some = asyncio.Event()

    async def hang(self) -> Any:
        """Wait until the step is cancelled."""
        self.calls += 1
        self._some.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.calls -= 1
            if not self.calls:
                self._some.clear()

    def all_of(self, worker: Worker) -> bool:
        """Whether every run that a worker holds is at such a step, and at nothing else. One that is in no step is a
        task, or its code is about to continue."""
        running = worker.duties.executor.running.values()
        return 0 < self.calls == sum(max(1, run.at_work) for run in running)

    async def wait(self, worker: Worker) -> None:
        """Until a worker holds no run, or none but such."""
        idle = worker.duties.executor.idle
        while not (idle.is_set() or self.all_of(worker)):
            if self.calls:
                await asyncio.sleep(0.001)  # another step is at work, and its end causes no event
                continue
            waits = [asyncio.ensure_future(event.wait()) for event in (idle, self._some)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()


class LabTransport:
    """The transport of a lab. Tasks without a replacement are kept, and their runs wait."""

    prefix = "lab"

    def __init__(self, doubles: Doubles, encode: Callable[[Any], str]) -> None:
        self._doubles = doubles
        self._encode = encode
        self.tasks: dict[str, Task] = {}
        self.done: dict[str, Result] = {}

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    async def dispatch(self, tasks: Sequence[Task], connection: Any = None) -> None:
        """Take tasks in, and serve what can be served."""
        for task in tasks:
            self.tasks[task.step_id] = task
            self.done.pop(task.step_id, None)
        await self.serve()

    async def serve(self) -> bool:
        """Serve all tasks that have a replacement by now; whether there were any."""
        served = [task for task in self.tasks.values() if self._doubles.serves(task.name)]
        for task in served:
            result = await self._result(task)
            if self.tasks.pop(task.step_id, None) is task:
                self.done[task.step_id] = result
        return bool(served)

    async def _result(self, task: Task) -> Result:
        try:
            function = self._doubles.other((task.name,), None)
            assert function is not None, (
                f"no replacement serves {task.name!r} in this lab: lab.replace({task.name!r}, …)"
            )
            output = function(msgspec.json.decode(task.input or "null"))
            text = self._encode(await output if inspect.isawaitable(output) else output)
        except Exception as error:
            retryable = not isinstance(error, NonRetryableError)
            said = error_text(str(error), getattr(error, "code", None), retryable=retryable)
            return Result(task.step_id, task.run_id, task.seq, FAILED, None, said, None)
        return Result(task.step_id, task.run_id, task.seq, COMPLETED, text, None, None)

    async def results(self, step_ids: Sequence[str], connection: Any = None) -> list[Result]:
        """What has come of these steps so far."""
        return [self.done[step_id] for step_id in step_ids if step_id in self.done]

    async def remove(self, results: Sequence[Result], connection: Any = None) -> None:
        """Take away results that were recorded."""
        for result in results:
            if self.done.get(result.step_id) is result:
                del self.done[result.step_id]

    async def cancel(self, step_ids: Sequence[str], connection: Any = None) -> list[str]:
        """Take back tasks that have not begun."""
        return [step_id for step_id in step_ids if self.tasks.pop(step_id, None) is not None]

    async def unclaimed(self, step_ids: Sequence[str]) -> list[str]:
        """Return those of the steps that have not begun."""
        return [step_id for step_id in step_ids if step_id in self.tasks]

    async def lost(self, step_ids: Sequence[str]) -> list[str]:
        """The steps, of those named, of which nothing is here."""
        return [step_id for step_id in step_ids if step_id not in self.tasks and step_id not in self.done]

    async def leftovers(self, after: str, limit: int) -> list[str]:
        """A page of all that is here."""
        return sorted(step_id for step_id in {*self.tasks, *self.done} if step_id > after)[:limit]
