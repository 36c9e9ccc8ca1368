"""``/runs/{id}/confirm/{action}``: names what will happen, and has the form that makes it so."""

from __future__ import annotations

import msgspec

from ...model import status
from ...reports import RunInfo
from .. import in_clear
from ..answers import Page
from ..belongings import veiled_by_all
from ..confirming import SIGNAL, WISHES, what_happens
from ..refusals import Refused
from ..visit import Visit


async def confirm(visit: Visit) -> Page:
    """The page before an action."""
    wish = WISHES.get(visit.params["action"])
    if wish is None:
        raise Refused(404, "there is no such action")
    history = await veiled_by_all(visit, await visit.history(visit.params["id"]))
    run = history.info
    sentence = what_happens(wish, run, history.steps)
    if wish == SIGNAL and (warning := await in_clear.said_of(visit, run.workflow)):
        sentence += f" {warning}"
    shown = {"run": run, "wish": wish, "sentence": sentence, "names": _awaited(run)}
    shape = {"run": run.id, "action": wish.action, "what_happens": sentence}
    return Page("confirm.html", shown, msgspec.to_builtins(shape))


def _awaited(run: RunInfo) -> list[str]:
    """The signals that the run waits for."""
    begin = f"{status.WAITING_SIGNAL}:"
    return [part.removeprefix(begin) for part in (run.waiting_for or "").split(", ") if part.startswith(begin)]
