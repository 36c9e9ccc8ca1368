"""Actions on many runs: one table for Python, the command line and the console, and the outcome of one batch."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, field

from . import status
from .records import Lane


class BulkAction(NamedTuple):
    """An action on all runs that filters select. Its verb is the name of the method of ``Run``."""

    verb: str
    done: str
    """The participle: ``cancelled``."""
    statuses: tuple[str, ...]
    """The statuses of the runs it applies to, unless the filters name one."""
    happens: str = ""
    """What happens to each run, in a sentence."""
    batched: bool = True
    """Whether a store applies it to many runs in one transaction. Otherwise it is called for each run."""
    danger: bool = False
    """Whether it cannot be taken back."""
    repeated: bool = False
    """Whether a run that is refused may be free once the others are done."""


_ACTIVE = (status.QUEUED, status.WAITING, status.RUNNING)
CANCEL = BulkAction(
    "cancel", "cancelled", (*_ACTIVE, status.PAUSED),
    "Each ends at once, or after the step that is being executed; its children are cancelled too, and its completed "
    "steps undone where they have an undo.", danger=True,
)  # fmt: skip
PAUSE = BulkAction("pause", "paused", _ACTIVE, "Each is held before its next step, until it is resumed.")
RESUME = BulkAction("resume", "resumed", (status.PAUSED,), "Each continues where it was held.")
RETRY = BulkAction(
    "retry", "retried", (status.FAILED,),
    "Each is queued again: recorded steps are kept, and what failed is executed again.",
)  # fmt: skip
DELETE = BulkAction(
    "delete", "deleted", (status.COMPLETED, status.FAILED, status.CANCELLED, status.COMPENSATED),
    "Each is removed with all that belongs to it, for good, unless another run needs it.", danger=True, repeated=True,
)  # fmt: skip
RESCHEDULE = BulkAction("reschedule", "rescheduled", (status.QUEUED, status.WAITING), batched=False)
SIGNAL = BulkAction("signal", "signalled", (status.WAITING, status.PAUSED), batched=False)

BATCHED = {action.verb: action for action in (CANCEL, PAUSE, RESUME, RETRY, DELETE)}
"""The actions that need no argument, by their verbs."""


class BatchOutcome(Struct):
    """What an action did to the runs of one batch."""

    done: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Runs whose status does not allow the action, each with its status."""
    apart: list[str] = field(default_factory=list)
    """Runs to be called one by one: dag runs, because they wait for their steps, and runs whose rows are locked."""
    lanes: set[Lane] = field(default_factory=set)
    """Where runs are ready now."""
    ended: bool = False
