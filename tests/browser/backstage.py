"""A thread with an event loop, in which the browser, the servers and the flows of these tests live. Tests with an event
loop of their own run in the same process, and a browser that is kept for all tests must not be in their way."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

_LONGEST = 100.0

T = TypeVar("T")


class Backstage:
    """Does work in its own thread, for callers who wait."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="backstage", daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work gives, or its error."""
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, _LONGEST), self._loop).result(_LONGEST + 5)

    @contextmanager
    def holding(self, manager: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
        """Something that is held open for as long as the block lasts. It is opened and closed by one task."""
        opened: asyncio.Future[T] = self._loop.create_future()
        over = asyncio.Event()

        async def hold() -> None:
            try:
                async with manager() as found:
                    opened.set_result(found)
                    await over.wait()
            except BaseException as error:
                if opened.done():
                    raise
                opened.set_exception(error)

        holder = asyncio.run_coroutine_threadsafe(hold(), self._loop)

        async def wait() -> T:
            return await opened

        yield self.do(wait())
        self._loop.call_soon_threadsafe(over.set)
        holder.result(_LONGEST)

    def close(self) -> None:
        """End the thread; what is held is let go before."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LONGEST)
        self._loop.close()


def in_browser(flow: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test whose body runs backstage. It takes the fixtures that its flow names."""

    @functools.wraps(flow)
    def test(*args: Any, backstage: Backstage, **fixtures: Any) -> None:
        async def run() -> None:
            await flow(*args, **fixtures)

        backstage.do(run())

    named = inspect.signature(flow)
    more = inspect.Parameter("backstage", inspect.Parameter.KEYWORD_ONLY)
    setattr(test, "__signature__", named.replace(parameters=[*named.parameters.values(), more]))  # noqa: B010
    return test
