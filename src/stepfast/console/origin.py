"""Where a request comes from: by which name this server was reached, and whether our own page sent it.

A page of another site can make a browser send requests with its cookies, and a name that an attacker points at
this machine makes a page of theirs look like one of ours. So the name must be one we know, and whatever changes
something must say that it comes from a page of the same name. A request that says nothing is refused too.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers

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
