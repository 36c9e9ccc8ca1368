"""Wake-ups by LISTEN and NOTIFY: coalesced, never required, limited in rate, and not believed until one has arrived."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Annotated, Any

import asyncpg
import msgspec

from ...errors import StepfastError, sentence
from ...model.ids import new_id
from ...model.records import Lane
from ..answers import Wakeups
from .connections import Connector
from .errors import translate
from .transactions import closing

_MOST_IN_A_BUNDLE = 500
"""Lanes in one bundle; if there are more, the database is asked which have something."""


class Bucket:
    """Credits that come back with time."""

    def __init__(self, most: float, per_second: float) -> None:
        self._most = most
        self._per_second = per_second
        self._credits = most
        self._at = time.monotonic()

    def take(self) -> float:
        """Use one up: 0. Or the seconds until there is one."""
        now = time.monotonic()
        self._credits = min(self._most, self._credits + (now - self._at) * self._per_second)
        self._at = now
        if self._credits < 1:
            return (1 - self._credits) / self._per_second
        self._credits -= 1
        return 0.0


class Doorbell:
    """Passes wake-ups on. A look costs this process a question to the database, and is rarer than news of lanes."""

    def __init__(self, heard: Callable[[Wakeups], None]) -> None:
        self._heard = heard
        self._news, self._looks = Bucket(500, 250), Bucket(100, 50)
        self._lanes: set[Lane] = set()
        self._ended = self._look = self._streams = False
        self._timer: asyncio.TimerHandle | None = None

    def ring(self, wakeups: Wakeups) -> None:
        """Pass wake-ups on now, or with others a little later."""
        self._lanes |= wakeups.lanes
        self._ended |= wakeups.ended
        self._look |= wakeups.anything
        self._streams |= wakeups.streams
        if len(self._lanes) > _MOST_IN_A_BUNDLE:
            self._lanes, self._look = set(), True
        if self._timer is None:
            self._pass_on()

    def _pass_on(self) -> None:
        self._timer = None
        wait = (self._looks if self._look else self._news).take()
        if wait > 0:
            self._timer = asyncio.get_running_loop().call_later(wait, self._pass_on)
            return
        wakeups = Wakeups(frozenset(self._lanes), self._ended, self._look, self._streams)
        self._lanes, self._ended, self._look, self._streams = set(), False, False, False
        self._heard(wakeups)

    def close(self) -> None:
        """The last listener has left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_LIMIT = 7900
"""Postgres takes payloads below 8000 bytes."""
_LOOK = Wakeups(frozenset(), True, True, True)

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1000, pattern=r"^[^\x00]+$")]
Number = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class Message(msgspec.Struct):
    """A notification. Every user that may connect can send one, so it is typed and bounded before it is used."""

    sender: str = msgspec.field(default="", name="from")
    lanes: list[tuple[Name, Name, Number]] = []
    ended: bool = False
    look: bool = False
    streams: bool = False
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
        wakeups.streams,
    )
    text = msgspec.json.encode(message).decode()
    return text if len(text.encode()) < _LIMIT else "look"


def _understood(payload: str) -> Message | None:
    """What a notification says, if it is one of ours. One of another application may be anything, also too deep to be
    read."""
    try:
        return _decoder.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


_PATIENCE = 2.0
"""Seconds for which a probe is waited for: until then it is not said whether wake-ups arrive."""


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
                logger.exception("listening: unexpected error; trying again")  # without it, all workers poll
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
        """Called by the driver, which must not meet an error, also if another application sends nonsense."""
        try:
            message = _understood(payload)
            if message is None:
                heard(_LOOK)  # a message that is not ours, on our channel, still means: poll
            elif message.probe is not None:
                if (probe := self._arrived.get(message.probe)) is not None:
                    probe.set()
            elif message.sender != self.me:
                heard(
                    Wakeups(
                        frozenset(Lane(*lane) for lane in message.lanes), message.ended, message.look, message.streams
                    )
                )
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
