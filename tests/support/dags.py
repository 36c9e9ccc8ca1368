"""What tests of dags share: builders of graphs, the states of a run's steps, and letting time pass for one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stepfast import Backoff, NonRetryableError, Stepfast
from stepfast.engine.dag import Dag
from stepfast.info import StepInfo
from stepfast.run import Run
from tests.support.engine import Gate, eventually, make_due

QUICK = Backoff(base=0.001, jitter=False)

Step = Callable[[Any], Any]


def build(app: Stepfast, steps: Mapping[str, Step], name: str = "dag", **options: Any) -> Dag:
    """``{"c < a b": f}``: f is step c, after a and b."""
    dag = app.dag(name, **options)
    for edges, function in steps.items():
        step, _, before = edges.partition("<")
        dag.declare(function, name=step.strip(), after=before.split())
    return dag


def returning(value: Any) -> Step:
    """A step that returns this."""

    async def give(ctx: Any) -> Any:
        return value

    return give


def passing(gate: Gate, result: Any = None) -> Step:
    """A step that stops at a gate."""

    async def stop(ctx: Any) -> Any:
        await gate.passing()
        return result

    return stop


async def give(ctx: Any) -> str:
    """A step that returns its name."""
    return str(ctx.step_name)


async def no(ctx: Any) -> None:
    """A step that fails."""
    raise NonRetryableError(f"{ctx.step_name} broke")


def names(*steps: str) -> Step:
    """A step that returns which of these it has outputs of."""
    return lambda ctx: [step for step in steps if step in ctx.outputs]


async def steps_of(run: Run[Any]) -> dict[str, StepInfo]:
    """The steps of a dag run by name; its undos are not among them."""
    return {info.name: info for info in await run.steps() if info.kind == "dag_step"}


async def how(run: Run[Any]) -> dict[str, str]:
    """Step → status."""
    return {name: info.status for name, info in (await steps_of(run)).items()}


async def undos_of(run: Run[Any]) -> list[tuple[str, str]]:
    """The undos of a run and what became of them, in the order they were recorded."""
    return [(info.name, info.status) for info in await run.steps() if info.kind == "undo"]


async def row_of(run: Run[Any], step: str) -> str:
    """The id under which a step is found."""
    child = (await steps_of(run))[step].child
    assert child is not None
    return child


async def make_step_due(app: Stepfast, run: Run[Any], step: str) -> None:
    """Let the time pass that a step waits for."""
    await make_due(app, await row_of(run, step))


async def step_is(run: Run[Any], step: str, *statuses: str) -> None:
    """Wait until a step has one of these statuses."""

    async def has() -> bool:
        return (await how(run))[step] in statuses

    await eventually(has)


async def asked_to_stop(app: Stepfast, run: Run[Any], step: str) -> None:
    """Wait until a step at work is to be cancelled."""

    async def asked() -> bool:
        return (await app.get(await row_of(run, step)).info()).asked == "cancel"

    await eventually(asked)


async def ended(run: Run[Any]) -> str:
    """Wait for the end of a run, and return its status."""

    async def over() -> str | None:
        info = await run.info()
        return info.status if info.completed_at is not None else None

    return str(await eventually(over))


class Saga:
    """Steps that can be undone, and what happened, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.gates: dict[str, Gate] = {}
        """Steps and undos ("undo a") that stop until they are let through."""
        self.broken: set[str] = set()
        """Undos that fail."""

    def gate(self, name: str) -> Gate:
        return self.gates.setdefault(name, Gate())

    async def _act(self, name: str) -> None:
        self.log.append(name)
        if name in self.gates:
            await self.gates[name].passing()

    async def do(self, ctx: Any) -> str:
        await self._act(ctx.step_name)
        return f"{ctx.step_name}-1"

    async def undo(self, ctx: Any) -> None:
        await self._act(f"undo {ctx.step_name}")
        if ctx.step_name in self.broken:
            raise NonRetryableError(f"{ctx.step_name} cannot be undone")

    async def fail(self, ctx: Any) -> None:
        await self._act(ctx.step_name)
        raise NonRetryableError(f"{ctx.step_name} broke")

    def build(self, app: Stepfast, *edges: str, name: str = "saga", **options: Any) -> Dag:
        """``"c < a b"``: c after a and b; a step with "!" fails. All can be undone."""
        dag = app.dag(name, **options)
        self.declare(dag, *edges)
        return dag

    def declare(self, dag: Dag, *edges: str, **options: Any) -> None:
        """Add such steps to a graph, with these options."""
        for edge in edges:
            what, _, before = edge.partition("<")
            function = self.fail if "!" in what else self.do
            dag.declare(function, name=what.strip(" !"), after=before.split(), **{"compensate": self.undo, **options})

    @property
    def undone(self) -> list[str]:
        return [line.removeprefix("undo ") for line in self.log if line.startswith("undo ")]
