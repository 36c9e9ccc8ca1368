"""Columns of a large batch as single texts, which the statement takes apart again.

The driver encodes an array element by element and asks each what kind of thing it is, which costs the client several
times as much as a join here and a split there. What does not fit the form is sent as arrays, by other statements.
"""

from __future__ import annotations

from collections.abc import Sequence

_SEPARATOR, _NULL = "\x1f", "\x1e"
"""Where a statement says ``string_to_array($1, chr(31), chr(30))``. JSON has no bare control characters; in other texts
they are looked for."""


def numbers(column: Sequence[int]) -> str:
    """A column of numbers as one text, for ``$1::text::integer[]``."""
    return f"{{{str(list(column))[1:-1]}}}"


def ids(column: Sequence[str]) -> str:
    """A column of ids as one text, for ``$1::text::uuid[]``."""
    return f"{{{','.join(column)}}}"


def texts(column: Sequence[str | None]) -> str | None:
    """A column of texts as one, for ``string_to_array($1, chr(31), chr(30))``; None if one of them cannot be told from
    another there."""
    if not column:
        return ""
    nulls = column.count(None)
    text = _SEPARATOR.join([_NULL if item is None else item for item in column] if nulls else column)  # type: ignore[arg-type]
    if text.count(_SEPARATOR) != len(column) - 1 or text.count(_NULL) != nulls or not text:
        return None
    return text
