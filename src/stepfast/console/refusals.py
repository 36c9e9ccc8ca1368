"""What the console refuses: an HTTP status, and a sentence for whoever asked."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import (
    ConfigurationError,
    DatabaseUnavailable,
    InvalidInput,
    InvalidState,
    PayloadError,
    QueueFull,
    RunNotFound,
    ScheduleNotFound,
    SchemaError,
    UnknownWorkflow,
)
from ..monitoring.audit import MayBeDone, NothingDone
from ..store.readonly import TookTooLong


class Refused(Exception):
    """An answer that is no page, but a sentence."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = dict(headers or {})


_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (RunNotFound, 404),
    (ScheduleNotFound, 404),
    (UnknownWorkflow, 404),
    (InvalidState, 409),
    (QueueFull, 409),
    (InvalidInput, 400),
    (PayloadError, 400),
    (SchemaError, 503),
    (DatabaseUnavailable, 503),
    (TookTooLong, 503),
    (NothingDone, 503),
    (MayBeDone, 504),
    (ConfigurationError, 400),
)


def refusal_of(error: Exception) -> Refused | None:
    """The answer to an error that a visitor can cause, or that lies with the database; None: the mistake is ours."""
    if isinstance(error, Refused):
        return error
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), None)
    return None if status is None else Refused(status, str(error))
