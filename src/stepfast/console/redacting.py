"""What must not be seen is not sent: parts of payloads are hidden before anything is made of them.

``redact=["card.number", "password"]`` hides, in every payload, whatever is found under a path that ends so. A function
of a path and a value gives what is shown instead. What was hidden is struck out of errors and other texts of the
same run too, because code likes to put values into its messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..errors import ConfigurationError

HIDDEN = "(hidden)"
_SHORTEST = 3
"""Hidden values of fewer characters are not struck out of texts: nothing readable would be left."""

Redact = Sequence[str] | Callable[[str, Any], Any]
"""Paths, or a function of a path and a value."""
Rule = Callable[[str, Any], Any]


def rule_of(redact: Redact | None) -> Rule | None:
    """What was given as ``redact=``, as a function; None: nothing is hidden."""
    if redact is None:
        return None
    if callable(redact):
        return redact
    if isinstance(redact, str) or not all(isinstance(path, str) and path.strip(".") for path in redact):
        raise ConfigurationError(
            'redact= takes a list of paths, as in redact=["password", "card.number"], or a function of path and value'
        )
    if not redact:
        return None
    one_of = "|".join(r"[^.]*".join(map(re.escape, path.strip(".").casefold().split("*"))) for path in redact)
    ends_so = re.compile(rf"(?:^|\.)(?:{one_of})$", re.DOTALL)
    return lambda path, value: HIDDEN if ends_so.search(path.casefold()) else value


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

    def _shown(self, value: Any, path: str) -> Any:
        assert self._rule is not None
        shown = self._rule(path, value)
        if shown is not value and shown != value:
            self._remember(value)
            return shown
        if isinstance(value, dict):
            return {key: self._shown(part, f"{path}.{key}") for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._shown(part, path) for part in value]
        return value

    def _remember(self, value: Any) -> None:
        if isinstance(value, dict):
            for part in value.values():
                self._remember(part)
        elif isinstance(value, (list, tuple)):
            for part in value:
                self._remember(part)
        elif value is not None and not isinstance(value, bool):
            written = str(getattr(value, "text", value))
            self._hidden.update(
                form for form in (written, repr(written)[1:-1], _json(written)) if len(form) >= _SHORTEST
            )


def _json(text: str) -> str:
    """As it stands in JSON, without the quotes."""
    return msgspec.json.encode(text).decode()[1:-1]
