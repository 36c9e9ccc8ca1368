"""Access to the console: hosts, origins, tokens, roles, and the headers of every response."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from ..errors import ConfigurationError
from .refusals import Refused

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?")
_DEFAULT_PORTS = {"http": "80", "https": "443", "": ""}


def base_of(scope: Mapping[str, Any]) -> str:
    """The prefix that links begin with, percent-encoded, without a slash at its end; empty without a prefix."""
    return quote(str(scope.get("root_path", "")).rstrip("/"))


def parts_of(scope: Mapping[str, Any]) -> list[str]:
    """The decoded segments of the path after the prefix, which a proxy or a server may have removed already.

    They are divided before they are decoded, since a segment may contain an encoded slash.
    """
    raw = scope.get("raw_path")
    path = raw.partition(b"?")[0].decode("ascii", "replace") if raw else quote(scope["path"], errors="replace")
    prefix, parts = _segments(str(scope.get("root_path", ""))), [unquote(part) for part in _segments(path)]
    return parts[len(prefix) :] if parts[: len(prefix)] == prefix else parts


def _segments(path: str) -> list[str]:
    return path.strip("/").split("/") if path.strip("/") else []


def is_loopback(host: str) -> bool:
    """Whether a socket that listens on this host can only be reached from this machine."""
    if host.lower() == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def names_for(host: str) -> tuple[str, ...]:
    """The host names by which a server that listens on this host is reached."""
    return LOOPBACK if is_loopback(host) else ("localhost", socket.gethostname(), host)


class Hosts:
    """The host names that requests may be for.

    Stricter than Starlette's TrustedHostMiddleware: one Host header, well formed, and no wildcards or redirects.
    """

    def __init__(self, names: Collection[str] | None, addresses: bool = False) -> None:
        """Without names, every well-formed one is allowed. ``addresses`` allows every IP address too: no DNS entry of
        an attacker can lead there."""
        self._names = None if names is None else {name.strip("[]").lower() for name in names}
        self._addresses = addresses

    def allows(self, headers: Headers) -> bool:
        """Whether the Host header is well formed and names an allowed host."""
        given = headers.getlist("host")
        found = _HOST.fullmatch(given[0]) if len(given) == 1 else None
        if found is None:
            return False
        name = found["name"].strip("[]").lower()
        return self._names is None or name in self._names or (self._addresses and _address(name) is not None)


def is_encrypted(scheme: str, headers: Headers) -> bool:
    """Whether the browser itself speaks HTTPS. Each proxy appends the scheme it was reached by, so the first entry is
    the browser's. A client that forges it only affects its own cookie."""
    forwarded = headers.get("x-forwarded-proto", "").partition(",")[0].strip()
    return "https" in (scheme, forwarded.lower())


def is_same_origin(headers: Headers) -> bool:
    """Whether a page of this console sent the request: by ``Sec-Fetch-Site``, else by comparing ``Origin`` with the
    host."""
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
"""May see every page."""
OPERATE = "operate"
"""May also carry out actions."""
ROLES = (VIEW, OPERATE)


class Who(NamedTuple):
    """The name and role of an authenticated client."""

    name: str
    role: str

    def may(self, role: str) -> bool:
        """Whether this role includes another."""
        return ROLES.index(self.role) >= ROLES.index(role)


Auth = Callable[[Request], "tuple[str, str] | Awaitable[tuple[str, str] | None] | None"]
"""A function of the request that returns a name and a role, or None to refuse it; it may be ``async``."""


class TokenAuthenticator:
    """Accepts requests with the token; none, if there is no token."""

    closed = "This console is closed. Open it by the link with its token, which was printed where it was started."

    def __init__(self, token: str | None) -> None:
        self._token = (token or "").strip().encode()  # read from a file, it ends with a newline
        digest = hmac.new(self._token, b"stepfast console", hashlib.sha256).hexdigest()
        # Cookies ignore ports: two consoles on one host would overwrite a cookie of the same name.
        self._name, self._value = f"stepfast_console_{digest[:8]}", digest[8:]

    async def who(self, request: Request) -> Who | None:
        """Return the client, by the cookie or by ``Authorization: Bearer``; None if it is not authenticated."""
        if not self._token:
            return None
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._fits(given.encode("latin-1")):
            return Who("token", OPERATE)
        value = request.cookies.get(self._name, "")
        return Who("token", OPERATE) if hmac.compare_digest(value.encode(), self._value.encode()) else None

    def cookie(self, given: str) -> tuple[str, str] | None:
        """Return the name and value of the cookie that replaces a valid token; None if the token is not valid."""
        return (self._name, self._value) if self._fits(given.encode()) else None

    def _fits(self, given: bytes) -> bool:
        return bool(self._token) and hmac.compare_digest(given.strip(), self._token)


class CallbackAuthenticator:
    """Asks a function of the application that mounts the console."""

    closed = "This console is closed to you. Sign in to the application that it belongs to."

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    async def who(self, request: Request) -> Who | None:
        """Return what the function says; a role that does not exist is refused."""
        found = self._auth(request)
        if inspect.isawaitable(found):
            found = await found
        if found is None:
            return None
        name, role = found
        if role not in ROLES:
            raise ConfigurationError(f"auth= returned the role {role!r}; the roles are {' and '.join(ROLES)}")
        return Who(str(name), role)

    def cookie(self, given: str) -> tuple[str, str] | None:
        """There is no token."""
        return None


Authenticator = TokenAuthenticator | CallbackAuthenticator

SAFE = ("GET", "HEAD")
_LOGIN = "token"
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="stepfast"'}


class AccessCheck:
    """Admits or refuses a request, before anything else reads it."""

    def __init__(self, authenticator: Authenticator, hosts: Hosts, read_only: bool) -> None:
        self._authenticator = authenticator
        self._hosts = hosts
        self._read_only = read_only

    async def admit(self, request: Request) -> Who | Response:
        """Return the authenticated client, or, for a valid token in the address, a redirect to the same page without
        it. Every other request is refused, with a message that does not depend on what it asked for."""
        if not self._hosts.allows(request.headers):
            raise Refused(
                400, "this server is not known by that name; `--allow-host NAME`, or hosts= of console(), adds one"
            )
        redirect = self._login(request)
        if redirect is not None:
            return redirect
        who = await self._authenticator.who(request)
        if who is None:
            raise Refused(401, self._authenticator.closed, _CHALLENGE)
        if request.method not in SAFE:
            self._check_unsafe(request, who)
        return who

    def _login(self, request: Request) -> Response | None:
        """Exchange a valid token in the address for a cookie."""
        if request.method not in SAFE or _LOGIN not in request.query_params:
            return None
        cookie = self._authenticator.cookie(request.query_params[_LOGIN])
        if cookie is None:
            return None
        name, value = cookie
        secure = "; Secure" if is_encrypted(request.url.scheme, request.headers) else ""
        attributes = f"Path={base_of(request.scope)}/; HttpOnly; SameSite=Strict{secure}"
        return Response(None, 303, {"Location": _without_token(request), "Set-Cookie": f"{name}={value}; {attributes}"})

    def _check_unsafe(self, request: Request, who: Who) -> None:
        if self._read_only:
            raise Refused(403, "this console is read-only")
        if not who.may(OPERATE):
            raise Refused(403, "you may look, but not act: that takes the role operate")
        if not is_same_origin(request.headers):
            raise Refused(403, "this did not come from a page of this console")


def _without_token(request: Request) -> str:
    """The address of the request without the token. It begins with the prefix and one slash, so that it cannot lead to
    another site."""
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
"""Only files of the console run, so that injected markup would be inert."""

SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: browsers then send `Origin: null` with the forms of the console itself.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Vary": "Accept, Cookie",
}
NO_STORE = {"Cache-Control": "no-store"}
