"""The names of spans: few, because backends keep statistics of each; names that are made at run time may be many."""

from __future__ import annotations

from typing import Final

MOST_NAMES: Final = 500
"""Names per process. What comes after them is only called by its kind, and says its name as an attribute."""
LONGEST: Final = 100
"""Characters of a name that are shown."""


class SpanNames:
    """Remembers which names were used."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._known: dict[tuple[str, str], str] = {}

    def of(self, kind: str, name: str) -> str:
        """The name of a span: ``step charge``; or ``step``, if there are too many."""
        known = self._known.get((kind, name))
        if known is None:
            if len(self._known) >= self._most:
                return kind
            shown = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
            known = self._known[kind, name] = f"{kind} {shown}"
        return known
