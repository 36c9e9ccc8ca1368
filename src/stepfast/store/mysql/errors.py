"""What an error of MariaDB, MySQL or their drivers means to us, decided by its number.

The same three families as on Postgres. Some errors speak of the data that was sent, and refuse it. Some speak of what
an operator has to repair: rights, tables. All others are about the server as it is at the moment, and are ridden out.
"""

from __future__ import annotations

import asyncio

from asyncmy.errors import MySQLError

from ...errors import ConfigurationError, DatabaseRefused, DatabaseUnavailable, SchemaError, sentence
from ..answers import MissingRight
from ..lock_timeout import RowsHeld, longest_wait_ms
from ..migrations import OTHERWISE_MADE, move_in

_ABOUT_DATA = frozenset(
    {
        1048,  # a column cannot be null
        1062,  # duplicate entry
        1153,  # a packet larger than max_allowed_packet
        1264,  # out of range
        1265,  # data truncated
        1300,  # an invalid character string
        1301,  # a result larger than max_allowed_packet
        1366,  # a value that does not fit the column or its character set
        1406,  # data too long
        1690,  # a number out of range
        3140,  # invalid JSON, in MySQL
        3988,  # a character that the other character set does not have
        4025,  # a CHECK is violated
        4037,  # invalid JSON, in MariaDB
        4038,  # the same
        4078,  # characters of a collation that the other one does not have
    }
)
_NO_TABLES = frozenset({1146, 1051})
_OTHER_TABLES = frozenset({1054, 1136, 1305, 1364})
"""A column or a routine that this version expects is not there."""
_NO_RIGHT = frozenset({1142, 1143, 1227, 1370, 4151})
_NOT_LET_IN = frozenset({1044, 1045, 1698, 1049})
"""A wrong user or password, or a database that is not there. Both can be set right while a worker waits."""
_SIGNAL = 1644
"""Of what a trigger raises."""
_LOCKED = 1205
_AGAIN = frozenset({1213, 1020, 3101, 3572, 1180})
"""The transaction was rolled back for the sake of another: a deadlock, a row that changed under it, a certification
that failed in a cluster. The whole of it may be tried again at once."""
_DRIVERS = ("asyncmy", "aiomysql", "pymysql", "MySQLdb")


def translate(error: Exception) -> Exception:
    """What an error of the driver means to us: away for now, refused, set up wrongly, or a bug (itself)."""
    if isinstance(error, (DatabaseUnavailable, DatabaseRefused, SchemaError, ConfigurationError)):
        return error
    if isinstance(error, MySQLError) or number_of(error) is not None:
        return _by_number(error)
    if isinstance(error, RuntimeError) and "cryptography" in str(error):
        return ConfigurationError(f"the driver cannot log in: {error}. Install it, or use TLS (ssl=true in the URL)")
    if isinstance(error, UnicodeEncodeError):
        return DatabaseRefused(sentence(error))  # a lone surrogate, which the driver itself refuses
    if isinstance(error, (OSError, TimeoutError, EOFError)):
        return DatabaseUnavailable(f"the database cannot be reached: {sentence(error)}")
    return error


def number_of(error: BaseException) -> int | None:
    """The server's number for an error, whichever driver tells of it; None where it has none."""
    first = error.args[0] if error.args else None
    package = type(error).__module__.partition(".")[0]
    return first if package in _DRIVERS and isinstance(first, int) else None


def is_silent(error: BaseException) -> bool:
    """Whether it is not known what the server still does for us: an error of the driver or the network, which did not
    come from the server. Errors of callers and of ours say nothing about it."""
    number = number_of(error)
    if number is not None:
        return number == 0 or 2000 <= number < 3000
    return isinstance(error, (OSError, TimeoutError, EOFError, MySQLError, asyncio.InvalidStateError))


def is_to_be_repeated(error: BaseException) -> bool:
    """Whether the server rolled the transaction back for the sake of another, so that it may be tried again."""
    return number_of(error) in _AGAIN


def is_locked(error: BaseException) -> bool:
    """Whether a lock was waited for in vain."""
    return number_of(error) == _LOCKED


def is_timed_out(error: BaseException) -> bool:
    """Whether a question took longer than it was given."""
    return number_of(error) in (1969, 3024)


def is_savepoint_gone(error: BaseException) -> bool:
    """Whether a savepoint is not there any more."""
    return number_of(error) == 1305


def is_not_let_in(error: BaseException) -> bool:
    """Whether the server refused the user, or has no such database."""
    return number_of(error) in _NOT_LET_IN


def is_no_right(error: BaseException) -> bool:
    """Whether the user may not do what was asked."""
    return number_of(error) in _NO_RIGHT


def is_about_tables(error: BaseException) -> bool:
    """Whether a table is missing, or has not the columns that were requested."""
    return number_of(error) in _NO_TABLES | _OTHER_TABLES


def _by_number(error: Exception) -> Exception:
    number, said = number_of(error), sentence(error)
    if number == _SIGNAL and (moved := move_in(said)) is not None:
        return moved
    if number in _ABOUT_DATA:
        return DatabaseRefused(said)
    if number in _NO_TABLES:
        return SchemaError(f"the Stepfast tables are missing ({said}): run `stepfast migrate`")
    if number in _OTHER_TABLES:
        return SchemaError(f"the Stepfast tables are not those that this version made ({said}): {OTHERWISE_MADE}")
    if number in _NO_RIGHT:
        return MissingRight(f"the database user lacks a right that Stepfast needs ({said}): grant it")
    if number == _LOCKED and longest_wait_ms() is not None:
        return RowsHeld("another transaction holds rows that this one needs, and did not let go of them in time")
    if number is None or number == 0 or 2000 <= number < 3000:
        return DatabaseUnavailable(f"the database cannot be reached: {said}")
    return DatabaseUnavailable(f"the database could not do it at the moment: {said}")
