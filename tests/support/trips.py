"""Bookings that can be undone, for tests of undoing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepfast import Context


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

    @property
    def undone(self) -> list[str]:
        return [line.split()[1] for line in self.log if line.startswith("undo")]
