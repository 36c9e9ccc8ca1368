"""What an older library of SQLite calls otherwise."""

from __future__ import annotations

import re
import sqlite3
from functools import lru_cache

from ..sql import same_kind

_SIZED = re.compile(r"\boctet_length\(([\w.]+)\)")
_HAS_SIZE = sqlite3.sqlite_version_info >= (3, 43)


def for_this_sqlite(statements: dict[str, str]) -> dict[str, str]:
    """Statements as the library at hand understands them."""
    return statements if _HAS_SIZE else {name: same_kind(text, older(text)) for name, text in statements.items()}


@lru_cache(maxsize=1024)
def older(sql: str) -> str:
    """A statement for a SQLite before 3.43, which has no ``octet_length``. Its ``length`` counts the characters of a
    text, but the bytes of a blob."""
    return _SIZED.sub(r"length(CAST(\1 AS BLOB))", sql)
