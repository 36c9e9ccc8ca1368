"""Overloads of the server's functions and operators, as a hostile role would make them in ``public``.

Each has arguments of exactly the types of a column or parameter for which the server itself has no function or operator
of exactly these types: there the server would convert the arguments, and an overload that needs no conversion wins. Who
comes to one of them has the statement fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

TYPES = [
    "boolean", "smallint", "integer", "bigint", "numeric", "float8", "text", "varchar", "name", "uuid", "json",
    "timestamptz", "uuid[]", "text[]", "integer[]", "bigint[]", "boolean[]", "smallint[]",
]  # fmt: skip
OPERATORS = ["=", "<>", "<", ">", "<=", ">=", "+", "-", "*", "/", "||", "~", "~~"]
COMPARE = frozenset(["=", "<>", "<", ">", "<=", ">=", "~", "~~"])

USED = """
WITH ours AS (
    SELECT 'pg_proc'::regclass AS class, oid FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL
    SELECT 'pg_operator'::regclass, oid FROM pg_operator WHERE oprnamespace = 'public'::regnamespace
)
SELECT DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid) || ' uses '
       || pg_describe_object(d.refclassid, d.refobjid, d.refobjsubid)
FROM pg_depend d JOIN ours o ON o.class = d.refclassid AND o.oid = d.refobjid
WHERE NOT EXISTS (SELECT 1 FROM ours s WHERE s.class = d.classid AND s.oid = d.objid)
ORDER BY 1
"""
"""What was resolved to one of them, of everything that the catalogue keeps in a resolved form: views, defaults, indexes
and the bodies of SQL functions."""


def overloads(functions: Iterable[tuple[str, int]]) -> str:
    """A script that makes them: for functions of the catalogue, by name and number of arguments, and for operators."""
    lines = [
        _function(name, arguments, "text")
        for name, count in sorted(functions)
        for arguments in itertools.product(TYPES, repeat=count)
    ]
    for left, right in itertools.product(TYPES, repeat=2):
        lines += [_function("trap_yes", (left, right), "boolean"), _function("trap_left", (left, right), left)]
        for sign in OPERATORS:
            trap = "trap_yes" if sign in COMPARE else "trap_left"
            lines.append(
                f"CREATE OPERATOR public.{sign} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = public.{trap})"
            )
    return ";\n".join(lines)


def _function(name: str, arguments: tuple[str, ...], result: str) -> str:
    return (
        f"CREATE FUNCTION public.{name}({', '.join(arguments)}) RETURNS {result} LANGUAGE plpgsql AS "
        f"'BEGIN RAISE EXCEPTION ''the overload {name} of a stranger was called''; END'"
    )
