"""Everything that can be asked of the console, in one table.

To add a page: write ``async def things(visit: Visit) -> Page`` in ``pages/things.py`` and a template that extends
``base.html``, and add ``Route("GET", "/things", things)``; ``navigation.py`` has what is at the top of all. Pages
read by ``visit.look``, an application whose questions are bounded and shared by all tabs. A ``Page`` carries what the
template is given and its JSON twin, in the shape that the command line writes with ``--json``; whichever was asked for
is sent. Payloads go through ``visit.veil()`` before they get into either. ``again=`` says after how many seconds a tab
may ask again; parts of the page that change have an id and ``data-live``. A page about runs has ``news=``, too, by
which its tabs first ask whether there is anything new (``outlook.py``).

To add an action: write ``async def do(visit: Visit) -> Done`` in ``actions/``, which takes its fields from
``visit.form``, acts, and says where to go on; and add ``Route("POST", "/things/do", do)``. The entrance has already
seen to it that the sender may (``entrance.py``), for every method that is not safe: an action does not ask again. GET
of it answers 405 by itself. Before it goes a page that names what will happen, with a form (``confirm.html``). Names
that people choose, of queues or schedules, may hold anything: they go into the form, or are made a part of an address
by ``visit.url``.

What a visitor did wrong is raised as ``Refused(status, sentence)``, or as one of the errors of ``stepfast.errors``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from .access import VIEW
from .actions import bulk as bulk_actions
from .actions import failures as failure_actions
from .actions import queues as queue_actions
from .actions import runs as run_actions
from .actions import schedules as schedule_actions
from .actions import starting
from .answers import Answer
from .pages.audit import audit
from .pages.bulk import bulk, job
from .pages.confirm import confirm
from .pages.failures import confirm_retry, failures
from .pages.home import home
from .pages.news import news
from .pages.payload import payload
from .pages.queues import confirm_queue, queues
from .pages.run import run
from .pages.runs import runs
from .pages.schedules import confirm_schedule, schedules
from .pages.starting import start_form
from .pages.system import system
from .pages.workers import workers
from .refusals import Refused
from .visit import Visit

Handler = Callable[[Visit], Awaitable[Answer]]


class Route(NamedTuple):
    """One row of the table: what can be asked for, and who answers."""

    method: str
    """GET, which changes nothing, or POST."""
    path: str
    """As in ``/runs/{id}``: a part in braces stands for anything, and is found by that name in ``visit.params``."""
    answer: Handler
    role: str = VIEW
    """Who may ask. What is no GET needs the role ``operate`` whatever stands here."""
    deed: str = ""
    """What the audit calls it, if it is an action."""


ROUTES: tuple[Route, ...] = (
    Route("GET", "/", home),
    Route("GET", "/news", news),
    Route("GET", "/runs", runs),
    Route("GET", "/runs/{id}", run),
    Route("GET", "/runs/{id}/payload", payload),
    Route("GET", "/runs/{id}/confirm/{action}", confirm),
    Route("POST", "/runs/{id}/cancel", run_actions.cancel, deed="run.cancel"),
    Route("POST", "/runs/{id}/pause", run_actions.pause, deed="run.pause"),
    Route("POST", "/runs/{id}/resume", run_actions.resume, deed="run.resume"),
    Route("POST", "/runs/{id}/reschedule", run_actions.reschedule, deed="run.reschedule"),
    Route("POST", "/runs/{id}/retry", run_actions.retry, deed="run.retry"),
    Route("POST", "/runs/{id}/signal", run_actions.signal, deed="run.signal"),
    Route("GET", "/start", start_form),
    Route("POST", "/start", starting.start, deed="run.start"),
    Route("GET", "/bulk/{action}", bulk),
    Route("POST", "/bulk/{action}", bulk_actions.bulk, deed="bulk.runs"),
    Route("GET", "/bulk/jobs/{job}", job),
    Route("GET", "/queues", queues),
    Route("GET", "/queues/confirm/{action}", confirm_queue),
    Route("POST", "/queues/pause", queue_actions.pause, deed="queue.pause"),
    Route("POST", "/queues/resume", queue_actions.resume, deed="queue.resume"),
    Route("POST", "/queues/limits", queue_actions.limits, deed="queue.limits"),
    Route("GET", "/workers", workers),
    Route("GET", "/schedules", schedules),
    Route("GET", "/schedules/confirm/{action}", confirm_schedule),
    Route("POST", "/schedules/pause", schedule_actions.pause, deed="schedule.pause"),
    Route("POST", "/schedules/resume", schedule_actions.resume, deed="schedule.resume"),
    Route("POST", "/schedules/trigger", schedule_actions.trigger, deed="schedule.trigger"),
    Route("GET", "/failures", failures),
    Route("GET", "/failures/retry", confirm_retry),
    Route("POST", "/failures/retry", failure_actions.retry, deed="failures.retry"),
    Route("GET", "/system", system),
    Route("GET", "/audit", audit),
)


def find(method: str, parts: Sequence[str], routes: Sequence[Route] = ROUTES) -> tuple[Route, dict[str, str]]:
    """The route for a request, and the named parts of its address."""
    there = [(route, params) for route in routes if (params := _matched(route.path, parts)) is not None]
    if not there:
        raise Refused(404, "there is no such page")
    wanted = "GET" if method == "HEAD" else method
    for route, params in there:
        if route.method == wanted:
            return route, params
    allowed = ", ".join(sorted({route.method for route, _ in there}))
    raise Refused(405, f"this address only takes {allowed}", {"Allow": allowed})


def _matched(path: str, parts: Sequence[str]) -> dict[str, str] | None:
    wanted = path.strip("/").split("/") if path != "/" else []
    if len(wanted) != len(parts):
        return None
    params = {}
    for name, part in zip(wanted, parts, strict=True):
        if name.startswith("{"):
            params[name[1:-1]] = part
        elif name != part:
            return None
    return params
