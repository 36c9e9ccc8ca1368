"""What an error of the server or the driver means to us, decided by the class of its SQLSTATE.

Only three classes speak of the data that was sent: 22 (a value is not acceptable), 23 (a constraint is violated) and 54
(a limit of the server is exceeded). Such an error refuses a record, and the run it belongs to hears of it. Everything
else is about the server, its locks, its disk, its rights or its tables: no run is to blame, so no run pays. Workers
ride it out; what waiting alone cannot cure (a missing right, a missing table) says what to do.
"""

from __future__ import annotations

import asyncpg

from ...errors import ConfigurationError, DatabaseRefused, DatabaseUnavailable, SchemaError, sentence
from ..answers import MissingRight
from ..lock_timeout import RowsHeld, longest_wait_ms
from ..migrations import OTHERWISE_MADE, move_in

ABOUT_DATA = frozenset({"22", "23", "54"})
"""Classes of errors that another row, or another value, would not have met."""

_NO_TABLES = frozenset({"42P01", "3F000"})
_OTHER_TABLES = frozenset({"42703", "42883", "42P10", "42704"})
"""A column, a function, a constraint or a type that this version expects is not there."""
MOVED_STATE = "SFMVD"
"""Of the error of a trigger in a namespace that was moved."""
_NO_RIGHT = "42501"
_LOCKED = "55P03"
_AWAY = ("08", "28", "3D", "57P")
"""How the states begin that speak of the connection, or of the server as a whole."""


def translate(error: Exception) -> Exception:
    """What an error of the driver means to us: away for now, refused, set up wrongly, or a bug (itself)."""
    if isinstance(error, (DatabaseUnavailable, DatabaseRefused, SchemaError, ConfigurationError)):
        return error
    if isinstance(error, asyncpg.PostgresError) or _foreign_state(error) is not None:
        return _by_class(error)
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return DatabaseRefused(sentence(error))  # the driver itself could not make a value into what the server takes
    if isinstance(error, (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)):
        return DatabaseUnavailable(f"the database cannot be reached: {sentence(error)}")
    return error


def _by_class(error: Exception) -> Exception:
    state, said = _state(error), sentence(error)
    if state[:2] in ABOUT_DATA:
        return DatabaseRefused(said)
    if state == MOVED_STATE:
        return move_in(str(error)) or error
    if state in _NO_TABLES:
        return SchemaError(f"the Stepfast tables are missing ({said}): run `stepfast migrate`")
    if state in _OTHER_TABLES:
        return SchemaError(f"the Stepfast tables are not those that this version made ({said}): {OTHERWISE_MADE}")
    if state == _LOCKED and longest_wait_ms() is not None:
        return RowsHeld("another transaction holds rows that this one needs, and did not let go of them in time")
    if state == _NO_RIGHT:
        return MissingRight(f"the database user lacks a right that Stepfast needs ({said}): grant it")
    if state.startswith(_AWAY):
        return DatabaseUnavailable(f"the database cannot be reached: {said}")
    return DatabaseUnavailable(f"the database could not do it at the moment (SQLSTATE {state}): {said}")


def _state(error: Exception) -> str:
    return getattr(error, "sqlstate", None) or _foreign_state(error) or "XX000"


def _foreign_state(error: Exception) -> str | None:
    """What the drivers of callers call the same: psycopg, and psycopg2."""
    if type(error).__module__.partition(".")[0] not in ("psycopg", "psycopg2"):
        return None
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
