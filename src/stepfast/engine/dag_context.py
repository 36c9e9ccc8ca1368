"""What the step of a dag is given: the run's input, the outputs of the steps before it, and checkpoints of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from ..errors import ContextMisuse
from ..model.graph import Graph
from ..model.payload import Payloads
from .context import Context
from .execution import Execution
from .sync_context import SyncContext

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
