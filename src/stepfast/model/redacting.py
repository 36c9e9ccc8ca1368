"""Database URLs as they are shown: never with a password, however the URL is written or malformed.

What is shown is what is known to be harmless, rather than all but what is known to be a secret: people write passwords
with ``@ / ? #`` in them, and users with spaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote, unquote_plus

HIDDEN = "***"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NO_SLASHES = re.compile(r"(?:sqlite|postgres(?:ql)?|mysql|mariadb)(?:\+\w+)?:(?!//)", re.IGNORECASE)
"""A scheme with too few slashes behind it. What follows is shown if it can only be the name of a file."""
_USER = re.compile(r"[\w.~%+-]*")
_HOSTS = re.compile(r"(?:\[[0-9A-Fa-f:.%]*\]|[\w.%-]*)(?::\d{1,5})?(?:,(?:\[[0-9A-Fa-f:.%]*\]|[\w.%-]*)(?::\d{1,5})?)*")
_PATH = re.compile(r"/?[^@?#:\s]*")
_PLAIN = re.compile(r"[\w./-]*")
_OPEN_PARAMETERS = frozenset(
    [
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "sslmode",
        "sslrootcert",
        "sslcert",
        "target_session_attrs",
        "application_name",
        "connect_timeout",
        "search_path",
        "options",
        "gssencmode",
        "channel_binding",
        "krbsrvname",
        "mode",
    ]
)
"""Parameters whose values may be shown. All others may hold a secret, whatever they are called."""

_WORDS = [
    # From the colon behind a user to the last @ of the same word.
    re.compile(r"(//[^\s:]*:)[^\s]*(?=@)"),
    re.compile(r"(\b[\w.%-]+:)[^\s/][^\s]*(?=@)"),
    re.compile(r"((?:pass(?:word|wd|phrase)?|pwd|secret|token)\s*=\s*)(?:'[^']*'?|\"[^\"]*\"?|[^&\s]+)", re.IGNORECASE),
]
_PAIR = re.compile(r"([\w%+-]*%[\w%+-]*)=([^&\s]+)")


def redact(url: str) -> str:
    """The URL, with what may be secret in it replaced by ``***``."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        known = _NO_SLASHES.match(url)
        if known is None:
            return url if _PLAIN.fullmatch(url) else HIDDEN
        is_file = known[0].lower().startswith("sqlite") and _PLAIN.fullmatch(url, known.end())
        return url if is_file else known[0] + HIDDEN
    rest = url[scheme.end() :]
    if scheme[0].lower().startswith("sqlite") and rest.startswith("/"):
        return url  # a file has no password
    return scheme[0] + _shown(rest)


def scrub(text: str) -> str:
    """Somebody's sentence, with what looks like a password in it replaced."""
    for pattern in _WORDS:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return _PAIR.sub(lambda pair: pair[0] if _is_open(pair[1]) else f"{pair[1]}={HIDDEN}", text)


def is_shown_in(text: str, url: str) -> bool:
    """Whether a text has something of a URL in it that is not to be shown."""
    return any(secret in text for secret in _secrets(url))


def _shown(rest: str) -> str:
    """What follows the scheme: whoever is before the last @, hosts, path and parameters."""
    who, at, where = rest.rpartition("@")
    user, colon, _ = who.partition(":")
    who = (user if _USER.fullmatch(user) else HIDDEN) + (colon and f":{HIDDEN}") + at
    hosts = re.split(r"[/?#]", where, maxsplit=1)[0]
    if _HOSTS.fullmatch(hosts) is None:
        return who + HIDDEN
    path, question, parameters = where[len(hosts) :].partition("?")
    path = path if _PATH.fullmatch(path) else f"/{HIDDEN}"
    return who + hosts + path + question + "&".join(map(_parameter, parameters.split("&") if question else ()))


def _parameter(pair: str) -> str:
    name, equals, value = pair.partition("=")
    if not equals or _PLAIN.fullmatch(name) is None:
        return HIDDEN
    return pair if _is_open(name) and "#" not in value else f"{name}={HIDDEN}"


def _is_open(name: str) -> bool:
    return unquote_plus(name).lower() in _OPEN_PARAMETERS


def _secrets(url: str) -> Iterator[str]:
    """The passwords of a URL, as they are written and as they are meant; also what may be one."""
    rest = url.partition("://")[2] or url
    found = [rest.rpartition("@")[0].partition(":")[2], rest.partition("@")[0].partition(":")[2]]
    for pair in rest.partition("?")[2].split("&"):
        name, _, value = pair.partition("=")
        if not _is_open(name):
            found.append(value)
    for secret in found:
        if secret:
            yield from {secret, unquote(secret), unquote_plus(secret)}
