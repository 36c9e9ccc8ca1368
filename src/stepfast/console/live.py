"""Open tabs ask again by themselves. How soon is said by the server, so that all of them together ask little."""

from __future__ import annotations

from ..app import Stepfast
from ..monitoring.changes import TabPace, asked_so_far


class Tabs:
    """The turns of all tabs of one console."""

    def __init__(self, app: Stepfast) -> None:
        self._app = app
        self._pace = TabPace(app.settings.watch_rate)

    def asked(self) -> int:
        """How many questions were put to the database so far."""
        return asked_so_far(self._app)

    def again(self, soonest: float | None, before: int) -> float | None:
        """In how many seconds a tab asks for its page again, which has just asked all questions since ``before``; None:
        never, because nothing on it will change."""
        return None if soonest is None else self._pace.again(soonest, self.asked() - before)
