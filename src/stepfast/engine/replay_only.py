"""A replay that does nothing new: the code is run as far as it is recorded, to see where that leads.

For undoing, which needs the undos that the code names; and for asking whether today's code fits what is recorded.
"""

from __future__ import annotations

import asyncio

from ..errors import AttemptEnded, AttemptTimeout
from ..model.records import Claimed
from .dag_context import DagView
from .execution import Execution
from .handler import InThread, call_handler
from .recorder import Recorder
from .scope import current_execution
from .workflow import Workflow

_LONGEST = 60.0
"""Seconds. Code that has only records to read and takes longer waits for something outside its steps."""


async def replay(
    claimed: Claimed,
    workflow: Workflow[object, object],
    recorder: Recorder,
    in_thread: InThread,
    longest: float = _LONGEST,
    view: DagView | None = None,
) -> tuple[Execution, BaseException | None]:
    """Run the code on its records alone. The execution, for what it met; and how the code ended: None if it returned,
    HistoryEnded if it wants to go on beyond what is recorded, AttemptTimeout if it took too long."""
    ghost = Execution(claimed, workflow, recorder)
    ghost.replay_only = True
    ghost.view = view
    ghost.main.owner = task = asyncio.current_task()
    token = current_execution.set(ghost)
    limit = asyncio.timeout(longest)
    try:
        async with limit:
            await call_handler(ghost, in_thread)
        return ghost, None
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        return ghost, error  # by something that the code awaited
    except BaseException as error:  # ends here: a cancellation was caught above, and the rest is what the code says
        if limit.expired():
            return ghost, AttemptTimeout(
                f"the code took longer than {longest:g} s, although every call was answered from its record"
            )
        return ghost, error
    finally:
        current_execution.reset(token)
        ghost.main.owner = None
        ghost.close(AttemptEnded("the replay is over"))
