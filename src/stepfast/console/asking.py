"""The page before an action on anything but one run: names what will happen, and has the form that makes it so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .answers import Page
from .visit import Visit


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked before something is done."""

    title: str
    sentence: str
    """What will happen if it is sent."""
    action: Sequence[str]
    """The parts of the address that the form is sent to."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """What the form sends along unseen."""
    danger: bool = False

    def page(self, visit: Visit, back: str, template: str | None = None, **more: Any) -> Page:
        """The page, with the address that leads back."""
        shown = {"question": self, "back": back, "send_to": visit.url(*self.action), **more}
        shape = {"what_happens": self.sentence, "post_to": visit.url(*self.action), "fields": dict(self.fields)}
        return Page(template or "ask.html", shown, shape)
