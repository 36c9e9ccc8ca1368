"""Wake-ups by LISTEN/NOTIFY: coalesced, never required, and not believed until one has arrived."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from ...errors import DatabaseUnavailable, sentence
from ...model.ids import new_id
from ...model.records import Lane
from ..protocol import Wakeups
from .connections import Connector, close_quietly
from .server_errors import translate

_LIMIT = 7900
"""Postgres takes payloads below 8000 bytes."""
_LOOK = Wakeups(frozenset(), True, True)

logger = logging.getLogger("stepfast.store")


def encode_wakeups(wakeups: Wakeups, sender: str) -> str:
    """The payload of a notification; if the lanes do not fit, it only says "look"."""
    message = {"from": sender, "lanes": sorted(wakeups.lanes), "ended": wakeups.ended, "look": wakeups.look}
    text = msgspec.json.encode(message).decode()
    return text if len(text.encode()) < _LIMIT else "look"


class Listener:
    """Keeps one LISTEN connection alive and passes on what it hears."""

    def __init__(self, connector: Connector, channel: str, retry: float) -> None:
        self._connector = connector
        self._channel = channel
        self._retry = retry
        self._arrived: dict[str, asyncio.Event] = {}
        self.me = new_id()
        """Marks our own notifications: what they tell is known here already."""
        self.works = False
        """Whether a notification sent to ourselves has arrived."""

    async def run(self, heard: Callable[[Wakeups], None]) -> None:
        """Listen until cancelled; reconnect with backoff."""
        wait = 0.1
        while True:
            try:
                await self._listen_once(heard)
                wait = 0.1
            except DatabaseUnavailable as error:
                logger.debug("listening: %s", sentence(error))
            self.works = False
            await asyncio.sleep(wait)
            wait = min(wait * 2, self._retry)

    async def try_once(self) -> bool:
        """Whether wake-ups arrive at all, for the doctor."""
        if self.works:
            return True
        connection = await self._connector.connect()
        try:
            await connection.add_listener(self._channel, lambda _c, _p, _n, text: self._receive(text, lambda _: None))
            return await self._probe()
        finally:
            await close_quietly(connection)

    async def _listen_once(self, heard: Callable[[Wakeups], None]) -> None:
        connection = await self._connector.connect()
        closed = asyncio.Event()

        def receive(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
            self._receive(payload, heard)

        try:
            connection.add_termination_listener(lambda _: closed.set())
            await connection.add_listener(self._channel, receive)
            self.works = await self._probe()
            heard(_LOOK)
            await closed.wait()
        except Exception as error:
            raise translate(error) from None
        finally:
            await close_quietly(connection)

    def _receive(self, payload: str, heard: Callable[[Wakeups], None]) -> None:
        try:
            message = msgspec.json.decode(payload)
            probe = self._arrived.get(message.get("probe", ""))
            if probe is not None:
                probe.set()
            elif "probe" not in message and message["from"] != self.me:
                lanes = frozenset(
                    Lane(queue, workflow, int(priority)) for queue, workflow, priority in message["lanes"]
                )
                look = bool(message.get("look"))  # older code does not say
                heard(Wakeups(lanes, bool(message["ended"]), look))
        except (msgspec.DecodeError, KeyError, ValueError, TypeError, AttributeError):
            heard(_LOOK)  # somebody else's words on our channel still mean: look

    async def _probe(self) -> bool:
        """Send a word to ourselves over another connection and see whether it arrives."""
        nonce = new_id()
        event = self._arrived[nonce] = asyncio.Event()
        sender = await self._connector.connect()
        try:
            message = msgspec.json.encode({"probe": nonce}).decode()
            await sender.execute("SELECT pg_catalog.pg_notify($1, $2)", self._channel, message)
            async with asyncio.timeout(2):
                await event.wait()
            return True
        except TimeoutError:
            return False
        finally:
            del self._arrived[nonce]
            await close_quietly(sender)
