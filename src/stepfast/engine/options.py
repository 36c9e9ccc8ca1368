"""The options that people can give, each said once: type checkers and editors read them here.

A decorator or call takes them as ``**options: Unpack[…]``; what is given is checked, and made into values that the
engine works with, where it is used (``step_options``, ``workflow_options``, the planner of a start).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import FunctionType
from typing import Any, Literal, TypedDict, TypeVar, get_overloads

from ..model.backoff import Backoff, Errors
from ..model.schedules import Missed, Overlap

S = TypeVar("S")

Seconds = float | timedelta
After = Iterable[str | Callable[..., Any]]
Catch = Mapping[type[Exception] | tuple[type[Exception], ...], str | Callable[..., Any]]


class StepKeywords(TypedDict, total=False):
    """The options of ``@step`` and ``ctx.options``."""

    name: str | None
    """Under which the step is recorded; by default the name of its function."""
    retries: int | None
    retry_on: Errors | None
    """Only these errors are tried again: classes, or a function of the error. All others fail the step and the run."""
    give_up_on: Errors | None
    """These errors are not tried again: they fail the step and the run."""
    backoff: Backoff | None
    timeout: Seconds | None
    """For each try of the step."""
    record_arguments: bool | None
    """Whether the arguments are kept for the activity log."""
    compensate: Callable[..., Any] | None
    """What undoes the step: called with its output and its arguments."""
    at_most_once: bool | None
    """Call the function once at most: neither an error nor the end of a worker in its middle leads to another call."""
    session: bool | None
    """The function of ``ctx.transaction`` gets a session of SQLAlchemy instead of a connection."""


class ServedKeywords(TypedDict, total=False):
    """The options of every remote step, of ``ctx.remote`` and ``dag.remote``: who serves it, and how long."""

    group: str | None
    """The group of workers that serves it; by default the name of the step."""
    partition: str | None
    """A part of that group."""
    retries: int
    backoff: Backoff | None
    timeout: Seconds | None
    """For the whole of it: the wait for a worker, and every retry."""


class RemoteOptions(ServedKeywords, total=False):
    """The options of ``ctx.remote`` but for the type of its output."""

    compensate: str | Callable[..., Any] | None
    """What undoes it: the name of another remote step, or a function that is called with the output and the input."""


class RemoteKeywords(RemoteOptions, total=False):
    """The options of ``ctx.remote``."""

    type: Any
    """What the output is read as."""


class WorkflowKeywords(TypedDict, total=False):
    """The options of ``@app.task`` and ``@app.workflow``."""

    name: str | None
    queue: str | None
    max_attempts: int | None
    timeout: Seconds | None
    """For each attempt of the run."""
    deadline: Seconds | None
    """For the whole run, from its start."""
    backoff: Backoff | None
    """The wait between two attempts."""


class DagKeywords(TypedDict, total=False):
    """The options of ``app.dag`` and ``app.dag_from_spec``."""

    queue: str | None
    deadline: Seconds | None


class DagPlaceKeywords(TypedDict, total=False):
    """The options of every step of a dag, of ``@dag.step`` and ``dag.remote``: its place in the graph."""

    after: After
    """The steps it comes after: their names, or their functions."""
    join: Literal["all", "any"]
    at_least: int | None
    """How many of the steps before it have to complete, if not all."""
    when: Callable[[Any], Any] | None
    """Decides, given the context, whether the step is done or skipped."""
    catch: Catch | None
    """Which step to go to on an error, instead of failing the run."""


class DagStepKeywords(DagPlaceKeywords, total=False):
    """The options of ``@dag.step``."""

    name: str | None
    retries: int | None
    backoff: Backoff | None
    timeout: Seconds | None
    compensate: Callable[[Any], Any] | None
    """What undoes the step: called with the context."""


class DagRemoteKeywords(DagPlaceKeywords, ServedKeywords, total=False):
    """The options of ``dag.remote``: those of a step of a dag, and those of a remote step."""

    type: Any
    compensate: str | None
    """The remote step that undoes it."""


OnConflict = Literal["return", "raise", "cancel", "queue"]
"""What becomes of a start by name that finds a live run of the name."""


class CheckKeywords(TypedDict, total=False):
    """How a check of ``ctx.wait_until`` is repeated."""

    every: Seconds | Backoff
    """Seconds between the end of a check and the next one, or pauses that grow. A minute by default."""
    timeout: Seconds | None
    """Seconds from the first check, after which WaitTimeout is raised."""
    max_checks: int | None
    """How many checks may answer: not yet. After the last of them WaitTimeout is raised."""


class ChildKeywords(TypedDict, total=False):
    """The options of ``ctx.start`` and ``ctx.call``; a start from outside has these too."""

    queue: str | None
    priority: int
    delay: Seconds | None
    at: datetime | None
    expires_in: Seconds | None
    """The run fails if no worker has picked it up so long after it was due."""
    deadline: Seconds | None
    max_attempts: int | None
    timeout: Seconds | None
    tags: Sequence[str]
    attributes: Mapping[str, Any]
    """Values by which the run is found: texts, numbers, bools, and datetimes with a time zone."""
    concurrency_key: str | None
    """Whose limits of the queue it counts for (``key_concurrency``, ``key_rate``): a customer, say."""


class OwnChildKeywords(ChildKeywords, total=False):
    """The options of ``ctx.start``, ``ctx.start_many`` and ``ctx.call``."""

    detached: bool
    """Whether the child goes on where this run is cancelled."""
    inherit_deadline: bool
    """Whether the child has no longer than this run has left."""


class StartKeywords(ChildKeywords, total=False):
    """The options of ``app.start``."""

    key: str | None
    """The same key of the same workflow: the same run, never a second one."""
    unique: str | None
    """A name that one live run of the workflow has at a time: while it lives, a start by the name gives that run."""
    on_conflict: OnConflict | None
    """What becomes of a start by name that finds a live run: ``return`` gives it, ``raise`` is AlreadyRunning,
    with ``queue`` the run begins when it has ended, ``cancel`` cancels it for that."""
    signal: tuple[str, Any] | None
    """Name and value of a signal for the run that a start by name gives, whether it was there or not."""
    debounce: Seconds | None
    """With a key: the run waits so long for more starts of it, each of which gives it another input and puts it off.
    The key is free again when a worker first claims the run."""
    debounce_max: Seconds | None
    """How long it is put off at most, from the first of them on."""
    connection: Any
    """A connection of the caller's, whose transaction the start joins."""


class StartManyKeywords(ChildKeywords, total=False):
    """The options of ``app.start_many``."""

    keys: Sequence[str] | None
    """A key for each input."""
    unique: Sequence[str] | None
    """A name for each input; of the same name the first input is used."""
    on_conflict: OnConflict | None
    signal: tuple[str, Any] | None
    connection: Any


class ScheduleKeywords(ChildKeywords, total=False):
    """The options of ``app.schedule`` and ``app.put_schedule``: when, with what, and how its runs are started."""

    cron: str | None
    """Five fields, as ``0 3 * * *``, or six with the second first. Either this or ``every``."""
    every: Seconds | None
    """Between two ticks; they are counted from when the schedule was made."""
    tz: str
    """The time zone that ``cron`` goes by."""
    input: Any
    missed: Missed
    """What becomes of ticks that no worker was there for."""
    overlap: Overlap
    """What becomes of a tick while the run of the one before has not ended."""
    jitter: Seconds
    """The run of a tick is put off by some time up to this, which is the same whichever worker starts it."""


class WorkerKeywords(TypedDict, total=False):
    """The options of ``app.worker`` and ``app.work``; what is not given is as the settings say."""

    concurrency: int | None
    """How many runs it executes at once."""
    lease: float | None
    """Seconds of silence after which it counts as dead."""
    poll_interval: float | None
    """Seconds between two queries for work that no notification causes."""
    shutdown_grace: float | None
    """Seconds that handlers have to come to their end when it stops."""


# -- what `help` shows ----------------------------------------------------------------------------------------------


class _NotGiven:
    """The default of an option that need not be given, as ``help`` shows it."""

    def __repr__(self) -> str:
        return "..."


def shows_options(face: S) -> S:
    """Give a function, or each method of a class, a signature that names its options: in the source these are
    ``**options: Unpack[…]``, which type checkers read and ``help`` does not."""
    for member in list(vars(face).values()) if isinstance(face, type) else [face]:
        function = inspect.unwrap(member) if callable(member) else None
        if isinstance(function, FunctionType) and (keywords := _keywords(function)) is not None:
            setattr(member, "__signature__", _named(inspect.signature(function), keywords))  # noqa: B010
    return face


def _keywords(function: FunctionType) -> Any:
    """What the function takes as its options; where it is overloaded, the last overload may say so."""
    for each in (function, *reversed(get_overloads(function))):
        for parameter in inspect.signature(each).parameters.values():
            found = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
            if parameter.kind is parameter.VAR_KEYWORD and found:
                return function.__globals__[found[1]]
    return None


def _named(signature: inspect.Signature, keywords: Any) -> inspect.Signature:
    """The signature with each option as a parameter of its own."""
    given = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    options = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_NotGiven(),
            annotation=getattr(annotation, "__forward_arg__", annotation),
        )
        for name, annotation in keywords.__annotations__.items()
        if name not in signature.parameters
    ]  # fmt: skip
    return signature.replace(parameters=[*given, *options])
