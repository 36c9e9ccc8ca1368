"""What can be done with a queue: pause, resume, limits."""

from __future__ import annotations

from typing import cast

from ...model.queue_config import LimitKeywords
from ...monitoring.text import limit_of
from ..answers import Done
from ..pages.queues import LIMITS
from ..refusals import Refused
from ..visit import Visit


async def pause(visit: Visit) -> Done:
    """Pause a queue: none of its runs is claimed from now on."""
    name = visit.form.required("queue")
    await visit.app.pause_queue(name)
    return _done(visit, "paused", {"queue": name, "paused": True})


async def resume(visit: Visit) -> Done:
    """Resume a paused queue: its runs are claimed again."""
    name = visit.form.required("queue")
    await visit.app.resume_queue(name)
    return _done(visit, "resumed", {"queue": name, "paused": False})


async def limits(visit: Visit) -> Done:
    """Set limits: an empty field leaves one as it is, ``none`` lifts it, ``reset`` lets those of code hold again."""
    name, reset = visit.form.required("queue"), bool(visit.form.optional("reset"))
    given = {limit: _limit(limit, text) for limit in LIMITS if (text := visit.form.optional(limit)) is not None}
    if reset and given:
        raise Refused(400, "either set limits, or let what the code declares hold again")
    if not reset and not given:
        raise Refused(400, "no limit was given: write a number, a rate as 100/60s, or none")
    await visit.app.set_limits(name, reset=reset, **cast(LimitKeywords, given))
    return _done(visit, "reset" if reset else "limited", {"queue": name, "set": sorted(given), "reset": reset})


def _limit(name: str, text: str) -> object:
    try:
        return limit_of(name, text.strip())
    except ValueError as error:  # no time behind the slash
        raise Refused(400, str(error)) from None


def _done(visit: Visit, word: str, shape: dict[str, object]) -> Done:
    return Done(visit.url("queues", done=word), shape)
