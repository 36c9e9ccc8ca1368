"""Riding out database trouble, in one place: ask again with growing pauses until it answers.

Only for calls that are safe to repeat, which all calls of the store are.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import DatabaseUnavailable, SchemaError

T = TypeVar("T")


async def patiently(
    call: Callable[[], Awaitable[T]],
    what: str,
    logger: logging.Logger,
    longest: float,
    give_up: Callable[[], bool] | None = None,
) -> T:
    """The call's answer, however long the database is away. With ``give_up`` the last error comes through."""
    wait, said = 0.05, False
    while True:
        try:
            answer = await call()
            if said:
                logger.info("%s: the database answers again", what)
            return answer
        except (DatabaseUnavailable, SchemaError) as error:
            if give_up is not None and give_up():
                raise
            if not said:
                logger.warning("%s: %s; trying again until it answers", what, error)
                said = True
        await asyncio.sleep(wait * random.uniform(0.5, 1))
        wait = min(wait * 2, longest)
