"""What an error of MariaDB, MySQL or their driver means to us, decided by its number.

The same three families as on Postgres. Some errors speak of the data that was sent, and refuse it. Some speak of what
somebody has to mend: rights, tables. All others are about the server as it is at the moment, and are ridden out.
"""

from __future__ import annotations

from asyncmy.errors import MySQLError

from ...errors import ConfigurationError, DatabaseRefused, DatabaseUnavailable, SchemaError, sentence
from ..task_store import missing_tables

_ABOUT_DATA = frozenset(
    {
        1048,  # a column cannot be null
        1062,  # duplicate entry
        1153,  # a packet larger than max_allowed_packet
        1264,  # out of range
        1265,  # data truncated
        1300,  # an invalid character string
        1366,  # a value that does not fit the column or its character set
        1406,  # data too long
        3988,  # a character that the other character set does not have
        4078,  # the same, of collations
    }
)
_NO_TABLES = frozenset({1146, 1051})
_OTHER_TABLES = frozenset({1054, 1136, 1364})
_NO_RIGHT = frozenset({1142, 1143, 1227, 1370, 4151})
_NOT_LET_IN = frozenset({1044, 1045, 1698, 1049})
"""A wrong user or password, or a database that is not there. Both can be mended while a worker waits."""


def translate(error: Exception) -> Exception:
    """What an error of the driver means to us: away for now, refused, set up wrongly, or a bug (itself)."""
    if isinstance(error, (DatabaseUnavailable, DatabaseRefused, SchemaError, ConfigurationError)):
        return error
    if isinstance(error, MySQLError):
        return _by_number(error)
    if isinstance(error, RuntimeError) and "cryptography" in str(error):
        return ConfigurationError(f"the driver cannot log in: {error}. Install it, or use TLS (ssl=true in the URL)")
    if isinstance(error, (OSError, TimeoutError, EOFError)):
        return DatabaseUnavailable(f"the database cannot be reached: {sentence(error)}")
    return error


def number_of(error: BaseException) -> int | None:
    """The server's number for an error; None where it has none."""
    first = error.args[0] if error.args else None
    return first if isinstance(error, MySQLError) and isinstance(first, int) else None


def is_silent(error: BaseException) -> bool:
    """Whether it is not known what the server still does for us: the error did not come from it."""
    number = number_of(error)
    return number is None or 2000 <= number < 3000


def is_not_let_in(error: BaseException) -> bool:
    """Whether the server refused the user, or has no such database."""
    return number_of(error) in _NOT_LET_IN


def is_no_right(error: BaseException) -> bool:
    """Whether the user may not do what was asked."""
    return number_of(error) in _NO_RIGHT


def _by_number(error: MySQLError) -> Exception:
    number, said = number_of(error), sentence(error)
    if number in _ABOUT_DATA:
        return DatabaseRefused(said)
    if number in _NO_TABLES or number in _OTHER_TABLES:
        return missing_tables(said)
    if number in _NO_RIGHT:
        return ConfigurationError(f"the database user lacks a right that remote steps need ({said}): grant it")
    return DatabaseUnavailable(f"the database could not do it at the moment: {said}")
