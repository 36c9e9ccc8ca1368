"""``/runs/{id}/payload``: one payload of a run, loaded when somebody opens it. Numbers keep their digits."""

from __future__ import annotations

from typing import NamedTuple

from ...errors import RunNotFound
from ...model.rows import RunRow
from ...store import Store
from .. import exact
from ..answers import Piece
from ..history import number
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
    store = await visit.app.store()
    row = await store.run(visit.app.get(visit.params["id"]).id)
    if row is None:
        raise RunNotFound(visit.params["id"])
    found = await _stored(visit, store, row)
    if found is None:
        raise Refused(404, "the run has no such payload")
    text = visit.app._payloads.text(found.text, found.format, "the payload")
    try:
        written = exact.write(visit.veil().value(exact.read(text), found.path))
    except ValueError as error:
        raise Refused(409, f"the payload cannot be shown: {error}") from None
    shown, size = written[:MOST], len(written)
    if visit.wants_json and size > MOST:
        raise Refused(413, f"the payload has {size:,} characters, and {MOST:,} are shown; `stepfast show` has all")
    return Piece("payload.html", {"text": shown, "cut": size > MOST, "size": size, "run_id": row.id}, written)


async def _stored(visit: Visit, store: Store, row: RunRow) -> Stored | None:
    what = visit.query.get("what", "")
    if what == "input":
        return None if row.input is None else Stored(row.input, row.format, "input")
    if what == "output":
        return None if row.output is None else Stored(row.output, row.output_format or row.format, "output")
    if what == "value":
        key = visit.query.get("key", "")
        value = await store.value(row.id, key)
        return None if value is None else Stored(*value, f"values.{key}")
    if what in ("step", "arguments"):
        return await _of_step(visit, store, row)
    raise Refused(404, "there is no such payload; there are input, output, step, arguments and value")


async def _of_step(visit: Visit, store: Store, row: RunRow) -> Stored | None:
    """What is kept of a step: its output, or the arguments of its last try."""
    branch, position = visit.query.get("branch", ""), number(visit.query.get("position", "0"))
    if visit.query["what"] == "step":
        for record in await store.steps(row.id, (branch, position - 1), 1):
            if (record.branch, record.position) == (branch, position) and record.output is not None:
                return Stored(record.output, record.format, "output")
        return None
    calls = await store.activity(row.id, (branch, position, -1, -1), 100)
    tries = [call for call in calls if (call.branch, call.position) == (branch, position)]
    if not tries or tries[-1].arguments is None:
        return None
    return Stored(tries[-1].arguments, tries[-1].format, "arguments")
