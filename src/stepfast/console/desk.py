"""What all pages of one console share: the application they look at, what is hidden, and who keeps it up to date."""

from __future__ import annotations

from dataclasses import dataclass

from ..app import Stepfast
from .redacting import Rule, Veil


@dataclass(frozen=True, slots=True)
class Desk:
    """Made once per console."""

    app: Stepfast
    rule: Rule | None
    """What is hidden of payloads; None: nothing."""
    read_only: bool

    def veil(self) -> Veil:
        """A new veil, for one answer about one run."""
        return Veil(self.rule)
