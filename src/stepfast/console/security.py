"""Access to the console: hosts, origins, tokens, roles, and the headers of every response."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple, Protocol
from urllib.parse import quote, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from ..errors import ConfigurationError
from .addresses import base_of, parts_of
from .refusals import Refused

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?")
_DEFAULT_PORTS = {"http": "80", "https": "443", "": ""}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    if host.lower() == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def names_for(host: str) -> tuple[str, ...]:
    """The names by which a server that listens there is reached, beside IP addresses."""
    return LOOPBACK if is_loopback(host) else ("localhost", socket.gethostname(), host)


class Hosts:
    """The names that a request may be for."""

    def __init__(self, names: Collection[str] | None, addresses: bool = False) -> None:
        """None: every name, because somebody before us checks it. ``addresses``: every IP address too, which nobody
        can point elsewhere."""
        self._names = None if names is None else {name.strip("[]").lower() for name in names}
        self._addresses = addresses

    def allows(self, headers: Headers) -> bool:
        """Whether the Host header is well formed, and one of the names."""
        given = headers.getlist("host")
        found = _HOST.fullmatch(given[0]) if len(given) == 1 else None
        if found is None:
            return False
        name = found["name"].strip("[]").lower()
        return self._names is None or name in self._names or (self._addresses and _address(name) is not None)


def is_encrypted(scheme: str, headers: Headers) -> bool:
    """Whether the browser itself speaks HTTPS. Of several proxies each adds the scheme by which it was asked, the one
    in front first; whoever makes that up harms no cookie but their own."""
    said = headers.get("x-forwarded-proto", "").partition(",")[0].strip()
    return "https" in (scheme, said.lower())


def is_own(headers: Headers) -> bool:
    """Whether a page of ours sent this: the browser says so, or else its ``Origin`` is the host that was asked."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin, host = headers.get("origin"), headers.get("host")
    return origin is not None and host is not None and _is_at(origin, host)


def _is_at(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
        wanted = urlsplit(f"//{host}")
        default = _DEFAULT_PORTS.get(parts.scheme)
        if default is None or not parts.hostname or parts.hostname != wanted.hostname:
            return False
        return str(parts.port or default) == str(wanted.port or default)
    except ValueError:
        return False


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


VIEW = "view"
"""May look at every page."""
OPERATE = "operate"
"""May look, and also act."""
ROLES = (VIEW, OPERATE)


class Who(NamedTuple):
    """Somebody who was let in."""

    name: str
    role: str

    def may(self, role: str) -> bool:
        """Whether somebody of this role is let through where the other role is needed."""
        return ROLES.index(self.role) >= ROLES.index(role)


Auth = Callable[[Request], "tuple[str, str] | Awaitable[tuple[str, str] | None] | None"]
"""A function of the request that gives a name and a role, or None for a stranger; it may be ``async``."""


class Authenticator(Protocol):
    """A way of telling who is asking."""

    closed: str
    """What strangers are told."""

    async def who(self, request: Request) -> Who | None:
        """Who is asking; None: a stranger."""
        ...

    def cookie(self, given: str) -> tuple[str, str] | None:
        """The cookie that a right token is replaced by: its name and value. None: this is no right token."""
        ...


class TokenAuthenticator:
    """Lets in whoever has the token; nobody, if there is none."""

    closed = "This console is closed. Open it by the link with its token, which was printed where it was started."

    def __init__(self, token: str | None) -> None:
        self._token = (token or "").strip().encode()  # out of a file it comes with the end of its line
        digest = hmac.new(self._token, b"stepfast console", hashlib.sha256).hexdigest()
        # Browsers do not tell ports apart: two consoles on one host would overwrite each other's cookie.
        self._name, self._value = f"stepfast_console_{digest[:8]}", digest[8:]

    async def who(self, request: Request) -> Who | None:
        """By the cookie, or by ``Authorization: Bearer``, which scripts may prefer."""
        if not self._token:
            return None
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._fits(given.encode("latin-1")):
            return Who("token", OPERATE)
        value = request.cookies.get(self._name, "")
        return Who("token", OPERATE) if _same(value, self._value) else None

    def cookie(self, given: str) -> tuple[str, str] | None:
        """The cookie in exchange for the token."""
        return (self._name, self._value) if self._fits(given.encode()) else None

    def _fits(self, given: bytes) -> bool:
        return bool(self._token) and hmac.compare_digest(given.strip(), self._token)


class CallbackAuthenticator:
    """Asks the application that mounts the console."""

    closed = "This console is closed to you. Sign in to the application that it belongs to."

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    async def who(self, request: Request) -> Who | None:
        """What the function says, checked: a role that does not exist lets nobody in."""
        found = self._auth(request)
        if inspect.isawaitable(found):
            found = await found
        if found is None:
            return None
        name, role = found
        if role not in ROLES:
            raise ConfigurationError(f"auth= gave the role {role!r}; there are {' and '.join(ROLES)}")
        return Who(str(name), role)

    def cookie(self, given: str) -> tuple[str, str] | None:
        """No token opens this door."""
        return None


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


SAFE = ("GET", "HEAD")
_LOGIN = "token"


class AccessCheck:
    """Lets a request in, or refuses it. There is one entrance for each console."""

    def __init__(self, authenticator: Authenticator, hosts: Hosts, read_only: bool) -> None:
        self._authenticator = authenticator
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
        who = await self._authenticator.who(request)
        if who is None:
            raise Refused(401, self._authenticator.closed, _ASK)
        if request.method not in SAFE:
            self._check_unsafe(request, who)
        return who

    def _login(self, request: Request) -> Response | None:
        """For a page that is asked for with a right token: its cookie, and the same page without the token."""
        if request.method not in SAFE or _LOGIN not in request.query_params:
            return None
        cookie = self._authenticator.cookie(request.query_params[_LOGIN])
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


CONTENT_SECURITY_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    ]
)
"""Only files of our own: even markup that slipped through would be dead."""

ALWAYS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: browsers then send `Origin: null` with forms, also to ourselves.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Vary": "Accept, Cookie",
}
NOT_KEPT = {"Cache-Control": "no-store"}
