"""Who is asking, and what they may do: by a token, or by a function of the application that mounts the console.

A token opens everything. It comes once, as ``?token=``, and is then replaced by a cookie that scripts cannot read and
that no other site can make a browser send. The cookie holds a value derived from the token, not the token.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from starlette.requests import Request

from ..errors import ConfigurationError

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


class Door(Protocol):
    """A way of telling who is asking."""

    closed: str
    """What strangers are told."""

    async def who(self, request: Request) -> Who | None:
        """Who is asking; None: a stranger."""
        ...

    def cookie(self, given: str) -> tuple[str, str] | None:
        """The cookie that a right token is replaced by: its name and value. None: this is no right token."""
        ...


class TokenDoor:
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


class OwnDoor:
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
