"""Functions in our SQL are those of ``pg_catalog``, whatever else is found on the search_path.

Wherever a role may create objects in a schema that somebody's search_path names (``public``, up to PostgreSQL 14), it
can add an overload that fits our arguments better than the server's own function does, and it would run with our
rights. So ``pg_catalog.`` is put before every call when the statements are loaded; the ``.sql`` files stay readable.

Operators cannot be qualified like that: ``OPERATOR(pg_catalog.=)`` has another precedence, and IN and IS DISTINCT FROM
have no such form. They are safe where both sides have exactly the types of an operator in ``pg_catalog``, which is
searched first; a test tells of every statement where they do not.
"""

from __future__ import annotations

import functools
import re

SEARCH_PATH = "pg_catalog, pg_temp"
"""For sessions that are ours alone. Connections on which users' own code works keep theirs."""

_TOKEN = re.compile(
    r"(?P<skip>--[^\n]*|'(?:[^']|'')*'|\"[^\"]*\")"  # comments, texts and quoted names stay as they are
    r"|(?<![\w.$])(?:(?P<alias>AS\s+[a-z_]\w*)|(?P<call>[a-z_]\w*))(?=\()"
)
"""A call is a word in small letters right before its parenthesis. What grammar puts there (ANY, COALESCE) is in
capitals; behind an alias stand the names of columns."""


@functools.lru_cache(maxsize=1024)
def qualify(sql: str) -> str:
    """The statement with ``pg_catalog.`` before each function that it calls. It is remembered, because every store of a
    process asks for the same hundred statements, and looking through them takes longer than connecting."""
    return _TOKEN.sub(lambda found: _prefix(found) + found[0], sql)


def _prefix(found: re.Match[str]) -> str:
    call = found["call"]
    if call is None or call == "extract":  # its arguments are grammar, and the grammar means the one of pg_catalog
        return ""
    if call == "unnest" and _takes_several(found.string, found.end()):
        return ""  # grammar too: it means one unnest of pg_catalog for each argument, but only if written like this
    return "pg_catalog."


def _takes_several(sql: str, start: int) -> bool:
    """Whether there is more than one argument between the parenthesis at ``start`` and its end."""
    depth = 0
    for found in re.finditer(r"'(?:[^']|'')*'|[(),\[\]]", sql[start:]):
        if found[0] in "([":
            depth += 1
        elif found[0] in ")]":
            depth -= 1
            if depth == 0:
                return False
        elif found[0] == "," and depth == 1:
            return True
    return False
