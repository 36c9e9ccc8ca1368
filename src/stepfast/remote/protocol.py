"""The contract on the wire: tasks, results and errors, names of tables, groups and steps, URLs of transports."""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from ..errors import ConfigurationError, NonRetryableError
from ..model.names import check_name
from ..model.remote_steps import Result, Task
from ..model.status import COMPLETED, FAILED
from ..model.urls import parse_url, redact

__all__ = ["COMPLETED", "FAILED", "ClaimedTask", "FatalError", "RemoteTask", "Result", "Task", "TaskOutcome"]

_LONGEST_MESSAGE = 64 * 1024
_LONGEST_STACK = 16 * 1024
"""Characters of an error that are kept: MySQL's packets, and readers, have limits."""


class FatalError(NonRetryableError):
    """Raise it in a handler to say that no retry will help. ``code`` is for programs, and is stored with the
    message."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class ClaimedTask(NamedTuple):
    """A task that this worker holds."""

    step_id: str
    run_id: str
    seq: int
    name: str
    input: str | None
    attempt: int
    created_at: int
    now: int
    """The database's clock when the task was claimed, in milliseconds."""

    @property
    def key(self) -> tuple[str, int]:
        """Which try of which step."""
        return self.step_id, self.attempt


class TaskOutcome(NamedTuple):
    """What a worker has to say of a task it holds."""

    step_id: str
    attempt: int
    status: str
    output: str | None
    error: str | None
    started_at: int | None

    @property
    def key(self) -> tuple[str, int]:
        """Which try of which step."""
        return self.step_id, self.attempt

    @property
    def size(self) -> int:
        """About how many bytes it takes on the way."""
        return len(self.output or "") + len(self.error or "") + 500


@dataclass(frozen=True, slots=True)
class RemoteTask:
    """The task of a handler. ``step_id`` is the same for all attempts, and can be used as an idempotency key."""

    step_id: str
    run_id: str
    name: str
    attempt: int


def error_text(error: BaseException) -> str:
    """An error that a handler raised, as JSON. Engines retry unless ``retryable`` is exactly false."""
    said: dict[str, Any] = {"message": _clean(_told(error), _LONGEST_MESSAGE)}
    code = getattr(error, "code", None) if isinstance(error, Exception) else None
    if isinstance(code, str):
        said["code"] = _clean(code, 200)
    if isinstance(error, NonRetryableError):
        said["retryable"] = False
    else:
        said["stack"] = _clean(_stack(error), _LONGEST_STACK, from_end=True)
    return msgspec.json.encode(said).decode()


def refusal(message: str) -> str:
    """Make the error of a failure that another try would repeat."""
    return msgspec.json.encode({"message": _clean(message, _LONGEST_MESSAGE), "retryable": False}).decode()


def no_handler(name: str) -> str:
    """What workers in every language say of a step that they have no handler for: these words, and these keys."""
    return refusal(f"no handler for {name}")


def _told(error: BaseException) -> str:
    """Return the text of an error, or its class if that raises."""
    try:
        return str(error)
    except Exception:
        return type(error).__name__


def _stack(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:
        return type(error).__name__


def _clean(text: str, longest: int, *, from_end: bool = False) -> str:
    """Text that every database keeps: no lone surrogates, and not too much of it. Of a traceback the end says most."""
    kept = text[-longest:] if from_end else text[:longest]
    return kept.encode("utf-8", "backslashreplace").decode()


LONGEST = 191
"""Characters in a step id, a run id, a name and a group: what an index of an old MySQL could hold."""
DEFAULT_PREFIX = "durable"

_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,34}")
"""With what is put behind it, 35 characters still fit into the 63 that Postgres keeps of a name."""


def check_prefix(prefix: object) -> str:
    """The first part of the two tables' names."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(
            f"the table prefix {prefix!r} is not usable: letters, digits, underscores and hyphens, at most 35, "
            "not starting with a hyphen"
        )
    return prefix


def tasks_table(prefix: str) -> str:
    """Return the name of the table of tasks, unquoted."""
    return f"{check_prefix(prefix)}_transport_tasks"


def results_table(prefix: str) -> str:
    """Return the name of the table of results, unquoted."""
    return f"{check_prefix(prefix)}_transport_results"


def check_step_name(name: object) -> str:
    """The name of a remote step, by which a worker finds its handler."""
    return check_name(name, "the name of a remote step", LONGEST)


def check_group(group: object) -> str:
    """The group that a worker serves, spelled as engines spell it: with a hyphen in place of each colon. What is behind
    an ``@`` is a partition, and stays as it is."""
    base, at, partition = check_name(group, "the group of a remote worker", LONGEST).partition("@")
    name = base.replace(":", "-") + at + partition
    if name != name.strip():
        raise ConfigurationError(
            f"the group {name!r} begins or ends with blanks, which some databases ignore: leave them out"
        )
    return name


def ids_of_step(step_id: str) -> dict[str, str]:
    """The ids for a record of the log about a step. Its id is made of that of its run and a number."""
    return {"run_id": step_id.rpartition(":")[0], "step_id": step_id}


POSTGRES, MYSQL, SQS = "postgres", "mysql", "sqs"
_USE = "use postgresql://user@host/name, mysql://user@host/name or sqs://region"


class TransportUrl(NamedTuple):
    """A database, or queues: which dialect its server speaks, and its URL."""

    dialect: str
    text: str

    def __repr__(self) -> str:
        return f"TransportUrl({redact(self.text)!r})"


def parse_transport_url(text: str) -> TransportUrl:
    """Sort a URL by its scheme, and refuse what remote steps cannot go over."""
    scheme = text.strip().partition("://")[0].lower() if isinstance(text, str) else ""
    if scheme == "sqs":
        return TransportUrl(SQS, text.strip())
    url = parse_url(text)
    if url.kind not in (POSTGRES, MYSQL):
        raise ConfigurationError(
            f"remote steps cannot go over {redact(url.text)!r}: in SQLite workers cannot pass over rows that others "
            f"hold; {_USE}"
        )
    return TransportUrl(url.kind, url.text)
