"""What tests of dags share: how the steps of a run stand, and letting time pass for one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepfast import Stepfast
from stepfast.info import StepInfo
from stepfast.run import Run
from tests.support.engine import make_due


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


def returning(value: Any) -> Callable[[Any], Any]:
    """A step that returns this."""

    async def give(ctx: Any) -> Any:
        return value

    return give
