"""Wake-ups by LISTEN/NOTIFY: coalesced, never required, and not believed until one has arrived."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated, Any

import asyncpg
import msgspec

from ...errors import StepfastError, sentence
from ...model.ids import new_id
from ...model.records import Lane
from ..protocol import Wakeups
from .connections import Connector
from .doorbell import Doorbell
from .server_errors import translate
from .transactions import closing

_LIMIT = 7900
"""Postgres takes payloads below 8000 bytes."""
_LOOK = Wakeups(frozenset(), True, True)

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1000, pattern=r"^[^\x00]+$")]
Number = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class Message(msgspec.Struct):
    """A notification. Whoever may connect can send one, so it is typed and bounded before anybody uses it."""

    sender: str = msgspec.field(default="", name="from")
    lanes: list[tuple[Name, Name, Number]] = []
    ended: bool = False
    look: bool = False
    probe: str | None = None


_decoder = msgspec.json.Decoder(Message)

logger = logging.getLogger("stepfast.store")


def encode_wakeups(wakeups: Wakeups, sender: str) -> str:
    """The payload of a notification; if the lanes do not fit, it only says "look"."""
    message = Message(
        sender,
        [(lane.queue, lane.workflow, lane.priority) for lane in sorted(wakeups.lanes)],
        wakeups.ended,
        wakeups.anything,
    )
    text = msgspec.json.encode(message).decode()
    return text if len(text.encode()) < _LIMIT else "look"


def _understood(payload: str) -> Message | None:
    """What a notification says, if it is one of ours. A stranger's may be anything, also too deep to be read."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


_PATIENCE = 2.0
"""Seconds for which a probe is waited for: until then nobody is told whether wake-ups arrive."""


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
            except StepfastError as error:
                logger.debug("listening: %s", sentence(error))
            except Exception:
                logger.exception("listening: unexpected error; trying again")  # without it, everybody polls
            await asyncio.sleep(wait)
            wait = min(wait * 2, self._retry)

    async def try_once(self) -> bool:
        """Whether wake-ups arrive at all, for the doctor."""
        if self.works:
            return True
        async with closing(await self._connector.connect()) as connection:
            try:
                await connection.add_listener(
                    self._channel, lambda _c, _p, _n, text: self._receive(text, lambda _: None)
                )
            except asyncpg.ReadOnlySQLTransactionError:
                return False  # a standby
            return await self._probe(new_id())

    async def _listen_once(self, heard: Callable[[Wakeups], None]) -> None:
        connection = await self._connector.connect()
        closed, doorbell = asyncio.Event(), Doorbell(heard)
        nonce, probed = new_id(), False

        def receive(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
            if probed and nonce in payload:
                self.works = True  # the word came late, but it came: the server was busy
            self._receive(payload, doorbell.ring)

        try:
            async with closing(connection):
                connection.add_termination_listener(lambda _: closed.set())
                await connection.add_listener(self._channel, receive)
                self.works, probed = await self._probe(nonce), True
                heard(_LOOK)
                await closed.wait()
        except Exception as error:
            raise translate(error) from None
        finally:
            self.works = False
            doorbell.close()

    def _receive(self, payload: str, heard: Callable[[Wakeups], None]) -> None:
        """Called by the driver, which must not meet an error, whatever a stranger sends."""
        try:
            message = _understood(payload)
            if message is None:
                heard(_LOOK)  # somebody else's words on our channel still mean: look
            elif message.probe is not None:
                if (probe := self._arrived.get(message.probe)) is not None:
                    probe.set()
            elif message.sender != self.me:
                heard(Wakeups(frozenset(Lane(*lane) for lane in message.lanes), message.ended, message.look))
        except Exception:
            logger.exception("a wake-up could not be passed on")

    async def _probe(self, nonce: str) -> bool:
        """Send a word to ourselves over another connection and see whether it soon arrives."""
        event = self._arrived[nonce] = asyncio.Event()
        message = msgspec.json.encode(Message(probe=nonce)).decode()
        try:
            async with closing(await self._connector.connect()) as sender:
                await sender.execute("SELECT pg_catalog.pg_notify($1, $2)", self._channel, message)
                async with asyncio.timeout(_PATIENCE):
                    await event.wait()
            return True
        except TimeoutError:
            return event.is_set()  # it may have come while the connection was being closed
        finally:
            del self._arrived[nonce]
