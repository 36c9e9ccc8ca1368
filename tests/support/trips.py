"""Bookings that can be undone, for tests of undoing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepfast import Context, NonRetryableError, Stepfast
from tests.support.engine import Gate


class Trip:
    """Bookings that can be undone, in the order things happened."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.failing: set[str] = set()
        """Undos that fail."""

    def book(self, what: str) -> str:
        self.log.append(f"book {what}")
        return f"{what}-1"

    def unbook(self, output: str, what: str) -> None:
        self.log.append(f"undo {what} {output}")
        if what in self.failing:
            raise ValueError(f"{what} cannot be undone")

    async def booked(self, ctx: Context, what: str, undo: Callable[..., Any] | None = None) -> str:
        return await ctx.options(compensate=undo or self.unbook).step(f"book {what}", self.book, what)

    def workflow(
        self, app: Stepfast, *what: str, error: str = "no", gate: Gate | None = None, **undos: Callable[..., Any]
    ) -> Any:
        """The workflow "order": it books, stops at the gate if there is one, and fails for good. ``undos`` are for
        bookings that have another undo."""

        @app.workflow(name="order")
        async def order(ctx: Context) -> None:
            for each in what:
                await self.booked(ctx, each, undos.get(each))
            if gate is not None:
                await ctx.step("gate", gate.passing)
            raise NonRetryableError(error)

        return order

    @property
    def undone(self) -> list[str]:
        return [line.split()[1] for line in self.log if line.startswith("undo")]
