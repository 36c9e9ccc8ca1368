"""The words for where a run or a step stands, and why a run ended."""

from __future__ import annotations

QUEUED = "queued"
RUNNING = "running"
WAITING = "waiting"
PAUSED = "paused"
COMPLETED = "completed"
FAILED = "failed"
CANCELLED = "cancelled"
COMPENSATING = "compensating"
COMPENSATED = "compensated"
SKIPPED = "skipped"
COMPENSATION_FAILED = "compensation_failed"

TERMINAL = frozenset({COMPLETED, FAILED, CANCELLED, COMPENSATED, SKIPPED})
"""A run in one of these changes only by an operator's ``retry``, or ``cancel`` (see ``may_be_cancelled``)."""

RUN_STATUSES = (QUEUED, RUNNING, WAITING, PAUSED, COMPLETED, FAILED, CANCELLED, COMPENSATING, COMPENSATED)
AT_REST = frozenset({WAITING, PAUSED, FAILED, CANCELLED, COMPENSATING, COMPENSATED})
"""Those that an index of the same name holds; the SQL repeats them, as a partial index demands."""

# Why a run ended without a result.
REASON_CODE = "code"
REASON_TIMEOUT = "timeout"
REASON_DEADLINE = "deadline"
REASON_EXPIRED = "expired"
REASON_LOST = "workers_lost"
REASON_NON_DETERMINISM = "non_determinism"
REASON_CANCELLED = "cancelled"
REASON_UNDO = "undo_failed"
REASON_INPUT = "invalid_input"
"""The code refused the input, which came from SQL, or from older code, so that it was not checked before."""
REASON_CAUGHT = "caught"
"""Of a step of a dag run, with the step that goes on instead: ``caught:mend``."""
REASON_CONTINUED = "continued"
"""Not a failure: the run went on as another one, whose id is its output."""

REASONS = (
    REASON_CODE, REASON_TIMEOUT, REASON_DEADLINE, REASON_EXPIRED, REASON_LOST, REASON_NON_DETERMINISM,
    REASON_CANCELLED, REASON_UNDO, REASON_INPUT, REASON_CONTINUED,
)  # fmt: skip
"""The reasons a run can have. They are identifiers, for they are typed as ``--reason`` and compared in SQL."""

UNDONE_BY_CANCEL = (REASON_NON_DETERMINISM, REASON_LOST)
"""Ends of which the run's own code is not to blame, or not known to be. They undo nothing by themselves: an operator
decides, and may retry the run, or cancel it, which undoes what it did."""


def may_be_cancelled(run_status: str, reason: str | None) -> bool:
    """Whether there is something that a cancellation can do: the run goes on, or ended in a way that undid nothing."""
    return run_status not in TERMINAL or (run_status == FAILED and reason in UNDONE_BY_CANCEL)


# What a waiting run waits for.
WAITING_RETRY = "retry"
WAITING_TIME = "time"
WAITING_SIGNAL = "signal"
WAITING_QUESTION = "question"
WAITING_CALLBACK = "callback"
WAITING_EVENT = "event"
WAITING_CHILD = "child"
WAITING_REMOTE = "remote"
"""With the name of the remote step: ``remote:pipeline.extract``."""
WAITING_CHECK = "check"
WAITING_STEPS = "steps"
"""A step of a dag run, for those it comes after."""
WAITING_NAME = "name"
"""A run that was started by a name, for the end of the run that has the name."""
WAITING_MORE = "more"
"""Stands at the end of a list that names only the first few."""
WAITING_GRAPH = "graph"
"""A dag run or a step of one, for its graph: a worker with the code of that version has yet to store it."""

# What lies in a mailbox.
MAIL_SIGNAL = "signal"
MAIL_CHILD = "child"
MAIL_CANCEL = "cancel"
MAIL_RESUME = "resume"
MAIL_NEXT = "next"
"""A run waits for the name of this one."""
MAIL_RESCHEDULE = "reschedule"
MAIL_REMOTE = "remote"
MAIL_CALLBACK = "callback"
MAIL_ENDS = frozenset({MAIL_CHILD, MAIL_REMOTE, MAIL_CALLBACK})
"""What is waited for by its id, and counted as the end of something: children, remote steps and callbacks."""

# Where a callback stands.
OPEN = "open"
TIMED_OUT = "timed_out"
"""Or it is completed, or failed."""
MAIL_EVENT = "event"
"""An event that the run waits for may have come: it is woken, and reads the events itself."""

# What an operator asks of a running run; its owner learns of it by heartbeat and flush.
ASK_CANCEL = "cancel"
ASK_PAUSE = "pause"

NO_SUCH_STEP = "no_such_step"
"""Why a signal to a dag run found no step."""

#: The kinds of workflow.
TASK = "task"
WORKFLOW = "workflow"
DAG = "dag"
DAG_STEP = "dag_step"
