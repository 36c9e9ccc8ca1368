"""Heeding what an operator asks of a run that is being executed: to cancel or to pause it, between two steps."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..errors import AttemptEnded, RunSuspended
from ..model import status
from ..model.status import DAG_STEP, WORKFLOW
from ..model.transitions.operator import goes_on_first
from . import outcomes

if TYPE_CHECKING:
    from .execution import Execution


def must_record_first(execution: Execution) -> bool:
    """Whether the run is to be cancelled, but has to come to a new record first."""
    return execution.asked == status.ASK_CANCEL and owes_record(execution)


def owes_record(execution: Execution) -> bool:
    """Whether the run has to come to a new record before it can be cancelled: its last worker died, perhaps after a
    step had acted, and only what is on record can be undone. A task has neither records nor undos."""
    return (
        goes_on_first(execution.claimed.losses, execution.claimed.unrecorded_losses, status.RUNNING)
        and not execution.ledger.recorded
        and execution.workflow.kind in (WORKFLOW, DAG_STEP)
    )


async def apply_pending_request(execution: Execution) -> None:
    """Between two steps: do what an operator asks, as soon as no other step is being executed."""
    if not must_record_first(execution):
        await apply_pending_request_now(execution)


async def apply_pending_request_now(execution: Execution) -> None:
    """Do what an operator asks, even if the run had to come to a record first. The code that calls this does not go
    on."""
    if execution.at_work == 0:
        leave_as_requested(execution)
    if execution.closed is None:
        await asyncio.get_running_loop().create_future()  # until the last step in flight is recorded
    assert execution.closed is not None
    raise execution.closed


def leave_as_requested(execution: Execution) -> None:
    """An operator's wish is carried out: the run leaves this worker."""
    if execution.closed is not None or execution.parting is not None:
        return
    if execution.asked == status.ASK_PAUSE:
        execution.leave(outcomes.paused(execution))
        execution.close(RunSuspended(f"run {execution.run_id} is paused"))
    elif execution.asked == status.ASK_CANCEL:
        execution.leave(outcomes.cancelled(execution))
        execution.close(AttemptEnded(f"run {execution.run_id} is cancelled"))
