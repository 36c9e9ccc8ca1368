"""The heartbeat's own connection, in the heartbeat's own thread, with an event loop of its own.

Neither a blocked event loop of the application nor an exhausted pool can keep it from beating.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ...errors import DatabaseUnavailable
from ...model.records import BeatAnswer, Held
from .connections import Connector
from .server_errors import translate
from .transactions import close_quietly, drop


class PostgresPulse:
    """Synchronous heartbeats over a connection nobody else uses."""

    def __init__(self, connector: Connector, statements: dict[str, str], patience: float) -> None:
        self._connector = connector
        self._beat = statements["beat"]
        self._held = statements["held"]
        self._patience = patience
        self._loop = asyncio.new_event_loop()
        self._connection: Any = None

    def beat(self, worker: str, running: int) -> BeatAnswer:
        """Say that the worker lives; hear what it holds."""
        return self._loop.run_until_complete(self._beat_once(worker, running))

    def close(self) -> None:
        """Give the connection up."""
        if self._connection is not None:
            self._loop.run_until_complete(close_quietly(self._connection))
        self._loop.close()

    async def _beat_once(self, worker: str, running: int) -> BeatAnswer:
        try:
            async with asyncio.timeout(self._patience):
                if self._connection is None or self._connection.is_closed():
                    self._connection = await self._connector.connect()
                alive = await self._connection.fetchval(self._beat, worker, running)
                if alive is None:
                    return BeatAnswer(False)
                rows = await self._connection.fetch(self._held, worker)
                return BeatAnswer(True, [Held(str(row[0]), row[1], row[2]) for row in rows])
        except Exception as error:
            known = translate(error)
            if isinstance(known, DatabaseUnavailable) and self._connection is not None:
                drop(self._connection)
                self._connection = None
            raise known from None
