"""``/runs/{id}/payload``: one payload of a run, loaded when somebody opens it. Numbers keep their digits."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from ...errors import RunNotFound
from ...model.rows import RunRow
from ...model.tracebacks import own_code_only
from ...monitoring.changes import glance_of
from .. import exact
from ..answers import Piece
from ..belongings import veiled_by_all
from ..history import number
from ..redacting import Veil
from ..refusals import Refused
from ..visit import Visit

MOST = 65_536
"""Characters that are shown of a payload."""


class Stored(NamedTuple):
    """A payload as it is stored."""

    text: str
    format: int
    path: str
    """What it is to ``redact=``."""


async def payload(visit: Visit) -> Piece:
    """The payload that the address names, veiled, and cut where it gets too long."""
    run_id = visit.look.get(visit.params["id"]).id
    if visit.query.get("what") == "error":
        text = await _traceback(visit, run_id)
        return _piece(visit, run_id, text[:MOST], len(text) if len(text) > MOST else None)
    row = await (await glance_of(visit.look)).run(run_id)
    if row is None:
        raise RunNotFound(run_id)
    found = await _stored(visit, row)
    if found is None:
        raise Refused(404, "the run has no such payload")
    text = visit.look._payloads.text(found.text, found.format, "the payload")
    try:
        # A payload of megabytes takes seconds to take apart: other requests are answered meanwhile.
        shown, whole = await asyncio.to_thread(_shown, text, visit.veil(), found.path)
    except ValueError as error:
        raise Refused(409, f"the payload cannot be shown: {error}") from None
    return _piece(visit, run_id, shown, None if whole else len(text))


def _shown(text: str, veil: Veil, path: str) -> tuple[str, bool]:
    return exact.begin(veil.value(exact.read(text), path), MOST)


def _piece(visit: Visit, run_id: str, text: str, size: int | None) -> Piece:
    """``size`` is how many characters there are, if these are not all."""
    if visit.wants_json and size is not None:
        raise Refused(413, f"this has {size:,} characters, and {MOST:,} are shown; `stepfast show` has all of it")
    is_error = visit.query.get("what") == "error"
    return Piece(
        "payload.html", {"text": text, "size": size, "run_id": run_id}, exact.write(text) if is_error else text
    )


async def _stored(visit: Visit, row: RunRow) -> Stored | None:
    what, key = visit.query.get("what", ""), visit.query.get("key", "")
    if what == "input":
        return None if row.input is None else Stored(row.input, row.format, "input")
    if what == "output":
        return None if row.output is None else Stored(row.output, row.output_format or row.format, "output")
    if what == "value":
        value = await (await glance_of(visit.look)).value(row.id, key)
        return None if value is None else Stored(*value, f"values.{key}")
    if what in ("step", "arguments"):
        branch, position = visit.query.get("branch", ""), number(visit.query.get("position", "0"))
        held = await (await glance_of(visit.look)).step_payloads(row.id, branch, position)
        if held is None:
            return None
        text, path = (held[0], "output") if what == "step" else (held[1], "arguments")
        return None if text is None else Stored(text, held[3], path)
    raise Refused(404, "there is no such payload; there are input, output, step, arguments, error and value")


async def _traceback(visit: Visit, run_id: str) -> str:
    """The traceback of the run, or of one of its steps, veiled by all that stands on its page."""
    history = await visit.history(run_id)
    if "position" in visit.query:
        branch, position = visit.query.get("branch", ""), number(visit.query["position"])
        if not any((step.branch, step.position) == (branch, position) for step in history.steps):
            history = await visit.history(run_id, (branch, position - 1), 1)
        found = [step for step in (await veiled_by_all(visit, history)).steps if step.branch == branch]
        error = next((step.error for step in found if step.position == position), None)
    else:
        error = (await veiled_by_all(visit, history)).info.error
    if error is None or not error.traceback:
        raise Refused(404, "there is no such error")
    return own_code_only(error.traceback)
