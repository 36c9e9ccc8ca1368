"""One request that passed the entrance, as pages and actions see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from starlette.requests import Request

from ..app import Stepfast
from .access import OPERATE, Who
from .desk import Desk
from .forms import Form
from .history import BRIEF, CAREFUL, PAGE, Address, History, read_history
from .paths import base_of
from .redacting import Veil


@dataclass(frozen=True, slots=True)
class Visit:
    """One request that was let in: who asks, and for what."""

    request: Request
    desk: Desk
    who: Who
    params: Mapping[str, str]
    """The named parts of the address: ``{id}`` of ``/runs/{id}``."""
    form: Form = field(default_factory=Form)
    """What was sent along, with a POST."""
    line: str = ""
    """The id of the line in the audit, of an action."""

    @property
    def app(self) -> Stepfast:
        """The application whose database is shown: for actions. Pages read by ``visit.look``."""
        return self.desk.app

    @property
    def look(self) -> Stepfast:
        """The application as pages have it: it writes nothing, and the database does not feel it."""
        return self.desk.look

    @property
    def query(self) -> Mapping[str, str]:
        """What stands behind the question mark."""
        return self.request.query_params

    @property
    def base(self) -> str:
        """The prefix that the console is mounted under; empty where it stands by itself."""
        return base_of(self.request.scope)

    @property
    def may_operate(self) -> bool:
        """Whether actions are offered. The entrance asks again when one is sent."""
        return self.who.may(OPERATE) and not self.desk.read_only

    @property
    def wants_json(self) -> bool:
        """Whether the JSON twin is asked for."""
        return wants_json(self.request)

    def url(self, *parts: str, **query: str | int | None) -> str:
        """An address in the console: ``visit.url("runs", run_id, after="x")``. Parts are quoted, so that a name with a
        slash in it stays one part; what is None or empty is left out of the query."""
        path = "/".join(quote(part, safe="") for part in parts)
        given = {name: value for name, value in query.items() if value not in (None, "")}
        return f"{self.base}/{path}" + (f"?{urlencode(given)}" if given else "")

    async def history(self, run_id: str, after: Address | None = None, limit: int = PAGE) -> History:
        """A run, and a page of its steps, not veiled yet."""
        largest = BRIEF if self.desk.rule is None else CAREFUL
        return await read_history(self.look, run_id, after, limit, largest, input_and_output=self.wants_json)

    def veil(self) -> Veil:
        """A new veil, for what this answer shows of one run."""
        return self.desk.veil()


def wants_json(request: Request) -> bool:
    """Whether JSON is preferred to a page: named in ``Accept``, and before a page if that is named too."""
    accepted = [part.partition(";")[0].strip().lower() for part in request.headers.get("accept", "").split(",")]
    if "application/json" not in accepted:
        return False
    return "text/html" not in accepted or accepted.index("application/json") < accepted.index("text/html")
