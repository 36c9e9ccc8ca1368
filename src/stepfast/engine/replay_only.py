"""A replay that does nothing new: the code is run as far as it is recorded, to see where that leads.

For undoing, which needs the undos that the code names; and for asking whether today's code fits what is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ..errors import AttemptEnded, AttemptTimeout, HistoryEnded
from .execution import Execution
from .scope import current_execution

if TYPE_CHECKING:
    from .durable_call import DurableCall

_LONGEST = 60.0
"""Seconds. Code that has only records to read and takes longer waits for something outside its steps."""


class Replaying:
    """What a replay that does nothing new has met."""

    def __init__(self) -> None:
        self.beyond: DurableCall[Any] | None = None
        """The first call that nothing is recorded of."""
        self.other_arguments: tuple[str, ...] = ()
        """Steps that the code now gives other arguments than are recorded."""

    def ends_at(self, call: DurableCall[Any]) -> HistoryEnded:
        """The replay stops at this call."""
        self.beyond = self.beyond or call
        run_id = call.of_run
        return HistoryEnded(f"run {run_id}: nothing is recorded of {call.kind} {call.name!r} (at {call.line})")


async def replay(
    ghost: Execution, performing: Coroutine[Any, Any, Any], longest: float = _LONGEST
) -> BaseException | None:
    """Perform a run on its records alone; its execution remembers what it met. How the code ended: None if it returned,
    HistoryEnded if it wants to go on beyond what is recorded, AttemptTimeout if it took too long."""
    ghost.replaying = Replaying()
    ghost.main.owner = task = asyncio.current_task()
    token = current_execution.set(ghost)
    limit = ghost.clock.timeout(longest)
    try:
        async with limit:
            await performing
        return None
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        return error  # by something that the code awaited
    except BaseException as error:  # ends here: a cancellation was caught above, and the rest is what the code says
        if limit.expired():
            return AttemptTimeout(
                f"the code took longer than {longest:g} s, although every call was answered from its record"
            )
        return error
    finally:
        current_execution.reset(token)
        ghost.main.owner = None
        ghost.close(AttemptEnded("the replay is over"))
