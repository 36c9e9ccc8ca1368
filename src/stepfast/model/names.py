"""Names that users give: workflows, queues, steps, keys, tags, namespaces. Each is refused early and by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable

from ..errors import ConfigurationError, UnknownOption
from .stored import read_json

CHECKS = "~until/"
"""How the keys begin under which a run keeps what it knows of its checks, among the values that others may read."""

GRAPH = "~graph"
"""The key under which a dag run keeps a copy of its graph, if that may not have been stored when it was started."""
SIGNAL_ID = "~signal/"
"""How the keys begin under which a run keeps the ids of signals that were sent with one."""
START = "~start"
"""The key under which a dag run that waits for a name keeps its rows."""
OWN_KEYS = (START, CHECKS, GRAPH, SIGNAL_ID)
"""Keys of ours begin with one of these."""

QUESTION = "~question/"
"""How the names begin under which questions are in a mailbox, among the signals."""
OWN_MAIL = "~"
"""No signal of a user begins like this."""

LOGS = "~logs"
"""The stream of a run that has the lines which its code logs."""
OWN_STREAMS = "~"
"""No stream of a user begins like this."""

_NAMESPACE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")


def check_name(value: object, what: str, limit: int | None = None) -> str:
    """A name every database can keep and compare exactly. Without a limit any length will do: what is declared before
    there is an application is measured by the application that meets it."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} must be a string, not {type(value).__name__}")
    if not value:
        raise ConfigurationError(f"{what} must not be empty")
    if limit is not None and len(value) > limit:
        raise ConfigurationError(f"{what} has {len(value)} characters; at most {limit} are kept: {value[:40]!r}…")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{what} has a lone surrogate, which no database can keep: {value!r}") from None
    if "\0" in value:
        raise ConfigurationError(f"{what} has a NUL character, which no database can keep: {value!r}")
    return value


def check_queue(value: object, limit: int | None = None) -> str:
    """A name that can also be given on the command line, among others: ``--queues a,b``."""
    name = check_name(value, "the queue", limit)
    if "," in name or name != name.strip():
        raise ConfigurationError(
            f"the queue {name!r} has a comma, or blanks at an end: `stepfast worker --queues a,b` could never name it"
        )
    return name


def check_signal(value: object, limit: int) -> str:
    """A name that can stand in ``waiting_for`` among others: ``signal:paid, time``."""
    name = check_waited(value, "the name of a signal", limit)
    if name.startswith(OWN_MAIL):
        raise ConfigurationError(
            f"the name of a signal must not begin with {OWN_MAIL!r}, as those of Stepfast's own messages do: {name!r}"
        )
    return name


def check_waited(value: object, what: str, limit: int) -> str:
    """A name that can stand in ``waiting_for`` among others."""
    name = check_name(value, what, limit)
    if "," in name:
        raise ConfigurationError(
            f"{what} must have no comma, which divides what a run waits for: {name!r}; use another character"
        )
    return name


def check_question(value: object, limit: int) -> str:
    """The name of a question, which is in the mailbox behind a word of ours."""
    return check_waited(value, "the name of a question", limit - len(QUESTION))


def check_callback(value: object, limit: int) -> str:
    """The name of a callback."""
    return check_waited(value, "the name of a callback", limit)


def check_stream(value: object, limit: int) -> str:
    """The name of a stream to send to."""
    name = check_name(value, "the name of a stream", limit)
    if name.startswith(OWN_STREAMS):
        raise ConfigurationError(
            f"the name of a stream must not begin with {OWN_STREAMS!r}, as those of Stepfast's own do: {name!r}"
        )
    return name


def check_event(value: object, limit: int) -> str:
    """The name of an event, which can stand in ``waiting_for`` among others."""
    return check_waited(value, "the name of an event", limit)


def nearest(name: str, known: Iterable[str]) -> str:
    """What may have been meant by a name that is not known, as the end of a sentence."""
    found = difflib.get_close_matches(name, list(known), 1) if len(name) > 2 else []  # a letter resembles too much
    return f"; did you mean {found[0]!r}?" if found else ""


def refuse_unknown(what: str, given: Iterable[str], known: Collection[str], hint: str = "") -> None:
    """An error, if an option is given that there is none of; with a hint at what else may have been meant."""
    for name in given:
        if name not in known:
            names = list(known)
            meant = nearest(name, names) or ";"
            raise UnknownOption(f"{what} has no option {name!r}{meant} it has {', '.join(names)}{hint}")


def check_namespace(value: str) -> str:
    """A namespace is a schema on Postgres and a table prefix elsewhere, so it is spelled plainly."""
    if not isinstance(value, str) or not _NAMESPACE.fullmatch(value):
        raise ConfigurationError(
            f"namespace {value!r} is not usable: letters, digits and underscores, not starting with a digit, at most 48"
        )
    plain = value.lower()
    if plain.startswith("pg_") or plain == "information_schema":
        raise ConfigurationError(
            f"namespace {value!r} is not usable: Postgres keeps pg_… and information_schema to itself"
        )
    if f"{plain}_".startswith("sqlite_"):  # tables are named namespace_…
        raise ConfigurationError(f"namespace {value!r} is not usable: SQLite keeps names like sqlite_… to itself")
    return value


def read_tags(text: str | None) -> list[str]:
    """The tags in a row. A text that is no such list, because it was written by hand, is shown as it is: a reader who
    lists runs is to see the others."""
    if not text:
        return []
    return read_json(text, list[str], [text])
