"""What observers are told: small values with names, ids and durations. Never a payload, a key, a tag or a message; but
``TryFailed`` and ``AttemptFailed`` bring the error itself, for error reports.

Times are seconds. ``workflow`` is the name of the workflow; of a dag's step it is the name of the dag, and ``dag_step``
that of the step. Fields may be added; an observer reads those that it knows.
"""

from __future__ import annotations

from msgspec import Struct

# How a try of a step can end, beside the words for where a step stands.
ABANDONED = "abandoned"
"""Of a try: its run left the worker before the try ended. It was lost, cancelled, or its time was up."""

# What is sent, and can have something sent along with it.
SENT_START = "start"
SENT_SIGNAL = "signal"
SENT_CHILD = "child"
SENT_NEXT = "next"
"""The run that a run goes on as."""
SENT_REMOTE = "remote"


class Sending(Struct, frozen=True):
    """Something is about to be sent to a run, in the task of the sender. ``SendingEnded`` follows on a start by
    ``app.start`` and on a signal; what a run itself sends is committed with its records.

    What an observer puts into ``trace`` is stored with it, and passed to its worker: ``RunClaimed.trace``,
    ``SignalTaken.trace``. Short texts, as HTTP headers have them; more than 2,000 characters are not sent.
    """

    kind: str
    """``start``, ``signal``; of what a run sends: ``child``, ``next`` (it goes on as another run), ``remote``."""
    name: str
    """The workflow, the signal or the remote step."""
    queue: str | None
    """The queue of a run, the group of a remote step."""
    run_id: str | None = None
    """The run that is started or signalled; None: many are started, or a remote step is sent."""
    number: int = 1
    """How many runs are started by one call."""
    sender_id: str | None = None
    """The run that sends it, if it is one, and under which claim."""
    claim: int = 0
    trace: dict[str, str] = {}
    """To be filled in."""


class SendingEnded(Struct, frozen=True):
    """What a ``Sending`` told of was sent, or could not be."""

    sending: Sending
    """The very object that was told before."""
    error_type: str | None = None


class SignalTaken(Struct, frozen=True, gc=False):
    """A run has taken a signal, and that is committed. A replay takes nothing."""

    run_id: str
    claim: int
    workflow: str
    name: str
    trace: dict[str, str] = {}
    """What observers sent along with it."""


class RunReleasing(Struct, frozen=True):
    """A run is about to leave its worker, and may come again: it waits, is to be tried again, or has failed or was
    cancelled, and an operator may retry it. ``RunReleased`` or ``RunEnded`` follows when that is committed."""

    run_id: str
    claim: int
    trace: dict[str, str] = {}
    """What the run was claimed with. What is changed in it is passed to the worker that takes the run next."""


class RunStarted(Struct, frozen=True, gc=False):
    """A run was started here. A start that found its key taken has started nothing, and is not told."""

    run_id: str
    workflow: str
    queue: str
    parent_id: str | None = None
    """The run whose child it is."""
    origin_id: str | None = None
    """The run that it continues or repeats."""
    joined: bool = False
    """Whether it was started in a transaction of the caller's, which may still be rolled back."""


class RunClaimed(Struct, frozen=True, gc=False):
    """A worker took a run. Told in the task that executes it, before its code."""

    run_id: str
    claim: int
    workflow: str
    queue: str
    kind: str
    """``task``, ``workflow``, ``dag`` or ``dag_step``."""
    attempt: int
    ready_for: float
    """For how long it was ready before it was claimed."""
    parent_id: str | None = None
    dag_id: str | None = None
    dag_step: str | None = None
    undoing: bool = False
    """Whether it was claimed to undo what it did."""
    trace: dict[str, str] = {}
    """What observers sent along with its start, and left with it when it was released."""
    worker: str = ""
    """The id of the worker, which is in this process."""


class StepCalled(Struct, frozen=True, gc=False):
    """The function of a step is about to be called. A step that is replayed is not called, and not told.

    Told in the task that calls the function: what an observer puts into context variables is seen by the function.
    """

    run_id: str
    claim: int
    workflow: str
    step: str
    kind: str
    """``step``, ``transaction``, ``undo`` or ``wait_until``."""
    branch: str
    position: int
    number: int
    """Which try of the step this is, from 1."""
    attempt: int
    """The attempt of the run that it is made in."""


class StepEnded(Struct, frozen=True, gc=False):
    """A call of the function of a step has come to its end. Told once for each ``StepCalled``, in the same task."""

    run_id: str
    claim: int
    workflow: str
    step: str
    kind: str
    branch: str
    position: int
    number: int
    attempt: int
    seconds: float
    """How long the function took, without the commit of its record."""
    outcome: str
    """``completed``; ``failed``; ``cancelled``, by the workflow's own timeout; or ``abandoned``."""
    error_type: str | None = None
    """Of a failed one: the class of the error."""


class WaitBegan(Struct, frozen=True, gc=False):
    """The code of a run begins to wait: for a time, a signal, a child, a remote step … It is told at each claim that
    comes to the wait, in the task that waits."""

    run_id: str
    claim: int
    workflow: str
    what: str
    """What is waited for, as ``run.info().waiting_for`` says it: ``time``, ``signal:approved``, ``child``."""
    branch: str
    attempt: int
    """The attempt of the run that waits."""


class WaitEnded(Struct, frozen=True, gc=False):
    """A wait has come to its end, at this worker. Told once for each ``WaitBegan``, in the same task."""

    run_id: str
    claim: int
    workflow: str
    what: str
    branch: str
    attempt: int
    seconds: float
    """How long it lasted at this worker."""
    outcome: str
    """``over``: it came, or its time is up; ``cancelled``, by the code; or ``released``: the run left the worker."""


class BranchBegan(Struct, frozen=True, gc=False):
    """The code of a branch begins: of ``ctx.branch``, of an item of ``ctx.map``, of ``ctx.branches``. It is told at
    each claim, also where the branch is replayed, in the task of the branch."""

    run_id: str
    claim: int
    workflow: str
    branch: str
    attempt: int


class BranchEnded(Struct, frozen=True, gc=False):
    """The code of a branch has come to its end at this worker. Told once for each ``BranchBegan``, in the same task."""

    run_id: str
    claim: int
    workflow: str
    branch: str
    attempt: int
    seconds: float
    outcome: str
    """``completed``; ``failed``; ``cancelled``, by the code; or ``released``: the run left the worker."""
    error_type: str | None = None
    """Of a failed one: the class of the error."""


class StepRefused(Struct, frozen=True, gc=False):
    """A function returned, but what it returned could not be recorded: the try has failed after all."""

    run_id: str
    claim: int
    workflow: str
    step: str
    number: int
    error_type: str


class TryFailed(Struct, frozen=True):
    """A try of a step has failed, and it is decided whether there is another. Told in the task of the run."""

    run_id: str
    claim: int
    workflow: str
    step: str
    kind: str
    number: int
    """Which try it was, from 1."""
    attempt: int
    error: BaseException
    """What was raised. Its message and its traceback are the user's own, and may hold anything."""
    retry_in: float | None = None
    """Seconds until the next try; None: the step has failed."""


class AttemptFailed(Struct, frozen=True):
    """An attempt of a run has failed, and it is decided whether there is another. Told in the task of the run, before
    that is committed."""

    run_id: str
    claim: int
    workflow: str
    queue: str
    kind: str
    attempt: int
    error: BaseException
    """What ended it. If a step did: what the workflow was told of that."""
    retry_in: float | None = None
    """Seconds until the next attempt; None: the run has failed."""
    reason: str | None = None
    """Of a run that has failed: why. ``caught:…``, if a dag goes on elsewhere."""
    step: str | None = None
    """The step whose failure ended it, if one did."""
    dag_step: str | None = None


class RemoteSent(Struct, frozen=True, gc=False):
    """A remote step was sent to the workers of its group; its run may not wait for it in memory."""

    run_id: str
    claim: int
    workflow: str
    step: str
    group: str
    attempt: int
    dag_step: str | None = None


class RemoteEnded(Struct, frozen=True, gc=False):
    """The outcome of a remote step came, or none in time; perhaps at another worker than the one that sent it."""

    run_id: str
    claim: int
    workflow: str
    step: str
    group: str
    attempt: int
    seconds: float
    """How long its last try took, as far as it is known here: from when it was sent."""
    outcome: str
    """It is ``completed`` or ``failed``."""
    tries: int
    error_type: str | None = None
    dag_step: str | None = None


class RunReleased(Struct, frozen=True, gc=False):
    """A run gave its slot back and will come again: it waits, is to be tried again, is paused, or its worker stops."""

    run_id: str
    claim: int
    workflow: str
    queue: str
    kind: str
    attempt: int
    busy: float
    """For how long the worker had it."""
    replayed: int
    """How many calls were answered from records."""
    status: str
    """``waiting``, ``queued``, ``paused`` or ``compensating``."""
    waiting_for: str | None = None
    error_type: str | None = None
    """Of an attempt that failed: the class of the error."""
    dag_step: str | None = None


class RunEnded(Struct, frozen=True, gc=False):
    """A run has come to its end at a worker, and that is committed."""

    run_id: str
    claim: int
    workflow: str
    queue: str
    kind: str
    attempt: int
    busy: float
    """For how long the worker had it, this last time."""
    replayed: int
    lasted: float
    """From its start to its end, waits included."""
    status: str
    """``completed``, ``failed``, ``cancelled``, ``compensated``; of a dag's step also ``skipped``."""
    reason: str | None = None
    error_type: str | None = None
    dag_step: str | None = None


class RunLost(Struct, frozen=True, gc=False):
    """A worker lost a run that it had claimed: its lease was over, or another has the run."""

    run_id: str
    claim: int
    workflow: str
    queue: str
    kind: str
    attempt: int
    busy: float
    dag_step: str | None = None


class SignalSent(Struct, frozen=True, gc=False):
    """A signal was sent to a run from here."""

    run_id: str
    name: str
    joined: bool = False
    """Whether it was sent in a transaction of the caller's."""


class ClaimAnswered(Struct, frozen=True, gc=False):
    """A worker asked for runs, and was answered."""

    seconds: float
    runs: int
    """How many it was given."""


class JournalFlushed(Struct, frozen=True, gc=False):
    """A worker's journal was written: one transaction for all that had gathered."""

    seconds: float
    records: int
    refused: int
    """Of how many runs nothing was written, because they are not this worker's any more."""


class RunsSwept(Struct, frozen=True, gc=False):
    """A worker cleared up behind others."""

    recovered: int = 0
    """Runs of dead workers that it gave back."""
    dead_letters: int = 0
    """Runs that too many workers have died with."""
    expired: int = 0
    """Runs that expired in their queue, or passed their deadline there."""
