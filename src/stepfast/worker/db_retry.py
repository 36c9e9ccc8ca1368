"""Riding out database trouble, in one place: ask again with growing pauses until it answers.

Only for calls that are safe to repeat, which all calls of the store are. What the code of a run raises never comes
through here: a step may well raise an error of this library, of another application's database, and that is its own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ..cancellation import raise_if_cancelled, requests
from ..engine.host import Clock
from ..errors import AppClosed, ConfigurationError, DatabaseRefused, DatabaseUnavailable, SchemaError, StepfastError

T = TypeVar("T")

_SET_UP = (SchemaError, ConfigurationError)
"""Waiting alone does not cure these: somebody has to grant a right, or make the tables. That can be done while a worker
waits, and until then no run has to pay for it."""
_SAY_AGAIN = 60.0
"""Seconds after which a trouble that waiting does not cure is told again."""


def patiently(
    call: Callable[[], Awaitable[T]],
    what: str,
    logger: logging.Logger,
    longest: float,
    give_up: Callable[[], bool] | None = None,
    *,
    clock: Clock,
) -> Coroutine[Any, Any, T]:
    """The call's answer, however long the database is away. With ``give_up`` the last error comes through. Nobody is
    asked again for a caller who was cancelled, or of an application that was closed."""
    return _until_answered(call, what, logger, longest, give_up, (DatabaseUnavailable, SchemaError), clock)


def dutifully(
    call: Callable[[], Awaitable[T]],
    what: str,
    logger: logging.Logger,
    longest: float,
    give_up: Callable[[], bool] | None = None,
    *,
    refusable: bool = False,
    clock: Clock,
) -> Coroutine[Any, Any, T]:
    """The answer to a call that a worker has to make whatever the database says of it: also a missing right is waited
    for, and said loudly. A refusal comes through only where somebody knows which record it is about (``refusable``): a
    duty must not end because one statement of it was refused."""
    ridden = (DatabaseUnavailable, *_SET_UP) if refusable else (DatabaseUnavailable, DatabaseRefused, *_SET_UP)
    return _until_answered(call, what, logger, longest, give_up, ridden, clock)


async def _until_answered(
    call: Callable[[], Awaitable[T]],
    what: str,
    logger: logging.Logger,
    longest: float,
    give_up: Callable[[], bool] | None,
    ridden: tuple[type[StepfastError], ...],
    clock: Clock,
) -> T:
    wait: float = 0.05
    told: _Told | None = None
    before = requests()
    while True:
        try:
            answer = await call()
        except ridden as error:
            raise_if_cancelled(before)
            if isinstance(error, AppClosed) or (give_up is not None and give_up()):
                raise
            told = told or _Told(what, logger)
            told.trouble(error, clock.now())
        else:
            if told is not None:
                logger.info("%s: the database answers again", what)
            return answer
        await clock.sleep(wait * clock.random.uniform(0.5, 1))
        wait = min(wait * 2, longest)


class _Told:
    """What the log was told of one trouble: an outage once, what somebody has to mend every minute."""

    __slots__ = ("_kind", "_logger", "_next", "_what")

    def __init__(self, what: str, logger: logging.Logger) -> None:
        self._what = what
        self._logger = logger
        self._kind: type[StepfastError] | None = None
        self._next = 0.0

    def trouble(self, error: StepfastError, now: float) -> None:
        """Say it, unless it was said a short while ago."""
        if type(error) is self._kind and now < self._next:
            return
        if isinstance(error, DatabaseUnavailable):
            self._logger.warning("%s: %s; trying again until it answers", self._what, error)
            self._next = float("inf")
        else:
            self._logger.error("%s: %s; trying again, but this does not end by itself", self._what, error)
            self._next = now + _SAY_AGAIN
        self._kind = type(error)
