"""Conversations of agents in the database of an application, for integrations of agents."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .engine.host import current_call
from .engine.invocation import refuse_in_workflow
from .model.backoff import seconds
from .model.names import check_name
from .store.flows.checkpoints import made_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .app import Stepfast
    from .runtime import Connected

_MOST = 1_000_000
"""Items that are read of a session without a limit."""
_BATCH = 100
"""Sessions that are deleted in one transaction."""


class Conversation:
    """A list of items, under the id of a session. All items are JSON, and pass through the codec of the application."""

    def __init__(self, app: Stepfast, session: str) -> None:
        self._app = app
        self._session = check_name(session, "the id of a session", app.settings.max_name)

    async def items(self, limit: int | None = None) -> list[Any]:
        """The items in their order; with a limit the last ones."""
        connected = await self._connect("get_items")
        most = _MOST if limit is None else limit
        if most <= 0:
            return []
        rows = await connected.ask(lambda: connected.store.session_items(self._session, most), "session")
        return [self._decode(row.value, row.format) for row in reversed(rows)]

    async def add(self, items: Sequence[Any], *, once: bool = False) -> None:
        """Add items to the end, in one transaction. ``once``: the calling step adds these items once, however often it
        is executed."""
        texts = [self._app._payloads.encode(item, "an item of a session") for item in items]
        if not texts:
            return
        connected, format_ = await self._connect("add_items"), self._app._payloads.format
        batch = (self._step("add", *texts) if once else None) or connected.new_id()
        await connected.ask(lambda: connected.store.add_session_items(self._session, batch, texts, format_), "session")

    async def pop(self, *, once: bool = False) -> Any | None:
        """Take the last item off. ``once``: the calling step gets the same one, however often it is executed."""
        connected, format_ = await self._connect("pop_item"), self._app._payloads.format
        step = self._step("pop") if once else None
        taker = step or connected.new_id()
        row = await connected.ask(lambda: connected.store.take_session_item(self._session, taker, format_), "session")
        if row is not None and step is None:
            await connected.ask(lambda: connected.store.forget_session_item(self._session, taker), "session")
        return None if row is None else self._decode(row.value, row.format)

    async def clear(self) -> None:
        """Remove all items."""
        connected = await self._connect("clear_session")
        await connected.ask(lambda: connected.store.delete_sessions([self._session]), "session")

    async def _connect(self, called: str) -> Connected:
        refuse_in_workflow(f"a session ({called})", "a runner that takes the session")
        return await self._app._connect()

    def _step(self, *what: str) -> str | None:
        """The id of what the calling step does; None outside of steps."""
        call = current_call.get()
        return None if call is None else made_id("session", call.step_key, self._session, *what)

    def _decode(self, text: str, format_: int) -> Any:
        return self._app._payloads.decode(text, Any, format_, "an item of a session")


async def delete_older(app: Stepfast, older_than: float | timedelta) -> int:
    """Delete sessions to which nothing was added for so long; how many."""
    age = int(seconds(older_than, "older_than") * 1000)
    connected, gone = await app._connect(), 0
    while True:
        count = await connected.ask(lambda: connected.store.delete_old_sessions(age, _BATCH), "session")
        gone += count
        if count < _BATCH:
            return gone
