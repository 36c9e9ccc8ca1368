"""A graph whose steps can be undone, for tests of failures."""

from __future__ import annotations

from typing import Any

from stepfast import NonRetryableError, Stepfast
from stepfast.engine.dag import Dag
from tests.support.engine import Gate


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

    async def do(self, ctx: Any) -> str:
        self.log.append(ctx.step_name)
        if ctx.step_name in self.gates:
            await self.gates[ctx.step_name].passing()
        return f"{ctx.step_name}-1"

    async def undo(self, ctx: Any) -> None:
        self.log.append(f"undo {ctx.step_name}")
        if f"undo {ctx.step_name}" in self.gates:
            await self.gates[f"undo {ctx.step_name}"].passing()
        if ctx.step_name in self.broken:
            raise NonRetryableError(f"{ctx.step_name} cannot be undone")

    async def fail(self, ctx: Any) -> None:
        self.log.append(ctx.step_name)
        if ctx.step_name in self.gates:
            await self.gates[ctx.step_name].passing()
        raise NonRetryableError(f"{ctx.step_name} broke")

    def build(self, app: Stepfast, *edges: str, name: str = "saga", **options: Any) -> Dag:
        """``"c < a b"``: c after a and b; a step with "!" fails. All can be undone."""
        dag = app.dag(name, **options)
        for edge in edges:
            what, _, before = edge.partition("<")
            dag.declare(
                self.fail if "!" in what else self.do,
                name=what.strip(" !"),
                after=before.split(),
                compensate=self.undo,
            )
        return dag

    @property
    def undone(self) -> list[str]:
        return [line.removeprefix("undo ") for line in self.log if line.startswith("undo ")]
