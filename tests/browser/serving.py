"""A console that listens, in a thread of its own with an event loop of its own; the test that looks at it waits."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, TypeVar

import uvicorn

from stepfast import Stepfast
from stepfast.console.serving import standing_alone

TOKEN = "a-token-of-the-tests"
_LONGEST = 30.0

T = TypeVar("T")


class Served:
    """A console, where it is, and the application behind it."""

    def __init__(self, app: Stepfast, loop: asyncio.AbstractEventLoop, port: int) -> None:
        self.app = app
        self.url = f"http://127.0.0.1:{port}"
        self._loop = loop

    def call(self, work: Callable[[Stepfast], Awaitable[T]]) -> T:
        """Do something with the application, in its own event loop."""

        async def done() -> T:
            return await asyncio.wait_for(work(self.app), _LONGEST)

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(_LONGEST + 5)


@contextmanager
def serving(opened: Callable[[], AbstractAsyncContextManager[Stepfast]]) -> Iterator[Served]:
    """Serve the console of an application until the block is left. ``opened`` makes the application and whatever belongs
    to it (a worker, a lab)."""
    found: list[Served] = []
    ready, over = threading.Event(), threading.Event()
    problems: list[BaseException] = []

    async def serve() -> None:
        async with opened() as app, _listening(app) as port:
            found.append(Served(app, asyncio.get_running_loop(), port))
            ready.set()
            while not over.is_set():
                await asyncio.sleep(0.05)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # told to the test, which would else wait for nothing
            problems.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="a console of the tests", daemon=True)
    thread.start()
    ready.wait(_LONGEST)
    try:
        if not found:
            raise RuntimeError("the console did not begin") from next(iter(problems), None)
        yield found[0]
    finally:
        over.set()
        thread.join(_LONGEST)
    if problems:
        raise problems[0]


@asynccontextmanager
async def _listening(app: Stepfast) -> AsyncIterator[int]:
    console: Any = standing_alone(app, token=TOKEN, host="127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            console, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield int(listener.getsockname()[1])
        finally:
            server.should_exit = True
            await task
