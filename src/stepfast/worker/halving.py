"""Sweeps that the database refuses: which row it is about is found, so that the others do not hang on it.

A sweep moves a thousand rows by one statement. What a hand, a trigger or another role has done to one of them must not
keep the rest for ever, as a refused record of the journal keeps no other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from ..errors import DatabaseRefused
from .context import WorkerContext

T = TypeVar("T", bound=Hashable)
D = TypeVar("D")


class Duty(NamedTuple, Generic[T, D]):
    """What a sweep does, as a whole and in parts."""

    whole: Callable[[], Awaitable[D]]
    """Move a batch of what is there."""
    listed: Callable[[], Awaitable[list[T]]]
    """Say what such a batch is."""
    part: Callable[[list[T]], Awaitable[D]]
    """Move these alone."""
    set_aside: Callable[[T], Awaitable[Any]]
    """Put one away, so that no sweep finds it again."""
    run_of: Callable[[T], str]


class Halves(Generic[T, D]):
    """Does a duty, however odd single rows are."""

    def __init__(self, context: WorkerContext, stopped: Callable[[], bool], duty: Duty[T, D]) -> None:
        self._context = context
        self._stopped = stopped
        self._duty = duty
        self._left: set[T] = set()
        """What could not even be set aside."""

    async def done(self) -> list[D]:
        """What came of a batch: in one piece, as a rule."""
        try:
            return [await self._ask(self._duty.whole)]
        except DatabaseRefused:
            found = await self._ask(self._duty.listed)
            self._left.intersection_update(found)
            return await self._move([each for each in found if each not in self._left])

    async def _move(self, items: list[T]) -> list[D]:
        if not items:
            return []
        try:
            return [await self._ask(lambda: self._duty.part(items))]
        except DatabaseRefused as error:
            if len(items) == 1:
                await self._set_aside(items[0], error)
                return []
        middle = len(items) // 2
        return await self._move(items[:middle]) + await self._move(items[middle:])

    async def _set_aside(self, item: T, refused: DatabaseRefused) -> None:
        try:
            await self._ask(lambda: self._duty.set_aside(item))
            how = "it is set aside; once its row is mended, resume it, or cancel it"
        except DatabaseRefused:
            self._left.add(item)
            how = "it stays as it is, because the database refuses to set it aside, too"
        run_id = self._duty.run_of(item)
        told = "sweep: the database refuses what is due for run %s (%s); %s"
        self._context.logger.error(told, run_id, refused, how, extra={"run_id": run_id})

    async def _ask(self, call: Callable[[], Awaitable[Any]]) -> Any:
        return await self._context.ask(call, "sweep", self._stopped, refusable=True)
