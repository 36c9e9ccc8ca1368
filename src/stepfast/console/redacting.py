"""What must not be seen is not sent: parts of payloads are hidden before anything is made of them.

``redact=["card.number", "password"]`` hides, in every payload, whatever is found under a path that ends so. A function
of a path and a value gives what is shown instead. What was hidden is struck out of errors and other texts of the
same run too, because code likes to put values into its messages.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from ..errors import ConfigurationError
from .exact import DEEPEST

T = TypeVar("T")

HIDDEN = "(hidden)"
_SHORTEST = 3
"""Hidden values of fewer characters are not struck out of texts: nothing readable would be left."""

Redact = Sequence[str] | Callable[[str, Any], Any]
"""Paths, or a function of a path and a value."""
Rule = Callable[[str, Any], Any]
"""A function of a path, whose parts have BETWEEN between them, and a value."""
BETWEEN = "\0"
"""Between the parts of a path: a name may have dots in it, and must not pass for two."""


def rule_of(redact: Redact | None) -> Rule | None:
    """What was given as ``redact=``, as a function; None: nothing is hidden."""
    if redact is None:
        return None
    if callable(redact):
        asked = redact
        return lambda path, value: asked(path.replace(BETWEEN, "."), value)
    if isinstance(redact, str) or not all(isinstance(path, str) and path.strip(".") for path in redact):
        raise ConfigurationError(
            'redact= takes a list of paths, as in redact=["password", "card.number"], or a function of path and value'
        )
    if not redact:
        return None
    one_of = "|".join(r"[.\0]".join(map(_pattern, path.strip(".").casefold().split("."))) for path in redact)
    ends_so = re.compile(rf"(?:^|[.\0])(?:{one_of})\Z", re.DOTALL)
    return lambda path, value: HIDDEN if ends_so.search(path.casefold()) else value


def _pattern(part: str) -> str:
    """One part of a path, where ``*`` stands for anything that a name can hold."""
    return r"[^\0]*".join(map(re.escape, part.split("*")))


class Veil:
    """Hides parts of what one answer shows, and remembers what it hid."""

    def __init__(self, rule: Rule | None) -> None:
        self._rule = rule
        self._hidden: set[str] = set()

    @property
    def hides(self) -> bool:
        """Whether anything is hidden at all."""
        return self._rule is not None

    def anew(self) -> Veil:
        """Another one of the same rule, which has hidden nothing yet."""
        return Veil(self._rule)

    def value(self, value: Any, path: str) -> Any:
        """A payload, without what is to be hidden. ``path`` says what it is: ``input``, ``output``, ``arguments`` …"""
        return value if self._rule is None else self._shown(value, path)

    def text(self, text: str) -> str:
        """A text of the same run, without the values that were hidden so far."""
        for secret in sorted(self._hidden, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text

    def _shown(self, value: Any, path: str, depth: int = 0) -> Any:
        assert self._rule is not None
        shown = self._rule(path, value) if depth <= DEEPEST else HIDDEN
        if shown is not value and shown != value:
            self._remember(value)
            return shown
        if isinstance(value, dict):
            return {key: self._shown(part, _inside(path, key), depth + 1) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._shown(part, path, depth + 1) for part in value]
        return value

    def _remember(self, hidden: Any) -> None:
        """All that stands in what was hidden, however deep. Of names only those that code would not give: a name that
        is data, as an address is, can be a secret, and striking out every ``id`` would leave nothing readable."""
        values = [hidden]
        while values:
            value = values.pop()
            if isinstance(value, dict):
                values += [*value.values(), *(key for key in value if not str(key).isidentifier())]
            elif isinstance(value, (list, tuple)):
                values += value
            elif value is not None and not isinstance(value, bool):
                self._hidden.update(form for form in _forms(value) if len(form) >= _SHORTEST)


async def aside(veil: Veil, work: Callable[[], T]) -> T:
    """Do what hides payloads, in a thread if anything is hidden: one of megabytes takes seconds, and other requests are
    answered meanwhile."""
    return await asyncio.to_thread(work) if veil.hides else work()


def _inside(path: str, name: object) -> str:
    """The path of a field."""
    return f"{path}{BETWEEN}{str(name).replace(BETWEEN, '')}"


def _forms(value: Any) -> tuple[str, ...]:
    """How a value can stand in a text."""
    written = str(getattr(value, "text", value))
    return written, repr(written)[1:-1], _json(written)


def _json(text: str) -> str:
    """As it stands in JSON, without the quotes."""
    return msgspec.json.encode(text).decode()[1:-1]
