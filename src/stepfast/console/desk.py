"""What all pages of one console share: the application they look at, what is hidden, and how often they look again."""

from __future__ import annotations

from ..app import Stepfast
from ..watching.onlooker import onlooker
from .live import Tabs
from .redacting import Rule, Veil


class Desk:
    """Made once per console."""

    def __init__(self, app: Stepfast, rule: Rule | None, read_only: bool) -> None:
        self.app = app
        self.look = onlooker(app)
        """The same application for pages: it only reads, and its questions are bounded and shared by all tabs."""
        self.rule = rule
        """What is hidden of payloads; None: nothing."""
        self.read_only = read_only
        self.tabs = Tabs(app)

    def veil(self) -> Veil:
        """A new veil, for one answer about one run."""
        return Veil(self.rule)
