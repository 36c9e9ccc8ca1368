"""JSON that a row holds beside its payloads: lists of names, limits, plans. A hand may have damaged it.

What is not of the expected kind is taken for absent: one such row must not keep a worker from its work, nor the others
from being shown.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def read_json(text: object, kind: type[T], otherwise: T) -> T:
    """The value in a row, or ``otherwise``."""
    if not isinstance(text, (str, bytes)):
        return otherwise
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return otherwise
