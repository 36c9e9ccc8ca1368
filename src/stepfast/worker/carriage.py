"""The transport of remote steps as one event loop uses it: opened with the first remote step, and not before.

An application without remote steps pays nothing for it: no connection, no tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..documents import cite
from ..errors import ConfigurationError
from ..model.remote_steps import Way
from ..store import Store
from .transport import Transport

_NONE = (
    "ctx.remote needs a transport, over which workers elsewhere are reached: those that serve remote steps cannot read "
    "this application's SQLite file. Pass Stepfast(transport=SqlTransport(url)) with the URL of a PostgreSQL or "
    "MariaDB/MySQL database that they can reach (from stepfast.remote import SqlTransport), or keep the application "
    f"itself on PostgreSQL. See {cite('how-to/remote-steps')}"
)


class Carriage:
    """The transport, its prefix, and whether it takes part in the store's own transactions."""

    def __init__(self, store: Store, make: Callable[[], Transport] | None, joined: bool = False) -> None:
        self._store = store
        self._make = make
        self._joined = joined
        self._opening: asyncio.Future[Way] | None = None
        self._made: Transport | None = None
        self._transport: Transport | None = None
        """The one that was made, once it is open."""
        self.way: Way | None = None
        """How remote steps go out, once somebody has asked."""

    @property
    def exists(self) -> bool:
        """Whether there is any transport."""
        return self._make is not None

    @property
    def transport(self) -> Transport:
        """The transport, which was opened."""
        assert self._transport is not None
        return self._transport

    async def find_way(self) -> Way:
        """How remote steps go out. If that is over another database, a run need not wait until it can be reached: its
        steps lie in the outbox until then."""
        if self._joined:
            return await self.open()
        return self._way_of(self._given())

    async def open(self) -> Way:
        """Open it, once, whoever asks. Its tables are made unless it was told not to."""
        if self._transport is not None:
            return self._way_of(self._transport)
        transport = self._given()
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open(transport))
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    def _given(self) -> Transport:
        if self._make is None:
            raise ConfigurationError(_NONE)
        if self._made is None:
            self._made = self._make()
        return self._made

    async def _open(self, transport: Transport) -> Way:
        await transport.open()
        if self._joined:
            self._store.carry(transport)
        self._transport = transport
        return self._way_of(transport)

    def _way_of(self, transport: Transport) -> Way:
        self.way = Way(transport.prefix, self._joined)
        return self.way

    def _opened(self, opening: asyncio.Future[Way]) -> None:
        """Whoever comes after a failure begins anew."""
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # there may be nobody who waits for it any more

    async def close(self) -> None:
        """Close what was opened."""
        if self._opening is not None:
            await asyncio.wait((self._opening,))
        transport, self._transport, self._made, self.way = self._transport, None, None, None
        if transport is not None:
            await transport.close()
