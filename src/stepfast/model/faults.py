"""What is wrong with a value that cannot be stored, and where: found in one walk, however deep the value is nested.

The walk visits each part once and takes no time for the depth at which it stands. So a large value that is nested
deeply is refused as quickly as a flat one, and the event loop in which that happens is not held up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

_Parts = Iterator[tuple[str, Any]]
_ATOMS = frozenset({str, int, float, bool, type(None)})


def find_not_finite(value: Any, plain: Callable[[Any], Any]) -> tuple[str, float] | None:
    """The path of a NaN or an infinity, and the number. ``plain`` takes apart what is not of Python's own types."""
    if _all_finite(value, plain):
        return None

    def wrong(part: Any) -> bool:
        return isinstance(part, float) and not math.isfinite(part)

    return _find(value, wrong) or _find(plain(value), wrong)


def find_unfit(value: Any, encode: Callable[[Any], object]) -> tuple[str, Exception] | None:
    """The path of the first part that ``encode`` refuses by itself, and its error."""
    refused: list[Exception] = []

    def unfit(part: Any) -> bool:
        try:
            encode(part)
        except Exception as error:
            refused.append(error)
        return bool(refused)

    found = _find(value, unfit)
    return None if found is None else (found[0], refused[0])


def _all_finite(value: Any, plain: Callable[[Any], Any]) -> bool:
    """The usual answer, without a thought about paths, and without a copy of the value for the garbage collector."""
    open_ = [value]
    for part in open_:  # the list grows while it is read
        kind = type(part)
        if kind is float:
            if not math.isfinite(part):
                return False
        elif kind is dict:
            open_.extend(part.values())
        elif kind is list or kind is tuple:
            open_.extend(part)
        elif kind not in _ATOMS:
            open_.append(plain(part))
    return True


def _find(value: Any, wrong: Callable[[Any], bool]) -> tuple[str, Any] | None:
    """The first atom that is wrong, in the order of writing. A container that is met again has been looked at."""
    seen: set[int] = set()
    path: list[str] = []
    stack: list[_Parts] = [iter([("$", value)])]
    while stack:
        for name, part in stack[-1]:
            parts = None if type(part) in _ATOMS else _parts(part)
            if parts is None:
                if wrong(part):
                    return "".join([*path, name]), part
            elif id(part) not in seen:
                seen.add(id(part))
                path.append(name)
                stack.append(parts)
                break
        else:
            stack.pop()
            del path[-1:]
    return None


def _parts(value: Any) -> _Parts | None:
    """The named parts of a container; None for an atom."""
    if isinstance(value, dict):
        return _items(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return ((f"[{index}]", part) for index, part in enumerate(value))
    fields = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", None)
    if fields is None or isinstance(value, type):
        return None
    return ((f".{name}", getattr(value, name, None)) for name in fields)


def _items(value: dict[Any, Any]) -> _Parts:
    for key, part in value.items():
        yield ".<key>", _Key(key) if isinstance(key, (tuple, frozenset)) else key
        yield f".{key!s}".encode("utf-8", "replace").decode(), part


class _Key:
    """A key that is a container. It cannot be stored, though its parts could be: so it counts as one wrong atom."""

    def __init__(self, key: object) -> None:
        self.key = key
