"""The one entrance that every request comes by: by which name it came, who sent it, and whether they may.

Nothing behind it asks again, and nothing passes beside it. Whatever is no safe method needs the role ``operate``, a
console that is not read-only, and a page of our own as its sender, whichever route it is for.
"""

from __future__ import annotations

from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import Response

from .access import OPERATE, Door, Who
from .origin import Hosts, is_encrypted, is_own
from .paths import base_of, parts_of
from .refusals import Refused

SAFE = ("GET", "HEAD")
_LOGIN = "token"


class Entrance:
    """Lets a request in, or refuses it. There is one entrance for each console."""

    def __init__(self, door: Door, hosts: Hosts, read_only: bool) -> None:
        self._door = door
        self._hosts = hosts
        self._read_only = read_only

    async def admit(self, request: Request) -> Who | Response:
        """Who comes in; or, for a right token, the answer that brings them back without it. Everybody else is refused,
        and told nothing of what there is."""
        if not self._hosts.allows(request.headers):
            raise Refused(
                400, "this server is not known by that name; `--allow-host NAME`, or hosts= of console(), adds one"
            )
        known = self._login(request)
        if known is not None:
            return known
        who = await self._door.who(request)
        if who is None:
            raise Refused(401, self._door.closed, _ASK)
        if request.method not in SAFE:
            self._check_unsafe(request, who)
        return who

    def _login(self, request: Request) -> Response | None:
        """For a page that is asked for with a right token: its cookie, and the same page without the token."""
        if request.method not in SAFE or _LOGIN not in request.query_params:
            return None
        cookie = self._door.cookie(request.query_params[_LOGIN])
        if cookie is None:
            return None
        response = Response(status_code=303, headers={"Location": _without_token(request)})
        name, value = cookie
        secure = "; Secure" if is_encrypted(request.url.scheme, request.headers) else ""
        response.headers["Set-Cookie"] = (
            f"{name}={value}; Path={base_of(request.scope)}/; HttpOnly; SameSite=Strict{secure}"
        )
        return response

    def _check_unsafe(self, request: Request, who: Who) -> None:
        if self._read_only:
            raise Refused(403, "this console is read-only")
        if not who.may(OPERATE):
            raise Refused(403, "you may look, but not act: that takes the role operate")
        if not is_own(request.headers):
            raise Refused(403, "this did not come from a page of this console")


_ASK = {"WWW-Authenticate": 'Bearer realm="stepfast"'}


def _without_token(request: Request) -> str:
    """The address of the request without the token, from our own root on: whatever stands there, it leads nowhere
    else."""
    kept = [(name, value) for name, value in request.query_params.multi_items() if name != _LOGIN]
    path = "/".join(quote(part, safe="") for part in parts_of(request.scope))
    return f"{base_of(request.scope)}/{path}" + (f"?{urlencode(kept)}" if kept else "")
