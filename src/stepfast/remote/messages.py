"""What goes over the two tables: tasks one way, results the other, and how errors are written in them."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from ..errors import NonRetryableError
from ..model.remote_steps import Result, Task
from ..model.status import COMPLETED, FAILED

__all__ = ["COMPLETED", "FAILED", "ClaimedTask", "FatalError", "RemoteTask", "Result", "Task", "TaskOutcome"]

_LONGEST_MESSAGE = 64 * 1024
_LONGEST_STACK = 16 * 1024
"""Characters of an error that are kept: MySQL's packets, and readers, have limits."""


class FatalError(NonRetryableError):
    """Raise it in a handler to say that no retry will help. ``code`` is a word for programs, kept beside the text."""

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
    """What a handler may know of the task beside its input. ``step_id`` is the same for all attempts: do things once
    by it."""

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
    """An error of ours, which another try would meet again."""
    return msgspec.json.encode({"message": _clean(message, _LONGEST_MESSAGE), "retryable": False}).decode()


def no_handler(name: str) -> str:
    """What workers in every language say of a step that they have no handler for: these words, and these keys."""
    return refusal(f"no handler for {name}")


def _told(error: BaseException) -> str:
    """The error's own text. Some errors cannot even say what they are."""
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
