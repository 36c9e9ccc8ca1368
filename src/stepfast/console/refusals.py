"""Refusals: an HTTP status and a message for the client."""

from __future__ import annotations

from collections.abc import Mapping

from .. import errors
from ..monitoring.audit import MayBeDone, NothingDone
from ..store.readonly import TookTooLong


class Refused(Exception):
    """The request is answered with a status and a message."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


_STATUS: dict[tuple[type[Exception], ...], int] = {
    (errors.RunNotFound, errors.ScheduleNotFound, errors.UnknownWorkflow): 404,
    (errors.InvalidState, errors.QueueFull): 409,
    (errors.ConfigurationError, errors.InvalidInput, errors.PayloadError): 400,
    (errors.SchemaError, errors.DatabaseUnavailable, TookTooLong, NothingDone): 503,
    (MayBeDone,): 504,
}


def refusal_of(error: Exception) -> Refused | None:
    """Return the refusal for an error that a client can cause, or that comes from the database; None for a bug."""
    if isinstance(error, Refused):
        return error
    status = next((status for kinds, status in _STATUS.items() if isinstance(error, kinds)), None)
    return None if status is None else Refused(status, str(error))
