"""What the holder of a token does: complete a callback, fail it, or say that it is being worked on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from .engine.invocation import refuse_in_workflow
from .engine.outcomes import decode_error
from .errors import CallbackDone, CallbackFailed, CallbackNotFound, ConfigurationError, InvalidInput
from .model import status
from .model.ids import callback_id
from .model.payload import Payloads
from .model.payload_check import first_problem
from .model.records import CallbackOutcome
from .model.rows import CallbackRow
from .model.stored import read_json
from .store.answers import CallbackAnswer

if TYPE_CHECKING:
    from .runtime import Connected

ENDED = "ended"
"""The state of a callback whose run has ended, as callers are told it."""
_MOST_OF_A_REASON = 4000


async def complete(connected: Connected, payloads: Payloads, token: str, value: Any) -> None:
    """Give a callback a value. The same again has no effect."""
    refuse_in_workflow("app.complete", "callback.result() to wait")
    outcome = CallbackOutcome(
        status.COMPLETED, payloads.encode(value, "the value of a callback"), None, payloads.format
    )
    answer = await _end(connected, token, outcome, True)
    if answer.to_check:
        row = answer.row
        schema = read_json(row.expects, dict[str, Any], None)
        plain = payloads.plain(outcome.value, outcome.format, "the value")
        problem = None if schema is None else first_problem(plain, schema)
        if problem is not None:
            what = f"the value of callback {row.name!r}"
            raise InvalidInput(f"{what} does not fit what is waited for, and was not taken: {problem}")
        answer = await _end(connected, token, outcome, False)
    row = answer.row
    if not answer.done and not (row.state == status.COMPLETED and _same_value(payloads, row, outcome)):
        raise _done(row)


async def fail(connected: Connected, payloads: Payloads, token: str, error: str) -> None:
    """End a callback by an error. The same again has no effect."""
    refuse_in_workflow("app.fail", "callback.result() to wait")
    if not isinstance(error, str) or not error:
        raise ConfigurationError(f"a callback fails with a text that says why, not with {error!r}")
    said = error[:_MOST_OF_A_REASON].encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")
    text = payloads.encode_own({"type": CallbackFailed.__name__, "message": said, "retryable": False})
    answer = await _end(connected, token, CallbackOutcome(status.FAILED, None, text, payloads.format), False)
    row = answer.row
    if not answer.done and (
        row.state != status.FAILED or decode_error(row.error, row.format, payloads)["message"] != said
    ):
        raise _done(row)


async def beat(connected: Connected, token: str) -> None:
    """Note a heartbeat of a callback."""
    refuse_in_workflow("app.beat", "callback.result() to wait")
    id_ = _id_of(token)
    answer = await _asked(connected, lambda: connected.store.beat_callback(id_))
    if not answer.done:
        raise _done(answer.row)


def _id_of(token: str) -> str:
    id_ = callback_id(token)
    if id_ is None:
        raise CallbackNotFound
    return id_


async def _end(connected: Connected, token: str, outcome: CallbackOutcome, check: bool) -> CallbackAnswer:
    id_ = _id_of(token)
    answer = await _asked(connected, lambda: connected.store.end_callback(id_, outcome, check))
    if answer.lane is not None:
        connected.switchboard.ready({answer.lane})
    if answer.done or answer.row.state == outcome.state:  # the reply to the one that did it may have been lost
        connected.switchboard.tick_everywhere()
    return answer


async def _asked(connected: Connected, call: Callable[[], Awaitable[CallbackAnswer | None]]) -> CallbackAnswer:
    """The answer of the store, asked again after a short outage."""
    answer = await connected.ask(call)
    if answer is None:
        raise CallbackNotFound
    return answer


def _same_value(payloads: Payloads, row: CallbackRow, outcome: CallbackOutcome) -> bool:
    """Whether a callback has this value already."""
    found = [
        msgspec.json.encode(payloads.plain(text, format_, "the value of a callback"), order="sorted")
        for text, format_ in ((row.value, row.format), (outcome.value, outcome.format))
    ]
    return found[0] == found[1]


def _done(row: CallbackRow) -> CallbackDone:
    return CallbackDone(row.name, row.run_id, ENDED if row.state == status.OPEN else row.state)
