"""What can be asked of one run: cancel, pause, resume, reschedule, retry, a signal."""

from __future__ import annotations

from typing import Any

import msgspec

from ...run import Run
from ..answers import Done
from ..refusals import Refused
from ..visit import Visit


async def cancel(visit: Visit) -> Done:
    """End it, and undo its completed steps where they say how."""
    await _run(visit).cancel()
    return _done(visit, "cancel")


async def pause(visit: Visit) -> Done:
    """Pause a run from its next step on."""
    await _run(visit).pause()
    return _done(visit, "pause")


async def resume(visit: Visit) -> Done:
    """Resume a paused run where it stands."""
    await _run(visit).resume()
    return _done(visit, "resume")


async def reschedule(visit: Visit) -> Done:
    """Make a run due now that waits for its start or for a retry."""
    await _run(visit).reschedule(delay=0)
    return _done(visit, "reschedule")


async def retry(visit: Visit) -> Done:
    """Queue a run again; with ``from_start``, as a new run with the same input."""
    again = await _run(visit).retry(from_start=visit.form.get("from_start", "") not in ("", "0", "false"))
    return _done(visit, "retry", again.id)


async def signal(visit: Visit) -> Done:
    """Send a run a signal: ``name``, and ``value`` as JSON."""
    name, text = visit.form.required("name"), visit.form.optional("value")
    try:
        value = None if text is None else msgspec.json.decode(text)
    except RecursionError:
        raise Refused(400, "the value is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise Refused(400, 'the value is not JSON; a text needs its quotes: "text"') from None
    await _run(visit).signal(name, value)
    return _done(visit, "signal")


def _run(visit: Visit) -> Run[Any]:
    return visit.app.get(visit.params["id"])


def _done(visit: Visit, what: str, run_id: str | None = None) -> Done:
    found = run_id or visit.params["id"]
    return Done(visit.url("runs", found, done=what), {"run": found, "done": what})
