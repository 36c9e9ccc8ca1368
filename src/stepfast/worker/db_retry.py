"""Riding out database trouble: repeat a call with growing pauses, and find the row that a batch is refused for.

Only for calls that are safe to repeat, which all calls of the store are. Exceptions of a run's code never pass through
here: a step may raise an error of this library that belongs to another application's database.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ..cancellation import raise_if_cancelled, requests
from ..engine.host import Clock
from ..errors import AppClosed, ConfigurationError, DatabaseRefused, DatabaseUnavailable, SchemaError, StepfastError

if TYPE_CHECKING:
    from .context import WorkerContext

T = TypeVar("T")

_SET_UP = (SchemaError, ConfigurationError)
"""Waiting alone does not end these: an operator has to grant a right, or make the tables. That is possible while a
worker waits, and until then no run fails for it."""
_LOG_AGAIN = 60.0
"""Seconds after which trouble that waiting does not end is logged again."""


def patiently(
    call: Callable[[], Awaitable[T]],
    what: str,
    logger: logging.Logger,
    clock: Clock,
    patience: float | None = None,
) -> Coroutine[Any, Any, T]:
    """Repeat a call while the database is away, for at most ``patience`` seconds; then raise the last error.

    Not repeated for a caller that was cancelled, nor after the application was closed.
    """
    deadline = None if patience is None else clock.now() + patience
    give_up = None if deadline is None else lambda: clock.now() > deadline
    return _until_answered(call, what, logger, clock, 1.0, give_up, (DatabaseUnavailable, SchemaError))


def dutifully(
    call: Callable[[], Awaitable[T]],
    what: str,
    logger: logging.Logger,
    clock: Clock,
    longest: float,
    give_up: Callable[[], bool] | None = None,
    *,
    refusable: bool = False,
) -> Coroutine[Any, Any, T]:
    """Repeat a call that a worker has to make, also while a right is missing, which is logged as an error.

    A refusal is raised only where the caller knows which record it concerns (``refusable``): one refused statement must
    not end a service of the worker.
    """
    ridden = (DatabaseUnavailable, *_SET_UP) if refusable else (DatabaseUnavailable, DatabaseRefused, *_SET_UP)
    return _until_answered(call, what, logger, clock, longest, give_up, ridden)


async def _until_answered(
    call: Callable[[], Awaitable[T]],
    what: str,
    logger: logging.Logger,
    clock: Clock,
    longest: float,
    give_up: Callable[[], bool] | None,
    ridden: tuple[type[StepfastError], ...],
) -> T:
    wait: float = 0.05
    trouble: _Trouble | None = None
    before = requests()
    while True:
        try:
            answer = await call()
        except ridden as error:
            raise_if_cancelled(before)
            if isinstance(error, AppClosed) or (give_up is not None and give_up()):
                raise
            trouble = trouble or _Trouble(what, logger)
            trouble.log(error, clock.now())
        else:
            if trouble is not None:
                logger.info("%s: the database answers again", what)
            return answer
        await clock.sleep(wait * clock.random.uniform(0.5, 1))
        wait = min(wait * 2, longest)


class _Trouble:
    """Logs one trouble: an outage once, what an operator has to fix every minute."""

    __slots__ = ("_kind", "_logger", "_next", "_what")

    def __init__(self, what: str, logger: logging.Logger) -> None:
        self._what = what
        self._logger = logger
        self._kind: type[StepfastError] | None = None
        self._next = 0.0

    def log(self, error: StepfastError, now: float) -> None:
        """Log an error, unless one of its kind was logged a short while ago."""
        if type(error) is self._kind and now < self._next:
            return
        if isinstance(error, DatabaseUnavailable):
            self._logger.warning("%s: %s; trying again until it answers", self._what, error)
            self._next = float("inf")
        else:
            self._logger.error("%s: %s; trying again, but this does not end by itself", self._what, error)
            self._next = now + _LOG_AGAIN
        self._kind = type(error)


I = TypeVar("I", bound=Hashable)  # noqa: E741
D = TypeVar("D")


class Sweep(NamedTuple, Generic[I, D]):
    """A sweep, as a whole and in parts."""

    whole: Callable[[], Awaitable[D]]
    """Move a batch of what is there."""
    listed: Callable[[], Awaitable[list[I]]]
    """List the items of such a batch."""
    part: Callable[[list[I]], Awaitable[D]]
    """Move only these."""
    set_aside: Callable[[I], Awaitable[Any]]
    """Put one away, so that no sweep finds it again."""
    run_of: Callable[[I], str]


class Halves(Generic[I, D]):
    """Performs a sweep that the database may refuse because of one row.

    A sweep moves a thousand rows by one statement. A row that was changed by hand, by a trigger or by another role must
    not keep the others from being moved. So the refused row is found by halving, and set aside.
    """

    def __init__(self, context: WorkerContext, stopped: Callable[[], bool], sweep: Sweep[I, D]) -> None:
        self._context = context
        self._stopped = stopped
        self._sweep = sweep
        self._left: set[I] = set()
        """Items that could not be set aside."""

    async def done(self) -> list[D]:
        """Move a batch and return the outcome, usually in one piece."""
        try:
            return [await self._ask(self._sweep.whole)]
        except DatabaseRefused:
            found = await self._ask(self._sweep.listed)
            self._left.intersection_update(found)
            return await self._move([each for each in found if each not in self._left])

    async def _move(self, items: list[I]) -> list[D]:
        if not items:
            return []
        try:
            return [await self._ask(lambda: self._sweep.part(items))]
        except DatabaseRefused as error:
            if len(items) == 1:
                await self._set_aside(items[0], error)
                return []
        middle = len(items) // 2
        return await self._move(items[:middle]) + await self._move(items[middle:])

    async def _set_aside(self, item: I, refused: DatabaseRefused) -> None:
        try:
            await self._ask(lambda: self._sweep.set_aside(item))
            how = "it is set aside; once its row is fixed, resume it, or cancel it"
        except DatabaseRefused:
            self._left.add(item)
            how = "it stays as it is, because the database refuses to set it aside, too"
        run_id = self._sweep.run_of(item)
        message = "sweep: the database refuses what is due for run %s (%s); %s"
        self._context.logger.error(message, run_id, refused, how, extra={"run_id": run_id})

    async def _ask(self, call: Callable[[], Awaitable[Any]]) -> Any:
        return await self._context.ask(call, "sweep", self._stopped, refusable=True)
